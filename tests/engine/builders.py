"""Turns, rows and ports with defaults, so that a test shows only what matters to it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.domain.agents import Agent, LlmRuntime, Retry
from holdfast.domain.agents import Runtime as RuntimeSpec
from holdfast.domain.approvals import Approval, ApprovalContext, ApprovalMode, Question
from holdfast.domain.drafts import Draft, Outcome
from holdfast.domain.ids import AgentId, CallId, MessageId, Owner, SessionId, uuid7
from holdfast.domain.messages import (
    Compaction,
    Message,
    Notice,
    NoticeCode,
    Part,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
)
from holdfast.domain.models import Model, model_of
from holdfast.domain.sessions import SessionContext
from holdfast.domain.time import microseconds
from holdfast.domain.tools import Effect
from holdfast.engine.runtime import EngineRuntime
from holdfast.ports.llm import Llm, LlmDelta, LlmRequest, LlmTool
from holdfast.ports.runtime import Runtime, TurnInput
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, ToolWorkspace

NOW = datetime(2026, 11, 5, 12, 0, tzinfo=UTC)
MODEL = model_of("maker:model")
MILLISECONDS = int(NOW.timestamp() * 1000)


class StillClock:
    """A clock that stands."""

    def now(self) -> datetime:
        return NOW

    def lease_clock_ms(self) -> int:
        return 0


class CountingRandomness:
    """Randomness that counts: 1, 2, 3."""

    def __init__(self) -> None:
        self._count = 0

    def bits(self, count: int) -> int:
        self._count += 1
        return self._count % (1 << count)


class Nobody:
    """An approver where nobody can be asked."""

    async def standing(self, question: Question) -> ApprovalContext:
        return ApprovalContext(mode=ApprovalMode.ASK, is_attended=False)

    async def decision(self, question: Question) -> Approval:
        raise AssertionError(f"nobody was asked {question.id}")

    async def withdraw(self, question: Question, *, by: str = "unattended") -> Approval:
        raise AssertionError(f"nobody had asked {question.id}")


def the_id(number: int) -> str:
    """The id that was made with the nth randomness."""
    return uuid7(MILLISECONDS, number)


class ListedLlm:
    """A provider whose deltas are listed; an exception in the list is raised."""

    def __init__(self, *deltas: LlmDelta | Exception) -> None:
        self._deltas = deltas
        self.requests: list[LlmRequest] = []
        self.closed = 0

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        self.requests.append(request)
        try:
            for delta in self._deltas:
                if isinstance(delta, Exception):
                    raise delta
                yield delta
        finally:
            self.closed += 1


class StalledLlm(ListedLlm):
    """A provider that goes silent after its deltas and never ends."""

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        try:
            async for delta in super().stream(request):
                yield delta
            await asyncio.Event().wait()
        finally:
            self.closed += 1


def an_agent(runtime: RuntimeSpec | None = None, system_prompt: str = "") -> Agent:
    return Agent(
        id=AgentId("agent"),
        owner=Owner("local"),
        slug="agent",
        name="Agent",
        system_prompt=system_prompt,
        # Asked once: what happens after a failure is the business of the tests about it.
        runtime=runtime or LlmRuntime(retry=Retry(max=1)),
        created_at=NOW,
        updated_at=NOW,
    )


def a_turn(*history: Message, model: Model, **changes: Any) -> TurnInput:
    """A turn of one model, by default the first one, in which somebody says hello."""
    fields: dict[str, Any] = {
        "agent": an_agent(),
        "models": (model,),
        "context": SessionContext(working_dir="/work"),
        "history": history or (a_row(1, Role.USER, Text(text="Hello")),),
        "turn": 1,
        "step": 1,
        "ordinal": 1,
        "approver": Nobody(),
    }
    fields |= changes
    parts = [part for row in fields["history"] for part in row.parts]
    ids = frozenset(part.id for part in parts if isinstance(part, ToolCall))
    return TurnInput(**{"call_ids": ids} | fields)


def a_row(sequence: int, role: Role, *parts: Part, turn: int = 1) -> Message:
    return Message(
        id=MessageId(the_id(1000 + sequence)),
        session_id=SessionId("session"),
        sequence=sequence,
        turn=turn,
        role=role,
        parts=parts,
        at=microseconds(NOW),
    )


def user(sequence: int, text: str, turn: int = 1) -> Message:
    return a_row(sequence, Role.USER, Text(text=text), turn=turn)


def assistant(sequence: int, text: str, turn: int = 1) -> Message:
    return a_row(sequence, Role.ASSISTANT, Text(text=text), turn=turn)


def call(sequence: int, call_id: str, turn: int = 1) -> Message:
    part = ToolCall(id=CallId(call_id), name="look", arguments={"at": call_id})
    return a_row(sequence, Role.TOOL_CALL, part, turn=turn)


def result(
    sequence: int,
    call_id: str,
    value: object = None,
    *,
    status: ResultStatus = ResultStatus.OK,
    error: ToolError | None = None,
    turn: int = 1,
) -> Message:
    part = ToolResult(
        call_id=CallId(call_id), name="look", status=status, result=value, error=error
    )
    return a_row(sequence, Role.TOOL_RESULT, part, turn=turn)


def notice(sequence: int, code: NoticeCode, turn: int = 1) -> Message:
    return a_row(sequence, Role.SYSTEM, Notice(code=code, text="Something."), turn=turn)


def summary(sequence: int, text: str, dropped_through: int) -> Message:
    part = Compaction(summary=text, dropped_through=dropped_through)
    return a_row(sequence, Role.SYSTEM, part, turn=0)


class NoTools:
    """A toolbox with nothing in it; without a place nobody even looks."""

    def effect(self, name: str, arguments: Mapping[str, Any], place: ToolWorkspace) -> Effect:
        return Effect.UNSAFE

    def is_parallel(self, name: str, place: ToolWorkspace) -> bool:
        return False

    async def offers(self, place: ToolWorkspace) -> tuple[LlmTool, ...]:
        return ()

    async def plan(self, place: ToolWorkspace, asked: RequestedCall) -> PlannedCall | CallOutcome:
        raise AssertionError(f"nobody may plan {asked.id}")

    async def run(self, place: ToolWorkspace, planned: PlannedCall) -> CallOutcome:
        raise AssertionError(f"nobody may run {planned.asked.id}")

    async def leave(self, session: str) -> None:
        """Do nothing."""


def an_engine(llm: Llm) -> EngineRuntime:
    return EngineRuntime(llm, NoTools(), StillClock(), CountingRandomness())


# A batch as it is committed: the last one of a turn ends with the outcome.
Batch = tuple[Draft | Outcome, ...]


async def run_turn(
    runtime: Runtime, turn: TurnInput, write: Callable[[Batch], Awaitable[None]]
) -> None:
    """Run a turn with `write` as journal."""

    async def emit(drafts: Sequence[Draft]) -> None:
        await write(tuple(drafts))

    end = await runtime.run(turn, emit)
    await write((*end.drafts, end.outcome))


async def played(llm: Llm, turn: TurnInput) -> list[Batch]:
    """Run a turn with a list as journal."""
    batches: list[Batch] = []

    async def write(batch: Batch) -> None:
        batches.append(batch)

    await run_turn(an_engine(llm), turn, write)
    return batches
