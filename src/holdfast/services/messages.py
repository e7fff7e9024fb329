"""Messages: sending one is writing it down; who plays the turn, and when, is decided elsewhere."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, NotFound
from holdfast.domain.ids import MessageId, Owner, SessionId, require_uuid
from holdfast.domain.leases import Lease
from holdfast.domain.messages import Message, Part, Role, Text, require_sendable
from holdfast.domain.queries import MESSAGES_MOST, MessageQuery, Page
from holdfast.domain.recordings import require_recordable
from holdfast.domain.repeats import Made
from holdfast.domain.sessions import Head, OnBusy, Status
from holdfast.domain.turns import interrupted
from holdfast.ports import Coordinator, Store, Tx
from holdfast.services.admissions import Admitted, admit, record, shown_message
from holdfast.services.excerpts import Excerpt, excerpt, number_at
from holdfast.services.heads import find_head, session_not_found
from holdfast.services.histories import ALL, Stretch, rows_of
from holdfast.services.journal import Journal, Pen
from holdfast.services.leases import Leases
from holdfast.services.openings import Openings
from holdfast.services.turns import unfinished_step

# Rows at a time where only some of them are wanted: each proves itself by the one before it.
CHUNK: Final = 1_000


class Unfinished(Struct, frozen=True, kw_only=True):
    """Text that is being streamed: no message yet, and soon one of this id."""

    id: MessageId
    turn: int
    text: str
    at: datetime


class Messages:
    """The record, for its owner."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        coordinator: Coordinator,
        openings: Openings,
        leases: Leases,
    ) -> None:
        """`openings` know what it takes to open a closed session again."""
        self._openings = openings
        self._leases = leases
        self._store = store
        self._journal = journal
        self._coordinator = coordinator

    async def send(
        self,
        owner: Owner,
        session_id: SessionId,
        content: str | tuple[Part, ...],
        *,
        id: str | None = None,
        on_busy: OnBusy = OnBusy.QUEUE,
    ) -> Message:
        """Write a user's message down and see to it that it is answered.

        With an `id`, repeating the call at any time returns the stored message.
        """
        return (await self.make(owner, session_id, content, id=id, on_busy=on_busy)).thing

    async def make(
        self,
        owner: Owner,
        session_id: SessionId,
        content: str | tuple[Part, ...],
        *,
        id: str | None = None,
        on_busy: OnBusy = OnBusy.QUEUE,
    ) -> Made[Message]:
        """Send a message, and tell whether an equal one with this id was sent before."""
        draft = _draft(content, id)
        with self._coordinator.place() as place:

            async def start(pen: Pen) -> Lease | None:
                is_kept = place.is_kept(pen.head.key, pen.head.turn)
                return await self._leases.begin(pen) if is_kept else None

            admitted = await self._journal.write(
                owner, session_id, lambda pen: admit(pen, draft, on_busy, start=start)
            )
            return self._seen_to(admitted)

    async def make_resuming(
        self,
        owner: Owner,
        session_id: SessionId,
        content: str | tuple[Part, ...],
        *,
        id: str | None = None,
        on_busy: OnBusy = OnBusy.QUEUE,
    ) -> Made[Message]:
        """Send a message as `make` does; one to a closed session opens it again, in one entry.

        Refused on a failed session, and like `sessions.resume` without a folder or a slot.
        """
        try:
            return await self.make(owner, session_id, content, id=id, on_busy=on_busy)
        except Conflict as error:
            if error.code is not Code.SESSION_CLOSED:
                raise
        found = await self._store.read(lambda tx: tx.sessions.get(owner, session_id))
        if found is None:
            raise session_not_found()
        await self._openings.place_of(found[0])
        draft, reopen = _draft(content, id), self._openings.reopen
        # One entry for both: somebody who closes the session again cannot come in between.
        admitted = await self._journal.write(
            owner, session_id, lambda pen: admit(pen, draft, on_busy, reopen=reopen)
        )
        made = self._seen_to(admitted)
        if admitted.has_reopened:
            slots = self._openings.slots
            await slots.tell_of(self._store, found[0], delta=1, cause="resumed")
        return made

    def _seen_to(self, admitted: Admitted) -> Made[Message]:
        """Pass on what was written to whoever plays turns."""
        if admitted.has_interrupted:
            self._coordinator.interrupt(admitted.key)
        turn = admitted.made.thing.turn
        if admitted.lease is not None:
            self._coordinator.take_up(admitted.lease, turn=turn)
        else:
            # Also for a repeated message: the first caller may have died before it could.
            self._coordinator.wake(admitted.key, turn=turn)
        return admitted.made

    async def record(
        self, owner: Owner, session_id: SessionId, draft: MessageDraft
    ) -> Made[Message]:
        """Write down what was said elsewhere; it belongs to no turn and starts none.

        The result of a call takes the name of its call. A draft with an id may be repeated.
        """
        wanted = replace(require_recordable(draft), id=_id(draft.id))
        return await self._journal.write(owner, session_id, lambda pen: record(pen, wanted))

    async def get(self, owner: Owner, session_id: SessionId, message_id: str) -> Message:
        """Return one message of the session, inherited ones included."""

        async def read(tx: Tx) -> Message | None:
            head = await find_head(tx, owner, session_id)
            return await shown_message(tx, head, MessageId(message_id))

        message = await self._store.read(read)
        if message is None:
            raise NotFound(Code.MESSAGE_NOT_FOUND, "The session has no such message.")
        return message

    async def list(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = MESSAGES_MOST,
    ) -> Page[Message]:
        """Return messages by number, ascending; with `before`, the last ones before it."""
        query = MessageQuery(after=after, before=before, limit=limit)
        return await self.page(owner, session_id, query)

    async def page(self, owner: Owner, session_id: SessionId, query: MessageQuery) -> Page[Message]:
        """Return the messages that match, ascending; the cursor is a number to go on after."""

        async def read(tx: Tx) -> "list[Message]":
            return await _matching(tx, await find_head(tx, owner, session_id), query)

        found = await self._store.read(read)
        if query.before is not None:
            return Page(items=tuple(found[-query.limit :]))
        items = tuple(found[: query.limit])
        more = len(found) > query.limit
        return Page(items=items, next_cursor=str(items[-1].sequence) if more else None)

    async def unfinished(self, owner: Owner, session_id: SessionId) -> Unfinished | None:
        """Return the text that is being streamed now, under the id its message will have."""

        async def read(tx: Tx) -> Unfinished | None:
            return await find_unfinished(tx, await find_head(tx, owner, session_id))

        return await self._store.read(read)

    async def excerpt(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        after: int | datetime = 0,
        limit: int = ALL,
    ) -> tuple[Excerpt, Unfinished | None]:
        """Return what is behind a number or a time, and the text that is being streamed now."""

        async def read(tx: Tx) -> tuple[Excerpt, Unfinished | None]:
            head = await find_head(tx, owner, session_id)
            number = await number_at(tx, head, after) if isinstance(after, datetime) else after
            return await excerpt(tx, head, number, limit), await find_unfinished(tx, head)

        return await self._store.read(read)

    async def interrupted(
        self, owner: Owner, session_id: SessionId, rows: Sequence[Message]
    ) -> frozenset[MessageId]:
        """Return which of the rows are texts that were cut off, whatever page they are of."""

        async def read(tx: Tx) -> frozenset[MessageId]:
            head = await find_head(tx, owner, session_id)
            return interrupted(await _whole_turns(tx, head, rows)) if rows else frozenset()

        return (await self._store.read(read)) & {row.id for row in rows}


