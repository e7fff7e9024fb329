"""A turn with two rounds of tools, lived by many processes, each of which kills itself at a point.

    python -m tests.torture.clients.rounds JSON

One process forks the others: what takes long is loaded once. A life can be repeated at any time,
because everything in it has a key.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from holdfast import Event, Holdfast, SessionRequest
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.domain.approvals import ApprovalMode, ApprovalState, Decision
from holdfast.domain.calls import CallState
from holdfast.domain.commits import SessionCommit
from holdfast.domain.events import ApprovalRequested
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import SessionContext
from holdfast.ports.store import Store, Tx
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, Toolbox, ToolWorkspace
from holdfast.services.calls import SettlementAction, SettlementRequest
from tests.builders import an_id
from tests.tooled import open_wrapped
from tests.torture.attempts import Record
from tests.torture.spies import EarlyStore, SpyTx, Work, kind_of, marks_of, watched

T = TypeVar("T")

SESSION, MESSAGE, NEXT = an_id(501), an_id(502), an_id(503)
EFFECTS, CALL, ELSEWHERE = "effects.txt", "w1", "go elsewhere"
STEPS: tuple[dict[str, Any], ...] = (
    {
        "text": "I look first.",
        "tool_calls": [{"id": "r1", "name": "read_file", "arguments": {"path": "a.txt"}}],
    },
    {
        "tool_calls": [
            {
                "id": CALL,
                "name": "write_file",
                "arguments": {"path": EFFECTS, "content": "one line\n", "mode": "append"},
            }
        ]
    },
    {"text": "It is done."},
    {"text": "We go on."},
)
# Written when it is time, and not by the turn.
APART = {"renew", "other", "release", "prune"}


@dataclass(frozen=True, kw_only=True)
class Life:
    """What one process does, and where it ends; without a point it lives to the end.

    A point is `commit` or a method of the toolbox, the how manieth, and `before` or `after`.
    """

    home: str
    agent: str = "holdfast"
    mode: str = "auto"
    point: tuple[str, int, str] | None = None
    # Whether questions are answered with yes by this process.
    allows: bool = False
    # How the unknown call is settled, if it is.
    settles: str = ""
    # Whether a second turn follows, which another model answers, and what was said is folded.
    is_whole: bool = False
    # The kind of commit that the store lies about: the control.
    lying: str = ""
    marks: list[str] = field(default_factory=list)

    @property
    def desk(self) -> Path:
        """Return where the tools act: beside the home."""
        return Path(self.home).parent / "desk"


def script(folder: Path) -> str:
    """Write what the model says and return its name."""
    file = folder / "model.json"
    file.write_text(json.dumps(STEPS))
    return f"scripted:{file}"


class Striking:
    """Counts what happens, and kills this process where it must end."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._counts: dict[str, int] = {}

    def before(self, what: str, name: str) -> int:
        """Note that something is about to happen; return the how manieth it is."""
        number = self._counts[what] = self._counts.get(what, 0) + 1
        self._life.marks.append(f"{what} {number} {name}")
        self._strike(what, number, "before")
        return number

    def after(self, what: str, number: int) -> None:
        """Note that it has happened."""
        self._strike(what, number, "after")

    def _strike(self, what: str, number: int, when: str) -> None:
        if self._life.point == (what, number, when):
            os.kill(os.getpid(), signal.SIGKILL)


class StrikingStore:
    """A store in which a process can end right before and right after a commit of its turn."""

    def __init__(self, theirs: Store, striking: Striking) -> None:
        self._theirs = theirs
        self._striking = striking

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        numbers: list[int] = []

        async def counted(tx: Tx) -> T:
            spy = SpyTx(tx)
            result = await work(spy)  # type: ignore[arg-type]
            kind = kind_of(spy.seen)
            if kind not in APART:
                numbers.append(self._striking.before("commit", kind))
            return result

        result = await self._theirs.write(counted, urgent=urgent)
        for number in numbers:
            self._striking.after("commit", number)
        return result

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        number = self._striking.before("commit", kind_of(marks_of(commit)))
        return watched(self._theirs.commit(commit), lambda: self._striking.after("commit", number))


