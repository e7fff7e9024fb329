"""Loops of this process: those that hold turns, and those that are registered as runtimes."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from holdfast.domain.agents import LoopRuntime
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import Owner, SessionId, is_slug
from holdfast.domain.turns import ResumePolicy
from holdfast.execution.capabilities import Capabilities
from holdfast.loops.held_turns import HeldTurns, Hold
from holdfast.loops.registry import Loop, Loops, need_of
from holdfast.loops.turn import LoopTurn
from holdfast.ports.runtime import Coordinator
from holdfast.services.agents import BUILT_IN, Agents


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


def _resume_policy(given: str) -> ResumePolicy:
    try:
        return ResumePolicy(given)
    except ValueError:
        choices = ", ".join(ResumePolicy)
        raise Invalid(
            Code.INVALID_INPUT, f"resume must be one of {choices}.", {"field": "resume"}
        ) from None
