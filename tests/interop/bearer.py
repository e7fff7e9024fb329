"""A door that adds a token to each request, for programs that cannot be told one.

Everything else is passed on as it came, the name of the host included, so that what stands behind
the door judges what the program said. Only where a program asks for something by a name that is
its own, it is led to what there is instead.
"""

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

_OF_THE_CONNECTION: Final = frozenset({"connection", "keep-alive", "transfer-encoding"})


class Door(ThreadingHTTPServer):
    """Listens on any free port from the beginning on; opened once the server behind it is known."""

    def __init__(self, instead: Mapping[tuple[str, str], Mapping[str, Any]] | None = None) -> None:
        """Of a method and a name or an address, `instead` says what is asked for in its place."""
        super().__init__(("127.0.0.1", 0), _Visit)
        self.behind = ""
        self.secret = ""
        self.instead: Final = instead or {}

    def led(self, body: bytes) -> bytes:
        """Return a message, asking for what there is."""
        try:
            message = json.loads(body)
            params = message["params"]
            found = self.instead[message["method"], params.get("name", params.get("uri"))]
        except (ValueError, KeyError, TypeError, AttributeError):
            return body
        return json.dumps({**message, "params": {**params, **found}}).encode()

    @property
    def name(self) -> str:
        """Return what it is asked for by."""
        return f"localhost:{self.server_address[1]}"


@contextmanager
def opened(door: Door, url: str, secret: str) -> Iterator[None]:
    """Let visitors through to a server until the block is left."""
    door.behind, door.secret = urlsplit(url).netloc, secret
    serving = threading.Thread(target=door.serve_forever)
    serving.start()
    try:
        yield
    finally:
        door.shutdown()
        serving.join()
        door.server_close()


class _Visit(BaseHTTPRequestHandler):
    """One request through the door."""

    protocol_version = "HTTP/1.1"
    server: Door

    def _pass_on(self) -> None:
        body = self.server.led(self.rfile.read(int(self.headers.get("content-length", 0))))
        behind = http.client.HTTPConnection(self.server.behind, timeout=60)
        behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _OF_THE_CONNECTION | {"authorization", "content-length"}:
                behind.putheader(name, value)
        behind.putheader("authorization", f"Bearer {self.server.secret}")
        behind.putheader("content-length", str(len(body)))
        behind.endheaders(body)
        answer = behind.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_THE_CONNECTION | {"content-length"}:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        behind.close()

    do_GET = do_POST = do_DELETE = do_PUT = do_OPTIONS = _pass_on  # noqa: N815 — the library's names

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