async def find_unfinished(tx: Tx, head: Head) -> Unfinished | None:
    """Return the text that is being streamed in a session, if there is one."""
    if head.status is not Status.RUNNING:
        return None
    step = await unfinished_step(tx, head)
    if step is None or not step.text:
        return None
    return Unfinished(
        id=step.started.message_id,
        turn=head.settled + 1,
        text=step.text,
        at=head.updated_at,
    )


def _draft(content: str | tuple[Part, ...], id_: str | None) -> MessageDraft:
    parts = (Text(text=content),) if isinstance(content, str) else content
    return MessageDraft(role=Role.USER, parts=require_sendable(parts), id=_id(id_))


def _id(wanted: str | None) -> MessageId | None:
    return None if wanted is None else MessageId(require_uuid(wanted, what="message id"))


async def _matching(tx: Tx, head: Head, query: MessageQuery) -> list[Message]:
    """Return the rows that match, and where there are more of them, one more than asked for."""
    newest = query.before is not None
    last = head.messages if query.before is None else min(query.before - 1, head.messages)
    # A number past the end is past the end, however large it is.
    first = min(query.after, head.messages) + 1
    is_choosy = bool(query.roles) or query.turn is not None
    chunk = CHUNK if is_choosy else query.limit + 1
    found: list[Message] = []
    while first <= last and len(found) <= query.limit:
        rows = await rows_of(tx, head, Stretch(first, last, limit=chunk, newest=newest))
        kept = [row for row in rows if _is_wanted(row, query)] if is_choosy else rows
        if newest:
            found, last = kept + found, rows[0].sequence - 1
        else:
            found, first = found + kept, rows[-1].sequence + 1
    return found


def _is_wanted(row: Message, query: MessageQuery) -> bool:
    has_role = not query.roles or row.role in query.roles
    return has_role and (query.turn is None or row.turn == query.turn)


async def _whole_turns(tx: Tx, head: Head, rows: Sequence[Message]) -> list[Message]:
    """Return the rows with all that lies between them, and what follows of their turns."""
    first, last = rows[0].sequence, rows[-1].sequence
    is_dense = last - first + 1 == len(rows)
    found = list(rows) if is_dense else await rows_of(tx, head, Stretch(first, last))
    newest = max(row.turn for row in found)
    while last < head.messages:
        more = await rows_of(tx, head, Stretch(last + 1, head.messages, limit=CHUNK))
        found, last = found + more, more[-1].sequence
        # What a later turn says itself, and not only waits to be asked, comes after these ended.
        if any(row.turn > newest and row.role is not Role.USER for row in more):
            break
    return found
