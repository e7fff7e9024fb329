"""R24: every pair of verbs against a running turn ends as one of them came first."""

import asyncio
import random
from itertools import product
from pathlib import Path

import pytest

from holdfast import HoldfastError, OnBusy, open_holdfast
from tests.marks import proves
from tests.torture.attempts import Record
from tests.torture.audit import audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.notebooks import Books, read_books
from tests.torture.recovery import quiet

pytestmark = pytest.mark.slow

VERBS = ("send", "reject", "overtake", "interrupt", "close", "delete", "fork", "resume")
Outcome = tuple[str, str, str]


@proves("R24")
def test_every_pair_of_verbs_against_a_running_turn_ends_in_a_documented_state(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    rounds = sized(test=1, torture=5, release=50)
    pairs = list(product(VERBS, VERBS))
    strange: list[str] = []

    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        strange += asyncio.run(collided(folder, luck, pairs))
        result = audit(folder / "home", records=folder.glob("*.jsonl"))
        assert result.is_clean, result

    tell(f"{len(pairs)} pairs × {rounds}, each ended as if one verb had come first")
    assert strange == []


@proves("R24")
def test_an_end_that_fits_no_order_is_found() -> None:
    # As if a session had been closed, and yet a fork of it had been refused.
    assert ("ok", "session_not_found", "closed") not in documented("close", "fork")


async def collided(folder: Path, luck: random.Random, pairs: list[tuple[str, str]]) -> list[str]:
    """Do both verbs of each pair at once, through two servers; return the ends nobody documents."""
    config = settings(folder / "home")
    record = Record(folder / "a.jsonl", synced=False)
    async with open_holdfast(config=config) as one, open_holdfast(config=config) as two:
        sessions = [new_id(luck) for _ in pairs]
        client = Client(one, record)
        for session in sessions:
            await client.open(session)
            await client.send(session, new_id(luck, "tardy"))
        both = [
            asyncio.gather(
                tried(Client(one, record), first, session, luck),
                tried(Client(two, record), second, session, luck),
            )
            for session, (first, second) in zip(sessions, pairs, strict=True)
        ]
        outcomes = await asyncio.gather(*both)
        await quiet(folder / "home")
    record.close()
    books = read_books(folder / "home")
    return [
        f"{pair}: {end}"
        for session, pair, told in zip(sessions, pairs, outcomes, strict=True)
        if (end := (*told, state_of(books, session))) not in documented(*pair)
    ]


async def tried(client: Client, verb: str, session: str, luck: random.Random) -> str:
    """Do one thing at a moment of its own and return what was answered."""
    refusals: list[HoldfastError] = []
    client.refused = refusals.append
    await asyncio.sleep(luck.uniform(0, 0.1))
    match verb:
        case "send" | "reject" | "overtake":
            busy = {"send": OnBusy.QUEUE, "reject": OnBusy.REJECT, "overtake": OnBusy.INTERRUPT}
            await client.send(session, new_id(luck, "short"), on_busy=busy[verb])
        case "fork":
            await client.fork(session, new_id(luck))
        case _:
            await client.act(verb, session)
    return str(refusals[0].code) if refusals else "ok"


def documented(first: str, second: str) -> set[Outcome]:
    """Return every answer and end that follows from one of the verbs coming first."""
    ends: set[Outcome] = set()
    for running in (True, False):
        for answer, state in step(first, "open", running=running):
            for other, end in step(second, state, running=running):
                ends.add((answer, other, end.partition("+")[0]))
        for answer, state in step(second, "open", running=running):
            for other, end in step(first, state, running=running):
                ends.add((other, answer, end.partition("+")[0]))
    return ends


def step(verb: str, state: str, *, running: bool) -> list[tuple[str, str]]:
    """Return what a verb may answer in a state, and the state after it; forks are marked by `+`."""
    base, _, forks = state.partition("+")
    if base == "gone":
        return [("session_not_found", state)]
    match verb:
        case "send" | "overtake":
            return [("ok" if base == "open" else "session_closed", state)]
        case "reject":
            # Whether the turn still runs is a matter of moments.
            refused = [("turn_running", state)] if running else []
            return [*refused, ("ok", state)] if base == "open" else [("session_closed", state)]
        case "close":
            return [("ok", f"closed+{forks}" if forks else "closed")]
        case "resume":
            return [("ok", f"open+{forks}" if forks else "open")]
        case "delete":
            return [("session_has_forks", state)] if forks else [("ok", "gone")]
        case "fork":
            return [("ok", f"{base}+fork")]
        case _:
            return [("ok", state)]


def state_of(books: Books, session: str) -> str:
    """Return where a session ended."""
    if session in books.tombstones:
        return "gone"
    return "open" if books.by_id()[session].is_open else "closed"
