"""Opens the children of sessions, and continues a parent when its child has ended.

A child is found by the id that follows from its parent and the call, so a call that runs again
after a crash never opens a second one.
"""

import asyncio
import logging
import math
from contextlib import suppress
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from holdfast.children.model import (
    FIRST_TURN,
    ChildAnswer,
    ChildLimits,
    ChildRequest,
    answer_of,
    child_id_of,
    task_id_of,
)
from holdfast.domain.agents import AcpRuntime, Agent
from holdfast.domain.approvals import ApprovalMode, stricter_mode
from holdfast.domain.calls import is_open
from holdfast.domain.commits import CommitBuilder
from holdfast.domain.errors import Code, Conflict, HoldfastError, LimitReached, NotFound
from holdfast.domain.ids import CallId, Owner, SessionId, SessionKey, require_uuid
from holdfast.domain.leases import Lease
from holdfast.domain.sessions import (
    OPEN,
    Created,
    ParentLink,
    Session,
    SessionRequest,
    SessionState,
    Verb,
    has_waiting_turn,
    stricter_budget,
    transition,
)
from holdfast.domain.tools import common_grant
from holdfast.domain.waits import Wait, WaitReason
from holdfast.ports.runtime import Coordinator, RunSlot, TurnPausedError
from holdfast.ports.store import Brief, Store, Tx
from holdfast.ports.system import Doorbell
from holdfast.services.agents import require_input
from holdfast.services.background_tasks import sleep_despite_memory_error
from holdfast.services.journal import (
    Journal,
    find_session_state,
    session_not_found,
)
from holdfast.services.leases import Leases
from holdfast.services.live_session import MessageRange, read_messages
from holdfast.services.messages import user_draft
from holdfast.services.session_create import ChildOpening
from holdfast.services.sessions import Sessions
from holdfast.services.turn_inputs import FolderProvider

log = logging.getLogger(__name__)
# How often parents are looked for whose child has ended unseen.
_LOOK_SECONDS: Final = 1.0
# How long a turn waits in its process for a child before it is paused, in seconds. Pausing and
# continuing are two transactions more, which a quick child does not need.
_PATIENCE: Final = 0.03


