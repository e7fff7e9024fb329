"""The stream: complete, resumable from anywhere, and ended with a reason."""

import asyncio
from typing import Any

import pytest

from holdfast.domain.tokens import Scope
from holdfast.http import sse
from holdfast.http.app import Application
from holdfast.services import event_stream
from tests.http.sse_reader import HEARTBEAT, Frame, listening
from tests.http.v1.client import A_STRANGER, Visitor, refusal
from tests.marks import demands, each_case
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


def events(session: Json, query: str = "") -> str:
    return f"/v1/sessions/{session['id']}/events{query}"


async def a_conversation(visitor: Visitor) -> Json:
    session = await visitor.session()
    await visitor.told(session, "How much is 2+2?")
    found: Json = (await visitor.get(f"/v1/sessions/{session['id']}")).document
    return found


def numbers(frames: list[Frame]) -> list[int | None]:
    return [frame.id for frame in frames if frame.event not in {"connected", "closing", HEARTBEAT}]


@demands("S2-080")
async def test_a_stream_replays_all_that_is_kept_and_says_when_the_replay_is_over(
    visitor: Visitor,
) -> None:
    session = await a_conversation(visitor)

    async with listening(visitor.app, events(session, "?until=settled"), visitor.secret) as reader:
        connected, *frames, closing = await reader.ended()

    assert reader.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reader.headers["cache-control"] == "no-cache, no-transform"
    assert reader.headers["x-accel-buffering"] == "no"
    assert "content-length" not in reader.headers
    assert connected == Frame(
        "connected",
        None,
        {
            "session_id": session["id"],
            "after": 0,
            "head": session["last_event"],
            "status": "completed",
        },
        retry=1000,
    )
    assert [frame.event for frame in frames] == [
        "session.opened",
        "message.created",
        "session.started",
        "step.started",
        "step.generating",
        "step.generated",
        "message.created",
        "session.completed",
    ]
    assert numbers(frames) == list(range(1, session["last_event"] + 1))
    assert closing == Frame(
        "closing",
        None,
        {"reason": "settled", "after": session["last_event"], "retry_ms": 1000},
        retry=1000,
    )


async def test_a_reader_that_comes_back_gets_exactly_the_rest(visitor: Visitor) -> None:
    session = await a_conversation(visitor)
    last = session["last_event"]

    for after in range(last + 1):
        async with listening(
            visitor.app,
            events(session, "?until=settled&since=0"),
            visitor.secret,
            last_event_id=str(after),
        ) as reader:
            frames = await reader.ended()
        assert numbers(frames) == list(range(after + 1, last + 1))


async def test_a_reader_may_begin_at_an_event_or_now(visitor: Visitor) -> None:
    session = await a_conversation(visitor)
    page = (await visitor.get(events(session, "?format=json"))).document["data"]

    async with listening(
        visitor.app, events(session, f"?until=settled&since={page[2]['id']}"), visitor.secret
    ) as reader:
        assert numbers(await reader.ended()) == list(range(4, session["last_event"] + 1))
    async with listening(
        visitor.app, events(session, "?until=settled&since=now"), visitor.secret
    ) as reader:
        assert numbers(await reader.ended()) == []


@each_case(
    ("cursor", "expected"),
    [
        ("9", (409, "cursor_ahead")),
        ("9" * 18, (409, "cursor_ahead")),
        ("9" * 19, (400, "invalid_query")),
        ("-1", (400, "invalid_query")),
        ("1.0", (400, "invalid_query")),
        ("soon", (400, "invalid_query")),
        (A_STRANGER, (404, "event_not_found")),
    ],
)
async def test_a_cursor_that_names_nothing_is_refused_before_the_stream_begins(
    visitor: Visitor, cursor: str, expected: tuple[int, str]
) -> None:
    session = await a_conversation(visitor)

    answer = await visitor.get(events(session, f"?since={cursor}"))

    assert refusal(answer) == expected
    assert answer.headers["content-type"] == "application/json"


async def test_news_reach_a_reader_that_waits(visitor: Visitor) -> None:
    session = await a_conversation(visitor)

    async with listening(visitor.app, events(session, "?since=now"), visitor.secret) as reader:
        await reader.until("connected")
        await visitor.say(session, "How much is 3+3?")
        frames = await reader.until("session.completed")

    first = session["last_event"] + 1
    assert numbers(frames) == list(range(first, first + len(frames)))


