"""A model that says half a sentence and waits: what a test needs to be in the middle of one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.llm.dialects import CHAT, Saying
from tests.torture.crew import PATIENCE

MODEL = CHAT.model


class Speaker(ThreadingHTTPServer):
    """Speaks as a provider does, up to a gate; the rest follows when somebody opens it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.gate = threading.Event()
        self.words: tuple[str, str] = ("", "")

    @property
    def environment(self) -> dict[str, str]:
        """Return what leads a server to this model."""
        url = f"http://127.0.0.1:{self.server_port}{CHAT.prefix}"
        return {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "model": MODEL}

    def begin(self, before: str, after: str) -> None:
        """Set what is said before the gate, which is shut now, and after it."""
        self.gate.clear()
        self.words = (before, after)


class _Answering(BaseHTTPRequestHandler):
    server: Speaker

    def do_POST(self) -> None:
        """Answer a request in pieces."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        pieces = CHAT.stream(Saying(text=self.server.words))
        self.wfile.write(b"".join(pieces[:2]))
        self.server.gate.wait(PATIENCE)
        self.wfile.write(b"".join(pieces[2:]))

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def handle(self) -> None:
        """Answer; whoever hangs up in the middle was meant to."""
        try:
            super().handle()
        except OSError:
            self.close_connection = True


@contextmanager
def speaking() -> Iterator[Speaker]:
    """Listen as a provider would."""
    with Speaker() as speaker:
        thread = threading.Thread(target=speaker.serve_forever)
        thread.start()
        try:
            yield speaker
        finally:
            speaker.gate.set()
            speaker.shutdown()
            thread.join()
