"""Holds the auditor itself: for each of its counts there is a store on which it must find it."""

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast import Event, Holdfast, open_holdfast
from holdfast.domain.events import TurnEnded
from holdfast.domain.ids import SessionId
from tests.torture.attempts import Record
from tests.torture.audit import Audit, audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.crew import Crew, wait_until
from tests.torture.machine import boot, carriers

pytestmark = pytest.mark.slow

SESSION, OTHER, FORK, GONE = (new_id(random.Random(number)) for number in range(4))
MESSAGE = new_id(random.Random(9))
STORED = f"x'{MESSAGE.replace('-', '')}'"


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a plain store in which everything is in order, and the records beside it."""
    folder = tmp_path_factory.mktemp("ordinary")
    asyncio.run(_ordinary_life(folder))
    return folder


@pytest.fixture
def folder(ordinary: Path, tmp_path: Path) -> Path:
    """A copy that may be spoilt."""
    return shutil.copytree(ordinary, tmp_path / "spoilt")


async def _ordinary_life(folder: Path) -> None:
    record, streams = Record(folder / "a.jsonl"), Record(folder / "a.stream")
    async with open_holdfast(config=settings(folder / "home", encryption="off")) as house:
        client = Client(house, record, streams)
        for key in (SESSION, OTHER, GONE):
            await client.open(key)
        await client.send(SESSION, MESSAGE, "long message")
        await client.follow(SESSION, 0, until=_ends)
        await client.send(SESSION, new_id(random.Random(10)), "once more")
        await _quiet(house, SESSION)
        await client.fork(SESSION, FORK)
        await client.act("close", OTHER)
        await client.act("delete", GONE)
    record.close()
    streams.close()


def _ends(item: object) -> bool:
    return isinstance(item, Event) and isinstance(item.payload, TurnEnded)


async def _quiet(house: Holdfast, session: str) -> None:
    async for item in house.follow(SessionId(session)):
        if _ends(item) and isinstance(item, Event) and item.turn == 2:
            return


def test_a_store_in_order_is_clean(folder: Path) -> None:
    result = judged(folder)

    assert result.is_clean, result
    assert result.acknowledged == 8


EDITS: dict[str, tuple[str, str]] = {
    "a message is gone": ("LOST", f"DELETE FROM messages WHERE id = {STORED}"),
    "a message has other words": (
        "LOST",
        """UPDATE messages SET parts = CAST('[{"type":"text","text":"else"}]' AS BLOB)
           WHERE sequence = 1""",
    ),
    "a session is gone": ("LOST", f"DELETE FROM sessions WHERE id = '{OTHER}'"),
    "a closing is gone": ("LOST", "UPDATE events SET name = 'x' WHERE name = 'session.closed'"),
    "a message stands twice": (
        "DUP",
        f"""INSERT INTO messages SELECT session_key << 32 | 9, id, turn, role, model_id,
            created_at, hash, 99, event_checksum, parts FROM messages WHERE id = {STORED}""",
    ),
    "a message nobody sent": (
        "PHANTOM",
        """INSERT INTO messages SELECT key + 1, zeroblob(16), turn, 'user',
           model_id, created_at + 9, hash, 99, event_checksum, parts FROM messages
            WHERE sequence = 4""",
    ),
    "a session nobody opened": ("PHANTOM", f"UPDATE sessions SET id = 'x' WHERE id = '{FORK}'"),
    "a deletion nobody wanted": ("PHANTOM", "INSERT INTO tombstones VALUES (99, 'x', 'local', 1)"),
    "an event is gone": ("GAP", "DELETE FROM events WHERE name = 'turn.ended' AND turn = 1"),
    "the numbers go on without rows": ("GAP", "UPDATE sessions SET messages = messages + 1"),
    "time goes back": ("DISORDER", "UPDATE events SET at = 1 WHERE name = 'turn.started'"),
    "a turn ended twice": (
        "DISORDER",
        "UPDATE sessions SET settled = settled + 1, turn = turn + 1",
    ),
    "a call has no result": (
        "DANGLING",
        """UPDATE messages SET role = 'tool_call',
           parts = CAST('[{"type":"tool_call","id":"c1"}]' AS BLOB) WHERE role = 'assistant'""",
    ),
    "a turn waits": ("STUCK", f"UPDATE sessions SET turn = turn + 1 WHERE id = '{SESSION}'"),
    "a zombie runs": ("STUCK", f"UPDATE sessions SET status = 'running' WHERE id = '{SESSION}'"),
    "the chain is broken": ("UNREADABLE", "UPDATE messages SET hash = zeroblob(32)"),
    "kept text passes for an answer": (
        "UNREADABLE",
        """UPDATE events SET payload =
           CAST(replace(CAST(payload AS TEXT), char(3), ',"stop_reason":"aborted"') AS BLOB)
           WHERE name = 'turn.ended'""",
    ),
    "a lease of the dead": (
        "ORPHAN",
        f"UPDATE sessions SET holder = '{boot()}/x/1/1/x', until = 9e15 WHERE id = '{SESSION}'",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_the_auditor_finds_what_is_wrong_with_a_store(folder: Path, edit: str) -> None:
    count, sql = EDITS[edit]
    connection = apsw.Connection(str(folder / "home" / "history.db"))
    connection.pragma("foreign_keys", 0)
    # The triggers that keep the record append-only are in the way of a forger, too.
    triggers = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
    for (name,) in triggers.fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("DROP INDEX messages_by_id")
    connection.execute(sql)
    assert connection.changes() > 0
    connection.close()

    assert judged(folder).counts[count] > 0


def _streamed(folder: Path, change: Callable[[list[dict[str, object]]], object]) -> None:
    path = folder / "a.stream"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("count", "change"),
    [
        ("GAP", lambda lines: lines.pop(3)),
        ("DISORDER", lambda lines: lines.append(lines[2])),
        ("LOST", lambda lines: lines[2].update(digest="x")),
        ("LOST", lambda lines: lines.append({**lines[-1], "first": 99, "last": 99})),
    ],
    ids=["an event was left out", "it went back", "other bytes", "what is not in the store"],
)
def test_the_auditor_finds_what_is_wrong_with_a_stream(
    folder: Path, count: str, change: Callable[[list[dict[str, object]]], object]
) -> None:
    _streamed(folder, change)

    assert judged(folder).counts[count] > 0


def test_the_auditor_finds_two_answers_to_one_key(folder: Path) -> None:
    path = folder / "a.jsonl"
    lines = path.read_text().splitlines()
    again = json.loads(lines[0]) | {"n": 99}
    answer = json.loads(lines[1]) | {"n": 99, "answer": {"created_at": "later"}}
    path.write_text("\n".join([*lines, json.dumps(again), json.dumps(answer)]) + "\n")

    assert judged(folder).counts["DUP"] == 1


def test_the_auditor_finds_canaries_and_what_was_left_behind(folder: Path) -> None:
    (folder / "home" / "store.tmp").write_bytes(b"a secret canary")

    counts = audit(folder / "home", canaries=[b"canary"]).counts

    assert (counts["LEAK"], counts["ORPHAN"]) == (1, 1)


def test_the_auditor_finds_a_process_that_was_left(folder: Path, tmp_path: Path) -> None:
    with Crew(tmp_path) as crew:
        crew.start("load", home=folder / "home", name=folder / "b", seed=1, shared=[])
        wait_until(lambda: bool(carriers(crew.mark)))

        assert audit(folder / "home", mark=crew.mark).counts["ORPHAN"] > 0


def judged(folder: Path) -> Audit:
    """Judge the folder's home by the folder's records."""
    return audit(folder / "home", records=[folder / "a.jsonl"], streams=[folder / "a.stream"])
