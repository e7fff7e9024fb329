"""Every reader that takes bytes or words from outside: wire decoders, transcripts, policies."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpcore2
import msgspec

from holdfast.acp.rpc.framing import (
    JsonRpcNotification,
    JsonRpcReply,
    JsonRpcRequest,
    Junk,
    LineSplitter,
    parse_line,
)
from holdfast.client.stream import InvalidStreamError, SseParser
from holdfast.domain.errors import Invalid
from holdfast.domain.events import decode_payload
from holdfast.domain.messages import decode_parts
from holdfast.domain.queries import decode_count, decode_cursor, encode_count
from holdfast.domain.tools import Grant
from holdfast.http import repo_sessions
from holdfast.http.app import V1_ROUTES
from holdfast.http.requests import Request as HttpRequest
from holdfast.http.requests import decode_body, decode_query
from holdfast.http.routing import Route
from holdfast.http.sse import event_frames
from holdfast.parsing.agent_files import parse_agent
from holdfast.tools.files.access import FileAccess, FileSettings
from holdfast.tools.files.openat import probe_kernel
from holdfast.tools.files.patterns import LinePattern, glob_matcher
from holdfast.tools.run_command import CommandArguments, is_allowed, split_entry
from holdfast.tools.tool import ToolFailure, UnansweredRequest
from holdfast.tools.web.exchange import LimitedHead, WebExchange
from holdfast.tools.web.ssrf import blocked_reason, read_url, require_domain
from holdfast.zones.lines import LineCount, count_lines
from holdfast.zones.replay import PAGE, WINDOW, output_preview, plan_replay, snapshot_preview
from tests.acp.session_updates import a_translator
from tests.tools.file_fixture import Workshop
from tests.torture.frames import frame_of
from tests.torture.fuzzing import Prey

GRANTS = (Grant(commands=("git status", "ls"), domains=("example.com",)),)
STORED = (msgspec.MsgspecError, ValueError, RecursionError)
FILTERS = ("sessions", "local")
UPDATE = {
    "update": {
        "sessionUpdate": "tool_call",
        "toolCallId": "c",
        "title": "read",
        "kind": "read",
        "status": "completed",
        "rawInput": {"path": "a"},
        "locations": [{"path": "a", "line": 1}],
        "content": [{"type": "content", "content": {"type": "text", "text": "x"}}],
    }
}
SNAPSHOT = {
    "version": 2,
    "highWaterMark": 3,
    "nodes": [{"type": "user", "message": "hello"}],
    "filters": {"showThinking": True},
}


def prey(folder: Path) -> Iterator[Prey]:
    """Yield every reader; files are looked for below a folder of the test's own."""
    yield from wires()
    yield from transcripts()
    yield from policies(folder)


def wires() -> Iterator[Prey]:
    """Yield what reads a wire, and the one that writes to it."""
    routes = [route for route in (*V1_ROUTES, *repo_sessions.routes) if isinstance(route, Route)]
    bodies = [route.body for route in routes if route.body is not None and route.parse_body is None]
    queries = [route.query for route in routes if route.query is not None]
    good = tuple(_line(each) for route in routes if (each := route.example) is not None)
    yield Prey("bodies", good, _each(bodies, _body), (Invalid,))
    yield Prey("queries", (b"limit=5&cursor=x&status=idle",), _each(queries, _query), (Invalid,))
    yield Prey("cursors", (_cursor(), b"e30"), _cursors, (Invalid,))
    yield Prey(
        "streams", (b"id: 7\nevent: x\ndata: {}\n\n: hb\n\n",), _stream, (InvalidStreamError,)
    )
    yield Prey("stream writer", (b"a word", b"\n\ndata: x"), _written)
    yield Prey("answers of servers", (_ANSWER, _CHUNKED), _answer, (UnansweredRequest,))
    lines = (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{}}\n', _line({"result": {}}))
    yield Prey("lines of programs", lines, _lines)
    yield Prey("updates of programs", (_line(UPDATE),), _update)


def transcripts() -> Iterator[Prey]:
    """Yield what reads what was written down, by us or by others."""
    parts = b'[{"type":"text","text":"a"},{"type":"media","mime_type":"image/png","ref":"m"}]'
    yield Prey("stored parts", (parts,), decode_parts, STORED)
    told = b'{"type":"step.delta","step":1,"channel":"text","offset":0,"text":"a"}'
    yield Prey("stored news", (told,), decode_payload, STORED)
    yield Prey("snapshots", (_line(SNAPSHOT),), _snapshot)
    said = b'{"type":"user","message":{"content":[{"type":"text","text":"hi"}]}}\n{"role":"user"}\n'
    yield Prey("transcripts", (said,), _transcript)
    yield Prey("agent files", (_AGENT,), _agent, (Invalid,))