class Children:
    """The children of an owner's sessions."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        doorbell: Doorbell,
        *,
        leases: Leases,
        folders: FolderProvider,
        limits: ChildLimits,
    ) -> None:
        self._store = store
        self._journal = journal
        self._doorbell = doorbell
        self._leases = leases
        self._folders = folders
        self._limits = limits
        self._sessions: Sessions | None = None
        self._coordinator: Coordinator | None = None
        # The parents that wait here, by their child.
        self._awaited: dict[SessionKey, SessionKey] = {}

    def connect(self, sessions: Sessions, coordinator: Coordinator) -> None:
        """Set what opens sessions, and what runs their turns."""
        self._sessions, self._coordinator = sessions, coordinator
        self._journal.watch_ends(self._note_end)
        # A process that runs no turns would continue what it cannot run.
        if coordinator.runs_turns:
            coordinator.start(self._keep())

    async def spawn(
        self, owner: Owner, parent_id: SessionId, request: ChildRequest, *, id: str | None = None
    ) -> Session:
        """Open a child of a session with a task; its powers lie within those of the parent."""
        return (await self.spawn_idempotent(owner, parent_id, request, id=id)).value

    async def spawn_idempotent(
        self,
        owner: Owner,
        parent_id: SessionId,
        request: ChildRequest,
        *,
        id: str | None = None,
        call_id: CallId | None = None,
    ) -> Created[Session]:
        """Open a child; `is_new` is false if an equal request with this id did so before."""
        opened = await self._open(owner, parent_id, request, id=id, call_id=call_id)
        session, state = await self._journal.read_session(owner, opened.value)
        if not opened.is_new:
            self._parts()[1].wake(state.key, turn=FIRST_TURN)
        return Created(value=session, is_new=opened.is_new)

    async def _open(
        self,
        owner: Owner,
        parent_id: SessionId,
        request: ChildRequest,
        *,
        id: str | None,
        call_id: CallId | None,
    ) -> Created[SessionId]:
        """Open a child; its turn begins in the same transaction if a slot is free."""
        sessions, coordinator = self._parts()
        parent = await self._state_of(owner, parent_id)
        wanted_id = self._journal.new_id() if id is None else require_uuid(id, what="session id")
        child_id = SessionId(wanted_id)
        link = ParentLink(session_id=parent.session_id, call_id=call_id)
        begun: list[tuple[SessionKey, Lease | None]] = []

        def start(slot: RunSlot, writer: CommitBuilder) -> Lease | None:
            key = writer.state.key
            is_reserved = slot.try_reserve(key, writer.state.turn)
            begun[:] = [(key, self._leases.begin(writer) if is_reserved else None)]
            return begun[0][1]

        wanted = SessionRequest(
            title=request.title, budget=request.budget, grant=request.grant, tools=request.tools
        )
        with coordinator.reserve_slot() as slot:
            under = ChildOpening(
                parent=parent.key,
                link=link,
                draft=user_draft(request.task, task_id_of(child_id)),
                narrow=partial(
                    self._narrow,
                    parent_key=parent.key,
                    link=link,
                    child_id=child_id,
                    task=request.task,
                ),
                start=partial(start, slot),
            )
            made = await sessions.make(owner, request.agent, wanted, id=child_id, under=under)
            if made.is_new:
                ((key, lease),) = begun
                if lease is None:
                    coordinator.wake(key, turn=FIRST_TURN)
                else:
                    coordinator.run_lease(lease, turn=FIRST_TURN)
                # Its number of children has changed.
                self._journal.refresh(parent.key)
        return Created(value=child_id, is_new=made.is_new)

    async def invoke(
        self,
        owner: Owner,
        parent_id: SessionId,
        call_id: CallId,
        request: ChildRequest,
        *,
        may_pause: bool,
    ) -> ChildAnswer:
        """Return the answer of the child that a call has opened, or opens now.

        Raises `TurnPausedError` while the child has not ended, unless the turn cannot be paused.
        """
        _, coordinator = self._parts()
        child_id = child_id_of(parent_id, call_id)
        # Read with tombstones: a child that was deleted is not opened again.
        is_known = await self._store.read(Brief(partial(_was_opened, owner, child_id)))
        if not is_known:
            await self._open(owner, parent_id, request, id=child_id, call_id=call_id)
        elif (answer := await self.answer(owner, child_id)) is not None:
            return answer
        child = (await self._state_of(owner, child_id)).key
        parent = (await self._state_of(owner, parent_id)).key
        if is_known:
            coordinator.wake(child, turn=FIRST_TURN)
        # Left by the pause without its slot, which the child may need.
        async with coordinator.release_slot_while_waiting(parent):
            patience = _PATIENCE if may_pause else math.inf
            if (answer := await self._wait_for_end(owner, child_id, child, patience)) is not None:
                return answer
            # The pause looks again in its transaction, so an end in between is seen (race).
            self._awaited[child] = parent
            wait = Wait(
                reason=WaitReason.CHILD,
                text=f"The turn waits for the agent {request.agent}.",
                call_ids=(call_id,),
                children=(child_id,),
            )
            raise TurnPausedError(wait)

    async def answer(self, owner: Owner, child_id: SessionId) -> ChildAnswer | None:
        """Return how the task of a child ended; `None` while it has not."""

        async def read(tx: Tx) -> ChildAnswer | None:
            head = await tx.sessions.state(owner, child_id)
            if head is None:
                return ChildAnswer(session_id=child_id, stop_reason=None)
            if not _has_ended(head):
                return None
            return answer_of(head, await read_messages(tx, head, MessageRange(1, head.messages)))

        return await self._store.read(read)

    async def tree(self, owner: Owner, session_id: SessionId) -> tuple[Session, ...]:
        """Return a session and all below it, each parent before its children."""
        sessions, _ = self._parts()
        found = []
        for each in await self.ids(owner, session_id):
            # One that was deleted since is left out (race).
            with suppress(NotFound):
                found.append(await sessions.get(owner, each))
        return tuple(found)

    async def ids(self, owner: Owner, session_id: SessionId) -> list[SessionId]:
        """Return the ids of a session and of all below it, each parent before its children."""

        async def read(tx: Tx) -> list[SessionId]:
            return await _below(tx, await find_session_state(tx, owner, session_id))

        return await self._store.read(read)

    async def _wait_for_end(
        self, owner: Owner, child_id: SessionId, key: SessionKey, patience: float
    ) -> ChildAnswer | None:
        """Return the answer of a child; `None` if that takes longer."""
        loop = asyncio.get_running_loop()
        until, is_late = loop.time() + patience, False
        while True:
            # Subscribed before reading, so that an end in between is not lost.
            bell = self._doorbell.listen(key)
            live = self._journal.find_live(owner, child_id)
            # What is in memory is outdated if another process runs the turn.
            is_ended = live is None or (_has_ended(live.state) and live.queued is None)
            if is_ended or is_late:
                answer = await self.answer(owner, child_id)
                if answer is not None:
                    return answer
            left = until - loop.time()
            if left <= 0:
                return None
            try:
                async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                    await bell.rung()
                is_late = False
            except TimeoutError:
                is_late = True

    async def _state_of(self, owner: Owner, session_id: SessionId) -> SessionState:
        live = self._journal.find_live(owner, session_id)
        if live is not None:
            return live.state
        read = partial(find_session_state, owner=owner, session_id=session_id)
        return await self._store.read(Brief(read))

    def _note_end(self, key: SessionKey) -> None:
        """Continue the parent of a child that has ended here, if it waits here."""
        parent = self._awaited.pop(key, None)
        if parent is not None:
            # Another process continues it if this one is closing.
            with suppress(HoldfastError):
                self._parts()[1].resume(parent)

    async def sweep(self) -> None:
        """Continue the turns that wait for a child whose end was not seen."""
        for key in await self._store.read(Brief(lambda tx: tx.children.overdue())):
            self._parts()[1].resume(key)

    async def _keep(self) -> None:
        while True:
            try:
                await self.sweep()
            except HoldfastError as error:
                log.warning("waiting parents could not be looked up: %s", error.message)
            await sleep_despite_memory_error(_LOOK_SECONDS)

    def _parts(self) -> tuple[Sessions, Coordinator]:
        assert self._sessions is not None  # noqa: S101 — connected while everything is built
        assert self._coordinator is not None  # noqa: S101
        return self._sessions, self._coordinator

    async def _narrow(
        self,
        tx: Tx,
        agent: Agent,
        request: SessionRequest,
        *,
        parent_key: SessionKey,
        link: ParentLink,
        child_id: SessionId,
        task: str,
    ) -> tuple[Agent, SessionRequest]:
        """Return the agent and the request within the powers of the parent.

        Runs in the transaction that opens the child, so that the limits hold for all together.
        """
        # Read for writing, so that another opening or an interrupt comes before or after this one.
        head = await tx.sessions.state_by_key(parent_key)
        found = await tx.sessions.get_by_key(parent_key)
        if head is None or found is None:
            raise session_not_found()
        parent, _ = found
        transition(head.status, Verb.ADMIT)
        if link.call_id is not None:
            call = await tx.calls.by_id(head, link.call_id)
            if call is None or not is_open(call):
                # An interrupt was first: nothing would wait for the child.
                raise Conflict(Code.CALL_NOT_OPEN, "The call that opens the session has ended.")
        await self._require_room(tx, head)
        require_input(agent, task)
        grant = parent.grant if agent.grant is None else common_grant(agent.grant, parent.grant)
        tier = grant.fs if request.grant is None else request.grant.fs
        narrowed = replace(
            request,
            repo_id=parent.repo_id,
            context=replace(
                parent.context, working_dir=self._folder(parent, child_id), fs_scope_tier=tier
            ),
            approval=_mode(agent, parent.approval),
            budget=stricter_budget(request.budget, parent.budget, granted=0),
        )
        return replace(agent, grant=grant), narrowed

    def _folder(self, parent: Session, child_id: SessionId) -> str:
        """Return the parent's folder; if that is private, the child gets one of its own."""
        folder = parent.context.working_dir
        is_private = folder == self._folders.of(parent.owner, parent.id)
        return self._folders.of(parent.owner, child_id) if is_private else folder

    async def _require_room(self, tx: Tx, parent: SessionState) -> None:
        limits, depth, key = self._limits, 1, await tx.children.parent(parent.key)
        while key is not None:
            depth, key = depth + 1, await tx.children.parent(key)
        if depth > limits.depth:
            raise _limit(f"Agents may start agents {limits.depth} levels deep", depth=limits.depth)
        children = await tx.sessions.children(parent.key)
        if len(children) >= limits.per_session:
            raise _limit(
                f"A session may start {limits.per_session} agents", per_session=limits.per_session
            )
        if sum(map(has_waiting_turn, children)) >= limits.at_a_time:
            raise _limit(
                f"A session may have {limits.at_a_time} agents at work", at_a_time=limits.at_a_time
            )


async def _below(tx: Tx, head: SessionState) -> list[SessionId]:
    found = [head.session_id]
    for child in await tx.sessions.children(head.key):
        found += await _below(tx, child)
    return found


def _has_ended(head: SessionState) -> bool:
    return head.settled >= FIRST_TURN or head.status not in OPEN


def _limit(text: str, **details: Any) -> LimitReached:
    return LimitReached(Code.CHILD_LIMIT, f"{text}; the limits are in the configuration.", details)


def _mode(agent: Agent, parent: ApprovalMode) -> ApprovalMode:
    """Return the stricter mode; most agents have none of their own."""
    said = agent.runtime.options.get("approve") if isinstance(agent.runtime, AcpRuntime) else None
    return stricter_mode(ApprovalMode(said), parent) if said in set(ApprovalMode) else parent


async def _was_opened(owner: Owner, child_id: SessionId, tx: Tx) -> bool:
    is_there = await tx.sessions.state(owner, child_id) is not None
    return is_there or await tx.sessions.is_buried(owner, child_id)
