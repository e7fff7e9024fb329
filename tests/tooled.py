"""Houses whose agents have tools: a scripted model, the real tools, and tools of the test's own.

The floors are put together by `open_holdfast`; only what is in the toolbox is added to.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from holdfast import (
    Holdfast,
    RunScope,
    Session,
    SessionRequest,
    open_holdfast,
    wiring,
)
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.domain.approvals import Approval, ApprovalScope, ApprovalState, Decision
from holdfast.domain.calls import Call, CallState
from holdfast.domain.costs import CostEntry
from holdfast.domain.events import ApprovalRequested, Event
from holdfast.domain.ids import LOCAL_OWNER
from holdfast.domain.messages import Message, ToolResult
from holdfast.domain.sessions import SessionContext
from holdfast.domain.tools import Effect, ToolClass
from holdfast.ports.llm import LlmTool
from holdfast.ports.store import Tx
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, Toolbox, ToolWorkspace
from holdfast.process.launcher import Launcher
from holdfast.tools.git.tools import git_tools
from holdfast.tools.process_context import ProcessSettings
from holdfast.tools.run_command import command_tools
from holdfast.tools.tool import CallPlan, LocalTool
from holdfast.tools.toolbox import LocalToolbox
from tests.houses import news_until, script
from tests.new_homes import furnish
from tests.stand_ins import PATIENCE, Gate

Act = Callable[[RequestedCall], Awaitable[Any]]


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tool of the test takes."""

    line: str = ""


def own_tool(
    name: str,
    act: Act,
    *,
    effect: Effect = Effect.UNSAFE,
    tool_class: ToolClass = ToolClass.PROCESS,
    memory: str | None = None,
) -> LocalTool[Line]:
    """Return a tool whose act is the test's."""

    async def plan(_: ToolWorkspace, arguments: Line) -> CallPlan:
        return CallPlan(tool_class=tool_class, question=f"{name} {arguments.line}?", memory=memory)

    async def run(_: ToolWorkspace, __: Line, asked: RequestedCall) -> Any:
        return await act(asked)

    return LocalTool(
        name=name,
        description=f"Does {name}.",
        arguments=Line,
        effect=lambda _: effect,
        plan=plan,
        act=run,
    )


class Recorder:
    """An act that writes down what it was asked, and may wait, or raise, before it answers."""

    def __init__(self, *, gate: Gate | None = None, error: Exception | None = None) -> None:
        self.asked: list[RequestedCall] = []
        self.cancelled = 0
        self._gate = gate
        self._error = error

    @property
    def lines(self) -> list[str]:
        """Return the line of each call that ran."""
        return [str(asked.arguments.get("line", "")) for asked in self.asked]

    async def __call__(self, asked: RequestedCall) -> Any:
        self.asked.append(asked)
        try:
            if self._gate is not None:
                await self._gate.passed()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self._error is not None:
            raise self._error
        return {"did": asked.arguments.get("line", "")}


class Joined:
    """Two toolboxes as one; of two tools with one name the test's is taken."""

    def __init__(self, theirs: Toolbox, tools: Iterable[LocalTool[Any]]) -> None:
        self._theirs = theirs
        self._own = LocalToolbox(tools)

    def _of(self, name: str) -> Toolbox:
        return self._own if name in self._own.names else self._theirs

    def effect(self, name: str, arguments: Mapping[str, Any], place: ToolWorkspace) -> Effect:
        return self._of(name).effect(name, arguments, place)

    def is_parallel(self, name: str, place: ToolWorkspace) -> bool:
        return self._of(name).is_parallel(name, place)

    async def offers(self, place: ToolWorkspace) -> tuple[LlmTool, ...]:
        theirs = await self._theirs.offers(place)
        others = [each for each in theirs if each.name not in self._own.names]
        return (*others, *await self._own.offers(place))

    async def plan(self, place: ToolWorkspace, asked: RequestedCall) -> PlannedCall | CallOutcome:
        return await self._of(asked.name).plan(place, asked)

    async def run(self, place: ToolWorkspace, planned: PlannedCall) -> CallOutcome:
        return await self._of(planned.asked.name).run(place, planned)

    async def leave(self, session: str) -> None:
        await self._theirs.leave(session)

    def __getattr__(self, name: str) -> Any:
        # Everything else that an installation wants of its toolbox.
        return getattr(self._theirs, name)


Wrap = Callable[[Toolbox], Toolbox]


@asynccontextmanager
async def open_wrapped(
    config: Config,
    wrap: Wrap,
    *,
    outside: Environment | None = None,
    scope: RunScope = RunScope.ALL,
    owner: str = LOCAL_OWNER,
) -> AsyncIterator[Holdfast]:
    """Open a house with its toolbox in the test's hands."""
    made = wiring.build_toolbox
    async with AsyncExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wiring, "build_toolbox", lambda *given: wrap(made(*given)))
            house = await stack.enter_async_context(
                open_holdfast(config=config, outside=outside, scope=scope, owner=owner)
            )
        yield house