def policies(folder: Path) -> Iterator[Prey]:
    """Yield what decides about paths, addresses, arguments and patterns."""
    shop = Workshop(folder)
    keeper = FileAccess(FileSettings(protected=(str(folder / "home"),)), probe_kernel())
    scope = keeper.scope(shop.place)

    def path(given: bytes) -> None:
        with keeper.resolve_path(scope, given.decode("utf-8", "replace")):
            pass

    paths = (b"a/b.txt", b"../outside/canary.txt", bytes(folder) + b"/inside")
    yield Prey("paths", paths, path, (ToolFailure,))
    yield Prey("addresses of the web", _URLS, _url, (ToolFailure,))
    yield Prey("addresses of machines", (b"10.0.0.1", b"::ffff:127.0.0.1", b"fe80::1%eth0"), _host)
    calls = (b'{"command":"git","args":["status"],"timeout_s":5}', b'{"command":"ls"}')
    yield Prey("arguments", calls, _arguments, (msgspec.MsgspecError, ValueError))
    yield Prey("patterns", (b"a*b", b"**/[a-z]?.py", b"(a|b)+"), _pattern, (ToolFailure,))


_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: text/plain\r\n\r\nok"
_CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
_AGENT = b"id: a\nprovider: p\nmodel: m\ntools:\n  - read_file\nsystem_prompt: |\n  Hi\n"
_URLS = (b"https://example.com/a?b=c", b"https://[::1]:443/", b"https://xn--bcher-kva.example/")
_HEADERS = {"content-type": "application/json"}


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _cursor() -> bytes:
    return (encode_count((5, "a"), FILTERS) or "").encode()


def _each(kinds: list[Any], read: Callable[[bytes, Any], object]) -> Callable[[bytes], None]:
    """Return a reader that gives each input to one kind after the other."""
    turn = [0]

    def reader(given: bytes) -> None:
        turn[0] += 1
        read(given, kinds[turn[0] % len(kinds)])

    return reader


async def _nothing() -> Any:
    raise AssertionError("a body that was read is read again")


def _body(given: bytes, kind: Any) -> None:
    request = HttpRequest(method="POST", path="/", query="", headers=_HEADERS, receive=_nothing)
    decode_body(request, given, kind)


def _query(given: bytes, kind: Any) -> None:
    decode_query(given.decode("latin-1"), kind, tolerant=bool(len(given) % 2))


def _cursors(given: bytes) -> None:
    text = given.decode("utf-8", "replace")
    decode_count(text, FILTERS)
    decode_cursor(text, FILTERS)


def _stream(given: bytes) -> None:
    frames = SseParser()
    for start in range(0, len(given), 7):
        frames.feed(given[start : start + 7])


def _written(given: bytes) -> None:
    """Write any words, and read them back by the letter of the contract."""
    said = given.decode("utf-8", "replace")
    frame = frame_of(
        event_frames(7, [("message", msgspec.json.encode(said))]).removesuffix(b"\n\n")
    )
    if (frame.id, frame.data) != (7, said):
        raise AssertionError(f"written {said!r}, read {frame}")


def _answer(given: bytes) -> None:
    asyncio.run(_read_response(given))


async def _read_response(given: bytes) -> None:
    request = httpcore2.Request("GET", "https://example.com/", headers=[("host", "example.com")])
    stream = httpcore2.AsyncMockStream([given])
    response = await WebExchange(request, LimitedHead(stream), None).answer()
    async for _ in response.chunks():
        pass


def _lines(given: bytes) -> None:
    splitter = LineSplitter()
    for line in (*splitter.feed(given), *splitter.rest()):
        found = line if isinstance(line, Junk) else parse_line(line)
        if not isinstance(found, Junk | JsonRpcRequest | JsonRpcNotification | JsonRpcReply):
            raise AssertionError(found)


def _update(given: bytes) -> None:
    found = parse_line(
        b'{"jsonrpc":"2.0","method":"session/update","params":' + given.strip() + b"}"
    )
    if isinstance(found, JsonRpcNotification):
        translator = a_translator()
        translator.update(found.params, now=0.0, size=len(given))
        translator.end(found.params)


def _snapshot(given: bytes) -> None:
    plan_replay(given, 10, window=WINDOW, page=PAGE)
    snapshot_preview(given)


def _transcript(given: bytes) -> None:
    lines = given.split(b"\n")
    output_preview(lines)
    whole = count_lines(LineCount(), given)
    halves = count_lines(
        count_lines(LineCount(), given[: len(given) // 2]), given[len(given) // 2 :]
    )
    if whole.lines != halves.lines:
        raise AssertionError(f"{whole.lines} lines, in two pieces {halves.lines}")


def _agent(given: bytes) -> None:
    parse_agent(given.decode("utf-8", "replace"), where="a.agent.yaml")


def _url(given: bytes) -> None:
    require_domain(read_url(given.decode("utf-8", "replace")), GRANTS)


def _host(given: bytes) -> None:
    blocked_reason(given.decode("utf-8", "replace"))


def _arguments(given: bytes) -> None:
    is_allowed(GRANTS, msgspec.json.decode(given, type=CommandArguments).call)
    split_entry(given.decode("utf-8", "replace"))


def _pattern(given: bytes) -> None:
    text = given.decode("utf-8", "replace")
    glob_matcher(text)("a/b.py")
    LinePattern(text).matches(b"a line")
