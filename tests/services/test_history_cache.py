"""Remembered histories: read on from what is known, and never believed against the store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import RunScope
from holdfast.app import Environment
from holdfast.domain.messages import Message, Text, encode_parts
from holdfast.domain.sessions import Session
from holdfast.ports.store import Tx
from holdfast.services import history_cache
from holdfast.services.history_cache import HistoryCache
from tests.builders import hash_of
from tests.houses import House, open_house, raw, unlocked
from tests.stand_ins import GatedRuntime

pytestmark = pytest.mark.anyio


@pytest.fixture
async def house(home: Path, outside: Environment) -> AsyncIterator[House]:
    """Open a home that plays nothing."""
    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as house:
        yield house


@pytest.fixture
async def session(house: House) -> Session:
    """Write a session of three rows."""
    session = await house.open()
    for text in ("one", "two", "three"):
        await house.send(session.id, text)
    return session


class Reader:
    """Reads histories, and counts the rows that came from the store."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._histories = HistoryCache()
        self.fetched = 0

    async def read(self, session: Session) -> tuple[Message, ...]:
        return await self._house.store.read(lambda tx: self._read(tx, session))

    async def forget(self, session: Session) -> None:
        head = await self._house.store.read(lambda tx: tx.sessions.head(session.owner, session.id))
        assert head is not None
        self._histories.forget(head.key)

    async def _read(self, tx: Tx, session: Session) -> tuple[Message, ...]:
        head = await tx.sessions.head(session.owner, session.id)
        assert head is not None
        return await self._histories.read(Counting(tx, self), head)  # type: ignore[arg-type]


class Counting:
    """A transaction that counts the rows that are read through it."""

    def __init__(self, tx: Tx, reader: Reader) -> None:
        self.sessions = tx.sessions
        self.messages = self
        self._tx = tx
        self._reader = reader

    async def span(self, *args: object, **how: object) -> list[Message]:
        rows = await self._tx.messages.span(*args, **how)  # type: ignore[arg-type]
        self._reader.fetched += len(rows)
        return rows


async def test_only_new_rows_are_read_again(house: House, session: Session) -> None:
    reader = Reader(house)
    assert await reader.read(session) == await house.read(session.id)
    assert reader.fetched == 3

    await house.send(session.id, "four")

    assert await reader.read(session) == await house.read(session.id)
    # The last known row comes along, to prove that all before it is still what it was.
    assert reader.fetched == 3 + 2


async def test_a_session_that_has_ended_is_forgotten(house: House, session: Session) -> None:
    reader = Reader(house)
    await reader.read(session)
    await reader.forget(session)

    assert await reader.read(session) == await house.read(session.id)
    assert reader.fetched == 3 + 3


async def test_a_session_without_rows_has_no_history(house: House) -> None:
    reader = Reader(house)
    session = await house.open()

    assert await reader.read(session) == ()
    message = await house.send(session.id, "one")
    assert await reader.read(session) == (message,)


async def test_a_store_that_says_otherwise_is_believed(
    house: House, session: Session, home: Path
) -> None:
    reader = Reader(house)
    rows = await reader.read(session)
    forged = type(rows[2])(
        **{name: getattr(rows[2], name) for name in rows[2].__struct_fields__ if name != "parts"},
        parts=(Text(text="other"),),
    )
    sealed = hash_of(forged, bytes.fromhex(rows[1].hash))
    with raw(home) as connection:
        unlocked(connection)
        connection.execute(
            "UPDATE messages SET parts = ?, hash = ? WHERE sequence = 3",
            (encode_parts(forged.parts), sealed),
        )

    assert [row.text for row in await reader.read(session)] == ["one", "two", "other"]


@pytest.mark.parametrize(("texts", "most"), [(("a", "b", "c"), 6_000), (("a" * 10_000,), 12_000)])
async def test_the_oldest_histories_are_forgotten_beyond_what_they_may_weigh(
    house: House,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    texts: tuple[str, ...],
    most: int,
) -> None:
    monkeypatch.setattr(history_cache, "BYTES_MOST", most)
    reader = Reader(house)
    other = await house.open()
    for text in texts:
        await house.send(other.id, text)

    await reader.read(session)
    await reader.read(other)
    reader.fetched = 0

    await reader.read(other)
    assert reader.fetched == 1
    await reader.read(session)
    assert reader.fetched == 1 + 3
