"""Streams that resume by themselves: nothing lost, nothing doubled, whatever the server does."""

import asyncio
import json
import socket
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from holdfast import Holdfast
from holdfast.client import RemoteHoldfast, Timeouts, connect
from holdfast.client.requests import build_query
from holdfast.client.sessions import session_path
from holdfast.client.stream import NOW, FollowRequest, ResumingStream, StreamGap
from holdfast.domain.errors import Code, Conflict, Denied, HoldfastError, NotFound, Unavailable
from holdfast.domain.sessions import SessionRequest
from holdfast.wire.events import Deltas, EventForm, EventsQuery
from tests.cli.processes import beside, running
from tests.client.servers import (
    QUICK,
    Call,
    answering,
    closing,
    connected,
    event,
    gap,
    impostor,
    serving,
    silent,
    streaming,
)
from tests.marks import each_case
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio

News = AsyncGenerator[EventForm | StreamGap, None]
_forms = msgspec.json.Decoder(EventForm)


def follow(
    client: RemoteHoldfast,
    session_id: str,
    *,
    after: int | Literal["now"] = 0,
    deltas: Deltas = Deltas.STEP,
    until_settled: bool = False,
) -> News:
    """Follow a session in the vocabulary of `/v1`, as other clients do."""
    query = EventsQuery(
        since=NOW if after == NOW else None,
        deltas=deltas,
        until="settled" if until_settled else None,
    )
    target = session_path(session_id, "events") + build_query(query)
    request = FollowRequest(target=target, after=after, decode=_forms.decode)
    return ResumingStream(client.requests, request).items()


async def taken(news: News, count: int) -> list[int | tuple[int, int]]:
    """Return the numbers of so many pieces of news, a gap by its ends."""
    found: list[int | tuple[int, int]] = []
    async with asyncio.timeout(PATIENCE), aclosing(news):
        async for item in news:
            is_gap = isinstance(item, StreamGap)
            found.append((item.from_sequence, item.to_sequence) if is_gap else item.sequence)
            if len(found) == count:
                break
    return found


async def test_a_session_is_followed_to_the_end_of_its_turn(holdfast: Holdfast) -> None:
    async with serving(holdfast) as at, connect(at.url, at.secret, timeouts=QUICK) as client:
        session = await client.open("holdfast")
        await client.send(session.id, "What is 2+3?")
        news = [item async for item in follow(client, session.id, until_settled=True)]
        again = [item async for item in follow(client, session.id, after=3, until_settled=True)]

    words = [item.event_type for item in news if isinstance(item, EventForm)]
    assert words[:4] == ["session.opened", "message.created", "session.started", "step.started"]
    assert words[-1] == "session.completed"
    assert [item.sequence for item in news if isinstance(item, EventForm)] == list(
        range(1, len(news) + 1)
    )
    assert again == news[3:]


async def test_whoever_does_not_want_deltas_is_told_of_no_gap(holdfast: Holdfast) -> None:
    async with serving(holdfast) as at, connect(at.url, at.secret, timeouts=QUICK) as client:
        session = await client.open("holdfast")
        await client.send(session.id, "What is 2+3?")
        news = follow(client, session.id, deltas=Deltas.NONE, until_settled=True)
        none = [item async for item in news]
        news = follow(client, session.id, deltas=Deltas.BOTH, until_settled=True)
        both = [item async for item in news]

    kept = [item for item in both if isinstance(item, EventForm)]
    assert "step.generating" in {item.event_type for item in kept}
    assert "message.delta" in {item.event_type for item in kept}
    silent_words = {"step.generating", "message.delta"}
    assert none == [item for item in kept if item.event_type not in silent_words]


async def test_connections_that_the_server_ends_are_taken_up_again(holdfast: Holdfast) -> None:
    async with (
        serving(holdfast, life=0.0) as at,
        connect(at.url, at.secret, timeouts=QUICK) as client,
    ):
        session = await client.open("holdfast")
        news = follow(client, session.id, after=1)
        hearing = asyncio.create_task(taken(news, 3))
        await client.send(session.id, "What is 2+3?")

        assert await hearing == [2, 3, 4]


