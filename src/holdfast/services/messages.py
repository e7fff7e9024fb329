"""Messages: sending one is writing it down; who plays the turn, and when, is decided elsewhere."""

from typing import Final

from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import MessageId, Owner, SessionId, SessionKey, require_uuid
from holdfast.domain.messages import Media, Message, Part, Role, Text, require_sendable
from holdfast.domain.queries import Page, require_limit
from holdfast.domain.sessions import Head, OnBusy, Status, admitting, title_of
from holdfast.domain.turns import after_abort
from holdfast.ports import Coordinator, Store, Tx
from holdfast.services.heads import find_head
from holdfast.services.histories import Stretch, rows_of
from holdfast.services.journal import Journal, Pen
from holdfast.services.media import find_content
from holdfast.services.turns import mend, open_step

PAGE_MOST: Final = 10_000


class Messages:
    """The record, for its owner."""

    def __init__(self, store: Store, journal: Journal, coordinator: Coordinator) -> None:
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
        parts = (Text(text=content),) if isinstance(content, str) else content
        draft = MessageDraft(
            role=Role.USER,
            parts=require_sendable(parts),
            id=MessageId(require_uuid(id, what="message id")) if id is not None else None,
        )
        message, key, interrupted = await self._journal.write(
            owner, session_id, lambda pen: _admit(pen, draft, on_busy)
        )
        if interrupted:
            self._coordinator.interrupt(key)
        # Woken also for a repeated message: the first caller may have died before it could.
        self._coordinator.wake(key)
        return message

    async def get(self, owner: Owner, session_id: SessionId, message_id: str) -> Message:
        """Return one message of the session, inherited ones included."""

        async def read(tx: Tx) -> Message | None:
            head = await find_head(tx, owner, session_id)
            return await _shown_message(tx, head, MessageId(message_id))

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
        limit: int = PAGE_MOST,
    ) -> Page[Message]:
        """Return messages by number, ascending; with `before`, the last ones before it."""
        require_limit(limit, most=PAGE_MOST)
        if after < 0 or (before is not None and before < 1):
            raise Invalid(Code.INVALID_CURSOR, "A message number is a whole number from 1 on.")

        async def read(tx: Tx) -> tuple[list[Message], int]:
            head = await find_head(tx, owner, session_id)
            last = head.messages if before is None else min(before - 1, head.messages)
            # A number past the end is past the end, however large it is.
            first = min(after, head.messages) + 1
            wanted = Stretch(first, last, limit=limit, newest=before is not None)
            rows = await rows_of(tx, head, wanted)
            return rows, last

        rows, last = await self._store.read(read)
        more = bool(rows) and before is None and rows[-1].sequence < last
        return Page(items=tuple(rows), next_cursor=str(rows[-1].sequence) if more else None)


async def _shown_message(tx: Tx, head: Head, message_id: MessageId) -> Message | None:
    """Return a message by its id, looking through the sessions this one was forked from."""
    own = await tx.messages.by_id(head, message_id)
    if own is not None or not head.inherited:
        return own
    for part in await tx.sessions.lineage(head.key):
        ancestor = await tx.sessions.head_by_key(part.key)
        found = await tx.messages.by_id(ancestor, message_id) if ancestor else None
        if found is not None and part.first <= found.sequence <= part.last:
            return found
    return None


async def _admit(
    pen: Pen, draft: MessageDraft, on_busy: OnBusy
) -> tuple[Message, SessionKey, bool]:
    """Write the message into its turn; tell the session, and whether a turn was stopped for it."""
    # Before the status is judged: a retry gets its first answer even when the session is closed.
    stored = await _repeated(pen, pen.cleaned(draft))
    if stored is not None:
        return stored, pen.head.key, False
    busy = pen.head.status is Status.RUNNING
    if busy and on_busy is OnBusy.REJECT:
        raise Conflict(
            Code.TURN_RUNNING, "A turn is running; wait for it, queue the message or interrupt."
        )
    if busy and on_busy is OnBusy.INTERRUPT:
        await abort(pen)
    await _require_held(pen, draft)
    pen.head = admitting(pen.head)
    message = await pen.append(draft, pen.head.turn)
    if pen.head.title is None:
        pen.move(title=title_of(message.text))
    return message, pen.head.key, busy and on_busy is OnBusy.INTERRUPT


async def _repeated(pen: Pen, draft: MessageDraft) -> Message | None:
    """Return the stored message if this one was sent before; refuse its id with other content."""
    stored = await _shown_message(pen.tx, pen.head, draft.id) if draft.id else None
    if stored is not None and (stored.role, stored.parts) != (draft.role, draft.parts):
        raise Conflict(
            Code.MESSAGE_ID_REUSED, "A message with this id and other content is stored already."
        )
    return stored


async def _require_held(pen: Pen, draft: MessageDraft) -> None:
    """Refuse a handle to bytes that the session does not hold."""
    for part in draft.parts:
        if isinstance(part, Media) and await find_content(pen.tx, pen.head.key, part.ref) is None:
            raise Invalid(Code.MEDIA_NOT_FOUND, "Nothing is stored under this media handle.")


async def abort(pen: Pen) -> None:
    """Stop the running turn for its user, and fence whoever runs it."""
    calls = await pen.tx.calls.of_turn(pen.head, pen.head.settled + 1)
    await mend(pen, after_abort(await open_step(pen), calls))
    # Whoever runs the turn learns it at its next write, in this process or another.
    pen.move(holder=None, until=0, epoch=pen.head.epoch + 1)
