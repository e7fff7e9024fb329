"""Inputs of turns: the workspace in which tool calls act, the models, the limits, the history."""

import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from msgspec.structs import replace

from holdfast.domain.agents import AcpRuntime, Agent, LlmRuntime
from holdfast.domain.calls import Call, CallState
from holdfast.domain.drafts import Outcome
from holdfast.domain.events import Failure, FailureCode, ToolStarted, name_of
from holdfast.domain.ids import CallId, Owner, SessionId, SessionKey
from holdfast.domain.leases import Lease
from holdfast.domain.messages import Role
from holdfast.domain.models import Model
from holdfast.domain.sessions import Budget, Session, SessionState, StopReason
from holdfast.domain.tools import ALWAYS, CHECKPOINT, Grant
from holdfast.ports.agent_processes import ProcessSlot
from holdfast.ports.runtime import Limits, TurnInput
from holdfast.ports.store import Brief, Store, Tx
from holdfast.ports.tools import ToolWorkspace
from holdfast.services.approvals import Approvals
from holdfast.services.costs import budget_of, is_simple_budget, tree_of
from holdfast.services.journal import Journal, require_lease, session_not_found
from holdfast.services.live_session import UNREAD, LiveSession
from holdfast.services.media import SessionOutputStore
from holdfast.services.models import Models


class FolderProvider(Protocol):
    """The private folders of sessions, each readable by this user only."""

    def of(self, owner: Owner, session_id: SessionId) -> str:
        """Return the folder of a session, created if it is missing."""

    def remove(self, owner: Owner, session_id: SessionId) -> None:
        """Remove the folder of a session with its content, if it exists."""

    def copied(self, owner: Owner, session_id: SessionId) -> str:
        """Copy the folder of a session for a fork; return the path of the copy."""

    def adopt(self, copy: str, owner: Owner, session_id: SessionId) -> str:
        """Make a copy the folder of a session that is being created; return the folder."""

    def discard(self, copy: str) -> None:
        """Remove a copy that was not adopted, if it exists."""


# MCP servers passed by clients, by workspace name.
Visitors = dict[str, tuple[Mapping[str, Any], ...]]

_MADE_MOST: Final = 10_000
# Sessions whose unchanging inputs stay in memory.
_PREPARED_MOST: Final = 256
# A description that another process has changed is used after this many seconds at the latest.
MODELS_SECONDS: Final = 1.0


class Workspaces:
    """Builds tool workspaces from sessions and the configuration."""

    def __init__(
        self,
        store: Store,
        folders: FolderProvider,
        ceiling: Grant,
        visitors: Visitors | None = None,
    ) -> None:
        """`ceiling` is the widest grant the configuration allows now, not when a session opened."""
        self._visitors: Visitors = {} if visitors is None else visitors
        self._store = store
        self._folders = folders
        self._ceiling = ceiling
        # Cached per process, so that the disk is not accessed in every turn.
        self._made: dict[SessionKey, str] = {}

    def of(self, session: Session, key: SessionKey) -> ToolWorkspace:
        """Return the workspace of a session."""
        servers = session.agent.mcp_servers
        name = workspace_name(session.owner, session.id)
        session_servers = self._visitors.get(name, ())
        has_tools = bool(session.tools or servers or session_servers)
        implied = ALWAYS if has_tools else frozenset({CHECKPOINT})
        folder = session.context.working_dir
        return ToolWorkspace(
            session=name,
            owner=session.owner,
            session_id=session.id,
            working_dir=folder,
            # A checkpoint needs no temporary folder, and creating one accesses the disk.
            scratch=self._scratch(session, key) if has_tools else folder,
            # The session's grant is already within its agent's.
            grants=(session.grant, self._ceiling),
            tools=frozenset(tool.name for tool in session.tools) | implied,
            agents=tuple(slug for tool in session.tools for slug in tool.agents),
            client_tools={tool.name: tool for tool in session.tools if tool.is_client_run},
            servers=servers,
            session_servers=session_servers,
            shelf=self.shelf(key),
        )

    def is_current(self, workspace: ToolWorkspace | None) -> bool:
        """Return whether a workspace still has the MCP servers of the session's client."""
        return (
            workspace is not None
            and self._visitors.get(workspace.session, ()) is workspace.session_servers
        )

    def shelf(self, key: SessionKey) -> SessionOutputStore:
        """Return the content store of a session, with or without tools."""
        return SessionOutputStore(self._store, key)

    def _scratch(self, session: Session, key: SessionKey) -> str:
        if key not in self._made:
            if len(self._made) >= _MADE_MOST:
                self._made.clear()
            self._made[key] = self._folders.of(session.owner, session.id)
        return self._made[key]


def workspace_name(owner: Owner, session_id: SessionId) -> str:
    """Return the opaque name under which tools know a session."""
    # Includes the owner, because two owners may have sessions with the same id.
    return hashlib.sha256(f"{owner}/{session_id}".encode()).hexdigest()[:32]