@pytest.mark.torture
@pytest.mark.slow
async def test_a_server_killed_in_the_middle_costs_nothing_and_doubles_nothing(
    home: Path, tmp_path: Path
) -> None:
    port = free_port()
    script = tmp_path / "script.json"
    hangs, answers = {"text": "never", "delay_ms": 600_000}, {"text": "word " * 500, "chunks": 500}
    script.write_text(json.dumps([hangs]))
    heard: list[EventForm] = []

    with serve_process(home, port) as first:
        secret = (home / "token").read_text().strip()
        async with connect(f"http://127.0.0.1:{port}", secret, timeouts=QUICK) as client:
            wish = SessionRequest(model=f"scripted:{script}")
            session = await client.open("holdfast", wish)
            await client.send(session.id, "go")
            async with aclosing(follow(client, session.id)) as news:
                heard += await until(news, "step.started")
                first.kill()
                first.wait()
                script.write_text(json.dumps([answers]))
                # Another process of the same home; and a third, when the second is in the middle.
                with serve_process(home, port) as second:
                    heard += await until(news, "step.generating")
                    second.kill()
                    second.wait()
                    with serve_process(home, port):
                        heard += await until(news, "session.completed")
                        head = (await client.sessions.get(client.owner, session.id)).last_event

    assert [item.sequence for item in heard] == list(range(1, head + 1))
    told = json.loads(beside(home, "sessions", "events", session.id, "--json").stdout)
    assert [each["sequenceNumber"] for each in told["data"]] == [each.sequence for each in heard]


