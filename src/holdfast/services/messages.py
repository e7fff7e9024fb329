"""Messages: store and read them. The coordinator decides when and where their turns run."""

import logging
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import ExternalRuntime
from holdfast.domain.commits import CommitBuilder, VersionConflictError, is_same_version
from holdfast.domain.drafts import MessageDraft, require_recordable
from holdfast.domain.errors import Code, Conflict, NotFound
from holdfast.domain.ids import CallId, MessageId, Owner, SessionId, require_uuid
from holdfast.domain.leases import Lease
from holdfast.domain.messages import (
    Message,
    Part,
    Role,
    Text,
    ToolCall,
    ToolResult,
    require_sendable,
)
from holdfast.domain.queries import MESSAGES_MOST, MessageQuery, Page
from holdfast.domain.recordings import OnOpenCalls, Recorded, require_recording
from holdfast.domain.sessions import Created, OnBusy, Session, SessionState, Status
from holdfast.domain.time import instant
from holdfast.ports.runtime import Coordinator, RunSlot
from holdfast.ports.store import Brief, Store, Tx
from holdfast.services.agents import require_input
from holdfast.services.batches import BATCH_BYTES, BATCH_ROWS, PAGE_ROWS, Scan
from holdfast.services.journal import (
    Journal,
    JournalTransaction,
    find_session_state,
    session_not_found,
)
from holdfast.services.leases import Leases
from holdfast.services.live_session import LiveSession, MessageRange, read_messages
from holdfast.services.models import Models
from holdfast.services.session_create import SessionCreation
from holdfast.services.session_lifecycle import (
    Admission,
    add_user_message,
    admit,
    find_message,
    is_plain_admission,
    is_plain_record,
    record,
    record_plain,
    record_turns,
)
from holdfast.services.turns import find_unfinished_step

log = logging.getLogger(__name__)
# Rows that are written in well under a millisecond each.
BRIEF_RECORDING: Final = 50


class UnfinishedAnswer(Struct, frozen=True, kw_only=True):
    """Text that is being streamed; it becomes a message with this id."""

    id: MessageId
    turn: int
    text: str
    at: datetime


class MessageExcerpt(Struct, frozen=True, kw_only=True):
    """Rows after a position, with older calls whose results are among them."""

    rows: tuple[Message, ...]
    calls: tuple[Message, ...]
    # Calls among the rows whose results exist, but after the excerpt.
    answered: frozenset[CallId]
    last: int
    is_last: bool


