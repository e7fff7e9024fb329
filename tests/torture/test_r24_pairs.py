"""R24: every pair of verbs against a running turn ends as one of them came first."""

import asyncio
import random
from contextlib import nullcontext, suppress
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest

from holdfast import Holdfast, HoldfastError, OnBusy, open_holdfast
from holdfast.domain.approvals import ApprovalState, Decision
from holdfast.domain.ids import SessionId
from tests.marks import proves
from tests.torture.attempts import Record
from tests.torture.audit import audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE
from tests.torture.notebooks import Books, looking, read_books
from tests.torture.recovery import until, waiting

pytestmark = pytest.mark.slow

ANSWER = "answer"
VERBS = ("send", "reject", "overtake", "interrupt", "close", "delete", "fork", "resume")
Outcome = tuple[str, str, str]


@proves("R24")
def test_every_pair_of_verbs_against_a_running_turn_ends_in_a_documented_state(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    pairs = list(product(VERBS, VERBS))
    require_documented(tmp_path, luck, pairs, sized, tell)


@proves("R24")
def test_every_pair_of_verbs_against_a_paused_turn_ends_in_a_documented_state(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    verbs = (*VERBS, ANSWER)
    require_documented(tmp_path, luck, list(product(verbs, verbs)), sized, tell, is_paused=True)


def require_documented(
    folder: Path,
    luck: random.Random,
    pairs: list[tuple[str, str]],
    sized: Sized,
    tell: Tell,
    *,
    is_paused: bool = False,
) -> None:
    """Have every pair collide, in each round in a home of its own."""
    rounds = sized(test=1, torture=5, release=50)
    strange: list[str] = []
    for number in range(rounds):
        here = folder / str(number)
        here.mkdir()
        strange += asyncio.run(collided(here, luck, pairs, is_paused=is_paused))
        result = audit(here / "home", records=here.glob("*.jsonl"))
        assert result.is_clean, result

    tell(f"{len(pairs)} pairs × {rounds}, each ended as if one verb had come first")
    assert strange == []


@proves("R24")
def test_an_end_that_fits_no_order_is_found() -> None:
    # As if a session had been closed, and yet a fork of it had been refused.
    assert ("ok", "session_not_found", "closed") not in documented("close", "fork")


async def collided(
    folder: Path, luck: random.Random, pairs: list[tuple[str, str]], *, is_paused: bool
) -> list[str]:
    """Do both verbs of each pair at once, through two servers; return the ends nobody documents."""
    changes = {"approvals_pause_after": timedelta()} if is_paused else {}
    config = settings(folder / "home", **changes)
    record = Record(folder / "a.jsonl", synced=False)
    async with open_holdfast(config=config) as one, open_holdfast(config=config) as two:
        sessions = [new_id(luck) for _ in pairs]
        client = Client(one, record)
        for session in sessions:
            await client.open(session)
            await client.send(session, new_id(luck, "handy" if is_paused else "tardy"))
        if is_paused:
            await until(lambda: paused(folder / "home") == len(pairs))
        both = [
            asyncio.gather(
                tried(Client(one, record), first, session, luck),
                tried(Client(two, record), second, session, luck),
            )
            for session, (first, second) in zip(sessions, pairs, strict=True)
        ]
        outcomes = await asyncio.gather(*both)
        async with asyncio.timeout(PATIENCE):
            while waiting(folder / "home"):
                await answer_all(one)
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
        case "answer":
            try:
                await answer_all(client.house, session)
            except HoldfastError as error:
                refusals.append(error)
        case _:
            await client.act(verb, session)
    return str(refusals[0].code) if refusals else "ok"


def paused(home: Path) -> int:
    """Return how many turns are paused."""
    with looking(home) as connection:
        return len(connection.execute("SELECT 1 FROM sessions WHERE until < 0").fetchall())


async def answer_all(house: Holdfast, session: str | None = None) -> None:
    """Say no to every question that waits, or to those of one session."""
    name = SessionId(session) if session else None
    found = await house.approvals.list(house.owner, name, state=ApprovalState.WAITING)
    no = Decision(state=ApprovalState.DENIED, by="somebody")
    for each in found.items:
        # Its turn may have been ended meanwhile.
        with suppress(HoldfastError) if session is None else nullcontext():
            await house.approvals.answer(house.owner, each.session_id, each.id, no)
    await asyncio.sleep(0.01)


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
        case "answer":
            # Whether there is still a question, and still when it is answered, likewise.
            return [("ok", state), ("approval_closed", state)]
        case _:
            return [("ok", state)]


def state_of(books: Books, session: str) -> str:
    """Return where a session ended."""
    if session in books.tombstones:
        return "gone"
    return "open" if books.by_id()[session].is_open else "closed"
