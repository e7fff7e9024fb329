"""A turn that a Python function of the user runs: what it may do, recorded and replayed.

Every entry is on disk before its caller goes on. A function that runs again after a crash gets the
recorded outcomes instead of running the calls a second time (`replay.py`).
"""

import asyncio
import inspect
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from holdfast.children.model import ChildAnswer
from holdfast.domain.calls import Call, call_key
from holdfast.domain.costs import Usage, price
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Outcome, notice_draft
from holdfast.domain.errors import Code, Conflict, Invalid, LimitReached
from holdfast.domain.events import Channel, StepDelta, StepEnded, StepStarted
from holdfast.domain.ids import CallId, MessageId, SessionId
from holdfast.domain.messages import (
    Message,
    Notice,
    NoticeCode,
    Part,
    ResultStatus,
    Role,
    Step,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
    require_content,
)
from holdfast.domain.models import Model
from holdfast.domain.sessions import Budget, Session, StopReason
from holdfast.domain.tools import INVOKE_AGENT, Effect, Grant, ResultCode
from holdfast.domain.turns import ResumePolicy
from holdfast.engine.budget import Need, check_budget
from holdfast.engine.tool_calls import answer, dispatch
from holdfast.engine.turn_state import TurnState
from holdfast.functions.context import ToolFailed
from holdfast.functions.results import UnrecordableError, plain
from holdfast.functions.tool import ApprovalRule, UntypedTool
from holdfast.loops.replay import (
    Position,
    RecordedEntries,
    call_id_of,
    digest_arguments,
    is_plain,
    key_of,
    require_name,
    require_plain,
    value_of,
)
from holdfast.ports.runtime import Emit, TurnEnd, TurnInput, TurnPausedError
from holdfast.ports.tools import CallOutcome, Toolbox

_BRANCH: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
# Set while a function of an entry runs: an entry inside it would be hidden from a replay.
_inside: ContextVar[bool] = ContextVar("holdfast_inside_an_entry", default=False)


def leave_entries() -> None:
    """Note that no entry runs here: the task may have been started by the call of another turn."""
    _inside.set(False)


class StepContext:
    """Given to the function of a step that has a parameter of this type."""

    def __init__(self, turn: "LoopTurn") -> None:
        self._turn = turn
        self.costs: list[CostDraft] = []

    async def delta(self, text: str, channel: str = "text") -> None:
        """Stream text to the readers of the session."""
        await self._turn.delta(text, channel)

    async def usage(self, usage: Usage, model: str, request_id: str | None = None) -> None:
        """Record what a model request of the step has used; written with the end of the step."""
        self.costs.append(await self._turn.cost_of(usage, model, request_id))


class LoopServices(Struct, frozen=True, kw_only=True):
    """What turns of a user's function need from outside."""

    toolbox: Toolbox
    # Returns a toolbox that has one function and grants it.
    alone: Callable[[UntypedTool], Toolbox]
    # Starts any agent of the owner.
    spawner: Toolbox
    find_model: Callable[[str], Awaitable[Model]]
    new_id: Callable[[], str]
    now: Callable[[], datetime]
    # Returns a value without managed secrets, as it is recorded.
    redact: Callable[[Any], Any]