class Messages:
    """Messages of an owner's sessions."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        coordinator: Coordinator,
        creation: SessionCreation,
        leases: Leases,
        *,
        models: Models,
    ) -> None:
        """`creation` reopens closed sessions."""
        self._models = models
        self._creation = creation
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
        """Store a user's message and schedule its turn.

        `id` is an idempotency key: repeating the call at any time returns the stored message.
        """
        return (
            await self.send_idempotent(owner, session_id, content, id=id, on_busy=on_busy)
        ).value

    async def send_idempotent(
        self,
        owner: Owner,
        session_id: SessionId,
        content: str | tuple[Part, ...],
        *,
        id: str | None = None,
        on_busy: OnBusy = OnBusy.QUEUE,
    ) -> Created[Message]:
        """Send a message; `is_new` is false if an equal one with this id was sent before."""
        draft = user_draft(content, id)
        live = self._journal.find_live(owner, session_id)
        if live is None or live.session is None or live.session.agent.extra:
            await self._require_input(owner, session_id, live, draft)
        if live is not None and is_plain_admission(live.state, draft, on_busy):
            try:
                return await self._send_live(live, draft)
            except VersionConflictError:
                # Another process wrote, or the id is taken: the transaction below finds out.
                log.debug("a message is admitted by a transaction")
        with self._coordinator.reserve_slot() as slot:
            start = partial(self._start_turn, slot)
            admitted = await self._journal.write(
                owner, session_id, lambda writer: admit(writer, draft, on_busy, start=start)
            )
            return self._wake_turn(admitted)

    async def _require_input(
        self, owner: Owner, session_id: SessionId, live: LiveSession | None, draft: MessageDraft
    ) -> None:
        """Refuse a message that does not match the input schema of the session's agent."""
        session = None if live is None else live.session
        if session is None:
            found = await self._store.read(Brief(lambda tx: tx.sessions.get(owner, session_id)))
            session = found[0] if found else None
            # Kept for the next message, unless something was written or queued meanwhile.
            if found and live is not None and is_same_version(live.state, found[1]):
                live.session = session
        if session is not None:
            _require_played(session)
        if session is not None and session.agent.extra:
            text = "".join(part.text for part in draft.parts if isinstance(part, Text))
            require_input(session.agent, text)

    async def _send_live(self, live: LiveSession, draft: MessageDraft) -> Created[Message]:
        """Admit a message to a session in memory; its turn may begin before the commit ends.

        Whatever the turn writes first is queued behind the message and shares its commit.
        """
        with self._coordinator.reserve_slot() as slot:
            writer = self._journal.builder(live)
            admitted = add_user_message(writer, draft, partial(self._start_turn, slot))
            done = self._journal.queue(live, writer)
            made = self._wake_turn(admitted)
        await done
        return made

    def _start_turn(self, slot: RunSlot, writer: CommitBuilder) -> Lease | None:
        is_reserved = slot.try_reserve(writer.state.key, writer.state.turn)
        return self._leases.begin(writer) if is_reserved else None

    async def send_resuming(
        self,
        owner: Owner,
        session_id: SessionId,
        content: str | tuple[Part, ...],
        *,
        id: str | None = None,
        on_busy: OnBusy = OnBusy.QUEUE,
    ) -> Created[Message]:
        """Send a message as `send_idempotent` does, and reopen a closed session with it.

        Refused on a failed session, and like `sessions.resume` without a folder or a slot.
        """
        try:
            return await self.send_idempotent(owner, session_id, content, id=id, on_busy=on_busy)
        except Conflict as error:
            if error.code is not Code.SESSION_CLOSED:
                raise
        found = await self._store.read(lambda tx: tx.sessions.get(owner, session_id))
        if found is None:
            raise session_not_found()
        await self._creation.resumed_context(found[0])
        draft, reopen = user_draft(content, id), self._creation.reopen
        # One transaction for both, so that a concurrent close cannot come between them (race).
        admitted = await self._journal.write(
            owner, session_id, lambda writer: admit(writer, draft, on_busy, reopen=reopen)
        )
        made = self._wake_turn(admitted)
        if admitted.has_reopened:
            slots = self._creation.slots
            await slots.tell_of(self._store, found[0], delta=1, cause="resumed")
        return made

    def _wake_turn(self, admitted: Admission) -> Created[Message]:
        """Notify the coordinator of an admitted message."""
        if admitted.has_interrupted:
            self._coordinator.interrupt(admitted.key)
        turn = admitted.made.value.turn
        if admitted.lease is not None:
            self._coordinator.run_lease(admitted.lease, turn=turn)
        else:
            # Also for a repeated message, because the first caller may have crashed before this.
            self._coordinator.wake(admitted.key, turn=turn)
        return admitted.made

    async def record(self, owner: Owner, session_id: SessionId, draft: MessageDraft) -> Message:
        """Store a message produced elsewhere; it belongs to no turn and starts none.

        The result of a call takes the name of its call. A draft with an id may be repeated.
        """
        return (await self.record_idempotent(owner, session_id, draft)).value

    async def record_idempotent(
        self, owner: Owner, session_id: SessionId, draft: MessageDraft
    ) -> Created[Message]:
        """Record a message; `is_new` is false if an equal one with this id was recorded before."""
        wanted = replace(require_recordable(draft), id=_id(draft.id))
        live = self._journal.find_live(owner, session_id)
        if live is not None and is_plain_record(live.state, wanted):
            try:
                writer = self._journal.builder(live)
                message = record_plain(writer, wanted)
                await self._journal.queue(live, writer)
                return Created(value=message, is_new=True)
            except VersionConflictError:
                # Another process wrote, or the id is taken: the transaction below finds out.
                log.debug("a message is recorded by a transaction")
        return await self._journal.write(owner, session_id, lambda writer: record(writer, wanted))

    async def record_turns(
        self,
        owner: Owner,
        session_id: SessionId,
        drafts: tuple[MessageDraft, ...],
        *,
        on_open_calls: OnOpenCalls = "unknown",
    ) -> Recorded:
        """Store whole turns that were played elsewhere in one commit; nothing runs.

        With ids it may be repeated, also with further messages at the end.
        """
        now = self._journal.now()
        wanted = require_recording(drafts, on_open_calls, now=now)
        wanted = tuple(replace(draft, id=_id(draft.id)) for draft in wanted)

        async def compose(entry: JournalTransaction) -> Recorded:
            writer = await entry.open(owner, session_id)
            return await record_turns(writer, wanted, self._models)

        # A long one is not written on the event loop.
        return await self._journal.enter(compose, is_brief=len(wanted) <= BRIEF_RECORDING)

    async def get(self, owner: Owner, session_id: SessionId, message_id: str) -> Message:
        """Return one message of the session, inherited ones included."""

        async def read(tx: Tx) -> Message | None:
            state = await find_session_state(tx, owner, session_id)
            return await find_message(tx, state, MessageId(message_id))

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
        """Return the messages that match, ascending; the cursor is the number to continue after."""
        scan = await self.scan(owner, session_id, query)
        items: list[Message] = []
        async for batch in scan.batches(PAGE_ROWS):
            items += batch.rows
        return Page(items=tuple(items), next_cursor=scan.next_cursor)

    async def scan(self, owner: Owner, session_id: SessionId, query: MessageQuery) -> Scan:
        """Find the messages that match, to be read in batches of bounded size."""
        state = await self._store.read(Brief(lambda tx: find_session_state(tx, owner, session_id)))
        return Scan(self._store, state, query)

    async def unfinished(self, owner: Owner, session_id: SessionId) -> UnfinishedAnswer | None:
        """Return the text that is being streamed now, under the id its message will have."""

        async def read(tx: Tx) -> UnfinishedAnswer | None:
            return await find_unfinished(tx, await find_session_state(tx, owner, session_id))

        return await self._store.read(read)

    async def excerpts(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        after: int | datetime = 0,
        limit: int = BATCH_ROWS,
    ) -> tuple[AsyncGenerator[MessageExcerpt, None], UnfinishedAnswer | None]:
        """Return the rows after a number or a time, and the text that is being streamed now.

        The rows come in excerpts of bounded size, each with at most `limit` rows.
        """

        async def read(tx: Tx) -> tuple[SessionState, MessageExcerpt, UnfinishedAnswer | None]:
            state = await find_session_state(tx, owner, session_id)
            number = await number_at(tx, state, after) if isinstance(after, datetime) else after
            first = await excerpt(tx, state, number, limit)
            return state, first, await find_unfinished(tx, state)

        state, first, unfinished = await self._store.read(read)
        return excerpts(self._store, state, first, limit), unfinished

    async def is_interrupted(self, owner: Owner, session_id: SessionId, row: Message) -> bool:
        """Return whether a message is a text that was cut off."""
        query = MessageQuery(after=row.sequence - 1, before=row.sequence + 1, limit=1)
        scan = await self.scan(owner, session_id, query)
        return any([row.id in batch.interrupted async for batch in scan.batches()])


