"""A long session whose rows and pages are overwritten with garbage, and what can be read of it."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from holdfast import Holdfast, HoldfastError, Message, SessionId
from holdfast.store.sqlite.connection import set_key
from tests.torture.notebooks import key_beside

PAGE = 4096
LISTED = 100
OVERFLOW = "overflow"
# What a row says, and the garbage it is overwritten with, of the same kind so that it is taken.
COLUMNS: Mapping[str, Callable[[random.Random, Any], object]] = {
    "parts": lambda luck, was: luck.randbytes(len(was)),
    "hash": lambda luck, was: luck.randbytes(len(was)),
    "role": lambda luck, was: "".join(luck.choices("abc", k=len(was))),
    "turn": lambda luck, was: was + luck.randrange(1, 1 << 40),
    "created_at": lambda luck, was: was + luck.randrange(1, 1 << 40),
}
KINDS = (*COLUMNS, *[OVERFLOW] * len(COLUMNS))
# A row is proven by the hash of the one before it, so that two go with a hash.
COST = {"hash": 2}


@dataclass
class Told:
    """What a house shows of a session: rows by number, and how it names those that it does not."""

    messages: dict[int, Message] = field(default_factory=dict)
    events: dict[int, object] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    unheard: dict[int, str] = field(default_factory=dict)


def ruined(home: Path, luck: random.Random, kind: str) -> None:
    """Write garbage into one row of the first session, or into a page with the end of one."""
    connection = apsw.Connection(str(home / "history.db"))
    if (key := key_beside(home)) is not None:
        set_key(connection, key)
    try:
        if kind == OVERFLOW:
            found = connection.execute(
                "SELECT pageno FROM dbstat WHERE name = 'messages' AND pagetype = 'overflow'"
            ).fetchall()
            page = luck.choice(found)[0]
        else:
            _row_overwritten(connection, luck, kind)
    finally:
        connection.close()
    if kind == OVERFLOW:
        with (home / "history.db").open("r+b") as file:
            # Behind the number of the next page, which says where the message goes on.
            file.seek((page - 1) * PAGE + 4)
            file.write(luck.randbytes(PAGE // 2))


def _row_overwritten(connection: apsw.Connection, luck: random.Random, column: str) -> None:
    # The triggers that keep the record append-only are in the way of decay, too.
    triggers = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'messages'"
    ).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    last = connection.execute("SELECT max(sequence) FROM messages WHERE session_key = 1").get
    where = f"WHERE session_key = 1 AND sequence = {luck.randrange(1, last + 1)}"
    was = connection.execute(f"SELECT {column} FROM messages {where}").get
    garbage = COLUMNS[column](luck, was)
    connection.execute(f"UPDATE messages SET {column} = ? {where}", (garbage,))
    for _, sql in triggers:
        connection.execute(sql)


async def told_of(house: Holdfast, session: SessionId, ids: Mapping[int, str], events: int) -> Told:
    """Read a session as far as it goes, and step over every row that is refused."""
    told = Told()
    for start in range(0, len(ids), LISTED):
        numbers = range(start + 1, min(start + LISTED, len(ids)) + 1)
        try:
            page = await house.messages.list(
                house.owner, session, after=start, limit=LISTED, before=numbers.stop
            )
            told.messages |= {each.sequence: each for each in page.items}
        except HoldfastError:
            for number in numbers:
                await _one(house, session, (number, ids[number]), told)
    after = 0
    while after < events:
        after = await _news(house, session, after, told)
    return told


async def _one(house: Holdfast, session: SessionId, asked: tuple[int, str], told: Told) -> None:
    number, id_ = asked
    try:
        told.messages[number] = await house.messages.get(house.owner, session, id_)
    except HoldfastError as error:
        told.refused[number] = str(error.details.get("row"))


async def _news(house: Holdfast, session: SessionId, after: int, told: Told) -> int:
    """Read a page of news, or only the next piece where some of the page is refused."""
    for limit in (1_000, 1):
        try:
            page = await house.events.list(house.owner, session, after=after, limit=limit)
        except HoldfastError as error:
            if limit == 1:
                told.unheard[after + 1] = str(error.details.get("row"))
            continue
        told.events |= {each.sequence: each for each in page.items}  # type: ignore[union-attr]
        return after + len(page.items)
    return after + 1


def faults_of(truth: Told, told: Told, session: SessionId, most: int) -> list[str]:
    """Return what is wrong with what was shown, where garbage may have cost so many rows."""
    found = [
        f"{what} {number} is not what was written"
        for what in ("messages", "events")
        for number, item in getattr(told, what).items()
        if item != getattr(truth, what).get(number)
    ]
    hidden = truth.messages.keys() - told.messages.keys()
    unheard = truth.events.keys() - told.events.keys()
    if not 1 <= len(hidden) <= most or len(unheard) > most:
        found.append(f"messages {sorted(hidden)[:9]} and events {sorted(unheard)[:9]} are hidden")
    found += [
        f"message {number} is called {told.refused.get(number)!r}"
        for number in hidden
        if told.refused.get(number) != f"message {number} of session {session}"
    ]
    return found
