"""The index in the store: it follows what is written, and forgets what is removed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import pytest

from holdfast import Config, Holdfast, RunScope, open_holdfast
from holdfast.config import load
from holdfast.domain.errors import Code, HoldfastError
from holdfast.domain.messages import Role
from holdfast.domain.sessions import Session, SessionRequest
from holdfast.ports.store import Tx
from holdfast.search import index as search_index
from holdfast.search.documents import DocumentOrigin
from holdfast.search.index import Document, IndexRange
from holdfast.search.query import Backlog, SearchQuery
from holdfast.store.database import Database, Row
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio

CANARY = "wjqzvkcanary"


def plain(home: Path) -> Config:
    """Return settings of a store whose bytes can be looked at."""
    return load({"home": home, "encryption": "off"})


@pytest.fixture
async def house(home: Path) -> AsyncIterator[Holdfast]:
    """Open a house that anybody could read, in which nothing is played."""
    async with open_holdfast(config=plain(home), scope=RunScope.NONE) as house:
        yield house


async def said(house: Holdfast, *texts: str, title: str | None = None) -> Session:
    session = await house.open(request=SessionRequest(title=title))
    for text in texts:
        await house.send(session.id, text)
    return session


async def catch_up(house: Holdfast, limit: int = 1_000) -> int:
    return await house.store.write(lambda tx: tx.search.catch_up(limit))


async def found(house: Holdfast, text: str) -> list[int | None]:
    page = await house.search.find(house.owner, SearchQuery(text=text, limit=100))
    return [hit.message_sequence for hit in page.items]


async def held(house: Holdfast) -> list[tuple[str, int]]:
    """Return every word that the index holds, and in which document."""

    async def read(tx: Tx) -> list[tuple[str, int]]:
        return await tx.search._db.fetch("SELECT term, doc FROM search_words")  # type: ignore[attr-defined,no-any-return]

    return await house.store.read(read)


def on_disk(home: Path, text: str) -> int:
    files = [path for path in home.rglob("*") if path.is_file()]
    return sum(file.read_bytes().count(text.encode()) for file in files)


async def test_the_index_takes_up_what_waits_some_at_a_time(house: Holdfast) -> None:
    await said(house, "one tide", "two tide", "three tide", title="No tide")
    await said(house, "four tide")
    waiting = await house.store.read(lambda tx: tx.search.backlog())
    steps = []
    while done := await catch_up(house, 2):
        steps.append((done, await found(house, "tide")))

    assert waiting.documents == 6
    assert [done for done, _ in steps] == [2, 2, 2]
    assert {tuple(numbers) for _, numbers in steps} == {(1, 3, 2, 1, None)}
    assert await house.store.read(lambda tx: tx.search.backlog()) == Backlog(0, 0)


async def test_of_large_messages_few_are_read_at_a_time(
    house: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = "tide " * 90_000
    await said(house, "tide", large, large, large, title="No tide")
    await said(house, large * 2)
    await said(house, large)
    read: list[list[int]] = []
    texts = search_index._messages

    def noted(origin: DocumentOrigin, rows: list[Row]) -> Iterator[Document]:
        read[-1] += [number for number, *_ in rows]
        return texts(origin, rows)

    async def begun(database: Database, wanted: list[IndexRange]) -> list[IndexRange]:
        read.append([])
        return await fit(database, wanted)

    fit = search_index._fit
    monkeypatch.setattr(search_index, "_messages", noted)
    monkeypatch.setattr(search_index, "_fit", begun)
    done = await catch_up(house)

    assert (done, read) == (9, [[1, 2, 3], [4], [1], [1]])
    assert await found(house, "tide") == [1, 1, 4, 3, 2, 1, None]
    assert await house.store.read(lambda tx: tx.search.backlog()) == Backlog(0, 0)


async def test_words_of_a_removed_session_leave_no_trace(house: Holdfast, home: Path) -> None:
    kept = await said(house, "a lasting tide")
    session = await said(house, f"{CANARY} tide", f"again {CANARY}", title=f"of {CANARY}")
    await catch_up(house)
    assert (CANARY,) in {word[:1] for word in await held(house)}
    assert on_disk(home, CANARY) > 0

    await house.sessions.delete(house.owner, session.id)

    assert on_disk(home, CANARY) == 0
    assert await found(house, "tide") == [1]
    assert {CANARY, "again"}.isdisjoint(word for word, _ in await held(house))
    assert await house.store.check() == []
    assert (await house.search.rebuild()).differences == ()
    assert (await house.sessions.get(house.owner, kept.id)).id == kept.id


async def test_what_waits_for_the_index_is_removed_with_its_session(
    house: Holdfast, home: Path
) -> None:
    session = await said(house, f"first {CANARY}")
    await catch_up(house)
    await house.send(session.id, f"second {CANARY}")

    await house.sessions.delete(house.owner, session.id)

    assert await house.store.read(lambda tx: tx.search.backlog()) == Backlog(0, 0)
    assert on_disk(home, CANARY) == 0
    assert await held(house) == []


async def test_an_old_title_leaves_no_trace_in_the_index(house: Holdfast) -> None:
    session = await said(house, title=CANARY)
    await catch_up(house)
    await house.sessions.update(house.owner, session.id, {"title": "Another"})
    await catch_up(house)

    assert CANARY not in {word for word, _ in await held(house)}
    assert "another" in {word for word, _ in await held(house)}
    await house.sessions.update(house.owner, session.id, {"title": None})
    await catch_up(house)
    assert await held(house) == []


async def test_much_that_is_removed_is_forgotten_bit_by_bit(
    house: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "REMOVE_BATCH", 1)
    monkeypatch.setattr(search_index, "REMOVE_SECONDS", -1.0)
    session = await said(house, "one tide", "two tide")
    await catch_up(house)

    await house.sessions.delete(house.owner, session.id)

    assert not house.store.is_scrubbed
    assert await found(house, "tide") == []
    while not await house.store.scrub():
        pass
    assert await held(house) == []


async def test_the_index_catches_up_by_itself(
    house: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "WAITING_MOST", Backlog(8, 1 << 20))
    session = await said(house)
    for _ in range(2 * search_index.EVERY):
        await house.send(session.id, "tide")

    async with asyncio.timeout(PATIENCE):
        while not await held(house):
            await house.send(session.id, "tide")

    assert await house.search.rebuild()


async def test_a_large_text_is_indexed_soon(
    house: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "EVERY", 1)
    monkeypatch.setattr(search_index, "WAITING_MOST", Backlog(256, 1_000))
    session = await said(house)

    async with asyncio.timeout(PATIENCE):
        while not await held(house):
            await house.send(session.id, "tide " * 1_000)


async def test_an_index_that_cannot_catch_up_stops_nobody(
    house: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object) -> int:
        raise HoldfastError(Code.INTERNAL, "not now")

    monkeypatch.setattr("holdfast.search.tables.catch_up", refuse)
    monkeypatch.setattr("holdfast.search.tables.remove_documents", refuse)
    monkeypatch.setattr(search_index, "EVERY", 1)
    monkeypatch.setattr(search_index, "WAITING_MOST", Backlog(1, 1))
    session = await said(house, "tide")
    async with asyncio.timeout(PATIENCE):
        while "the search index is behind" not in caplog.text:
            await house.send(session.id, "tide")

    assert 1 in await found(house, "tide")
    await house.sessions.delete(house.owner, session.id)
    assert not house.store.is_scrubbed
    monkeypatch.undo()
    assert await house.store.scrub()


async def test_a_damaged_message_is_left_out_and_hides_no_other(
    house: Holdfast, home: Path
) -> None:
    session = await said(house, "one tide", "two tide", "three tide")
    await house.store.close()
    connection = apsw.Connection(str(home / "history.db"))
    connection.execute("DROP TRIGGER messages_are_never_edited")
    connection.execute("UPDATE messages SET parts = x'5b' WHERE sequence = 2")
    connection.close()

    async with open_holdfast(config=plain(home), scope=RunScope.NONE) as again:
        unindexed = await found(again, "tide")
        await catch_up(again)
        assert await found(again, "tide") == unindexed == [3, 1]
        await again.sessions.delete(again.owner, session.id)
        assert await found(again, "tide") == []


async def test_what_is_not_what_was_written_is_not_shown(house: Holdfast, home: Path) -> None:
    await said(house, "one tide", "two tide")
    await catch_up(house)
    await house.store.close()
    connection = apsw.Connection(str(home / "history.db"))
    connection.execute("DROP TRIGGER messages_are_never_edited")
    forged = b'[{"type":"text","text":"my tide"}]'
    connection.execute("UPDATE messages SET parts = ? WHERE sequence = 2", (forged,))
    connection.close()

    async with open_holdfast(config=plain(home), scope=RunScope.NONE) as again:
        assert await found(again, "tide") == [1]


async def test_an_index_that_was_changed_is_told_and_made_anew(house: Holdfast, home: Path) -> None:
    await said(house, "one tide", "two tide")
    await catch_up(house)

    async def spoil(tx: Tx) -> None:
        sql = "INSERT INTO search_index (rowid, words) VALUES (99999999, 'tide')"
        await tx.search._db.execute(sql)  # type: ignore[attr-defined]

    await house.store.write(spoil)
    assert await found(house, "tide") == [2, 1]

    first, second = await house.search.rebuild(), await house.search.rebuild()

    assert len(first.differences) == 1
    assert "The search index had" in first.differences[0]
    assert second.differences == ()


async def test_an_index_that_cannot_be_read_is_made_anew(house: Holdfast) -> None:
    await said(house, "one tide", "two tide")
    await catch_up(house)

    async def destroy(tx: Tx) -> None:
        await tx.search._db.execute("UPDATE search_index_data SET block = x'00' WHERE id > 10")  # type: ignore[attr-defined]

    await house.store.write(destroy)
    rebuilt = await house.search.rebuild()

    assert len(rebuilt.differences) == 1
    assert await found(house, "tide") == [2, 1]
    assert (await house.search.rebuild()).differences == ()


async def test_a_store_that_opens_with_a_damaged_index_calls_nothing_missing(
    house: Holdfast, home: Path
) -> None:
    session = await said(house, "one tide", "two tide")
    await catch_up(house)
    await house.store.close()
    connection = apsw.Connection(str(home / "history.db"))
    connection.execute("UPDATE search_index_data SET block = x'00' WHERE id > 10")
    connection.close()

    async with open_holdfast(config=plain(home), scope=RunScope.NONE) as again:
        assert len(await again.store.check()) > 0
        with pytest.raises(HoldfastError) as caught:
            await found(again, "tide")
        assert caught.value.code is Code.CORRUPT_STORE
        await again.send(session.id, "three tide")
        assert len((await again.search.rebuild()).differences) == 1
        assert await again.store.check() == []
    async with open_holdfast(config=plain(home), scope=RunScope.NONE) as mended:
        assert await found(mended, "tide") == [3, 2, 1]


async def test_an_index_that_is_made_twice_has_the_same_bytes(house: Holdfast) -> None:
    await said(house, *(f"tide number {number}" for number in range(30)), title="Tides")

    async def blocks(tx: Tx) -> list[tuple[int, bytes]]:
        return await tx.search._db.fetch("SELECT id, block FROM search_index_data ORDER BY id")  # type: ignore[attr-defined,no-any-return]

    await house.search.rebuild()
    first = await house.store.read(blocks)
    await house.search.rebuild()

    assert await house.store.read(blocks) == first


async def test_an_encrypted_store_is_searched_and_shows_no_word(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        await said(house, CANARY)
        await catch_up(house)
        assert await found(house, CANARY) == [1]

    assert on_disk(home, CANARY) == 0


async def test_sessions_that_went_without_a_word_to_the_index_are_not_found(
    house: Holdfast, home: Path
) -> None:
    await said(house, "indexed tide", title="a")
    await catch_up(house)
    await said(house, "waiting tide", title="b")
    await house.store.close()
    connection = apsw.Connection(str(home / "history.db"))
    connection.execute("PRAGMA foreign_keys = 1")
    connection.execute("DELETE FROM sessions")
    connection.close()

    async with open_holdfast(config=plain(home), scope=RunScope.NONE) as again:
        assert await found(again, "tide") == []
        await catch_up(again)
        assert await found(again, "tide") == []
        assert (await again.search.rebuild()).documents == 0


async def test_many_tools_and_roles_do_not_hide_each_other(house: Holdfast) -> None:
    await said(house, *(["tide"] * 150))
    await catch_up(house)
    query = SearchQuery(text="tide", role=Role.USER, limit=100)
    page = await house.search.find(house.owner, query)
    rest = await house.search.find(house.owner, query, cursor=page.next_cursor)

    assert [hit.message_sequence for hit in (*page.items, *rest.items)] == list(range(150, 0, -1))
    assert rest.next_cursor is None
