"""Messages: sending one is writing it down; who plays the turn, and when, is decided elsewhere."""

from collections.abc import AsyncGenerator
from datetime import datetime

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
from holdfast.ports import Brief, Coordinator, Store, Tx
from holdfast.services.admissions import Admitted, admit, record, shown_message
from holdfast.services.batches import BATCH_ROWS, Scan
from holdfast.services.excerpts import Excerpt, excerpt, excerpts, number_at
from holdfast.services.heads import find_head, session_not_found
from holdfast.services.journal import Journal, Pen
from holdfast.services.leases import Leases
from holdfast.services.openings import Openings
from holdfast.services.turns import unfinished_step


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
        scan = await self.scan(owner, session_id, query)
        items = [row async for batch in scan.batches() for row in batch.rows]
        return Page(items=tuple(items), next_cursor=scan.next_cursor)

    async def scan(self, owner: Owner, session_id: SessionId, query: MessageQuery) -> Scan:
        """Find the messages that match, to be read in batches of bounded size."""
        head = await self._store.read(Brief(lambda tx: find_head(tx, owner, session_id)))
        return Scan(self._store, head, query)

    async def unfinished(self, owner: Owner, session_id: SessionId) -> Unfinished | None:
        """Return the text that is being streamed now, under the id its message will have."""

        async def read(tx: Tx) -> Unfinished | None:
            return await find_unfinished(tx, await find_head(tx, owner, session_id))

        return await self._store.read(read)

    async def excerpts(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        after: int | datetime = 0,
        limit: int = BATCH_ROWS,
    ) -> tuple[AsyncGenerator[Excerpt, None], Unfinished | None]:
        """Return what is behind a number or a time, and the text that is being streamed now.

        The rows come in excerpts of bounded size, each with at most so many.
        """

        async def read(tx: Tx) -> tuple[Head, Excerpt, Unfinished | None]:
            head = await find_head(tx, owner, session_id)
            number = await number_at(tx, head, after) if isinstance(after, datetime) else after
            first = await excerpt(tx, head, number, limit)
            return head, first, await find_unfinished(tx, head)

        head, first, unfinished = await self._store.read(read)
        return excerpts(self._store, head, first, limit), unfinished

    async def is_interrupted(self, owner: Owner, session_id: SessionId, row: Message) -> bool:
        """Tell whether a message is a text that was cut off."""
        query = MessageQuery(after=row.sequence - 1, before=row.sequence + 1, limit=1)
        scan = await self.scan(owner, session_id, query)
        return any([row.id in batch.interrupted async for batch in scan.batches()])


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
