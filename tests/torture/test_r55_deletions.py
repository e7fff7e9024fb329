"""R55: a deleted session is gone, down to its bytes; one with forks is kept for them."""

import asyncio
import random
import secrets
from pathlib import Path

import apsw
import pytest

from holdfast import (
    Config,
    Conflict,
    DeletePolicy,
    Event,
    Holdfast,
    NotFound,
    SessionId,
    SessionRequest,
    TurnEnded,
    open_holdfast,
)
from tests.marks import proves
from tests.torture.attempts import read_attempts
from tests.torture.audit import judge
from tests.torture.clients.house import new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import wait_until
from tests.torture.notebooks import read_books

pytestmark = pytest.mark.slow

GONE_WITHIN = 60.0


@proves("R55")
def test_of_a_deleted_session_only_a_tombstone_is_left(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    home = tmp_path / "home"
    slowest = 0.0

    for number in range(sized(quick=1, test=5, torture=20, release=50)):
        canary = f"canary-{secrets.token_hex(8)}"
        session = new_id(luck)
        before, after = asyncio.run(deleted(home, session, canary, forked=bool(number % 2)))
        assert before > 0, "the canary was never on the disk; its absence proves nothing"
        slowest = max(slowest, after)
        assert session in read_books(home).tombstones
        assert session not in read_books(home).by_id()

    tell(f"bytes gone {slowest:.1f} s after the deletion at most")
    assert slowest <= sized.within(GONE_WITHIN)
    result = judge(home, read_attempts([]))
    assert result.is_clean, result


@proves("R55")
def test_a_reader_in_the_way_delays_the_end_of_the_bytes_and_does_not_prevent_it(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    blocked = sized(test=1, torture=35)

    passed = asyncio.run(deleted_beside_a_reader(tmp_path / "home", new_id(luck), blocked))

    tell(f"with a reader in the way for {blocked} s, bytes gone after {passed:.1f} s")
    assert passed <= sized.within(GONE_WITHIN)


@proves("R55")
def test_without_secure_deletion_the_bytes_would_stay(tmp_path: Path, luck: random.Random) -> None:
    home = tmp_path / "home"
    asyncio.run(_only_spoken(home, new_id(luck), "canary-that-stays"))

    connection = apsw.Connection(str(home / "history.db"))
    connection.pragma("foreign_keys", 1)
    connection.pragma("secure_delete", 0)
    connection.execute("DELETE FROM sessions")
    connection.close()

    assert count_on_disk(home, "canary-that-stays") > 0


async def _only_spoken(home: Path, session: str, canary: str) -> None:
    async with open_holdfast(config=plain(home)) as house:
        await spoken(house, session, canary)


@proves("R55")
def test_a_session_with_forks_is_kept_and_its_forks_are_named(
    tmp_path: Path, luck: random.Random
) -> None:
    asyncio.run(_refused_for_its_forks(tmp_path / "home", luck))

    result = judge(tmp_path / "home", [])
    assert result.is_clean, result


async def deleted(home: Path, session: str, canary: str, *, forked: bool) -> tuple[int, float]:
    """Write a canary everywhere, delete its session; return how often it was on the disk before,
    and how long after the deletion it was still there."""
    async with open_holdfast(config=plain(home)) as house:
        await spoken(house, session, canary)
        before = count_on_disk(home, canary)
        if forked:
            await house.sessions.fork(house.owner, SessionId(session), title=canary)
        await house.sessions.delete(house.owner, SessionId(session), policy=DeletePolicy.CASCADE)
        with pytest.raises(NotFound):
            await house.sessions.get(house.owner, SessionId(session))
        passed = await asyncio.to_thread(wait_until, lambda: count_on_disk(home, canary) == 0)
    return before, passed


async def deleted_beside_a_reader(home: Path, session: str, blocked: float) -> float:
    """Delete while another process, as it were, looks at an old state of the store."""
    canary = f"canary-{secrets.token_hex(8)}"
    async with open_holdfast(config=plain(home)) as house:
        await spoken(house, session, canary)
        reader = apsw.Connection(str(home / "history.db"))
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchall()
        loop = asyncio.get_running_loop()
        loop.call_later(blocked, reader.close)
        begun = loop.time()
        await house.sessions.delete(house.owner, SessionId(session))
        await asyncio.to_thread(wait_until, lambda: count_on_disk(home, canary) == 0)
        return loop.time() - begun


async def _refused_for_its_forks(home: Path, luck: random.Random) -> None:
    canary = f"canary-{secrets.token_hex(8)}"
    parent, fork, grandchild = (SessionId(new_id(luck)) for _ in range(3))
    async with open_holdfast(config=plain(home)) as house:
        await spoken(house, parent, canary)
        history = await house.read(parent)
        await house.sessions.fork(house.owner, parent, id=fork)
        await house.sessions.fork(house.owner, fork, id=grandchild)

        with pytest.raises(Conflict) as refused:
            await house.sessions.delete(house.owner, parent)

        assert refused.value.details == {"forks": [fork]}
        assert await house.read(parent) == history

        await house.sessions.delete(house.owner, parent, policy=DeletePolicy.DETACH)

        for heir in (fork, grandchild):
            kept = await house.read(heir)
            assert [row.hash for row in kept[: len(history)]] == [row.hash for row in history]
            assert (await house.sessions.verify(house.owner, heir)).faults == ()


def plain(home: Path) -> Config:
    """Return settings of a store that anyone can read, with a model that repeats what it hears."""
    return settings(home, encryption="off", default_model="offline:holdfast")


async def spoken(house: Holdfast, session: str, canary: str) -> None:
    """Put the canary wherever a session takes words, and have it repeated."""
    request = SessionRequest(title=canary, tags=(canary[:32],), metadata={"note": canary})
    await house.open(id=session, request=request)
    await house.send(SessionId(session), f"repeat after me: {canary} " * 20)
    async for item in house.follow(SessionId(session)):
        if isinstance(item, Event) and isinstance(item.payload, TurnEnded):
            return


def count_on_disk(home: Path, canary: str) -> int:
    """Return how often the canary stands in the files of a home."""
    files = [path for path in home.rglob("*") if path.is_file()]
    return sum(file.read_bytes().count(canary.encode()) for file in files)