class Branch:
    """A part of a turn with positions of its own; one task uses it."""

    def __init__(self, turn: "LoopTurn", path: tuple[str, ...] = ()) -> None:
        self._turn = turn
        self._path = path
        self._task = asyncio.current_task()
        self._count = 0
        self._branches: set[str] = set()
        self.random = random.Random("/".join((turn.session.id, str(turn.number), *path)))  # noqa: S311

    def uuid4(self) -> UUID:
        """Return a random id that a replay repeats."""
        return UUID(int=self.random.getrandbits(128), version=4)

    def branch(self, name: str) -> "Branch":
        """Return a branch for another task; its name is unique within this one."""
        if _BRANCH.fullmatch(name) is None or name in self._branches:
            raise Invalid(
                Code.INVALID_INPUT,
                f"The branch {name!r} cannot be opened; use letters, digits and _.:- and every "
                "name once.",
                {"field": "name"},
            )
        self._branches.add(name)
        return Branch(self._turn, (*self._path, name))

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        run: Callable[..., Any] | None = None,
        effect: Effect | Literal["pure", "idempotent", "unsafe"] = "unsafe",
        approval: ApprovalRule = "auto",
        timeout: float = 600,
        returns: Any = None,
    ) -> Awaitable[Any]:
        """Make a tool call: intended, approved, started and answered, each on disk before the next.

        `run` is the function; without it, the name is a tool of the session. The value is decoded
        from what was recorded, into `returns` if it is given.
        """
        require_name(name, what="call")
        asked = dict(arguments or {})
        require_plain(asked)
        position = self._next()
        toolbox = self._turn.parts.toolbox
        if run is not None:
            tool = UntypedTool(run, name=name, effect=effect, approval=approval, timeout=timeout)
            toolbox = self._turn.parts.alone(tool)
        return self._turn.make_call(position, name, asked, toolbox, returns)

    def spawn(
        self,
        agent: str,
        task: str,
        *,
        title: str | None = None,
        budget: Budget | None = None,
        grant: Grant | None = None,
        tools: Sequence[str] | None = None,
    ) -> Awaitable[ChildAnswer]:
        """Give a task to another agent, in a session below this one, and return its answer.

        Raises `ToolFailed` if the agent has not answered.
        """
        given = {"title": title, "budget": budget, "grant": grant, "tools": tools}
        named = {name: value for name, value in given.items() if value is not None}
        asked = msgspec.to_builtins({"agent": agent, "task": task, **named})
        spawner = self._turn.parts.spawner
        return self._turn.make_call(self._next(), INVOKE_AGENT, asked, spawner, ChildAnswer)

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        effect: str = "pure",
        model: str | None = None,
    ) -> Awaitable[Any]:
        """Run a function that may run twice, such as a model request, and record its result.

        If it names the model of the request, the budget is checked before.
        """
        if Effect(effect) is Effect.UNSAFE:
            raise Invalid(
                Code.INVALID_INPUT,
                "A step may run twice after a crash; use turn.call for an effect that must not.",
                {"field": "effect"},
            )
        require_name(name, what="step")
        return self._turn.make_step(self._next(), name, fn, args, model)

    def _next(self) -> Position:
        if _inside.get():
            raise Invalid(
                Code.TURN_NESTED,
                "A call inside the function of another call or step would be lost when the turn is "
                "replayed; make it beside it.",
            )
        self._require_task()
        self._count += 1
        self._turn.count_entry()
        return Position(self._path, self._count)

    def _require_task(self) -> None:
        if self._turn.is_over:
            raise Conflict(Code.TURN_ENDED, "The block of the turn was left; enter another turn.")
        if asyncio.current_task() is not self._task:
            raise Invalid(
                Code.TURN_WRONG_TASK,
                "The order of calls and messages in several tasks is not repeatable; open a "
                "branch in each task with turn.branch(name), and say in the task of the turn.",
            )