class StrikingToolbox:
    """A toolbox in which a process can end right before and right after an act."""

    def __init__(self, theirs: Toolbox, striking: Striking) -> None:
        self._theirs = theirs
        self._striking = striking

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    async def plan(self, place: ToolWorkspace, asked: RequestedCall) -> PlannedCall | CallOutcome:
        number = self._striking.before("plan", asked.name)
        planned = await self._theirs.plan(place, asked)
        self._striking.after("plan", number)
        return planned

    async def run(self, place: ToolWorkspace, planned: PlannedCall) -> CallOutcome:
        number = self._striking.before("run", planned.asked.name)
        done = await self._theirs.run(place, planned)
        self._striking.after("run", number)
        return done


def settings(home: Path) -> Config:
    """Return the configuration of a home whose model is the script beside it."""
    model = f"scripted:{home.parent / 'model.json'}"
    return Config(home=home, default_model=model, approval=ApprovalMode.AUTO)


async def lived(life: Life) -> None:
    """Open, send, answer, settle, go on: each with its key, so that it can be said again."""
    striking = Striking(life)

    def wrap(store: Store) -> Store:
        kept = EarlyStore(store, delay=60, kind=life.lying) if life.lying else store
        return StrikingStore(kept, striking)

    home = Path(life.home)
    wrapped = open_wrapped(
        settings(home),
        lambda theirs: StrikingToolbox(theirs, striking),
        outside=Environment(wrap=wrap),
    )
    async with wrapped as house:
        record = Record(home.parent / "life.jsonl")
        await _open(house, life, record)
        await _send(house, record, MESSAGE, "go")
        await _played(house, life)
        if life.settles:
            await _settle(house, life)
            await _send(house, record, NEXT, "go on")
            await _played(house, life)
        if life.is_whole:
            await _send(house, record, NEXT, ELSEWHERE)
            await _played(house, life)
            await house.compactions.compact(house.owner, SessionId(SESSION))
        record.close()


async def _open(house: Holdfast, life: Life, record: Record) -> None:
    number = record.attempt("open", SESSION, SESSION)
    request = SessionRequest(
        context=SessionContext(working_dir=str(life.desk)), approval=ApprovalMode(life.mode)
    )
    session = await house.open(life.agent, request, id=SESSION)
    record.answer(number, "ok", created_at=session.created_at.isoformat(), at=None)


async def _send(house: Holdfast, record: Record, key: str, text: str) -> None:
    number = record.attempt("send", SESSION, key, text)
    sent = await house.send(SessionId(SESSION), text, id=key)
    answer = {"sequence": sent.sequence, "hash": sent.hash, "turn": sent.turn}
    record.answer(number, "ok", **answer, created_at=sent.created_at.isoformat())


async def _played(house: Holdfast, life: Life) -> None:
    """Wait until no turn runs or waits, answering questions if that is this life's part."""
    session = SessionId(SESSION)
    async with asyncio.timeout(30), aclosing(house.follow(session)) as news:
        while not await _is_quiet(house):
            item = await anext(news)
            if life.allows and isinstance(item, Event):
                await _allow(house, item)


async def _is_quiet(house: Holdfast) -> bool:
    now = await house.sessions.get(house.owner, SessionId(SESSION))
    return now.turn == now.settled


async def _allow(house: Holdfast, news: Event) -> None:
    if not isinstance(news.payload, ApprovalRequested):
        return
    session, yes = SessionId(SESSION), Decision(state=ApprovalState.ALLOWED, by="ada")
    asked = await house.approvals.get(house.owner, session, news.payload.approval_id)
    if asked.state is ApprovalState.WAITING:
        await house.approvals.answer(house.owner, session, asked.id, yes)


async def _settle(house: Holdfast, life: Life) -> None:
    """Settle what is unknown; a retry that was cut off is unknown itself, and taken as not done."""
    for call in (await house.calls.list(house.owner, state=CallState.UNKNOWN)).items:
        how = SettlementAction(life.settles) if call.id == CALL else SettlementAction.SKIP
        result = "as seen" if how is SettlementAction.MARK_DONE else None
        wish = SettlementRequest(how=how, by="ada", result=result)
        await house.calls.settle(house.owner, SessionId(SESSION), call.id, wish)
    await _played(house, life)


def forked(life: Life) -> int:
    """Live in a process of its own and return how it ended; a signal is a negative number."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            asyncio.run(lived(life))
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Live all lives one after the other; print how each of them ended."""
    for given in json.loads(sys.argv[1]):
        if given.get("point"):
            given["point"] = tuple(given["point"])
        print(forked(Life(**given)), flush=True)


if __name__ == "__main__":
    main()
