"""Stand-ins for what the engine plays with: scripted, and writing down what was done to them.

Each of them looks at the paper before it acts: what has to be on disk by then is on it, or the
fault is written there, too. They implement ports and nothing else.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from holdfast.domain.approvals import (
    Approval,
    ApprovalContext,
    ApprovalMode,
    ApprovalState,
    Question,
    digest_call,
)
from holdfast.domain.drafts import Draft, MessageDraft, Outcome
from holdfast.domain.events import StepEnded, StepFailed, StepStarted, ToolEnded, ToolStarted
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Message, ResultStatus, Role, ToolCall, media_handle
from holdfast.domain.models import Model
from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.engine.model_requests import INSTRUCTION
from holdfast.engine.runtime import EngineRuntime
from holdfast.engine.tool_calls import refuse_call
from holdfast.ports.llm import LlmDelta, LlmRequest, LlmTool
from holdfast.ports.runtime import TurnInput
from holdfast.ports.system import Clock, Randomness
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, Slice, ToolWorkspace
from tests.engine.builders import (
    MODEL,
    NOW,
    Batch,
    CountingRandomness,
    StillClock,
    a_turn,
    run_turn,
)

Batches = list[Batch]


class Paper:
    """A list as journal: what is in it is on disk. It also knows who could not wait for that."""

    def __init__(self) -> None:
        self.batches: Batches = []
        self.faults: list[str] = []
        # Calls that were intended before a crash.
        self.known: set[str] = set()
        # Calls that have acted: from now on their results must not be lost.
        self.acted: list[str] = []

    @property
    def drafts(self) -> list[Draft | Outcome]:
        """Return all drafts in their order."""
        return [draft for batch in self.batches for draft in batch]

    def require_results(self, who: str) -> None:
        """Note a fault when something goes on while a result is only in memory."""
        ended = [draft.call_id for draft in self.drafts if isinstance(draft, ToolEnded)]
        missing = [call_id for call_id in self.acted if call_id not in ended]
        if missing:
            self.faults.append(f"{who} came before the result of {', '.join(missing)}")

    def require_open_step(self, request: LlmRequest) -> None:
        """Note a fault when a request leaves without its `step.started`."""
        steps = [
            each for each in self.drafts if isinstance(each, StepStarted | StepEnded | StepFailed)
        ]
        newest = steps[-1] if steps else None
        if not isinstance(newest, StepStarted) or newest.model_id != request.model.id:
            self.faults.append(f"request {request.ordinal} left before its step was started")

    def require_start(self, asked: RequestedCall) -> None:
        """Note a fault when a call acts without its intent and its start, or twice."""
        drafts = self.drafts
        starts = [each for each in drafts if isinstance(each, ToolStarted)]
        if not starts or starts[-1].call_id != asked.id:
            self.faults.append(f"{asked.id} acted before its start")
        if asked.id not in {*intended(drafts), *self.known}:
            self.faults.append(f"{asked.id} acted before its intent")

    def require_question(self, question: Question) -> None:
        """Note a fault when somebody is asked what is not on disk."""
        if question not in self.drafts:
            self.faults.append(f"{question.id} was asked before it was written down")


def intended(drafts: Sequence[Draft | Outcome]) -> list[str]:
    """Return the ids of the calls that were intended."""
    return [
        part.id
        for draft in drafts
        if isinstance(draft, MessageDraft) and draft.role is Role.TOOL_CALL
        for part in draft.parts
        if isinstance(part, ToolCall)
    ]


class Gate:
    """A place where a stand-in waits until the test lets it go on, or for ever."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def reached(self) -> None:
        """Return once somebody waits here."""
        async with asyncio.timeout(20):
            await self._reached.wait()

    async def passed(self) -> None:
        """Wait here."""
        self._reached.set()
        await self._opened.wait()

    def open(self) -> None:
        """Let whoever waits here go on."""
        self._opened.set()


# A number is a pause in seconds, an exception is raised.
Script = Sequence[LlmDelta | BaseException | float | Gate]


