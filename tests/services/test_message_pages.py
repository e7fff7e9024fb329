"""Reading the record by number, from either end, through forks and past damage."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.errors import Code, HoldfastError, Internal, Invalid
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Message
from holdfast.domain.queries import Page
from holdfast.domain.sessions import Session
from tests.houses import raw, unlocked
from tests.marks import each_case

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session(quiet: Holdfast) -> Session:
    """Write a session of five rows."""
    session = await quiet.open()
    await _say(quiet, session.id, 5)
    return session


async def _say(house: Holdfast, session_id: SessionId, count: int) -> list[Message]:
    return [await house.send(session_id, f"row {number}") for number in range(count)]


def _numbers(page: Page[Message]) -> list[int]:
    return [row.sequence for row in page.items]


@each_case(
    ("cut", "numbers", "cursor"),
    [
        ({}, [1, 2, 3, 4, 5], None),
        ({"after": 2}, [3, 4, 5], None),
        ({"after": 5}, [], None),
        ({"after": 99}, [], None),
        ({"limit": 2}, [1, 2], "2"),
        ({"after": 2, "limit": 2}, [3, 4], "4"),
        ({"after": 3, "limit": 2}, [4, 5], None),
        ({"before": 4}, [1, 2, 3], None),
        ({"before": 4, "limit": 2}, [2, 3], None),
        ({"before": 1}, [], None),
        ({"before": 99, "limit": 1}, [5], None),
        ({"after": 1, "before": 4}, [2, 3], None),
        ({"after": 4, "before": 2}, [], None),
    ],
)
async def test_messages_are_cut_by_number_and_shown_ascending(
    quiet: Holdfast, session: Session, cut: dict[str, int], numbers: list[int], cursor: str | None
) -> None:
    page = await quiet.messages.list(quiet.owner, session.id, **cut)

    assert (_numbers(page), page.next_cursor) == (numbers, cursor)


@each_case("cut", [{"after": -1}, {"before": 0}, {"before": -3}])
async def test_a_number_that_no_message_has_is_refused(
    quiet: Holdfast, session: Session, cut: dict[str, int]
) -> None:
    with pytest.raises(Invalid) as caught:
        await quiet.messages.list(quiet.owner, session.id, **cut)

    assert caught.value.code is Code.INVALID_CURSOR


@each_case("limit", [0, -1, 10_001])
async def test_a_page_has_one_to_ten_thousand_messages(
    quiet: Holdfast, session: Session, limit: int
) -> None:
    with pytest.raises(Invalid) as caught:
        await quiet.messages.list(quiet.owner, session.id, limit=limit)

    assert caught.value.code is Code.INVALID_LIMIT


async def test_a_fork_is_read_through_its_parents_from_either_end(quiet: Holdfast) -> None:
    root = await quiet.open()
    rows = await _say(quiet, root.id, 4)
    child = await quiet.sessions.fork(quiet.owner, root.id, at=3)
    await _say(quiet, root.id, 2)
    rows[3:] = await _say(quiet, child.id, 2)
    grandchild = await quiet.sessions.fork(quiet.owner, child.id, at=4)
    rows[4:] = await _say(quiet, grandchild.id, 2)

    async def read(**cut: int) -> list[Message]:
        page = await quiet.messages.list(quiet.owner, grandchild.id, **cut)
        return list(page.items)

    assert await read() == rows
    assert await read(after=2) == rows[2:]
    assert await read(after=4) == rows[4:]
    assert await read(after=1, limit=3) == rows[1:4]
    assert await read(before=5, limit=2) == rows[2:4]
    assert await read(before=7, limit=5) == rows[1:]
    assert await read(before=3) == rows[:2]
    assert [row.session_id for row in rows] == [root.id] * 3 + [child.id] + [grandchild.id] * 2


async def test_a_message_of_a_fork_is_found_by_id_where_the_fork_shows_it(quiet: Holdfast) -> None:
    root = await quiet.open()
    first, second = await _say(quiet, root.id, 2)
    fork = await quiet.sessions.fork(quiet.owner, root.id, at=1)
    (own,) = await _say(quiet, fork.id, 1)

    async def read(message: Message) -> Message:
        return await quiet.messages.get(quiet.owner, fork.id, message.id)

    assert [await read(first), await read(own)] == [first, own]
    with pytest.raises(HoldfastError) as caught:
        await read(second)
    assert caught.value.code is Code.MESSAGE_NOT_FOUND


async def test_a_damaged_row_is_never_shown_and_hides_no_neighbour(
    home: Path, outside: Environment
) -> None:
    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as before:
        session = await before.open()
        rows = await _say(before, session.id, 5)
    with raw(home) as connection:
        unlocked(connection)
        connection.execute(
            "UPDATE messages SET parts = CAST(replace(parts, 'row', 'new') AS BLOB)"
            " WHERE sequence = 3"
        )

    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as after:
        for cut in ({}, {"after": 2}, {"before": 4, "limit": 1}):
            with pytest.raises(Internal) as caught:
                await after.messages.list(after.owner, session.id, **cut)
            assert caught.value.code is Code.CORRUPT_ROW
            assert caught.value.details == {"row": f"message 3 of session {session.id}"}
        above = await after.messages.list(after.owner, session.id, before=3)
        below = await after.messages.list(after.owner, session.id, after=3)
        assert (*above.items, *below.items) == (rows[0], rows[1], rows[3], rows[4])


async def test_a_damaged_row_is_not_shown_by_its_id_either(
    home: Path, outside: Environment
) -> None:
    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as before:
        session = await before.open()
        rows = await _say(before, session.id, 2)
    with raw(home) as connection:
        unlocked(connection)
        connection.execute("UPDATE messages SET turn = 7 WHERE sequence = 2")

    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as after:
        assert await after.messages.get(after.owner, session.id, rows[0].id) == rows[0]
        with pytest.raises(Internal) as caught:
            await after.messages.get(after.owner, session.id, rows[1].id)
        assert caught.value.code is Code.CORRUPT_ROW


@contextmanager
def _rows_counted() -> Iterator[list[int]]:
    """Note every row that connections opened in the block return."""
    rows: list[int] = []

    def hooked(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_ROW, lambda event: rows.append(event["code"]))

    apsw.connection_hooks.append(hooked)
    try:
        yield rows
    finally:
        apsw.connection_hooks.remove(hooked)


async def test_the_last_page_and_a_resume_read_few_rows_of_a_session_of_any_length(
    home: Path, outside: Environment
) -> None:
    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        sessions = [await house.open() for _ in range(2)]
        for session, length in zip(sessions, (60, 600), strict=True):
            await _say(house, session.id, length)
            await house.sessions.close(house.owner, session.id)
    costs = []
    with _rows_counted() as rows:
        async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
            for session in sessions:
                rows.clear()
                page = await house.messages.list(house.owner, session.id, before=10**9, limit=50)
                assert len(page.items) == 50 < len(rows)
                costs.append(len(rows))
            for session in sessions:
                rows.clear()
                await house.sessions.resume(house.owner, session.id)
                costs.append(len(rows))

    # The search index may look at its backlog meanwhile, which is one row.
    assert all(cost <= 55 for cost in costs[:2]), costs
    assert all(0 < cost <= 10 for cost in costs[2:]), costs
