"""Sessions: opened, read, listed, interrupted, resumed, closed, forked, deleted, verified.

Every verb takes its owner, and somebody else's session looks exactly like a missing one.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid
from holdfast.domain.events import SessionClosed, SessionResumed
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.openings import SessionRequest
from holdfast.domain.queries import Page, SessionOrder, SessionQuery, require_limit
from holdfast.domain.sessions import Head, Session, Status, Verb, has_waiting_turn, moved
from holdfast.domain.texts import require_text
from holdfast.ports import Coordinator, Store, Tx
from holdfast.services.cursors import decode_cursor, encode_cursor
from holdfast.services.heads import find_head, session_not_found
from holdfast.services.histories import Stretch, rows_of
from holdfast.services.journal import Entry, Journal, Pen
from holdfast.services.leases import Leases
from holdfast.services.messages import abort
from holdfast.services.openings import Openings

CHANGEABLE: Final = frozenset({"title", "tags", "model", "approval", "metadata"})
_CLOSING: Final[Mapping[Status, Verb]] = {
    Status.COMPLETED: Verb.COMPLETE,
    Status.CANCELLED: Verb.CANCEL,
}


class Heirs(StrEnum):
    """What becomes of the forks of a deleted session."""

    REFUSE = "refuse"
    CASCADE = "cascade"
    DETACH = "detach"


class Verification(Struct, frozen=True, kw_only=True):
    """Whether a session's record is what was written."""

    session_id: SessionId
    messages: int
    head: str
    faults: tuple[str, ...] = ()


class Sessions:
    """Notebooks, for their owner."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        openings: Openings,
        leases: Leases,
        coordinator: Coordinator,
    ) -> None:
        self._store = store
        self._journal = journal
        self._openings = openings
        self._leases = leases
        self._coordinator = coordinator

    async def open(
        self,
        owner: Owner,
        agent: str,
        request: SessionRequest | None = None,
        *,
        id: str | None = None,
    ) -> Session:
        """Open a session with an agent, given by id or slug; it is on disk when this returns."""
        session = await self._openings.open(owner, agent, request or SessionRequest(), id=id)
        # A repeated request may find a session whose turn was cut off since.
        return session if session.status is Status.PENDING else await self.get(owner, session.id)

    async def fork(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        at: int | None = None,
        title: str | None = None,
        id: str | None = None,
    ) -> Session:
        """Open a session that goes on from a row of this one; without `at`, from its last row."""
        return await self._openings.fork(owner, session_id, at=at, title=title, id=id)

    async def get(self, owner: Owner, session_id: SessionId) -> Session:
        """Return the session as it is now."""

        async def read(tx: Tx) -> Session:
            found = await tx.sessions.get(owner, session_id)
            if found is None:
                raise session_not_found()
            return self._shown(*found)

        return await self._store.read(read)

    async def list(self, query: SessionQuery, *, cursor: str | None = None) -> Page[Session]:
        """Return the owner's sessions that match, newest first."""
        require_limit(query.limit)
        if query.text is not None:
            require_text(query.text, field="text", longest=1_000)
        filters = ("sessions", replace(query, before=None, limit=1, offset=0))
        # One more than asked for tells whether there is a next page, without counting.
        asked = replace(query, limit=query.limit + 1)
        if cursor is not None:
            asked = replace(asked, before=decode_cursor(cursor, filters))
        found = await self._store.read(lambda tx: tx.sessions.page(asked))
        shown = tuple(self._shown(*pair) for pair in found[: query.limit])
        more = len(found) > query.limit
        last = (_time(shown[-1], query.order), shown[-1].id) if more else None
        return Page(items=shown, next_cursor=encode_cursor(last, filters))

    async def count(self, query: SessionQuery) -> int:
        """Return how many of the owner's sessions match."""
        return await self._store.read(lambda tx: tx.sessions.count(query))

    async def update(
        self, owner: Owner, session_id: SessionId, changes: Mapping[str, Any]
    ) -> Session:
        """Change the title, the tags, the model, the approval mode or the metadata."""
        unknown = sorted(set(changes) - CHANGEABLE)
        if unknown:
            raise Invalid(Code.INVALID_INPUT, f"A session has no {', '.join(unknown)} to change.")

        async def change(pen: Pen) -> None:
            found = await pen.tx.sessions.get_by_key(pen.head.key)
            if found is None:
                raise session_not_found()
            session = pen.cleaned(await self._openings.patched(pen.tx, found[0], changes))
            await pen.tx.sessions.patch(pen.head.key, session)
            pen.move(title=session.title)

        await self._journal.write(owner, session_id, change)
        return await self.get(owner, session_id)

    async def interrupt(self, owner: Owner, session_id: SessionId) -> Session:
        """Stop the running turn; the session stays open, and what was streamed is kept."""

        async def stop(pen: Pen) -> Head:
            if pen.head.status is Status.RUNNING:
                await abort(pen)
            return pen.head

        # Ended on disk first: stopping the task afterwards can lose nothing.
        head = await self._journal.write(owner, session_id, stop, urgent=True)
        self._coordinator.interrupt(head.key)
        if has_waiting_turn(head):
            self._coordinator.wake(head.key)
        return await self.get(owner, session_id)

    async def resume(self, owner: Owner, session_id: SessionId) -> Session:
        """Open a closed session again; a no-op on an open one, refused on a failed one."""

        async def reopen(pen: Pen) -> Head:
            status = moved(pen.head.status, Verb.RESUME)
            if status is not pen.head.status:
                await pen.tell(SessionResumed())
                pen.move(status=status, reason=None)
            return pen.head

        head = await self._journal.write(owner, session_id, reopen)
        self._coordinator.wake(head.key)
        return await self.get(owner, session_id)

    async def close(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        status: Status = Status.COMPLETED,
        reason: str | None = None,
    ) -> Session:
        """End a session as completed or cancelled; a running turn is stopped with it."""
        if status not in _CLOSING:
            raise Invalid(Code.INVALID_INPUT, "A session is closed as completed or cancelled.")
        if reason is not None:
            require_text(reason, field="reason", shortest=1, longest=255)
        head = await self._journal.write(
            owner, session_id, lambda pen: close(pen, status, reason), urgent=True
        )
        self._coordinator.interrupt(head.key)
        return await self.get(owner, session_id)

    async def delete(
        self, owner: Owner, session_id: SessionId, *, heirs: Heirs = Heirs.REFUSE
    ) -> tuple[SessionId, ...]:
        """Remove a session and all that belongs to it; return the sessions that are gone.

        Only a tombstone stays. Forks that point into the session are in the way unless the
        caller says what becomes of them.
        """

        async def compose(entry: Entry) -> tuple[Head, ...]:
            return await _delete(entry, await find_head(entry.tx, owner, session_id), heirs)

        gone = await self._journal.enter(compose, urgent=True)
        for head in gone:
            self._coordinator.interrupt(head.key)
            self._openings.forget(owner, head.session_id)
        # Out of the log file too: what was deleted must not be found by reading the disk.
        await self._store.scrub()
        return tuple(head.session_id for head in gone)

    async def verify(self, owner: Owner, session_id: SessionId) -> Verification:
        """Check every row of the session against its chain, inherited rows included."""

        async def read(tx: Tx) -> Verification:
            return await _verified(tx, await find_head(tx, owner, session_id))

        return await self._store.read(read)

    def _shown(self, session: Session, head: Head) -> Session:
        """Return the session as people see it: running only while somebody alive runs it."""
        if session.status is Status.RUNNING and not self._leases.is_live(head):
            return replace(session, status=Status.IDLE)
        return session