class ScriptedLlm:
    """Answers the request of a number with the script of that number; the last one stays."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self.paper = Paper()
        self.requests: list[LlmRequest] = []
        self.endings: list[str] = []

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        self.paper.require_results(f"request {request.ordinal}")
        if request.system != INSTRUCTION:
            self.paper.require_open_step(request)
        self.requests.append(request)
        try:
            for item in self._scripts[min(request.ordinal, len(self._scripts)) - 1]:
                if isinstance(item, float):
                    await asyncio.sleep(item)
                elif isinstance(item, Gate):
                    await item.passed()
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        except BaseException as error:
            self.endings.append(type(error).__name__)
            raise


class StandInTool(Struct, frozen=True, kw_only=True):
    """A tool by what it does: `refusal` is the answer to any plan, `acts` what comes of it."""

    effect: Effect = Effect.PURE
    tool_class: ToolClass = ToolClass.READ
    refusal: CallOutcome | BaseException | None = None
    acts: Callable[[RequestedCall], Any] | None = None
    gate: Gate | None = None
    memory: str | None = None


class StandInToolbox:
    """Tools of the test's making; `done` tells what was done, in order."""

    def __init__(self, tools: Mapping[str, StandInTool] | None = None) -> None:
        self.tools = dict(tools or {"look": StandInTool()})
        self.paper = Paper()
        self.done: list[str] = []
        self.keys: list[str] = []
        self.cancelled: list[str] = []
        self.offering: BaseException | None = None
        self.missing: tuple[str, ...] = ()

    def effect(self, name: str, arguments: Mapping[str, Any], place: ToolWorkspace) -> Effect:
        return self.tools[name].effect if name in self.tools else Effect.UNSAFE

    def is_parallel(self, name: str, place: ToolWorkspace) -> bool:
        return False

    async def offers(self, place: ToolWorkspace) -> tuple[LlmTool, ...]:
        self.paper.require_results("offers")
        if self.offering is not None:
            raise self.offering
        return tuple(
            LlmTool(name=name, description=f"{name}s", parameters={"type": "object"})
            for name in self.tools
        )

    async def troubles(self, place: ToolWorkspace) -> tuple[str, ...]:
        return self.missing

    async def plan(self, place: ToolWorkspace, asked: RequestedCall) -> PlannedCall | CallOutcome:
        self.paper.require_results(f"the plan of {asked.id}")
        self.done.append(f"plan {asked.id}")
        tool = self.tools.get(asked.name)
        if tool is None:
            return refuse_call(ResultCode.UNKNOWN_TOOL, f"There is no tool {asked.name!r}.")
        if isinstance(tool.refusal, BaseException):
            raise tool.refusal
        if tool.refusal is not None:
            return tool.refusal
        return PlannedCall(
            asked=asked,
            effect=tool.effect,
            tool_class=tool.tool_class,
            digest=digest_call(asked.name, asked.arguments, place.working_dir, ()),
            question=f"{asked.name}?",
            memory=tool.memory,
        )

    async def run(self, place: ToolWorkspace, planned: PlannedCall) -> CallOutcome:
        asked = planned.asked
        self.paper.require_start(asked)
        self.done.append(f"run {asked.id}")
        self.keys.append(asked.idempotency_key)
        self.paper.acted.append(asked.id)
        tool = self.tools[asked.name]
        try:
            if tool.gate is not None:
                await tool.gate.passed()
            result = tool.acts(asked) if tool.acts else f"{asked.name} {asked.id}"
        except asyncio.CancelledError:
            self.cancelled.append(asked.id)
            raise
        return (
            result
            if isinstance(result, CallOutcome)
            else CallOutcome(status=ResultStatus.OK, result=result)
        )

    async def leave(self, session: str) -> None:
        """Do nothing: nothing here lives as long as a session."""


def raising(error: BaseException) -> Callable[[RequestedCall], Any]:
    """Return the act of a tool that raises."""

    def act(_: RequestedCall) -> Any:
        raise error

    return act


