"""Which rows make up a fork, through any number of parents, and what detaching copies."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.domain.ids import SessionId, SessionKey, uuid7
from holdfast.domain.messages import CHAIN_START
from holdfast.domain.sessions import ForkPoint, SessionState
from holdfast.ports.store import Segment, Tx
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import (
    a_head,
    a_message,
    a_session,
    a_transcript,
)
from tests.commits import append_rows, new_messages
from tests.houses import raw

pytestmark = pytest.mark.anyio

Fork = tuple[int, int]


async def _grown(tx: Tx, forks: list[Fork]) -> list[tuple[SessionState, list[str]]]:
    """Make a line of sessions; each leaves the one before somewhere and adds rows of its own."""
    line: list[tuple[SessionState, list[str]]] = []
    for number, (at, added) in enumerate(forks):
        session_id = SessionId(uuid7(number, _fresh()))
        parent = line[-1] if line else None
        shown = parent[1][: at % (len(parent[1]) + 1)] if parent else []
        point = ForkPoint(session_id=parent[0].session_id, sequence=len(shown)) if parent else None
        chain = bytes.fromhex(shown[-1]) if shown else CHAIN_START
        rows = a_transcript(
            *(a_message(f"{number}", session_id=session_id) for _ in range(added)),
            previous=chain,
            first=len(shown) + 1,
        )
        hashes = shown + [row.hash for row in rows]
        head = await tx.sessions.add(
            a_session(id=session_id, forked_from=point),
            a_head(session_id=session_id, messages=len(hashes), inherited=len(shown)),
            b"",
        )
        await append_rows(tx, head, messages=new_messages(rows))
        line.append((head, hashes))
    return line


_count = iter(range(1 << 40))


def _fresh() -> int:
    return next(_count) << 12


async def _shown(tx: Tx, key: SessionKey) -> list[str]:
    parts = await tx.sessions.lineage(key)
    return [row.hash for part in parts for row in await tx.messages.span(part, limit=-1)]


LINES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=5)


@given(forks=LINES)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_fork_shows_what_its_line_shows_up_to_where_it_left(
    store: SqliteStore, head: SessionState, forks: list[Fork]
) -> None:
    async def work(tx: Tx) -> list[tuple[list[str], list[str]]]:
        line = await _grown(tx, forks)
        return [(hashes, await _shown(tx, each.key)) for each, hashes in line]

    for expected, shown in await store.write(work):
        assert shown == expected


@given(forks=LINES, which=st.integers(0, 4))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_detaching_any_of_a_line_changes_nothing_that_is_shown(
    store: SqliteStore, head: SessionState, forks: list[Fork], which: int
) -> None:
    async def work(tx: Tx) -> list[tuple[list[str], list[str]]]:
        line = await _grown(tx, forks)
        chosen = line[which % len(line)][0].key
        await tx.sessions.detach(chosen)
        found = await tx.sessions.get_by_key(chosen)
        assert found is not None
        assert (found[0].forked_from, found[1].inherited) == (None, 0)
        return [(hashes, await _shown(tx, each.key)) for each, hashes in line]

    for expected, shown in await store.write(work):
        assert shown == expected


async def test_stretches_are_cut_where_each_fork_leaves(
    store: SqliteStore, head: SessionState
) -> None:
    async def work(tx: Tx) -> tuple[list[SessionState], tuple[Segment, ...]]:
        line = await _grown(tx, [(0, 4), (3, 2), (4, 0), (2, 1)])
        heads = [each for each, _ in line]
        return heads, await tx.sessions.lineage(heads[-1].key)

    heads, lineage = await store.write(work)

    # The last one leaves its parent at 2, where all that is shown still belongs to the first.
    assert lineage == (
        Segment(heads[0].key, heads[0].session_id, 1, 2),
        Segment(heads[3].key, heads[3].session_id, 3, 3),
    )


async def test_an_unknown_session_has_no_rows(store: SqliteStore) -> None:
    assert await store.read(lambda tx: tx.sessions.lineage(SessionKey(99))) == ()


async def test_what_a_detached_fork_copied_is_no_news_of_its_own(
    store: SqliteStore, head: SessionState, home: Path
) -> None:
    async def work(tx: Tx) -> tuple[SessionState, int]:
        line = await _grown(tx, [(0, 3), (2, 1)])
        fork = await append_rows(tx, line[-1][0], state={"events": 9})
        before = await tx.events.after(fork, 0, limit=9)
        await tx.sessions.detach(fork.key)
        alone = await tx.sessions.state_by_key(fork.key)
        assert alone is not None
        assert await tx.events.after(alone, 0, limit=9) == before
        return alone, len(before)

    alone, told = await store.write(work)

    assert (alone.inherited, told) == (0, 1)
    with raw(home) as connection:
        counted = connection.execute(
            "SELECT count(*) FROM messages WHERE session_key = ?", (alone.key,)
        )
        assert counted.get == 3
