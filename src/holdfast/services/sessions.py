"""Sessions: open, read, list, interrupt, resume, close, fork, delete, verify.

Every method takes the owner. Another owner's session is reported as missing.
"""

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agent_processes import ProcessEnding
from holdfast.domain.drafts import ToolsFound, notice_draft
from holdfast.domain.errors import Code, HoldfastError, Invalid, NotFound
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.messages import NoticeCode
from holdfast.domain.queries import Page, SessionQuery, require_limit
from holdfast.domain.sessions import (
    Created,
    ForkRequest,
    Session,
    SessionContext,
    SessionRequest,
    SessionState,
    Status,
    Verb,
    transition,
)
from holdfast.domain.tools import ToolSpec, spec_of
from holdfast.ports.runtime import Coordinator
from holdfast.ports.store import Brief, Store, Tx
from holdfast.services.agents import Agents, require_definitions
from holdfast.services.batches import read_batches
from holdfast.services.journal import (
    Journal,
    JournalTransaction,
    SessionWriter,
    find_session_state,
    session_not_found,
    stale_etag,
)
from holdfast.services.leases import Leases
from holdfast.services.session_create import ChildOpening, SessionCreation
from holdfast.services.session_lifecycle import (
    VERB_BY_ENDING,
    DeletePolicy,
    Interruption,
    Interruptions,
    Resumption,
    TurnStop,
    close,
    delete,
    move,
    require_reason,
)
from holdfast.services.session_views import Found, found_page, session_view, with_abandoned

CHANGEABLE: Final = frozenset({"title", "tags", "model", "approval", "metadata", "turn_cap"})
IDLE: Final = "idle_timeout"


class Verification(Struct, frozen=True, kw_only=True):
    """Result of checking a session's rows against their hash chain."""

    session_id: SessionId
    messages: int
    head: str
    faults: tuple[str, ...] = ()


