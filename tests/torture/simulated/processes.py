"""A process of a simulated world: the real floors on its ports, alive until it stops or dies."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from holdfast.domain.agents import LlmRuntime
from holdfast.domain.leases import Holder
from holdfast.domain.secrets import Scrubber
from holdfast.domain.tools import Grant
from holdfast.engine.runtime import EngineRuntime
from holdfast.execution.coordinator import LocalCoordinator
from holdfast.execution.workspace_folders import WorkspaceFolders
from holdfast.ports.runtime import Limits
from holdfast.services.agent_processes import ProcessLimit
from holdfast.services.agents import Agents
from holdfast.services.approvals import Approvals, ApprovalSettings
from holdfast.services.calls import Calls
from holdfast.services.event_stream import Events
from holdfast.services.journal import Journal
from holdfast.services.leases import Leases
from holdfast.services.messages import Messages
from holdfast.services.models import Models
from holdfast.services.repos import Repos
from holdfast.services.session_create import SessionCreation, SessionRules
from holdfast.services.sessions import Sessions
from holdfast.services.stamping import IdFactory, Stamping
from holdfast.services.turn_inputs import TurnInputs, Workspaces
from holdfast.services.turns import Turns
from holdfast.wiring import result_bounds
from tests.houses import Anything
from tests.torture.simulated.disks import SimulatedStore
from tests.torture.simulated.outside import SimulatedLlm, SimulatedToolbox
from tests.torture.simulated.worlds import Bells, World

T = TypeVar("T")

_HERE: ContextVar["Process | None"] = ContextVar("process", default=None)


class GoneError(Exception):
    """Whoever was asked is no more, and nobody knows how far it came."""


@dataclass(frozen=True)
class Floors:
    """What clients of a process can ask."""

    sessions: Sessions
    messages: Messages
    events: Events
    approvals: Approvals
    calls: Calls


class Process:
    """A process with an identity of its own; it is stopped, or it dies in the middle of a word."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.is_dead = False
        self.stopped_until = 0.0
        self.me = Holder(boot="boot", space="space", pid=number, started=number, nonce=f"{number}")
        self.floors: Floors | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._leaving = asyncio.Event()
        self._ready = asyncio.Event()
        self._life = self.begin(self._live())

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that dies with the process, and so do all that it starts."""
        context = copy_context()
        context.run(_HERE.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Remember a task that was started here."""
        self._tasks.append(task)
        # Whatever the dead begin while they unwind.
        if self.is_dead:
            task.cancel()

    async def asked(self, work: Coroutine[Any, Any, T]) -> T:
        """Do a client's work; raises `GoneError` when the process dies over it."""
        task = self.begin(work)
        await asyncio.wait([task])
        if task.cancelled():
            raise GoneError
        return task.result()

    async def breathe(self, longest: float) -> None:
        """Let some time pass; while it is stopped, all of it."""
        await asyncio.sleep(self.world.luck.random() * longest)
        loop = asyncio.get_running_loop()
        if loop.time() < self.stopped_until:
            await asyncio.sleep(self.stopped_until - loop.time())
        if self.is_dead:
            raise asyncio.CancelledError

    def die(self) -> None:
        """Be gone: whatever still unwinds here reaches nothing any more."""
        self.is_dead = True
        self.world.dead.add(self.me)
        for task in self._tasks:
            task.cancel()

    async def leave(self) -> None:
        """Stop in peace."""
        self._leaving.set()
        await self.ended()

    async def ended(self) -> None:
        """Return once nothing of it moves."""
        # By a copy: what unwinds may begin something that is then cancelled, too.
        while moving := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(moving)
        self.world.dead.add(self.me)

    async def ready(self) -> Floors:
        """Return the floors once they stand."""
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait([ready, self._life], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self.floors is None or self.is_dead:
            raise GoneError
        return self.floors

    def holder(self) -> Holder:
        """Return who this is."""
        return self.me

    def is_gone(self, holder: Holder) -> bool:
        """Tell whether a process is proven dead."""
        return holder in self.world.dead

    async def _live(self) -> None:
        async with AsyncExitStack() as stack:
            self.floors = await self._built(stack)
            self._ready.set()
            await self._leaving.wait()

    async def _built(self, stack: AsyncExitStack) -> Floors:
        world, clock = self.world, self.world
        store = world.wrap(SimulatedStore(world.disk, self))
        bells = Bells(world)
        id_factory = IdFactory(clock, world)
        journal = Journal(store, bells, Stamping(clock=clock, id_factory=id_factory))
        leases = Leases(store, journal, clock, self)
        models = Models(store, "maker:model", Anything())
        folders = WorkspaceFolders(world.disk.home)
        # Some pause a turn at once, some after a moment, some hardly ever.
        rules = ApprovalSettings(
            expire_after=timedelta(days=1),
            pause_after=timedelta(seconds=world.luck.choice((0.0, 0.3, 5.0))),
        )
        approvals = Approvals(store, journal, bells, clock, rules, lease_clock=clock)
        workspaces = Workspaces(store, folders, Grant())
        inputs = TurnInputs(models, workspaces, approvals, Limits(), journal=journal)
        llm, toolbox = SimulatedLlm(world, self), SimulatedToolbox(world, self)
        engine = EngineRuntime(llm, toolbox, clock, world)
        turns = Turns(store, journal, inputs, {LlmRuntime: engine}, ProcessLimit())
        events = await stack.enter_async_context(Events(store, bells))
        coordinator = await stack.enter_async_context(LocalCoordinator(leases, turns))
        approvals.attach(coordinator)
        repos = Repos(store, clock, id_factory, None)
        creation = SessionCreation(journal, models, repos, folders, SessionRules())
        agents = Agents(store, models, clock, id_factory)
        sessions = Sessions(store, journal, creation, leases, coordinator, agents=agents)
        for head in await leases.list_abandoned((), paused=True):
            coordinator.wake(head.key)
        return Floors(
            sessions=sessions,
            messages=Messages(store, journal, coordinator, creation, leases, models=models),
            events=events,
            approvals=approvals,
            calls=Calls(
                store,
                journal,
                coordinator,
                id_factory,
                lease_clock=clock,
                bound_result=result_bounds(store, Scrubber),
            ),
        )


def make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **given: Any
) -> asyncio.Task[T]:
    """Make a task, and have the process know it in which it was made."""
    task = asyncio.Task(work, loop=loop, **given)
    context = given.get("context")
    process = context.get(_HERE) if context is not None else _HERE.get()
    if process is not None:
        process.adopt(task)
    return task