@contextmanager
def serve_process(home: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Run a server of a home in a process of its own, until it listens and as long as wanted."""
    with running(home, "serve", "--port", str(port), "--json") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process


async def until(news: News, word: str) -> list[EventForm]:
    """Return the news up to a word."""
    found: list[EventForm] = []
    async with asyncio.timeout(2 * PATIENCE):
        async for item in news:
            assert isinstance(item, EventForm)
            found.append(item)
            if item.event_type == word:
                break
    return found


async def test_a_cut_stream_goes_on_behind_the_last_number() -> None:
    first = streaming(connected(0), event(1), event(2), event(3)[:-20])
    second = streaming(connected(2), event(3), event(4))
    async with impostor(silent(), first, second) as server, connect(server.url) as client:
        assert await taken(follow(client, "s"), 4) == [1, 2, 3, 4]

    assert [call.headers.get("last-event-id") for call in server.calls] == ["0", "0", "2"]


async def test_what_was_told_is_not_told_again() -> None:
    first = streaming(connected(0), event(1), event(1), event(2), event(1))
    second = streaming(connected(2), event(1), event(2), event(3))
    async with impostor(first, second) as server, connect(server.url) as client:
        assert await taken(follow(client, "s"), 3) == [1, 2, 3]


async def test_a_cut_between_the_two_words_of_an_event_doubles_neither() -> None:
    first = streaming(connected(0), event(1, "step.generating", id=False))
    second = streaming(
        connected(0),
        event(1, "step.generating", id=False),
        event(1, "message.delta"),
        event(2, "step.generating", id=False),
        event(2, "message.delta"),
    )
    async with (
        impostor(first, second) as server,
        connect(server.url) as client,
        aclosing(follow(client, "s", deltas=Deltas.BOTH)) as news,
    ):
        heard = [await anext(news) for _ in range(4)]

    assert [(item.sequence, item.event_type) for item in heard if isinstance(item, EventForm)] == [
        (1, "step.generating"),
        (1, "message.delta"),
        (2, "step.generating"),
        (2, "message.delta"),
    ]


async def test_a_hole_is_not_stepped_over() -> None:
    holed = streaming(connected(0), event(1), event(3))
    whole = streaming(connected(1), event(2), event(3))
    async with impostor(holed, whole) as server, connect(server.url) as client:
        assert await taken(follow(client, "s"), 3) == [1, 2, 3]


async def test_numbers_that_will_not_come_are_told_unless_they_were_not_wanted() -> None:
    stream = streaming(connected(0), gap(1, 4), event(5), gap(6, 9, "null"), event(10))
    async with impostor(stream) as server, connect(server.url) as client:
        assert await taken(follow(client, "s"), 3) == [(1, 4), 5, 10]


async def test_a_stream_that_falls_silent_is_begun_anew() -> None:
    async def stalls(call: Call) -> None:
        await call.stream(connected(0), event(1))
        # Until the client hangs up.
        await call.reader.read()

    brief = Timeouts(silence=0.05, pause=0.01)
    async with (
        impostor(stalls, streaming(connected(1), event(2))) as server,
        connect(server.url, timeouts=brief) as client,
    ):
        assert await taken(follow(client, "s"), 2) == [1, 2]


async def test_a_sign_of_life_is_enough() -> None:
    beaten = asyncio.Event()

    async def beats(call: Call) -> None:
        await call.stream(connected(0), event(1))
        for _ in range(10):
            await asyncio.sleep(0.03)
            await call.say(": hb\n\n")
        beaten.set()
        await call.say(event(2))
        await call.reader.read()

    brief = Timeouts(silence=0.2, pause=0.01)
    async with impostor(beats) as server, connect(server.url, timeouts=brief) as client:
        assert await taken(follow(client, "s"), 2) == [1, 2]

    assert beaten.is_set()
    assert len(server.calls) == 1


async def test_a_reader_comes_back_when_it_was_told_to() -> None:
    shut = streaming(connected(0), event(1), closing("shutdown", retry=150))
    async with (
        impostor(shut, streaming(connected(1), event(2))) as server,
        connect(server.url, timeouts=QUICK) as client,
    ):
        began = asyncio.get_running_loop().time()
        assert await taken(follow(client, "s"), 2) == [1, 2]

    assert asyncio.get_running_loop().time() - began >= 0.15


async def test_now_is_where_the_server_says_it_is() -> None:
    first = streaming(connected(7), event(8))
    second = streaming(connected(8), event(9))
    async with impostor(first, second) as server, connect(server.url) as client:
        assert await taken(follow(client, "s", after="now"), 2) == [8, 9]

    assert server.calls[0].head.startswith("GET /v1/sessions/s/events?since=now ")
    assert [call.headers.get("last-event-id") for call in server.calls] == [None, "8"]


@each_case(
    ("status", "code", "kind"),
    [
        (400, "invalid_query", HoldfastError),
        (401, "unauthenticated", Denied),
        (403, "forbidden", Denied),
        (404, "session_not_found", NotFound),
        (409, "cursor_ahead", Conflict),
    ],
)
async def test_what_coming_back_cannot_mend_is_raised(
    status: int, code: str, kind: type[HoldfastError]
) -> None:
    refused = answering(status, json.dumps({"error": code, "message": "No.", "details": {}}))
    async with (
        impostor(streaming(connected(0), event(1)), refused) as server,
        connect(server.url, timeouts=QUICK) as client,
    ):
        with pytest.raises(kind) as raised:
            await taken(follow(client, "s"), 2)

    assert raised.value.code is Code(code)
    assert len(server.calls) == 2


@each_case("status", [429, 500, 502, 503, 507])
async def test_what_may_pass_is_waited_out(status: int) -> None:
    body = '{"error":"store_busy","message":"Later.","details":{}}'
    busy = answering(status, body)
    async with (
        impostor(busy, busy, streaming(connected(0), event(1))) as server,
        connect(server.url, timeouts=QUICK) as client,
    ):
        assert await taken(follow(client, "s"), 1) == [1]


@each_case(
    "frames",
    [
        (event(1),),
        (connected(5), event(6)),
        ("event: connected\ndata: nonsense\n\n",),
        (connected(0), "id: 1\nevent: x\ndata: nonsense\n\n"),
        (connected(0), "id: 2\n" + event(1, id=False)),
        (connected(0), gap(4, 5)),
        (connected(0), event(3)),
    ],
)
async def test_a_server_that_keeps_lying_is_not_listened_to_for_ever(
    frames: tuple[str, ...],
) -> None:
    async with (
        impostor(streaming(*frames)) as server,
        connect(server.url, timeouts=QUICK) as client,
    ):
        with pytest.raises(Unavailable) as refused:
            await taken(follow(client, "s"), 1)

    assert refused.value.code is Code.UNKNOWN_ANSWER
    assert len(server.calls) == 8


async def test_a_page_is_no_stream() -> None:
    page = answering(200, "<html>", "content-type: text/html")
    async with impostor(page) as server, connect(server.url, timeouts=QUICK) as client:
        with pytest.raises(Unavailable, match="not an event stream"):
            await taken(follow(client, "s"), 1)


async def test_where_there_never_was_a_server_it_is_said() -> None:
    async with impostor(silent()) as server:
        url = server.url

    async with connect(url, timeouts=Timeouts(request=0.05, pause=0.01, longest=0.02)) as client:
        with pytest.raises(Unavailable) as refused:
            await taken(follow(client, "s"), 1)

    assert refused.value.code is Code.SERVER_UNREACHABLE


async def test_a_deleted_session_ends_its_stream_with_an_error(holdfast: Holdfast) -> None:
    async with serving(holdfast) as at, connect(at.url, at.secret, timeouts=QUICK) as client:
        session = await client.open("holdfast")
        async with aclosing(follow(client, session.id)) as news:
            await anext(news)
            await client.sessions.delete(client.owner, session.id)
            with pytest.raises(NotFound):
                async with asyncio.timeout(PATIENCE):
                    await anext(news)


def free_port() -> int:
    """Return a port that nobody listens on; it can be taken twice in a row."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