class Sessions:
    """Sessions of an owner."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        creation: SessionCreation,
        leases: Leases,
        coordinator: Coordinator,
        *,
        agents: Agents,
    ) -> None:
        self._store = store
        self._agents = agents
        self._journal = journal
        self._creation = creation
        self._leases = leases
        self._coordinator = coordinator
        self._interruptions = Interruptions(journal, coordinator, self.get)

    async def open(
        self,
        owner: Owner,
        agent: str,
        request: SessionRequest | None = None,
        *,
        id: str | None = None,
        functions: tuple[str | ToolSpec, ...] = (),
    ) -> Session:
        """Open a session with an agent, given by id or slug; it is on disk when this returns.

        `functions` join the agent's tools: names of functions, and definitions of tools.
        """
        return (await self.make(owner, agent, request, id=id, functions=functions)).value

    async def make(
        self,
        owner: Owner,
        agent: str,
        request: SessionRequest | None = None,
        *,
        id: str | None = None,
        functions: tuple[str | ToolSpec, ...] = (),
        under: ChildOpening | None = None,
    ) -> Created[Session]:
        """Open a session; `is_new` is false if an equal request with this id did so before.

        With `under` it is opened by another session, with its first message.
        """
        own = tuple(map(spec_of, functions))
        require_definitions(own)
        await self._agents.seed(owner, agent)
        made = await self._creation.open(
            owner, agent, request or SessionRequest(), id=id, functions=own, under=under
        )
        return await self._finish_create(made, cause="opened")

    async def add_functions(
        self, owner: Owner, session_id: SessionId, functions: tuple[str | ToolSpec, ...]
    ) -> None:
        """Add functions and definitions to a session, with a notice; those it has stay as is."""
        given = tuple(map(spec_of, functions))
        require_definitions(given)

        async def write(writer: SessionWriter) -> None:
            session, _ = await _require_session(writer.tx, owner, session_id)
            known = {tool.name for tool in session.tools}
            fresh = tuple(tool for tool in given if tool.name not in known)
            if fresh:
                defined = tuple(tool for tool in fresh if tool.is_described)
                if defined:
                    tools = (*session.tools, *defined)
                    await writer.tx.sessions.patch(writer.state.key, replace(session, tools=tools))
                names = tuple(tool.name for tool in fresh)
                text = f"Tools were added to the session: {', '.join(names)}."
                notice = notice_draft(NoticeCode.TOOLS_CHANGED, text)
                # Those that are defined are there already.
                writer.add((ToolsFound(names=names), notice), 0)

        await self._journal.write(owner, session_id, write)

    async def fork(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        at: int | None = None,
        title: str | None = None,
        tags: tuple[str, ...] | None = None,
        model: str | None = None,
        agent: str | None = None,
        is_settled: bool = False,
        id: str | None = None,
    ) -> Session:
        """Open a session that continues from a row of this one, by default from the last.

        With `is_settled` the default is the last row that belongs to no open turn.
        """
        request = ForkRequest(
            at=at, is_settled=is_settled, title=title, tags=tags, model=model, agent=agent
        )
        return (await self.make_fork(owner, session_id, request, id=id)).value

    async def make_fork(
        self, owner: Owner, session_id: SessionId, request: ForkRequest, *, id: str | None = None
    ) -> Created[Session]:
        """Fork a session; `is_new` is false if an equal request with this id did so before."""
        if request.agent is not None:
            await self._agents.seed(owner, request.agent)
        made = await self._creation.fork(owner, session_id, request, id=id)
        return await self._finish_create(made, cause="forked")

    async def _finish_create(self, made: Created[Session], *, cause: str) -> Created[Session]:
        session = made.value
        if made.is_new:
            await self._log_slot(session, delta=1, cause=cause)
            return made
        # A repeated request may find a session whose turn was interrupted since.
        return Created(value=await self.get(session.owner, session.id), is_new=False)

    async def get(self, owner: Owner, session_id: SessionId) -> Session:
        """Return the current session."""

        return self._view(*await self._journal.read_session(owner, session_id))

    def seen(self, state: SessionState) -> SessionState:
        """Return a session state as clients see it, given one that was just read."""
        return session_view(state, state, self._leases)

    async def list(self, query: SessionQuery, *, cursor: str | None = None) -> Page[Session]:
        """Return the owner's sessions that match, newest first."""

        async def read(tx: Tx) -> Page[Found]:
            return await found_page(tx, await with_abandoned(tx, query, self._leases), cursor)

        page = await self._store.read(read)
        items = tuple(self._view(*found) for found in page.items)
        return Page(items=items, next_cursor=page.next_cursor)

    async def find(self, owner: Owner, beginning: str, *, limit: int = 5) -> tuple[SessionId, ...]:
        """Return the ids of the owner's sessions that begin with a prefix, in order."""
        require_limit(limit)
        wanted = beginning.strip().lower()
        return await self._store.read(lambda tx: tx.sessions.beginning(owner, wanted, limit))

    async def count(self, query: SessionQuery) -> int:
        """Return how many of the owner's sessions match."""

        async def read(tx: Tx) -> int:
            return await tx.sessions.count(await with_abandoned(tx, query, self._leases))

        return await self._store.read(read)

    async def update(
        self,
        owner: Owner,
        session_id: SessionId,
        changes: Mapping[str, Any],
        *,
        expected: Callable[[Session], bool] | None = None,
    ) -> Session:
        """Change the title, the tags, the model, the approval mode, the turn cap or the metadata.

        `expected` checks the session inside the transaction; if it returns false, nothing changes.
        """
        require_changeable(changes)
        await self._creation.require_model(changes.get("model"))

        async def change(writer: SessionWriter) -> None:
            found = await writer.tx.sessions.get_by_key(writer.state.key)
            if found is None:
                raise session_not_found()
            if expected is not None and not expected(self._view(*found)):
                raise stale_etag()
            session = writer.redact(await self._creation.patched(writer.tx, found[0], changes))
            if session != found[0]:
                await writer.tx.sessions.patch(writer.state.key, session)
                # Advances `updated_at`, so that clients comparing times see a change.
                writer.tick()
                writer.update(title=session.title)

        await self._journal.write(owner, session_id, change)
        return await self.get(owner, session_id)

    async def interrupt(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        turn: int | None = None,
        reason: str | None = None,
    ) -> Interruption:
        """Stop the running turn; the session stays open, and streamed text is stored.

        `turn` limits this to one turn: if it has ended meanwhile, the next one is not stopped.
        """
        require_reason(reason)
        stop = TurnStop(turn=turn, reason=reason)
        return await self._interruptions.interrupt(owner, session_id, stop)

    async def resume(
        self, owner: Owner, session_id: SessionId, *, context: SessionContext | None = None
    ) -> Resumption:
        """Reopen a closed session; a no-op on an open one, refused on a failed one.

        Refused if the working directory is missing; `context` names another one. A session that has
        reached its turn cap or budget is resumed, but can only be read and forked.
        """
        seen = await self.get(owner, session_id)
        transition(seen.status, Verb.RESUME)
        target = await self._creation.resumed_context(seen, context)

        async def reopen(writer: SessionWriter) -> tuple[SessionState, bool]:
            transition(writer.state.status, Verb.RESUME)
            if target != seen.context:
                await move(writer, target, self._leases)
            was_closed = await self._creation.reopen(writer)
            return writer.state, was_closed

        state, was_closed = await self._journal.write(owner, session_id, reopen)
        self._coordinator.wake(state.key, turn=state.turn)

        async def look(tx: Tx) -> Resumption:
            session, now = await _require_session(tx, owner, session_id)
            return await self._creation.resumption(tx, self._view(session, now), now)

        resumption = await self._store.read(Brief(look))
        if was_closed:
            await self._log_slot(resumption.session, delta=1, cause="resumed")
        return resumption

    async def close(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        status: Status = Status.COMPLETED,
        reason: str | None = None,
    ) -> Session:
        """Close a session as completed or cancelled; a running turn is stopped with it."""
        if status not in VERB_BY_ENDING:
            raise Invalid(
                Code.INVALID_INPUT, "A session can be closed only as completed or cancelled."
            )
        require_reason(reason)

        async def end(writer: SessionWriter) -> tuple[SessionState, list[SessionState]]:
            closed = await close(writer, status, reason)
            return writer.state, closed

        state, closed = await self._journal.write(owner, session_id, end, urgent=True)
        await self._coordinator.dismiss(state.key)
        for each in closed:
            await self._coordinator.dismiss(each.key)
            closed_one = await self.get(owner, each.session_id)
            await self._log_slot(closed_one, delta=-1, cause=status)
        return await self.get(owner, session_id)

    async def close_idle(self, seen: SessionState) -> bool:
        """Complete an idle session, unless it has changed since `seen` was read."""

        async def end(writer: SessionWriter) -> int | None:
            # Compared inside the transaction, so that a message that arrived meanwhile wins
            # (TOCTOU).
            if writer.state.updated_at != seen.updated_at:
                return None
            # Uses the slot count and not the session, because a damaged one must not block the
            # sweep.
            before = await writer.tx.sessions.slots()
            # Its children may be at work.
            await close(writer, Status.COMPLETED, IDLE, is_tree=False)
            return before

        try:
            before = await self._journal.write_by_key(seen.key, end)
        except NotFound:
            return False
        if before is None:
            return False
        await self._coordinator.dismiss(seen.key, ProcessEnding.IDLE)
        if await self._store.read(lambda tx: tx.sessions.slots()) < before:
            slots = self._creation.slots
            await slots.tell(self._store, seen.session_id, delta=-1, cause=IDLE)
        return True

    async def delete(
        self, owner: Owner, session_id: SessionId, *, policy: DeletePolicy = DeletePolicy.REFUSE
    ) -> tuple[SessionId, ...]:
        """Delete a session and all its data; return the ids of all deleted sessions.

        Only a tombstone remains. Forks that share its rows block the deletion unless `policy` says
        what happens to them.
        """

        async def compose(entry: JournalTransaction) -> tuple[tuple[SessionState, ...], int]:
            before = await entry.tx.sessions.slots()
            state = await find_session_state(entry.tx, owner, session_id)
            gone = await delete(entry, state, policy)
            return gone, await entry.tx.sessions.slots() - before

        gone, delta = await self._journal.enter(compose, urgent=True)
        for state in gone:
            await self._coordinator.dismiss(state.key, ProcessEnding.DELETED)
            self._creation.forget(owner, state.session_id)
        if delta:
            slots = self._creation.slots
            await slots.tell(self._store, session_id, delta=delta, cause="deleted")
        # Also out of the write-ahead log: deleted data must not be recoverable from the disk.
        await self._store.scrub()
        return tuple(state.session_id for state in gone)

    async def verify(self, owner: Owner, session_id: SessionId) -> Verification:
        """Check every row of the session against its chain, inherited rows included."""
        state = await self._store.read(lambda tx: find_session_state(tx, owner, session_id))
        return await verify_chain(self._store, state)

    def _view(self, session: Session, state: SessionState) -> Session:
        return session_view(session, state, self._leases)

    async def _log_slot(self, session: Session, *, delta: int, cause: str) -> None:
        await self._creation.slots.tell_of(self._store, session, delta=delta, cause=cause)