async def test_a_reader_chooses_its_words_for_text_and_no_number_is_missing(
    visitor: Visitor,
) -> None:
    session = await a_conversation(visitor)
    heard: dict[str, list[tuple[str, int | None]]] = {}

    for wish in ("step", "message", "both", "none"):
        path = events(session, f"?until=settled&since=3&deltas={wish}")
        async with listening(visitor.app, path, visitor.secret) as reader:
            frames = await reader.ended()
        heard[wish] = [(frame.event, frame.id) for frame in frames[2:-4]]

    assert heard == {
        "step": [("step.generating", 5)],
        "message": [("message.delta", 5)],
        "both": [("step.generating", None), ("message.delta", 5)],
        "none": [("gap", 5)],
    }


async def test_what_was_left_out_on_request_needs_no_resynchronisation(visitor: Visitor) -> None:
    session = await a_conversation(visitor)

    path = events(session, "?until=settled&since=4&deltas=none")
    async with listening(visitor.app, path, visitor.secret) as reader:
        frames = await reader.ended()

    assert frames[1].data == {"from": 5, "to": 5, "reason": "filtered", "resync": None}


@demands("S2-047")
async def test_a_deleted_session_ends_its_streams(visitor: Visitor) -> None:
    session = await a_conversation(visitor)

    async with listening(visitor.app, events(session), visitor.secret) as reader:
        await reader.until("session.completed")
        await visitor.delete(f"/v1/sessions/{session['id']}")
        *_, closing = await reader.ended()

    assert closing.data["reason"] == "deleted"


async def test_a_server_that_stops_says_so_and_spreads_the_returns(visitor: Visitor) -> None:
    session = await a_conversation(visitor)
    app = visitor.app
    assert isinstance(app, Application)

    async with (
        listening(app, events(session), visitor.secret) as one,
        listening(app, events(session), visitor.secret) as other,
    ):
        await one.until("session.completed")
        await other.until("session.completed")
        app.streams.close()
        endings = [(await reader.ended())[-1] for reader in (one, other)]

    assert [each.data["reason"] for each in endings] == ["shutdown", "shutdown"]
    assert sorted(each.retry or 0 for each in endings) == [100, 133]


async def test_a_connection_is_cycled_when_its_time_is_over(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "TICK_SECONDS", 0.01)
    session = await a_conversation(visitor)
    app = visitor.app
    assert isinstance(app, Application)
    monkeypatch.setattr(app.streams, "_life", 0.0)

    async with listening(app, events(session), visitor.secret) as reader:
        *_, closing = await reader.ended()

    assert closing.data["reason"] == "cycle"


async def test_a_heartbeat_moves_no_cursor(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.01)
    session = await a_conversation(visitor)

    async with listening(visitor.app, events(session, "?since=now"), visitor.secret) as reader:
        frames = await reader.until(HEARTBEAT)

    assert frames[-1] == Frame(HEARTBEAT, None, None)


