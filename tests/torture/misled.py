"""The real command with one thing about it changed: `python -m tests.torture.misled FAULT serve …`.

Most are broken on purpose, for the controls of rows: whoever cannot see these faults could not see
ours. The product is not changed; what is replaced is replaced in this process only.
"""

import itertools
import sys
from collections.abc import Callable
from typing import Any, Final


def brief() -> None:
    """End every connection after a moment, as if its time was over; no fault at all."""
    from holdfast.http import app as http_app
    from holdfast.http import sse

    sse.TICK_SECONDS = 0.05  # type: ignore[misc]
    http_app.AppOptions.__dataclass_fields__["life"].default = 0.3
    http_app.AppOptions.__init__.__kwdefaults__["life"] = 0.3  # type: ignore[index]


def forgetful() -> None:
    """Leave out a piece of news now and then, and say nothing about it."""
    from holdfast.services.event_stream import StreamReader

    _spoil(StreamReader, "read", lambda items: items[1:] if len(items) > 1 else items, every=3)


def repeating() -> None:
    """Tell a piece of news twice now and then."""
    from holdfast.services.event_stream import StreamReader

    _spoil(StreamReader, "read", lambda items: [*items[:1], *items])


def easy() -> None:
    """Take a cursor that cannot be read for the beginning."""
    from holdfast.domain.errors import HoldfastError
    from holdfast.http.v1 import events

    start = events._start

    async def begin(*given: Any) -> int:
        try:
            return await start(*given)
        except HoldfastError:
            return 0

    events._start = begin


def hasty() -> None:
    """Answer first and write a minute later."""
    from tests.torture.spies import EarlyStore

    _wrap(lambda store: EarlyStore(store, delay=60.0))


def regretful() -> None:
    """Refuse messages that have been stored."""
    from tests.torture.spies import RegrettingStore

    _wrap(RegrettingStore)


def trusting() -> None:
    """Take the answer of a client to a call that another one has claimed."""
    from holdfast.services import calls

    calls._claim_fault = lambda *_: None


def reckless() -> None:
    """Let Postgres acknowledge what is not on disk, and believe it."""
    from holdfast.store.postgres import connect
    from holdfast.store.postgres import connection as postgre_connection

    async def believe(_: Any) -> None:
        pass

    postgre_connection._SETTINGS["synchronous_commit"] = "off"
    connect.require_safe = believe


def _wrap(wrap: Callable[[Any], Any]) -> None:
    """Put something of our own around the store."""
    from holdfast import app as holdfast_app

    outside = holdfast_app.Environment
    holdfast_app.Environment = lambda **given: outside(wrap=wrap, **given)  # type: ignore[assignment,misc]


def blind() -> None:
    """Find no message at first: it is told of before it is there."""
    from holdfast.domain.errors import Code, NotFound
    from holdfast.services.messages import Messages

    get = Messages.get
    asked: set[Any] = set()

    async def late(*given: Any, **named: Any) -> Any:
        if given[1:] not in asked:
            asked.add(given[1:])
            raise NotFound(Code.MESSAGE_NOT_FOUND, "Not yet.")
        return await get(*given, **named)

    Messages.get = late  # type: ignore[method-assign]


def watchful() -> None:
    """Look after peers ten times as often; no fault at all."""
    from holdfast.http import server, sse

    sse.TICK_SECONDS = 0.1  # type: ignore[misc]
    sse.HEARTBEAT_SECONDS = 1.0  # type: ignore[misc]
    seconds = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_USER_TIMEOUT": 1_500}
    server.STREAM_SOCKET_OPTIONS = tuple(  # type: ignore[misc,assignment]
        (level, name, seconds.get(name, value))
        for level, name, value in server.STREAM_SOCKET_OPTIONS
    )


def oblivious() -> None:
    """Look often, and let the kernel decide when a peer is gone."""
    from holdfast.http import server

    watchful()
    server.STREAM_SOCKET_OPTIONS = ()  # type: ignore[misc,assignment]


def numbering() -> None:
    """Give every control frame a number."""
    from holdfast.http import sse

    plain = sse.control_frame

    def numbered(name: str, data: dict[str, Any], *, retry: int) -> bytes:
        first, rest = plain(name, data, retry=retry).split(b"\n", 1)
        return b"%s\nid: %d\n%s" % (first, data["after"], rest)

    sse.control_frame = numbered  # type: ignore[assignment]


def raw() -> None:
    """Let line ends through as they are."""
    from holdfast.http.v1 import events

    plain = events.encode_json

    def unescaped(content: Any) -> bytes:
        return plain(content).replace(b"\\n", b"\n").replace(b"\\r", b"\r")

    events.encode_json = unescaped  # type: ignore[attr-defined]


def hospitable() -> None:
    """Let every page in: what the browser says of it is not heard, and it may read the answers."""
    from holdfast.http.app import Application

    answer = Application.__call__
    guards = {b"content-security-policy", b"cross-origin-resource-policy", b"x-frame-options"}

    async def open_to_all(self: Any, scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope["headers"])
        allowed = {
            b"access-control-allow-origin": given.pop(b"origin", b"*"),
            b"access-control-allow-credentials": b"true",
        }
        given |= {b"sec-fetch-site": b"same-origin", b"content-type": b"application/json"}

        async def readable(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = [each for each in message["headers"] if each[0] not in guards]
                message["headers"] = [*kept, *allowed.items()]
            await send(message)

        await answer(self, {**scope, "headers": list(given.items())}, receive, readable)

    Application.__call__ = open_to_all  # type: ignore[method-assign]


def herding() -> None:
    """Ask all readers to come back at the same moment; no fault at all."""
    from holdfast.http import sse

    sse.RETURN_SPREAD = 0  # type: ignore[misc]


def patient() -> None:
    """Keep everything for a reader until it has read it, however much that is."""
    from uvicorn.protocols.http.flow_control import FlowControl

    from holdfast.http import server
    from holdfast.services.event_stream import StreamReader

    # The system would end it, too, some time after a reader has taken nothing.
    server.STREAM_SOCKET_OPTIONS = ()  # type: ignore[misc,assignment]
    StreamReader.is_too_slow = property(lambda _: False)  # type: ignore[assignment,method-assign]
    FlowControl.pause_writing = lambda _: None  # type: ignore[method-assign,assignment]


def whole() -> None:
    """Make every answer whole in memory, for as many readers as ask, and wait for all of them."""
    from holdfast.http import app, bodies, limits, server

    server.STREAM_SOCKET_OPTIONS = ()  # type: ignore[misc,assignment]
    app.SEND_SECONDS = 1e9  # type: ignore[misc]
    bodies.WHOLE_LARGEST = 1 << 40  # type: ignore[misc]
    limits.ResponseBudget._fits = lambda *_: True  # type: ignore[method-assign]


def _spoil(owner: type, name: str, change: Callable[[Any], Any], every: int = 7) -> None:
    """Change what a method gives, every now and then."""
    method = getattr(owner, name)
    count = itertools.count(1)

    async def spoilt(*given: Any, **named: Any) -> Any:
        result = await method(*given, **named)
        return change(result) if next(count) % every == 0 else result

    setattr(owner, name, spoilt)


FAULTS: Final[dict[str, Callable[[], None]]] = {
    each.__name__: each
    for each in (
        *(blind, brief, easy, forgetful, hasty, herding, hospitable, numbering, oblivious),
        *(patient, raw, reckless, regretful, repeating, trusting, watchful, whole),
    )
}


def main() -> None:
    """Change what the first argument says and become the command."""
    FAULTS[sys.argv.pop(1)]()
    from holdfast.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