@asynccontextmanager
async def open_tooled(
    config: Config,
    *tools: LocalTool[Any],
    outside: Environment | None = None,
    scope: RunScope = RunScope.ALL,
    owner: str = LOCAL_OWNER,
) -> AsyncIterator[Holdfast]:
    """Open a house whose toolbox holds the tools of the test, too."""
    wrapped = open_wrapped(
        config, lambda theirs: Joined(theirs, tools), outside=outside, scope=scope, owner=owner
    )
    async with wrapped as house:
        yield house


@asynccontextmanager
async def open_equipped(
    config: Config,
    *tools: LocalTool[Any],
    outside: Environment | None = None,
    scope: RunScope = RunScope.ALL,
) -> AsyncIterator[Holdfast]:
    """Open a house that has every tool of the catalogue, wherever this installation puts them."""
    settings = ProcessSettings(environment=os.environ, hidden=(str(config.home),))
    launcher = Launcher()
    real = (*command_tools(settings, launcher), *git_tools(settings, launcher))

    def wrap(theirs: Toolbox) -> Toolbox:
        known = getattr(theirs, "names", frozenset())
        return Joined(theirs, (*(each for each in real if each.name not in known), *tools))

    async with open_wrapped(config, wrap, outside=outside, scope=scope) as house:
        yield house


def a_config(home: Path, *steps: Mapping[str, Any], **changes: Any) -> Config:
    """Return the settings of a home whose model plays these steps."""
    home.parent.mkdir(parents=True, exist_ok=True)
    model = script(home.parent, *map(dict, steps)) if steps else "offline:holdfast"
    kept = {"database_url": os.environ.get("HOLDFAST_DATABASE_URL")}
    is_own = "encryption" in changes or kept["database_url"]
    given = {"home": home if is_own else furnish(home), "default_model": model}
    return Config(**given | kept | changes)


def call(name: str, /, call_id: str | None = None, **arguments: Any) -> dict[str, Any]:
    """Return a call as a model asks for it."""
    return {"name": name, "arguments": arguments} | ({"id": call_id} if call_id else {})


def asks(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a step that asks for calls."""
    return {"tool_calls": list(calls), **more}


def says(text: str, **more: Any) -> dict[str, Any]:
    """Return a step that answers."""
    return {"text": text, **more}


async def started(
    house: Holdfast,
    desk: Path,
    *tools: str,
    text: str = "go",
    agent: str = "holdfast",
    **request: Any,
) -> Session:
    """Open a session at a folder and send it on its way; named tools are the agent's, all own."""
    if tools:
        described = [{"name": name, "description": f"Does {name}."} for name in tools]
        made = await house.agents.create(
            house.owner, {"name": "Worker", "tools": described, "grant": None}
        )
        agent = made.slug
    await asyncio.to_thread(desk.mkdir, exist_ok=True, parents=True)
    context = SessionContext(working_dir=str(desk))
    session = await house.open(agent, SessionRequest(**{"context": context, **request}))
    await house.send(session.id, text)
    return session


async def question(house: Holdfast, session: Session, *, number: int = 1) -> Approval:
    """Wait until so many questions were asked, and return the last of them."""
    after = 0
    for _ in range(number):
        news = await news_until(house, session.id, ApprovalRequested, after=after)
        assert isinstance(news[-1], Event)
        after = news[-1].sequence
    return (await house.approvals.list(house.owner, session.id)).items[number - 1]


async def answer(
    house: Holdfast,
    approval: Approval,
    state: ApprovalState = ApprovalState.ALLOWED,
    **more: Any,
) -> Approval:
    """Answer a question as its owner."""
    told = Decision(state=state, **{"by": "ada", **more})
    return await house.approvals.answer(house.owner, approval.session_id, approval.id, told)


FOR_ALL = ApprovalScope.SESSION


def outcomes(rows: Iterable[Message]) -> list[str]:
    """Return how each call came out: its name, its status, and the code if there is one."""
    return [
        f"{part.name} {part.status}" + (f"/{part.error.code}" if part.error else "")
        for row in rows
        for part in row.parts
        if isinstance(part, ToolResult)
    ]


async def calls_now(house: Holdfast, session: Session) -> dict[str, CallState]:
    """Return how far each call of a session has come."""
    found: tuple[Call, ...] = (await house.calls.list(house.owner, session.id)).items
    return {each.id: each.state for each in found}


async def ledger(house: Holdfast, session: Session) -> list[CostEntry]:
    """Return the requests of a session that were sent."""

    async def read(tx: Tx) -> list[CostEntry]:
        head = await tx.sessions.state(session.owner, session.id)
        assert head is not None
        return await tx.costs.of_session(head)

    return await house.store.read(read)


async def until(condition: Callable[[], bool]) -> None:
    """Return once a condition holds that nobody rings a bell for."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 — seen from outside
            await asyncio.sleep(0.005)