class LoopTurn(Branch):
    """One turn of the user's own loop."""

    def __init__(
        self,
        turn: TurnInput,
        emit: Emit,
        parts: LoopServices,
        *,
        resume: ResumePolicy = ResumePolicy.REPLAY,
        attempt: int = 1,
        max_calls: int = 1_000,
    ) -> None:
        self._input = turn
        super().__init__(self)
        # Set when the loop has ended or its block was left.
        self.is_over = False
        self.parts = parts
        self.attempt = attempt
        self._state = TurnState(turn, emit)
        self._max_calls = max_calls
        self._entries = 0
        before = self._state.current if resume is ResumePolicy.REPLAY else []
        self._recorded = RecordedEntries(turn.turn, before, turn.calls)
        # A run that is not a replay must not use the ids of earlier calls.
        self._run = 0 if resume is ResumePolicy.REPLAY else len(turn.calls)
        # Calls that have begun and have no result yet.
        self._open: set[CallId] = set()
        self._closed = asyncio.Event()
        # One question about the budget at a time.
        self._checks = asyncio.Lock()
        # Rows that an earlier run has written, and how many of them this one has reached.
        self._earlier = [row for row in before if row.role is not Role.USER]
        # A notice at the end, which no entry reaches, is not ahead of the loop.
        while self._earlier and isinstance(self._earlier[-1].parts[0], Notice):
            self._earlier.pop()
        self._reached = 0
        # By row and by entry, how many are reached with it.
        self._places = {
            key: place
            for place, row in enumerate(self._earlier, start=1)
            for key in (row.id, *map(key_of, row.parts))
        }
        self._says = 0
        self._step: StepStarted | None = None
        self._offset = 0
        self._ending: StopReason | None = None

    @property
    def session(self) -> Session:
        """The session as it was when the turn was entered."""
        return self._input.session  # type: ignore[return-value]

    @property
    def number(self) -> int:
        """The number of the turn."""
        return self._input.turn

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history, up to what this run of the loop has reached; the turn's own rows last.

        Messages that wait for a later turn are left out.
        """
        number = self.number
        hidden = {row.id for row in self._earlier[self._reached :]}
        rows = [row for row in self._input.rows_now() if row.id not in hidden]
        earlier = (row for row in rows if row.turn < number)
        return (*earlier, *(row for row in rows if row.turn == number))

    @property
    def queued(self) -> tuple[Message, ...]:
        """The messages that wait for a later turn, as they are now."""
        return tuple(row for row in self._input.rows_now() if row.turn > self.number)

    @property
    def started_at(self) -> datetime:
        """The time of the turn's first message, which a replay repeats."""
        return next(row.created_at for row in self.messages if row.turn == self.number)

    @property
    def prompt(self) -> str:
        """The text of the user's messages that the turn answers."""
        own = (row for row in self.messages if row.turn == self.number)
        return "\n\n".join(row.text for row in own if row.role is Role.USER)

    @property
    def is_replaying(self) -> bool:
        """Whether recorded entries are still ahead."""
        return self._reached < len(self._earlier)

    async def now(self) -> datetime:
        """Return the time as a recorded step."""
        at = await self.step("now", lambda: self.parts.now().isoformat())
        return datetime.fromisoformat(at).astimezone(UTC)

    async def check_budget(self, model: str | None = None) -> None:
        """Check that the budget is not used up, or that an answer of a model fits into it.

        Raises `LimitReached`, or asks for a higher budget if the session's budget says so.
        """
        # What is recorded was paid.
        if self.is_replaying:
            return
        found = None if model is None else await self.parts.find_model(model)
        need = None if found is None else Need(model=found, input=0)
        try:
            async with self._checks:
                refused = await check_budget(self._state, need, self.parts.new_id)
        except TurnPausedError:
            await self._other_calls()
            raise
        if refused is not None and refused.failure is not None:
            raise LimitReached(Code.BUDGET_EXCEEDED, refused.failure.message)

    async def delta(self, text: str, channel: str = "text") -> None:
        """Stream text; `say` later records the whole message."""
        # The text of a message that is already recorded was streamed before.
        if self._says < len(self._recorded.said) or not text:
            return
        drafts: list[Draft] = []
        if self._step is None:
            self._step = await self._start_step(None)
            self._offset = 0
            drafts.append(self._step)
        step = self._step
        drafts.append(
            StepDelta(
                message_id=step.message_id,
                step=step.step,
                channel=Channel(channel),
                offset=self._offset,
                text=text,
            )
        )
        self._offset += len(text)
        await self._state.emit(drafts)

    async def say(
        self,
        content: str | tuple[Part, ...],
        *,
        usage: Usage | None = None,
        model: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Record a message of the assistant, and what the request behind it has used."""
        self._require_task()
        drafts = await self._say(content, usage, model, request_id)
        if drafts:
            await self._state.emit(drafts)

    def end(self, stop_reason: StopReason | str = StopReason.STOP) -> None:
        """Choose how the turn ends when the loop returns."""
        self._ending = StopReason(stop_reason)

    async def finish(self, text: str | None = None) -> TurnEnd:
        """Return the end of the turn, with a last message if the loop returned one."""
        drafts: list[Draft] = []
        if text is not None:
            drafts += await self._say(text, None, None, None)
        elif self._step is not None:
            drafts.append(StepEnded(step=self._step.step, message_id=self._step.message_id))
        if left := self._recorded.leftovers():
            said = f"The loop did not repeat these recorded entries: {', '.join(left)}."
            drafts.append(notice_draft(NoticeCode.REPLAY_LEFTOVER, said))
        self._state.carry(drafts)
        return self._state.end(Outcome(stop_reason=self._ending or StopReason.STOP))

    def count_entry(self) -> None:
        """Count a call or step against the limit of the turn."""
        self._entries += 1
        if self._entries > self._max_calls:
            raise LimitReached(
                Code.TURN_ENTRY_LIMIT,
                f"The turn has made {self._max_calls} calls and steps, its limit.",
            )

    async def make_call(
        self,
        position: Position,
        name: str,
        arguments: dict[str, Any],
        toolbox: Toolbox,
        returns: Any,
    ) -> Any:
        """Return the value of the call at a position; runs it if no outcome is recorded."""
        call_id = call_id_of(self.number, position, self._run)
        digest = digest_arguments(self.parts.redact(arguments))
        found = self._recorded.find(call_id, position, "call", name, digest)
        if found is not None and isinstance(found.result, ToolResult):
            self._show_rows_through(call_id)
            return value_of(found.result.status, found.result.result, found.result.error, returns)
        call = None if found is None else found.call
        if call is None:
            call = self._intend(toolbox, call_id, name, arguments)
            # Together with its start, unless the call must not run twice.
            if call.effect is Effect.UNSAFE:
                await self._state.emit()
        self._show_rows_through(call_id)
        self._open.add(call_id)
        token = _inside.set(True)
        try:
            done = await dispatch(toolbox, self._state, call, self.parts.new_id)
        except TurnPausedError:
            # It does not run, so that the turn may pause; but only when no other call runs.
            self._close(call_id)
            await self._other_calls()
            raise
        finally:
            _inside.reset(token)
        await self._state.emit(answer(call, done))
        self._close(call_id)
        return value_of(done.status, done.result, done.error, returns)

    async def _other_calls(self) -> None:
        while self._open:
            self._closed.clear()
            await self._closed.wait()

    def _close(self, call_id: CallId) -> None:
        self._open.discard(call_id)
        self._closed.set()

    @property
    def has_open_calls(self) -> bool:
        """Whether a call of the turn has no result."""
        return bool(self._open) or self._recorded.has_open_calls

    async def make_step(
        self,
        position: Position,
        name: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        model: str | None,
    ) -> Any:
        """Return the result of the step at a position; runs it if none is recorded."""
        digest = digest_arguments(self.parts.redact([each for each in args if is_plain(each)]))
        key = call_id_of(self.number, position, self._run)
        found = self._recorded.find(key, position, "step", name, digest)
        if found is not None and isinstance(found.result, Step):
            self._show_rows_through(str(position))
            return value_of(found.result.status, found.result.result, found.result.error, None)
        if model is not None:
            await self.check_budget(model)
        context = StepContext(self)
        begun = time.monotonic()
        done = await _run_step(fn, args, context, name)
        part = Step(
            position=str(position),
            name=name,
            digest=digest,
            status=done.status,
            # Without secrets, as a replay returns it.
            result=self.parts.redact(done.result),
            error=done.error,
            milliseconds=round((time.monotonic() - begun) * 1000),
        )
        await self._state.emit((MessageDraft(role=Role.SYSTEM, parts=(part,)), *context.costs))
        return value_of(part.status, part.result, part.error, None)

    async def cost_of(self, usage: Usage, model: str | None, request_id: str | None) -> CostDraft:
        """Return the ledger entry of a model request of the loop."""
        found = self._input.models[0] if model is None else await self.parts.find_model(model)
        return CostDraft(
            request_id=request_id or self.parts.new_id(),
            model_id=found.id,
            usage=usage,
            microcents=price(usage, found.prices) if found.prices else 0,
            priced=found.prices is not None,
        )

    def _intend(
        self, toolbox: Toolbox, call_id: CallId, name: str, arguments: dict[str, Any]
    ) -> Call:
        workspace = self._input.workspace
        effect = Effect.UNSAFE
        if workspace is not None:
            effect = toolbox.effect(name, arguments, workspace)
        session = self.session
        call = Call(
            id=call_id,
            session_id=SessionId(session.id),
            turn=self.number,
            name=name,
            arguments=arguments,
            effect=effect,
            idempotency_key=call_key(session.owner, session.id, call_id),
        )
        part = ToolCall(id=call.id, name=name, arguments=arguments)
        self._state.carry((MessageDraft(role=Role.TOOL_CALL, parts=(part,), effect=effect),))
        return call

    async def _say(
        self,
        content: str | tuple[Part, ...],
        usage: Usage | None,
        model: str | None,
        request_id: str | None,
    ) -> list[Draft]:
        given = require_content(content)
        parts = (Text(text=given),) if isinstance(given, str) else given
        self._says += 1
        if self._says <= len(self._recorded.said):
            self._show_rows_through(self._recorded.said[self._says - 1].id)
            return []
        step = self._step or await self._start_step(model)
        drafts: list[Draft] = [] if self._step is not None else [step]
        self._step = None
        costs = [] if usage is None else [await self.cost_of(usage, model, request_id)]
        cost = costs[0] if costs else None
        ended = StepEnded(
            step=step.step,
            message_id=step.message_id,
            usage=usage,
            microcents=cost.microcents if cost else 0,
            priced=cost.priced if cost else False,
        )
        row = MessageDraft(
            id=step.message_id, role=Role.ASSISTANT, parts=parts, model_id=step.model_id
        )
        return [*drafts, ended, row, *costs]

    async def _start_step(self, model: str | None) -> StepStarted:
        found = self._input.models[0] if model is None else await self.parts.find_model(model)
        number, self._state.step = self._state.step, self._state.step + 1
        return StepStarted(
            message_id=MessageId(self.parts.new_id()),
            model_id=found.id,
            step=number,
            model=found.ref,
        )

    def _show_rows_through(self, key: str) -> None:
        """Show the rows of a recorded entry, and all before it, in `messages`."""
        self._reached = max(self._reached, self._places.get(key, 0))


async def _run_step(
    fn: Callable[..., Any], args: Sequence[Any], context: StepContext, name: str
) -> CallOutcome:
    given = [*args, context] if _wants_context(fn) else list(args)
    token = _inside.set(True)
    try:
        found = fn(*given)
        if inspect.isawaitable(found):
            found = await found
        return CallOutcome(status=ResultStatus.OK, result=plain(found))
    except ToolFailed as error:
        failure = ToolError(code=ResultCode.FAILED, message=str(error))
        return CallOutcome(status=ResultStatus.ERROR, error=failure)
    except UnrecordableError as error:
        raise Invalid(
            Code.INVALID_INPUT, f"The result of {name} cannot be recorded: {error}."
        ) from error
    finally:
        _inside.reset(token)


def _wants_context(fn: Callable[..., Any]) -> bool:
    try:
        hints = inspect.get_annotations(fn, eval_str=True)
    except (NameError, TypeError):
        return False
    return StepContext in hints.values()
