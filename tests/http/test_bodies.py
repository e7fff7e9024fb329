"""Large answers: complete, in pieces, within a budget, and over for readers that stop."""

import asyncio
import gc
import gzip
import weakref
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import pytest

from holdfast.domain.errors import LimitReached
from holdfast.domain.ids import Owner, SessionId, TokenId
from holdfast.domain.tokens import Caller, Scope
from holdfast.http import bodies
from holdfast.http.app import Application
from holdfast.http.limits import (
    CALLER_BYTES,
    LARGE,
    RETRY_SECONDS,
    STARTING_MOST,
    TOTAL_BYTES,
    WAITING_MOST,
    ResponseBudget,
)
from holdfast.services import batches
from holdfast.store.sqlite.store import READERS
from tests.http.sse_reader import Listener, listening
from tests.http.v1.client import Visitor, refusal

pytestmark = pytest.mark.anyio

TEXT = "so many words, " * 20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few hundred bytes be much."""
    monkeypatch.setattr("holdfast.http.bodies.WHOLE_LARGEST", 1_000)
    monkeypatch.setattr("holdfast.services.batches.BATCH_BYTES", 700)
    monkeypatch.setattr("holdfast.services.messages.BATCH_BYTES", 700)


def room_of(visitor: Visitor) -> ResponseBudget:
    """Return the budget of the application."""
    return cast(Application, visitor.app)._context.response_budget


async def recorded(visitor: Visitor, count: int) -> dict[str, Any]:
    """Return a session with so many messages."""
    session = await visitor.session()
    for number in range(count):
        body = {"role": "system", "content": {"text": f"{number} {TEXT}"}}
        await visitor.post(f"/v1/sessions/{session['id']}/messages", body)
    return session


def numbers(document: dict[str, Any]) -> list[int]:
    """Return the numbers of listed messages."""
    return [row["sequence"] for row in document["data"]]


async def test_a_list_without_a_limit_is_complete_however_large(visitor: Visitor) -> None:
    session = await recorded(visitor, 12)

    answer = await visitor.get(f"/v1/sessions/{session['id']}/messages")

    assert "content-length" not in answer.headers
    assert numbers(answer.document) == list(range(1, 13))
    assert answer.document["next_cursor"] is None
    assert answer.document["data"] == [
        (await visitor.get(f"/v1/sessions/{session['id']}/messages/{row['id']}")).document
        for row in answer.document["data"]
    ]
    assert room_of(visitor).held == 0


async def test_the_last_ones_before_a_number_are_complete(visitor: Visitor) -> None:
    session = await recorded(visitor, 12)
    path = f"/v1/sessions/{session['id']}/messages"

    plain = await visitor.get(f"{path}?before=11&limit=8")
    chosen = await visitor.get(f"{path}?before=11&limit=8&role=system")

    assert numbers(plain.document) == numbers(chosen.document) == list(range(3, 11))


async def test_a_page_that_is_too_large_ends_early_and_its_cursor_leads_on(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.http.v1.messages.PAGE_BYTES", 2_000)
    session = await recorded(visitor, 12)
    path = f"/v1/sessions/{session['id']}/messages?limit=10"
    pages = [(await visitor.get(path)).document]

    while cursor := pages[-1]["next_cursor"]:
        pages.append((await visitor.get(f"{path}&cursor={cursor}")).document)

    assert len(pages) > 2
    assert [number for page in pages for number in numbers(page)] == list(range(1, 13))


async def test_what_is_compressed_is_the_same(visitor: Visitor) -> None:
    session = await recorded(visitor, 12)
    path = f"/v1/sessions/{session['id']}/export?format=markdown"

    plain = await visitor.get(path)
    packed = await visitor.get(path, accept_encoding="gzip")

    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert plain.body.count(TEXT.encode()) == 12


async def test_who_asks_for_the_head_only_holds_nothing(visitor: Visitor) -> None:
    session = await recorded(visitor, 12)

    answer = await visitor.ask("HEAD", f"/v1/sessions/{session['id']}/messages")

    assert (answer.status, answer.body) == (200, b"")
    assert room_of(visitor).held == 0


async def test_a_session_that_is_deleted_meanwhile_ends_the_connection(visitor: Visitor) -> None:
    session = await recorded(visitor, 12)

    async with reading(visitor, f"/v1/sessions/{session['id']}/messages") as reader:
        await visitor.house.sessions.delete(visitor.house.owner, SessionId(session["id"]))
        reader.room.set()
        await asyncio.wait_for(reader.aborted.wait(), 10)

    assert room_of(visitor).held == 0


async def test_a_reader_that_stops_reading_is_disconnected(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.http.bodies.SEND_SECONDS", 0.1)
    session = await recorded(visitor, 12)

    async with reading(visitor, f"/v1/sessions/{session['id']}/messages") as reader:
        await asyncio.wait_for(reader.aborted.wait(), 10)

    assert room_of(visitor).held == 0


async def test_a_reader_whose_token_is_revoked_is_disconnected(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.http.bodies.TOKEN_SECONDS", 0.0)
    session = await recorded(visitor, 12)
    other = await visitor.as_(visitor.house.owner, Scope.READ)

    async with reading(other, f"/v1/sessions/{session['id']}/messages") as reader:
        tokens = visitor.house.tokens
        for token in await tokens.list(visitor.house.owner):
            await tokens.revoke(visitor.house.owner, token.id)
        reader.room.set()
        await asyncio.wait_for(reader.aborted.wait(), 10)


async def test_who_has_used_up_the_budget_is_told_to_wait(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.http.limits.WAIT_SECONDS", 0.1)
    monkeypatch.setattr("holdfast.http.bodies.STREAM_BYTES", CALLER_BYTES)
    session = await recorded(visitor, 12)
    path = f"/v1/sessions/{session['id']}/messages"
    other = await visitor.as_(visitor.house.owner, Scope.READ)

    async with reading(visitor, path):
        refused = await visitor.get(path)
        small = await visitor.get(f"/v1/sessions/{session['id']}")
        admitted = await other.get(path)
    after = await visitor.get(path)

    assert refusal(refused) == (429, "answer_limit")
    assert refused.headers["retry-after"] == str(RETRY_SECONDS)
    assert (small.status, admitted.status, after.status) == (200, 200, 200)


async def test_who_waits_is_admitted_when_there_is_room(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.http.bodies.STREAM_BYTES", CALLER_BYTES)
    session = await recorded(visitor, 12)
    path = f"/v1/sessions/{session['id']}/messages"

    async with reading(visitor, path):
        waiting = asyncio.create_task(visitor.get(path))
        await asyncio.sleep(0.05)
        assert not waiting.done()

    assert numbers((await waiting).document) == list(range(1, 13))


@pytest.mark.parametrize("query", ["", "?limit=10"])
async def test_few_responses_are_read_before_their_size_is_known(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    reads = Reads()
    monkeypatch.setattr(
        "holdfast.services.batches.read_messages", reads.watch(batches.read_messages)
    )
    monkeypatch.setattr(
        "holdfast.http.v1.messages.encode_members", reads.hold(bodies.encode_members)
    )
    session = await recorded(visitor, 2)
    path = f"/v1/sessions/{session['id']}/messages{query}"

    answers = await asyncio.gather(*(visitor.get(path) for _ in range(40)))

    assert {answer.status for answer in answers} == {200}
    assert 1 < reads.most <= STARTING_MOST


async def test_who_waits_holds_no_rows(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.http.bodies.STREAM_BYTES", CALLER_BYTES)
    reads = Reads()
    monkeypatch.setattr(
        "holdfast.services.batches.read_messages", reads.watch(batches.read_messages)
    )
    session = await recorded(visitor, 12)
    path = f"/v1/sessions/{session['id']}/messages"

    async with reading(visitor, path):
        waiting = [asyncio.create_task(visitor.get(path)) for _ in range(WAITING_MOST)]
        for _ in range(1_000):
            if room_of(visitor)._waiting < WAITING_MOST:
                await asyncio.sleep(0.01)
        gc.collect()
        # Those of the one that is being read, and the last result of each reader of the store.
        assert reads.alive <= 2 + READERS < WAITING_MOST
        # One more is refused before it reads anything.
        before = reads.count
        assert refusal(await visitor.get(path)) == (429, "answer_limit")
        assert reads.count == before

    for each in waiting:
        assert numbers((await each).document) == list(range(1, 13))
    assert room_of(visitor).held == 0


class Reads:
    """Counts batches of rows: how many were read, and how many are held at the same time."""

    def __init__(self) -> None:
        self.count = self.most = 0
        self._batches: list[weakref.ref[Any]] = []
        self._holding = 0

    @property
    def alive(self) -> int:
        """Return how many batches are in memory."""
        return sum(each() is not None for each in self._batches)

    def watch(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, whose results are watched."""

        async def rows(*given: Any, **more: Any) -> Any:
            self.count += 1
            found = Rows(await read(*given, **more))
            self._batches.append(weakref.ref(found))
            return found

        return rows

    def hold(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, whose calls are counted while they run."""

        async def encoded(*given: Any) -> Any:
            self._holding += 1
            self.most = max(self.most, self._holding)
            await asyncio.sleep(0.01)
            self._holding -= 1
            return await encode(*given)

        return encoded


class Rows(list[Any]):
    """A list that can be referred to weakly."""


@pytest.mark.parametrize("count", [1, 2])
async def test_a_budget_is_for_one_caller_and_for_all(count: int) -> None:
    room = ResponseBudget()
    one, *others = [a_caller(number) for number in range(TOTAL_BYTES // CALLER_BYTES + 2)]
    held = [room.take(one, CALLER_BYTES // count) for _ in range(count)]

    with pytest.raises(LimitReached):
        room.take(one, LARGE)
    with pytest.raises(LimitReached):
        room.require(one)
    for other in others[:-1]:
        if room.held + CALLER_BYTES <= TOTAL_BYTES:
            held.append(room.take(other, CALLER_BYTES))
    with pytest.raises(LimitReached):
        room.take(others[-1], CALLER_BYTES)
    forced = room.take(one, LARGE, always=True)
    for each in (*held, *held, forced):
        each.release()

    assert room.held == 0
    assert room.take(one, 2 * TOTAL_BYTES) is not None


def a_caller(number: int) -> Caller:
    """Return somebody with a token."""
    return Caller(owner=Owner("owner"), scope=Scope.READ, token_id=TokenId(str(number)))


def reading(visitor: Visitor, path: str) -> AbstractAsyncContextManager[Listener]:
    """Ask, and read only the beginning of the answer."""
    return listening(visitor.app, path, visitor.secret, most=1)