async def find_unfinished(tx: Tx, state: SessionState) -> UnfinishedAnswer | None:
    """Return the text that is being streamed in a session, if any."""
    if state.status is not Status.RUNNING:
        return None
    step = await find_unfinished_step(tx, state)
    if step is None or not step.text:
        return None
    return UnfinishedAnswer(
        id=step.started.message_id,
        turn=state.settled + 1,
        text=step.text,
        at=instant(state.updated_at),
    )


def user_draft(content: str | tuple[Part, ...], id_: str | None) -> MessageDraft:
    """Return the draft of a user's message, checked."""
    parts = (Text(text=content),) if isinstance(content, str) else content
    return MessageDraft(role=Role.USER, parts=require_sendable(parts), id=_id(id_))


def _id(wanted: str | None) -> MessageId | None:
    return None if wanted is None else MessageId(require_uuid(wanted, what="message id"))


async def excerpt(
    tx: Tx, state: SessionState, after: int, limit: int = BATCH_ROWS
) -> MessageExcerpt:
    """Return the rows after a number, at most `limit` and at most one batch."""
    first = min(after, state.messages) + 1
    stretch = MessageRange(first, state.messages, limit=min(limit, BATCH_ROWS), size=BATCH_BYTES)
    rows = await read_messages(tx, state, stretch)
    last = rows[-1].sequence if rows else state.messages
    called = {part.id for row in rows for part in row.parts if isinstance(part, ToolCall)}
    given = {part.call_id for row in rows for part in row.parts if isinstance(part, ToolResult)}
    return MessageExcerpt(
        rows=tuple(rows),
        calls=tuple(
            [row for each in sorted(given - called) for row in await _call(tx, state, each, first)]
        ),
        answered=frozenset(
            [each for each in called - given if await _has_result(tx, state, each, last)]
        ),
        last=last,
        is_last=last == state.messages,
    )