async def close(pen: Pen, status: Status, reason: str | None) -> Head:
    """End a notebook, its running turn with it; one that has ended stays as it is."""
    ended = moved(pen.head.status, _CLOSING[status])
    if ended is pen.head.status:
        return pen.head
    if pen.head.status is Status.RUNNING:
        await abort(pen)
    told = f"Session {ended}: {reason}" if reason else f"Session {ended}."
    notice = Notice(code=NoticeCode.SESSION_CLOSED, text=told)
    await pen.append(MessageDraft(role=Role.SYSTEM, parts=(notice,)), 0)
    event = await pen.tell(SessionClosed(status=ended, reason=reason))
    pen.move(
        status=ended,
        reason=reason,
        finished_at=event.at,
        holder=None,
        until=0,
        epoch=pen.head.epoch + 1,
    )
    return pen.head


async def _delete(entry: Entry, head: Head, heirs: Heirs) -> tuple[Head, ...]:
    sessions = entry.tx.sessions
    forks = await sessions.forks(head.key)
    if forks and heirs is Heirs.REFUSE:
        raise Conflict(
            Code.SESSION_HAS_FORKS,
            "Forks point into this session; delete them too (cascade) or make them stand alone "
            "(detach).",
            {"forks": [fork.session_id for fork in forks]},
        )
    gone: tuple[Head, ...] = ()
    # Forks first: what they inherit is read from rows that are still there.
    for fork in forks:
        if heirs is Heirs.DETACH:
            await sessions.detach(fork.key)
        else:
            gone += await _delete(entry, fork, heirs)
    await entry.remove(head)
    return (*gone, head)


async def _verified(tx: Tx, head: Head) -> Verification:
    chain = head.chain.hex()
    try:
        rows = await rows_of(tx, head, Stretch(1, head.messages))
    except HoldfastError as error:
        return Verification(
            session_id=head.session_id, messages=0, head=chain, faults=(error.message,)
        )
    # The rows prove one another; that nothing is missing behind the last one, only the head tells.
    is_whole = not rows or rows[-1].hash == chain
    faults = () if is_whole else ("The last message is not the one the session ends with.",)
    return Verification(session_id=head.session_id, messages=len(rows), head=chain, faults=faults)


def _time(session: Session, order: SessionOrder) -> Any:
    return session.created_at if order is SessionOrder.CREATED_AT else session.updated_at