class StandInApprover:
    """A session's standing as the test sets it, and answers in the order they are given."""

    def __init__(
        self,
        mode: ApprovalMode = ApprovalMode.AUTO,
        *answers: ApprovalState | Gate,
        earlier: Approval | None = None,
        is_remembered: bool = False,
        is_attended: bool = True,
        note: str | None = None,
    ) -> None:
        self.standing_now = ApprovalContext(
            mode=mode, earlier=earlier, is_remembered=is_remembered, is_attended=is_attended
        )
        self._answers = list(answers)
        self._note = note
        self.paper = Paper()
        self.asked: list[Question] = []
        self.withdrawn: list[Question] = []
        self.cancelled: list[str] = []

    async def standing(self, question: Question) -> ApprovalContext:
        self.paper.require_results(f"the standing of {question.id}")
        return self.standing_now

    async def decision(self, question: Question) -> Approval:
        earlier = self.standing_now.earlier
        if earlier is None or earlier.question != question:
            self.paper.require_question(question)
        self.asked.append(question)
        answer = self._answers.pop(0)
        try:
            while isinstance(answer, Gate):
                await answer.passed()
                answer = self._answers.pop(0)
        except asyncio.CancelledError:
            self.cancelled.append(question.id)
            raise
        return an_approval(question, answer, note=self._note)

    async def withdraw(self, question: Question, *, by: str = "unattended") -> Approval:
        self.withdrawn.append(question)
        answer = self._answers.pop(0) if self._answers else ApprovalState.EXPIRED
        assert isinstance(answer, ApprovalState)
        return an_approval(question, answer, note=self._note)


def an_approval(
    question: Question, state: ApprovalState = ApprovalState.WAITING, note: str | None = None
) -> Approval:
    """Return the question as it was written down, and its answer."""
    return Approval(
        session_id=SessionId("session"), question=question, state=state, note=note, asked_at=NOW
    )


class StandInShelf:
    """A shelf in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.mime_types: dict[str, str] = {}

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        handle = media_handle(content)
        self.kept[handle] = content
        self.mime_types[handle] = mime_type
        return handle

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> Slice | None:
        content = self.kept.get(handle)
        if content is None:
            return None
        return Slice(content=content[start:end], start=start, total=len(content))


class LoopClock:
    """Both clocks follow the event loop's, which a test lets jump."""

    def now(self) -> datetime:
        return NOW + timedelta(seconds=asyncio.get_running_loop().time())

    def lease_clock_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)


class Stage:
    """An engine among stand-ins that share one paper."""

    def __init__(
        self,
        llm: ScriptedLlm,
        toolbox: StandInToolbox | None = None,
        approver: StandInApprover | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        self.paper = Paper()
        self.llm = llm
        self.toolbox = toolbox or StandInToolbox()
        self.approver = approver or StandInApprover()
        self.shelf = StandInShelf()
        for each in (self.llm, self.toolbox, self.approver):
            each.paper = self.paper
        self.engine = EngineRuntime(
            llm, self.toolbox, clock or StillClock(), randomness or CountingRandomness()
        )

    def place(self) -> ToolWorkspace:
        """Return where the calls act."""
        return ToolWorkspace(
            session="session",
            working_dir="/desk",
            scratch="/desk/scratch",
            grants=(),
            tools=frozenset(self.toolbox.tools),
            shelf=self.shelf,
        )

    def turn(self, *history: Message, model: Model = MODEL, **changes: Any) -> TurnInput:
        """Return a turn that is played at this stage's place."""
        own: dict[str, Any] = {"workspace": self.place(), "approver": self.approver}
        return a_turn(*history, model=model, **own | changes)

    async def write(self, batch: Batch) -> None:
        """Put a batch on the paper."""
        self.paper.batches.append(batch)

    async def play(self, turn: TurnInput) -> Batches:
        """Play a turn to its end; nothing may happen before what it needs is on disk."""
        self.paper.known |= {call.id for call in turn.calls}
        await run_turn(self.engine, turn, self.write)
        assert self.paper.faults == []
        return self.paper.batches