async def excerpts(
    store: Store, state: SessionState, first: MessageExcerpt, limit: int = BATCH_ROWS
) -> AsyncGenerator[MessageExcerpt, None]:
    """Yield an excerpt and the following ones, up to the end of the session at that time."""
    here = first
    yield here
    while not here.is_last:

        async def read(tx: Tx, after: int = here.last) -> MessageExcerpt:
            # The current state, limited to the rows known then, because a fork may have been
            # detached.
            now = await tx.sessions.state_by_key(state.key)
            if now is None:
                raise session_not_found()
            return await excerpt(tx, replace(now, messages=state.messages), after, limit)

        here = await store.read(read)
        yield here


async def number_at(tx: Tx, state: SessionState, at: datetime) -> int:
    """Return the number of the last row that is not later than an instant; 0 if all are.

    Binary search, because times increase with the numbers.
    """
    low, high = 0, state.messages
    # A polling reader is mostly at the end, so the last row is checked first.
    middle = high
    while low < high:
        (row,) = await read_messages(tx, state, MessageRange(middle, middle))
        if row.created_at <= at:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


async def _call(tx: Tx, state: SessionState, call_id: CallId, before: int) -> list[Message]:
    known = await tx.calls.by_id(state, call_id)
    if known is not None:
        rows = await read_messages(tx, state, MessageRange(known.sequence, known.sequence))
        return [row for row in rows if _is_call(row, call_id)]
    # Inherited calls have no entry in the fork's call table, so its rows are searched.
    last = before - 1
    while last >= 1:
        stretch = MessageRange(1, last, limit=BATCH_ROWS, newest=True, size=BATCH_BYTES)
        rows = await read_messages(tx, state, stretch)
        if found := [row for row in rows if _is_call(row, call_id)]:
            return found[-1:]
        last = rows[0].sequence - 1
    return []


def _require_played(session: Session) -> None:
    """Refuse a message to a session whose turns only a program of the user can run."""
    runtime = session.agent.runtime
    if isinstance(runtime, ExternalRuntime):
        raise Conflict(
            Code.EXTERNAL_RUNTIME,
            f"The turns of this session are run by a program that uses {runtime.framework}; "
            "continue there, or fork the session with another agent.",
            {"framework": runtime.framework},
        )


async def _has_result(tx: Tx, state: SessionState, call_id: CallId, last: int) -> bool:
    if last == state.messages:
        return False
    known = await tx.calls.by_id(state, call_id)
    if known is not None:
        return known.result_sequence is not None and known.result_sequence <= state.messages
    while last < state.messages:
        stretch = MessageRange(last + 1, state.messages, limit=BATCH_ROWS, size=BATCH_BYTES)
        rows = await read_messages(tx, state, stretch)
        if _is_answered(rows, call_id):
            return True
        last = rows[-1].sequence
    return False


def _is_call(row: Message, call_id: CallId) -> bool:
    return any(isinstance(part, ToolCall) and part.id == call_id for part in row.parts)


def _is_answered(rows: Sequence[Message], call_id: CallId) -> bool:
    results = (part for row in rows for part in row.parts if isinstance(part, ToolResult))
    return any(part.call_id == call_id for part in results)
