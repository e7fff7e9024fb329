"""Stand-ins for what lies outside: time, randomness, the machine, a runtime. Tests move them.

They implement ports and nothing else; no part of Holdfast is replaced by them.
"""

import asyncio
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.domain.costs import Usage
from holdfast.domain.drafts import Draft, MessageDraft, Outcome
from holdfast.domain.events import Channel, StepDelta, StepEnded, StepStarted, ToolStarted
from holdfast.domain.ids import CallId, MessageId
from holdfast.domain.leases import Holder
from holdfast.domain.messages import Role, Text
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import Effect
from holdfast.ports.runtime import Emit, TurnEnd, TurnInput
from holdfast.ports.store import Store
from tests.builders import AT, MODEL_ID, a_holder, a_tool_call, an_id

PATIENCE = 20.0


class SettableClock:
    """Both clocks stand until the test moves them; `wall` alone may also go back."""

    def __init__(self, wall: datetime = AT) -> None:
        self.wall = wall
        self.boot = 1_000_000

    def now(self) -> datetime:
        return self.wall

    def lease_clock_ms(self) -> int:
        return self.boot

    def advance(self, **duration: float) -> None:
        """Let both clocks go on, by the arguments of a `timedelta`."""
        passed = timedelta(**duration)
        self.wall += passed
        self.boot += passed // timedelta(milliseconds=1)


class SeededRandomness:
    """The same bits in every run."""

    def __init__(self, seed: int = 0) -> None:
        self._source = random.Random(seed)

    def bits(self, count: int) -> int:
        return self._source.getrandbits(count)


class StandInMachine:
    """A process of our making among others that live or die as the test says."""

    def __init__(self, nonce: str = "first", boot: str = "boot-one") -> None:
        self._holder = a_holder(boot=boot, nonce=nonce)
        self.dead: set[Holder] = set()

    def holder(self) -> Holder:
        return self._holder

    def is_gone(self, holder: Holder) -> bool:
        return holder.boot != self._holder.boot or holder in self.dead


class Gate:
    """A place in a play where the turn waits until the test lets it go on."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def reached(self) -> None:
        """Return once a turn waits here."""
        async with asyncio.timeout(PATIENCE):
            await self._reached.wait()

    async def passed(self) -> None:
        """Wait here, as a turn."""
        self._reached.set()
        await self._opened.wait()

    def open(self) -> None:
        """Let the turn go on."""
        self._opened.set()


Play = Sequence[Sequence[Draft | Outcome] | Gate | Exception]


class HeldStore:
    """A store that is written when nobody holds it, as when another process has the file."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._free = asyncio.Event()
        self.let_go()

    def hold(self) -> None:
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    async def write(self, work: Any, **how: Any) -> Any:
        await self._free.wait()
        return await self._store.write(work, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class GatedRuntime:
    """A `Runtime` that plays what the test wrote, turn by turn; then it answers "done"."""

    writes_first = False

    def __init__(self, *plays: Play) -> None:
        self._plays = list(plays)
        self.turns: list[TurnInput] = []
        self.closed = 0
        self.ended = asyncio.Event()

    async def run(self, turn: TurnInput, emit: Emit) -> TurnEnd:
        self.turns.append(turn)
        play = self._plays.pop(0) if self._plays else [an_answer("done")]
        try:
            for part in play:
                if isinstance(part, Gate):
                    await part.passed()
                elif isinstance(part, Exception):
                    raise part
                elif isinstance(outcome := part[-1], Outcome):
                    return TurnEnd(outcome=outcome, drafts=tuple(part[:-1]))
                else:
                    await emit(part)
            # A faulty runtime: the play has no outcome.
            return None  # type: ignore[return-value]
        finally:
            self.closed += 1
            self.ended.set()


def asked(step: int = 1) -> StepStarted:
    """Return the start of a step, with a message id of its own."""
    return StepStarted(step=step, model_id=MODEL_ID, message_id=MessageId(an_id(900 + step)))


def streamed(text: str, *, step: int = 1, offset: int = 0) -> StepDelta:
    """Return a piece of the answer."""
    return StepDelta(
        step=step,
        message_id=asked(step).message_id,
        channel=Channel.TEXT,
        offset=offset,
        text=text,
    )


def an_answer(
    text: str, *, step: int = 1, usage: Usage | None = None
) -> tuple[Draft | Outcome, ...]:
    """Return the batch that ends a turn well, with the assistant's row."""
    row = MessageDraft(role=Role.ASSISTANT, parts=(Text(text=text),), model_id=MODEL_ID)
    return (row, StepEnded(step=step, usage=usage), Outcome(stop_reason=StopReason.STOP))


def an_intent(call_id: str = "call-1", effect: Effect | None = None) -> MessageDraft:
    """Return the row with which the agent asks for a tool."""
    part = a_tool_call(id=CallId(call_id))
    return MessageDraft(role=Role.TOOL_CALL, parts=(part,), model_id=MODEL_ID, effect=effect)


def a_start(call_id: str = "call-1") -> ToolStarted:
    """Return the news that the tool of `an_intent()` begins to act."""
    part = a_tool_call(id=CallId(call_id))
    return ToolStarted(call_id=part.id, name=part.name, arguments=part.arguments)
