"""What stands before every route: who was asked for, and what browsers are told.

Judged on the raw headers, before any path is looked at.
"""

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.domain.errors import Code, Denied
from holdfast.http.errors import error_response

# A browser that is pointed here may keep, run, frame and guess nothing.
HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
LOOPBACK_NAMES: Final = frozenset({b"127.0.0.1", b"localhost", b"[::1]"})


class Guard:
    """Refuses requests that name another host, and sets the security headers of all answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A lifespan names no host, and the server takes no websockets.
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if is_loopback_request(scope):
            await self._app(scope, receive, _with_headers(send))
            return
        # A page elsewhere can make its own name point here; it cannot make ours.
        refusal = error_response(
            Denied(Code.NOT_LOOPBACK, "Ask for this server as 127.0.0.1 or localhost.")
        )
        await refusal(scope, receive, _with_headers(send))


def is_loopback_request(scope: Scope) -> bool:
    """Tell whether the request names exactly one host, and that one is this machine."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    # Of two, whatever stands before us may have judged the other one.
    if len(hosts) != 1:
        return False
    name, colon, port = hosts[0].lower().rpartition(b":")
    # `[::1]` has colons of its own, and none of them leads to a port.
    if not colon or not port.isdigit():
        name = hosts[0].lower()
    return name in LOOPBACK_NAMES


def _with_headers(send: Send) -> Send:
    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return told