class TurnInputs:
    """Reads the inputs of turns."""

    def __init__(
        self,
        models: Models,
        workspaces: Workspaces,
        approvals: Approvals,
        limits: Limits,
        *,
        journal: Journal,
        process_slot: Callable[[Session, SessionKey], ProcessSlot | None] = lambda *_: None,
    ) -> None:
        """`process_slot` returns the process slot of a session whose agent is a program."""
        self._process_slot = process_slot
        self._models = models
        self._workspaces = workspaces
        self._approvals = approvals
        self._limits = limits
        self._journal = journal
        # What does not change between the turns of a session, of the most recently used ones.
        self._prepared: OrderedDict[SessionKey, TurnInput] = OrderedDict()

    def forget(self, key: SessionKey) -> None:
        """Drop what is kept for a session that has ended or pauses."""
        self._prepared.pop(key, None)

    async def read(
        self,
        store: Store,
        key: SessionKey,
        *,
        lease: Lease | None = None,
    ) -> TurnInput | Outcome:
        """Return the inputs of the next turn, or its outcome if it must not run."""
        live, history = await self._journal.live_history(key)
        session, state, turn = live.session, live.state, live.turn
        newest = None if live.newest is UNREAD else live.newest
        if lease is not None:
            require_lease(state, lease)
        if session is None or turn is None:
            raise session_not_found()

        found = self._cached_inputs(session, live)
        if found is None:
            read_at = time.monotonic()
            found = await store.read(Brief(lambda tx: self._read(tx, session, live)))
            if found is None:
                return _past_the_cap(session)
            await self._models.keep(found[0])
            live.models = session, read_at, found[0]
        models, budget = found
        prepared = self._prepared.get(key)
        workspace = prepared.workspace if prepared is not None else None
        if (
            prepared is None
            or prepared.session is not session
            or not self._workspaces.is_current(workspace)
        ):
            prepared = self._prepare(session, key)
        self._prepared.move_to_end(key)
        calls = tuple(turn.calls.values())
        return replace(
            prepared,
            models=models,
            history=tuple(history),
            calls=calls,
            starts=await _count_starts(store, state, calls) if calls else {},
            call_ids=live.call_ids,
            turn=state.settled + 1,
            step=turn.steps + 1,
            ordinal=state.requests + 1,
            budget=budget,
            spent=state.microcents,
            tree=tree_of(store, session, key, self._limits.budget),
            last_usage=newest.usage if newest else None,
            last_model=newest.model_id if newest else None,
        )

    def _prepare(self, session: Session, key: SessionKey) -> TurnInput:
        """Return the inputs that do not change between turns, and keep them."""
        workspace = self._workspaces.of(session, key)
        agent = session.agent
        prepared = TurnInput(
            agent=agent,
            models=(),
            context=session.context,
            history=(),
            rows_now=partial(self._journal.rows_now, key),
            session=session,
            turn=0,
            step=0,
            ordinal=0,
            shelf=workspace.shelf,
            workspace=workspace,
            tools=session.tools,
            # A program of its own cannot be continued by another process.
            approver=self._approvals.of(key, may_pause=not isinstance(agent.runtime, AcpRuntime)),
            process_slot=self._process_slot(session, key),
            limits=_limits(agent, self._limits),
        )
        self._prepared[key] = prepared
        if len(self._prepared) > _PREPARED_MOST:
            self._prepared.popitem(last=False)
        return prepared

    def _cached_inputs(
        self, session: Session, live: LiveSession
    ) -> tuple[tuple[Model, ...], Budget | None] | None:
        """Return the models and the budget of a turn, if the store need not be read for them."""
        if live.models is None or live.state.settled >= session.turn_cap:
            return None
        of, read_at, models = live.models
        is_recent = read_at > max(self._models.changed_at, time.monotonic() - MODELS_SECONDS)
        if of is not session or not is_recent or not is_simple_budget(session, self._limits.budget):
            return None
        return models, session.budget or self._limits.budget

    async def _read(
        self, tx: Tx, session: Session, live: LiveSession
    ) -> tuple[tuple[Model, ...], Budget | None] | None:
        if await _is_past_the_cap(tx, session, live):
            return None
        budget = await budget_of(tx, session, live.state.key, self._limits.budget)
        return await self._models.chain(tx, session), budget


async def _count_starts(
    store: Store, state: SessionState, calls: Sequence[Call]
) -> dict[CallId, int]:
    """Return how often the calls that a crash has cut off were started."""
    if CallState.STARTED not in [call.state for call in calls]:
        return {}
    names = [name_of(ToolStarted)]
    found = await store.read(lambda tx: tx.events.since(state, state.began, names))
    started = [event.payload for event in found]
    return Counter(each.call_id for each in started if isinstance(each, ToolStarted))


async def _is_past_the_cap(tx: Tx, session: Session, live: LiveSession) -> bool:
    """Return whether the turn cap is reached, not counting the turn that waits."""
    state = live.state
    turn = state.settled + 1
    # Counted only when it can matter: the number of engaged turns never exceeds the settled ones.
    spent = live.turn.costs if live.turn is not None else ()
    if state.settled < session.turn_cap or any(entry.turn for entry in spent):
        return False
    if await tx.costs.engaged(state) < session.turn_cap:
        return False
    # A retried call does not use a model, so the cap does not apply to it.
    return any(row.turn == turn and row.role is Role.USER for row in live.history or ())


def _limits(agent: Agent, configured: Limits) -> Limits:
    """Return the configured limits with the agent's own window size."""
    memory = agent.runtime.memory if isinstance(agent.runtime, LlmRuntime) else None
    if memory is None or memory.window_size is None:
        return configured
    return replace(configured, max_messages=memory.window_size)


def _past_the_cap(session: Session) -> Outcome:
    failure = Failure(
        code=FailureCode.TURN_LIMIT,
        message=f"The session has reached its limit of {session.turn_cap} turns. Raise "
        "its turn cap, open a new one, or fork this one.",
    )
    return Outcome(stop_reason=StopReason.TURN_LIMIT, failure=failure)