def require_changeable(changes: Mapping[str, Any]) -> None:
    """Refuse changes to fields that a session does not have, or that are fixed."""
    if unknown := sorted(set(changes) - CHANGEABLE):
        raise Invalid(
            Code.INVALID_INPUT,
            f"A session has no field {', '.join(unknown)} that can be changed; "
            f"change {', '.join(sorted(CHANGEABLE))}.",
        )


async def _require_session(
    tx: Tx, owner: Owner, session_id: SessionId
) -> tuple[Session, SessionState]:
    found = await tx.sessions.get(owner, session_id)
    if found is None:
        raise session_not_found()
    return found


async def verify_chain(store: Store, state: SessionState) -> Verification:
    """Check every row of a session against its chain, inherited rows included."""
    chain = state.chain.hex()
    count, last = 0, chain
    try:
        async with aclosing(read_batches(store, state)) as batches:
            async for batch in batches:
                count, last = count + len(batch.rows), batch.rows[-1].hash
    except NotFound:
        raise
    except HoldfastError as error:
        return Verification(
            session_id=state.session_id, messages=0, head=chain, faults=(error.message,)
        )
    # The chain links rows to each other; only the session state shows that the last one is present.
    faults = (
        ()
        if last == chain
        else (("The last stored message is not the one recorded for the session."),)
    )
    return Verification(session_id=state.session_id, messages=count, head=chain, faults=faults)
