"""A conversation at a terminal: from the provider's first byte to the token on the screen."""

import json
import os
import pty
import select
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

from bench.figures import Figure, below, measures, middle

TURNS = 30
PATIENCE = 30.0


@measures("first_token_ms")
def first_token(folder: Path) -> dict[str, Figure]:
    """A provider on a real socket, the real command on a real terminal, one clock for both."""
    samples = []
    with _provider() as provider, _terminal(folder / "home", provider.url) as screen:
        screen.until(b"Ctrl-D leaves.")
        for number in range(TURNS):
            screen.type(f"turn {number}\r")
            screen.until(f"word{number}.".encode())
            shown = time.perf_counter()
            samples.append((shown - provider.sent.get(timeout=PATIENCE)) * 1000)
            provider.seen.put(number)
            screen.until(b"tokens in")
    return {"first_token_ms": below(middle(samples), "ms", 30)}


class _Provider(ThreadingHTTPServer):
    """Streams an answer of one word, and ends it when the word was seen."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self.turn = 0
        self.sent: Queue[float] = Queue()
        self.seen: Queue[int] = Queue()


class _Answer(BaseHTTPRequestHandler):
    server: _Provider

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        word, self.server.turn = f"word{self.server.turn}.", self.server.turn + 1
        first = _chunk({"role": "assistant", "content": word})
        self.server.sent.put(time.perf_counter())
        self.wfile.write(first)
        self.server.seen.get(timeout=PATIENCE)
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.wfile.write(_chunk({}, finish_reason="stop"))
        self.wfile.write(_chunk(None, usage=usage) + b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _chunk(delta: object, *, finish_reason: str | None = None, usage: object = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-4.1",
        "choices": [] if delta is None else [choice],
        "usage": usage,
    }
    return f"data: {json.dumps(body)}\n\n".encode()


@contextmanager
def _provider() -> Iterator[_Provider]:
    provider = _Provider()
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    try:
        yield provider
    finally:
        provider.shutdown()
        provider.server_close()


class _Screen:
    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._unread = b""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def until(self, text: bytes) -> None:
        """Read on until a text has appeared."""
        while text not in self._unread:
            if not select.select([self._terminal], [], [], PATIENCE)[0]:
                raise TimeoutError(f"{text!r} never appeared in {self._unread[-2_000:]!r}")
            self._unread += os.read(self._terminal, 1 << 16)
        self._unread = self._unread.partition(text)[2]


@contextmanager
def _terminal(home: Path, url: str) -> Iterator[_Screen]:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 100))
    command = str(Path(sys.executable).parent / "holdfast")
    own = {"HOLDFAST_HOME": str(home), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    # No real key is needed, and none may be in reach.
    own |= {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": url, "PATH": os.environ["PATH"]}
    process = subprocess.Popen(
        [command, "chat", "--model", "openai:gpt-4.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=own,
    )
    os.close(theirs)
    try:
        yield _Screen(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
