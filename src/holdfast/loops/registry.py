"""Loops of this process: those that hold turns, and those that are registered as runtimes.

A turn of a loop that is not registered here is paused until a process that has it runs it.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import LoopRuntime
from holdfast.domain.drafts import Draft
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid, NotFound
from holdfast.domain.ids import Owner, SessionId, is_slug
from holdfast.domain.messages import Role
from holdfast.domain.turns import INTERRUPTED, ResumePolicy
from holdfast.domain.waits import Wait, WaitReason
from holdfast.execution.capabilities import Capabilities
from holdfast.loops.held_turns import HeldTurns, Hold, failure_of, without_pauses
from holdfast.loops.turn import LoopServices, LoopTurn, leave_entries
from holdfast.ports.runtime import (
    Coordinator,
    Emit,
    TurnEnd,
    TurnFailedError,
    TurnInput,
    TurnPausedError,
)
from holdfast.services.agents import BUILT_IN, Agents
from holdfast.services.turns import may_pass

log = logging.getLogger(__name__)
T = TypeVar("T")
LoopFunction = Callable[[Any], Awaitable[str | None]]


class Loop(Struct, frozen=True, kw_only=True):
    """A function that runs the turns of an agent, and what it does after a crash."""

    name: str
    function: LoopFunction
    resume: ResumePolicy = ResumePolicy.REPLAY
    version: str = ""
    concurrency: int = 64
    # Seconds before a turn that waits for an approval is paused; by default as for any agent.
    park_after: float | None = None


class Loops:
    """Implements the `Runtime` port for agents that are functions of this process."""

    # The function may act before its first draft.
    writes_first = False

    def __init__(self, owner: Owner, parts: Callable[[], LoopServices]) -> None:
        """The loops serve the sessions of the owner that the program was opened for."""
        self._owner = owner
        self._parts = parts
        self._loops: dict[str, Loop] = {}
        self._limits: dict[str, asyncio.Semaphore] = {}

    def add(self, loop: Loop) -> bool:
        """Register a loop; `False` if it is already, and another one of its name is refused."""
        known = self._loops.get(loop.name)
        if known is not None:
            if known == loop:
                return False
            raise Conflict(
                Code.SLUG_TAKEN, f"Another loop is registered as {loop.name}; choose another name."
            )
        self._loops[loop.name] = loop
        self._limits[loop.name] = asyncio.Semaphore(loop.concurrency)
        return True

    @property
    def names(self) -> frozenset[str]:
        """The registered loops."""
        return frozenset(self._loops)

    async def run(self, turn: TurnInput, emit: Emit) -> TurnEnd:
        """Run the turn with the function of its agent."""
        runtime = turn.agent.runtime
        loop = self._loops.get(runtime.name) if isinstance(runtime, LoopRuntime) else None
        session = turn.session
        if loop is None or session is None or session.owner != self._owner:
            raise TurnPausedError(_wait_for(turn.agent.slug))
        if loop.resume is ResumePolicy.STOP and _has_begun(turn):
            raise TurnFailedError(INTERRUPTED)
        if loop.resume is not ResumePolicy.REPLAY:
            turn = without_pauses(turn)
        elif loop.park_after is not None:
            turn = replace(turn, approver=turn.approver.waiting(loop.park_after))
        leave_entries()
        async with self._limits[loop.name]:
            own = LoopTurn(turn, emit, self._parts(), resume=loop.resume)
            try:
                await own.check_budget()
                text = await _unwrapped(loop.function(own))
                own.is_over = True
                if text is not None and not isinstance(text, str):
                    raise TypeError(f"a loop returns a text or None, not {type(text).__name__}")
                end = await own.finish(text)
                if own.has_open_calls:
                    # Their outcome is recorded as after an interrupt.
                    await emit(end.drafts)
                    raise TurnFailedError(end.outcome)
                return end
            except TurnFailedError:
                raise
            except Exception as error:
                if isinstance(error, HoldfastError) and may_pass(error):
                    raise
                log.exception("the loop %s failed", loop.name)
                raise TurnFailedError(failure_of(error)) from error

    async def compact(self, turn: TurnInput) -> Sequence[Draft]:
        """Refuse: the function decides what its model sees."""
        raise Invalid(
            Code.OPTION_NOT_OFFERED,
            f"{turn.agent.name} is a function, which decides itself what its model sees.",
        )


async def _unwrapped(running: Awaitable[T]) -> T:
    """Await a loop; a pause that a task group has wrapped is raised as itself."""
    try:
        return await running
    except BaseExceptionGroup as group:
        found: BaseException | None = group.subgroup(TurnPausedError)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is not None:
            raise found from None
        raise


def _has_begun(turn: TurnInput) -> bool:
    """Return whether an earlier run of the loop has left rows or calls in the turn."""
    rows = (row for row in turn.history if row.turn == turn.turn)
    return bool(turn.calls) or any(row.role is not Role.USER for row in rows)


def need_of(name: str) -> str:
    """Return the capability that a process needs to run a loop."""
    return f"runtime:{name}"


def _wait_for(name: str) -> Wait:
    return Wait(
        reason=WaitReason.RUNTIME,
        text=f"The turn waits for a process that has the loop {name}.",
        needs=(need_of(name),),
    )


class LocalLoops:
    """Implements `LoopService` for the store of this process."""

    def __init__(
        self,
        owner: Owner,
        *,
        held: HeldTurns,
        loops: Loops,
        agents: Agents,
        capabilities: Capabilities,
        coordinator: Coordinator,
    ) -> None:
        self._owner = owner
        self._held = held
        self._loops = loops
        self._agents = agents
        self._capabilities = capabilities
        self._coordinator = coordinator
        # Agents that are being created for registered loops.
        self._pending: list[asyncio.Future[None]] = []

    def hold(
        self, owner: Owner, session_id: SessionId, content: Any, **options: Any
    ) -> AbstractAsyncContextManager[LoopTurn]:
        """Begin or enter a turn of a program."""
        resume = _resume_policy(options.pop("resume"))
        return self._held.hold(owner, session_id, content, Hold(resume=resume, **options))

    def register(self, function: Callable[..., Any], **options: Any) -> None:
        """Register a loop, and create its agent if there is none."""
        name, resume = options.pop("name"), _resume_policy(options.pop("resume"))
        if not inspect.iscoroutinefunction(function):
            raise Invalid(
                Code.INVALID_INPUT,
                f"The loop {name} must be an async function with one parameter, the turn.",
                {"field": "function"},
            )
        if name == BUILT_IN:
            raise Conflict(
                Code.SLUG_TAKEN, f"{name} is the built-in agent; choose another name for the loop."
            )
        if not is_slug(name):
            raise Invalid(
                Code.INVALID_INPUT,
                "The name of a loop may have letters, digits, - and _.",
                {"field": "name"},
            )
        _require_seconds(options.get("park_after"), resume)
        if not self._loops.add(Loop(name=name, function=function, resume=resume, **options)):
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(done)
        self._coordinator.start(self._announce(name, done))

    async def ready(self) -> None:
        """Wait until the agents of all registered loops exist; raises what has failed."""
        for done in list(self._pending):
            try:
                # Shielded, because a cancelled caller must not cancel what others wait for.
                await asyncio.shield(done)
            finally:
                if done.done() and done in self._pending:
                    self._pending.remove(done)

    async def _announce(self, name: str, done: "asyncio.Future[None]") -> None:
        try:
            await self._create_agent(name)
        except Exception as error:  # noqa: BLE001 — raised by the next verb
            done.set_exception(error)
            # Retrieved here, too: no verb may follow.
            done.exception()
            return
        self._capabilities.add([need_of(name)])
        done.set_result(None)

    async def _create_agent(self, name: str) -> None:
        runtime = LoopRuntime(name=name)
        with suppress(NotFound):
            known = await self._agents.get(self._owner, name)
            if known.runtime != runtime:
                raise Conflict(
                    Code.SLUG_TAKEN,
                    f"The agent {name} is not a loop; choose another name, or rename the agent.",
                )
            return
        fields = {"name": name, "slug": name, "runtime": runtime}
        # Another process may create it at the same time.
        with suppress(Conflict):
            await self._agents.create(self._owner, fields)


def _require_seconds(park_after: object, resume: ResumePolicy) -> None:
    if park_after is None:
        return
    is_number = isinstance(park_after, int | float) and not isinstance(park_after, bool)
    if not is_number or not park_after >= 0 or resume is not ResumePolicy.REPLAY:  # type: ignore[operator]
        raise Invalid(
            Code.INVALID_INPUT,
            "park_after is a number of seconds, for a loop that is replayed.",
            {"field": "park_after"},
        )


def _resume_policy(given: str) -> ResumePolicy:
    try:
        return ResumePolicy(given)
    except ValueError:
        choices = ", ".join(ResumePolicy)
        raise Invalid(
            Code.INVALID_INPUT, f"resume must be one of {choices}.", {"field": "resume"}
        ) from None