async def test_a_revoked_token_ends_its_streams(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(sse, "TOKEN_SECONDS", 0.01)
    session = await a_conversation(visitor)
    house = visitor.house
    token, secret = await house.tokens.create(house.owner, name="reader", scope=Scope.READ)

    async with listening(visitor.app, events(session, "?since=now"), secret) as reader:
        await reader.until("connected")
        await house.tokens.revoke(house.owner, token.id)
        *_, closing = await reader.ended()

    assert closing.data["reason"] == "revoked"


async def test_a_reader_that_takes_nothing_is_dropped_and_others_do_not_notice(
    quiet_visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(event_stream, "BUFFER_BYTES", 2_000)
    session = await quiet_visitor.session()

    async with (
        listening(quiet_visitor.app, events(session), quiet_visitor.secret) as stuck,
        listening(quiet_visitor.app, events(session), quiet_visitor.secret) as quick,
    ):
        await stuck.until("session.opened")
        await quick.until("session.opened")
        stuck.room.clear()
        for number in range(40):
            await quiet_visitor.say(session, f"{number}")
        frames = [await quick.next() for _ in range(40)]
        async with asyncio.timeout(PATIENCE):
            await stuck.aborted.wait()

    assert numbers(frames) == list(range(2, 42))
    assert not quick.aborted.is_set()


async def test_a_stream_that_is_ended_amid_a_page_skips_nothing_of_it(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "CHUNK_LARGEST", 1)
    # The page ends with text that this reader does not want, and which must not be skipped to.
    monkeypatch.setattr(event_stream, "PAGE_FIRST", 5)
    session = await a_conversation(visitor)
    app = visitor.app
    assert isinstance(app, Application)

    path = events(session, "?deltas=none")
    async with listening(app, path, visitor.secret, most=2) as reader:
        heard = await reader.until("message.created")
        app.streams.close()
        reader.room.set()
        heard += await reader.ended()

    assert [(frame.event, frame.id) for frame in heard] == [
        ("connected", None),
        ("session.opened", 1),
        ("message.created", 2),
        ("closing", None),
    ]
    assert heard[-1].data["after"] == 2


async def test_a_reader_that_does_not_even_take_the_end_is_dropped(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "CLOSE_SECONDS", 0.01)
    session = await a_conversation(visitor)
    app = visitor.app
    assert isinstance(app, Application)

    async with listening(app, events(session), visitor.secret) as reader:
        await reader.until("session.completed")
        reader.room.clear()
        app.streams.close()
        async with asyncio.timeout(PATIENCE):
            await reader.aborted.wait()


async def test_a_busy_stream_has_heartbeats_too(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(sse, "CHUNK_LARGEST", 1)
    session = await a_conversation(visitor)

    path = events(session, "?until=settled")
    async with listening(visitor.app, path, visitor.secret) as reader:
        frames = await reader.ended()

    assert [frame.event for frame in frames].count(HEARTBEAT) >= session["last_event"]


async def test_right_after_its_start_a_server_refuses_no_one_who_sends_and_follows(
    visitor: Visitor,
) -> None:
    clients, turns = 32, 4

    async def send_and_follow() -> list[int]:
        session = await a_conversation(visitor)
        statuses = []
        for _ in range(turns):
            path = f"/v1/sessions/{session['id']}/messages"
            sent = await visitor.post(path, {"role": "user", "content": {"text": "hello"}})
            statuses.append(sent.status)
            wish = events(session, "?until=settled")
            async with listening(visitor.app, wish, visitor.secret, last_event_id="3") as reader:
                *_, closing = await reader.ended()
            assert closing.data["reason"] == "settled"
            statuses.append(reader.status)
        return statuses

    done = await asyncio.gather(*(send_and_follow() for _ in range(clients)))

    assert [set(each) for each in done] == [{201, 200}] * clients
    assert [len(each) for each in done] == [2 * turns] * clients


async def test_streams_that_return_to_a_new_server_begin_as_soon_as_new_ones(
    visitor: Visitor,
) -> None:
    session = await a_conversation(visitor)
    path = events(session, "?until=settled")
    loop = asyncio.get_running_loop()

    async def connect(count: int, **headers: str) -> float:
        async def begin() -> None:
            async with listening(visitor.app, path, visitor.secret, **headers) as reader:
                await reader.until("connected")

        begun = loop.time()
        await asyncio.gather(*(begin() for _ in range(count)))
        return loop.time() - begun

    await connect(1)
    new, returning = await connect(150), await connect(150, last_event_id="3")

    # Compared, because other work slows both down. 30 a second would take 5 s.
    assert returning < 2 * new + 1.5


async def test_a_crowd_is_asked_to_come_back_when_there_is_a_server_again(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MANY_READERS", 1)
    session = await a_conversation(visitor)
    app = visitor.app
    assert isinstance(app, Application)

    async with (
        listening(app, events(session), visitor.secret) as one,
        listening(app, events(session), visitor.secret) as other,
    ):
        await one.until("session.completed")
        await other.until("session.completed")
        app.streams.close()
        endings = [(await reader.ended())[-1] for reader in (one, other)]

    assert sorted(each.retry or 0 for each in endings) == [2000, 3000]


async def test_a_reader_that_leaves_is_forgotten_at_once(visitor: Visitor) -> None:
    session = await a_conversation(visitor)
    app = visitor.app
    assert isinstance(app, Application)

    async with listening(app, events(session), visitor.secret) as reader:
        await reader.until("session.completed")
        assert app.metrics.open_streams == 1

    assert app.metrics.open_streams == 0
    assert app.metrics.delivered_events == session["last_event"]
