"""The only writer of sessions: stamps drafts and commits them with everything they change.

Decides nothing about turns (`turns.py`); notifies readers only after the commit.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.domain import calls
from holdfast.domain import events as domain_events
from holdfast.domain.approvals import Approval, Question, apply_answer
from holdfast.domain.calls import Call
from holdfast.domain.drafts import (
    ApprovalDecided,
    CallDetails,
    CostDraft,
    Draft,
    MessageDraft,
    Outcome,
    Summary,
    TitleChange,
    ToolsFound,
)
from holdfast.domain.errors import Code, Conflict, Internal, NotFound
from holdfast.domain.events import (
    CallSettled,
    Channel,
    Event,
    Payload,
    SessionCompacted,
    StepDelta,
    ToolStarted,
    event_id,
    event_of,
)
from holdfast.domain.ids import CallId, MessageId, Owner, SessionId, SessionKey
from holdfast.domain.leases import Lease
from holdfast.domain.messages import (
    Compaction,
    Message,
    Notice,
    NoticeCode,
    Role,
    ToolCall,
    ToolResult,
    link,
)
from holdfast.domain.secrets import ScrubbedStream, Scrubber
from holdfast.domain.sessions import Session, SessionState
from holdfast.domain.time import instant, microseconds
from holdfast.domain.tools import Effect, ToolSpec
from holdfast.ports.store import Brief, NewRow, Store, Tx
from holdfast.ports.system import Doorbell, Notification
from holdfast.services.stamping import Stamping, idempotency_key, mask_credentials, redact

T = TypeVar("T")


class SessionWriter:
    """Writes to one session inside one transaction.

    `head` is the session state including everything written through this object.
    """

    def __init__(self, tx: Tx, head: SessionState, stamping: Stamping) -> None:
        self.tx = tx
        self.head = head
        self._clock = stamping.clock
        self._id_factory = stamping.id_factory
        self._scrubber = stamping.scrubber()
        # Integer microseconds, because this is compared and incremented with every row.
        self._last = microseconds(head.updated_at)
        self._calls: dict[CallId, Call] = {}
        self._messages: list[NewRow] = []
        self._events: list[Event] = []

    def cleaned(self, value: T) -> T:
        """Return the value without known secrets, as it may be stored."""
        return self._scrubber.cleaned(value)

    def move(self, **changes: Any) -> None:
        """Change fields of the session state."""
        self.head = replace(self.head, **changes)

    async def write(self, drafts: Sequence[Draft], turn: int) -> None:
        """Write the drafts of a turn in order; an `Outcome` is refused, because it is not a row."""
        for draft in drafts:
            match draft:
                case MessageDraft():
                    await self.append(draft, turn)
                case CostDraft():
                    await self._charge(draft, turn)
                case Outcome():
                    raise Internal(Code.INTERNAL, "An outcome ends a turn; it is not a row.")
                case Question():
                    await self._ask(draft, turn)
                case ApprovalDecided():
                    await self._decide(draft)
                case TitleChange():
                    self.move(title=self.cleaned(draft.over(self.head.title)))
                case Summary():
                    await self._write_summary(draft)
                case ToolsFound():
                    await keep_tools(self.tx, self.head.key, draft.names)
                    # Advances `updated_at`, so that clients comparing times see a change.
                    self.now()
                case CallDetails():
                    details = calls.add_details(self.cleaned(draft.arguments))
                    await self._advance(draft.call_id, details)
                case _:
                    await self.tell(draft, turn)

    async def append(self, draft: MessageDraft, turn: int) -> Message:
        """Write a message row; it also takes an event number, because it is its own event."""
        at = self.now()
        draft, content = redact(draft, self._scrubber)
        head, sequence = self.head, self.head.messages + 1
        message_id = draft.id or MessageId(self._id_factory.new())
        columns = (message_id, sequence, turn, draft.role, draft.model_id, self._last)
        # Hashes the stored bytes and not the value, so that the store can be verified on its own.
        chain = link(head.chain, columns, content)
        message = Message(
            id=message_id,
            session_id=head.session_id,
            sequence=sequence,
            turn=turn,
            role=draft.role,
            parts=draft.parts,
            model_id=draft.model_id,
            created_at=at,
            hash=chain.hex(),
        )
        self._messages.append(NewRow(message, content, chain, head.events + 1))
        self.head = replace(head, messages=sequence, chain=chain, events=head.events + 1)
        await self._update_call(draft, message)
        return message

    async def tell(self, payload: Payload, turn: int | None = None) -> Event:
        """Write an event, and the change of call state that it implies."""
        if isinstance(payload, ToolStarted):
            at = self.now()
            await self._advance(payload.call_id, lambda call: calls.start_call(call, at=at))
        elif isinstance(payload, CallSettled):
            await self._advance(payload.call_id, lambda call: calls.settle_call(call, payload.how))
        return self._stamp(mask_credentials(payload, self._scrubber), turn, self.now())

    def note(self, payload: Payload) -> Event:
        """Write an event about the session that does not advance its `updated_at`."""
        at = max(self._clock.now(), instant(self._last))
        return self._stamp(mask_credentials(payload, self._scrubber), None, at)

    async def flush(self) -> None:
        """Write everything that was buffered into the transaction."""
        self.move(updated_at=instant(self._last))
        if self._messages:
            await self.tx.messages.append(self.head.key, self._messages)
        if self._events:
            await self.tx.events.append(self.head.key, self._events)
        # Last, because the state counts the rows that the lines above wrote.
        await self.tx.sessions.save(self.head)

    def describe_commit(self) -> Notification:
        """Return everything written as a notification for readers that are up to date."""
        rows = (event_of(row.message, row.event) for row in self._messages)
        return Notification(self.head, sorted((*self._events, *rows), key=attrgetter("sequence")))

    def _stamp(self, payload: Payload, turn: int | None, at: datetime) -> Event:
        head, sequence = self.head, self.head.events + 1
        event = Event(
            id=event_id(head.session_id, sequence, at),
            session_id=head.session_id,
            sequence=sequence,
            turn=turn or None,
            at=at,
            payload=payload,
        )
        self._events.append(event)
        self.head = replace(head, events=sequence)
        return event

    def now(self) -> datetime:
        """Return the current time, later than any row of the session despite clock jumps."""
        # At least one microsecond later, because two rows of one instant have no order by time.
        self._last = max(microseconds(self._clock.now()), self._last + 1)
        return instant(self._last)

    async def _update_call(self, draft: MessageDraft, message: Message) -> None:
        """Update the call that a row makes or answers."""
        match draft.parts:
            case (ToolCall() as intent,):
                call = Call(
                    id=intent.id,
                    session_id=self.head.session_id,
                    turn=message.turn,
                    sequence=message.sequence,
                    name=intent.name,
                    arguments=intent.arguments,
                    # Unsafe unless declared, because the opposite default could run a side effect
                    # twice.
                    effect=draft.effect or Effect.UNSAFE,
                    idempotency_key=draft.idempotency_key or idempotency_key(self.head, intent.id),
                )
                await self._keep(call)
            case (ToolResult() as result,):
                call = await self._advance(
                    result.call_id,
                    lambda call: calls.finish_call(
                        call, result.status, at=message.created_at, sequence=message.sequence
                    ),
                )
                if calls.is_unrun_retry(call, result.status):
                    await self._reopen(call)

    async def _ask(self, question: Question, turn: int) -> None:
        """Write a question; it waits for its answer from here on."""
        question = self.cleaned(question)
        at = (await self.tell(domain_events.question_event(question), turn)).at
        await self.tx.approvals.save(self.head.key, self._approval(question, at))

    async def _decide(self, draft: ApprovalDecided) -> None:
        """Write an approval that a rule has already answered; emits no question event."""
        at = self.now()
        decided = apply_answer(
            self._approval(self.cleaned(draft.question), at), draft.answer, at=at
        )
        await self.tx.approvals.save(self.head.key, decided)
        await self.tell(domain_events.answer_event(decided))

    def _approval(self, question: Question, at: datetime) -> Approval:
        return Approval(session_id=self.head.session_id, question=question, asked_at=at)

    async def _write_summary(self, summary: Summary) -> None:
        """Write a compaction summary; it belongs to no turn, and no row is removed."""
        part = Compaction(summary=summary.text, dropped_through=summary.dropped_through)
        row = await self.append(MessageDraft(role=Role.SYSTEM, parts=(part,)), 0)
        await self.tell(
            SessionCompacted(
                message_id=row.id,
                kept=summary.kept,
                dropped_through=summary.dropped_through,
                reason=summary.reason,
                summary=summary.text,
                usage=summary.usage,
            )
        )

    async def _advance(self, call_id: CallId, step: Callable[[Call], Call]) -> Call:
        # A call intended and started in the same transaction is cached, not read back.
        if call := self._calls.get(call_id) or await self.tx.calls.by_id(self.head, call_id):
            return await self._keep(step(call))
        raise Internal(Code.INTERNAL, f"No intent was recorded for call {call_id}.")

    async def _keep(self, call: Call) -> Call:
        self._calls[call.id] = call
        await self.tx.calls.save(self.head.key, call)
        return call

    async def _reopen(self, retry: Call) -> None:
        """Set the original call back to unknown, because its retry was not run."""
        original = await self.tx.calls.retried(self.head, retry.idempotency_key)
        if original is None:
            return
        await self._keep(calls.reopen_call(original))
        sentence = f"The outcome of {original.name} ({original.id}) is still unknown: "
        notice = Notice(code=NoticeCode.INFORMATION, text=f"{sentence}{retry.id} was not run.")
        await self.append(MessageDraft(role=Role.SYSTEM, parts=(notice,)), 0)

    async def _charge(self, draft: CostDraft, turn: int) -> None:
        """Add a request to the ledger."""
        entry = draft.entry(self.head.session_id, turn, self.now())
        # A request recorded both before and after a crash is counted once.
        if await self.tx.costs.add(self.head.key, entry):
            self.move(
                tokens_in=self.head.tokens_in + entry.usage.input,
                tokens_out=self.head.tokens_out + entry.usage.output,
                microcents=self.head.microcents + entry.microcents,
                requests=self.head.requests + 1,
            )


class JournalTransaction:
    """Everything one transaction writes, across any number of sessions."""

    def __init__(self, tx: Tx, stamping: Stamping) -> None:
        self.tx = tx
        self._stamping = stamping
        self.writers: dict[SessionKey, SessionWriter] = {}
        self.removed: list[SessionKey] = []

    def now(self) -> datetime:
        """Return the current time."""
        return self._stamping.clock.now()

    async def start(self, session: Session, head: SessionState, digest: bytes) -> SessionWriter:
        """Create a new session."""
        written = self._stamping.scrubber().cleaned(session)
        head = replace(head, title=written.title)
        return self._writer(await self.tx.sessions.add(written, head, digest))

    async def open(self, owner: Owner, session_id: SessionId) -> SessionWriter:
        """Open an owner's session for writing."""
        return self._writer(await find_session_state(self.tx, owner, session_id))

    async def open_by_key(self, key: SessionKey, *, lease: Lease | None = None) -> SessionWriter:
        """Open a session for an internal write, or for the holder of its lease."""
        head = await self.tx.sessions.head_by_key(key)
        if head is None:
            raise session_not_found()
        # Fencing: a holder whose lease was taken over (paused process) is stopped at every write.
        if lease is not None and (head.epoch, head.holder) != (lease.epoch, lease.holder):
            raise Conflict(
                Code.LEASE_LOST,
                "Another process is running this session now.",
                {"epoch": head.epoch},
            )
        return self._writer(head)

    async def remove(self, head: SessionState) -> None:
        """Delete a session; only a tombstone remains."""
        await self.tx.sessions.remove(head, self.now())
        self.removed.append(head.key)

    async def flush(self) -> None:
        """Write everything that was buffered into the transaction."""
        for writer in self.writers.values():
            await writer.flush()

    def _writer(self, head: SessionState) -> SessionWriter:
        writer = SessionWriter(self.tx, head, self._stamping)
        self.writers[head.key] = writer
        return writer


class RedactedDeltas:
    """Redacts secrets from the streamed deltas of one turn, across chunk boundaries."""

    def __init__(self, scrubber: Callable[[], Scrubber]) -> None:
        self._open: StepDelta | None = None
        self._stream = ScrubbedStream(scrubber)
        # Characters emitted per step and channel: the deltas must add up to the row they announce.
        self._passed: dict[tuple[int, Channel], int] = {}

    def passed(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts that can be written now; held-back text may leave none.

        Held-back text is emitted before the next draft that does not continue the same text.
        """
        found: list[Draft] = []
        for draft in drafts:
            if not isinstance(draft, StepDelta) or not self._goes_on(draft):
                found += self._rest()
            if isinstance(draft, StepDelta):
                self._open = draft
                found += self._piece(self._stream.feed(draft.text))
            else:
                found.append(draft)
        return found

    def _goes_on(self, delta: StepDelta) -> bool:
        before = self._open
        return before is None or (before.step, before.channel) == (delta.step, delta.channel)

    def _rest(self) -> list[StepDelta]:
        held = self._piece(self._stream.rest())
        self._open = None
        return held

    def _piece(self, text: str) -> list[StepDelta]:
        if not text or self._open is None:
            return []
        place = self._open.step, self._open.channel
        offset = self._passed.get(place, 0)
        self._passed[place] = offset + len(text)
        return [replace(self._open, offset=offset, text=text)]


class Journal:
    """Commits transactions; a returned result is on disk."""

    def __init__(self, store: Store, doorbell: Doorbell, stamping: Stamping) -> None:
        self._store = store
        self._doorbell = doorbell
        self._stamping = stamping

    def deltas(self) -> RedactedDeltas:
        """Return the redaction filter for the drafts of one turn."""
        return RedactedDeltas(self._stamping.scrubber)

    def new_id(self) -> str:
        """Return a new id."""
        return self._stamping.id_factory.new()

    async def enter(
        self,
        compose: Callable[[JournalTransaction], Coroutine[Any, Any, T]],
        *,
        urgent: bool = False,
        is_brief: bool = False,
    ) -> T:
        """Run `compose` in a transaction; notify the readers of each session after the commit."""
        written: list[JournalTransaction] = []

        async def work(tx: Tx) -> T:
            entry = JournalTransaction(tx, self._stamping)
            result = await compose(entry)
            await entry.flush()
            # Appended last, because a refused transaction must not notify readers.
            written.append(entry)
            return result

        # After the commit, because a reader notified earlier would find nothing to read.
        result = await self._store.write(Brief(work) if is_brief else work, urgent=urgent)
        for key, writer in written[-1].writers.items():
            self._doorbell.ring(key, writer.describe_commit)
        for key in written[-1].removed:
            self._doorbell.ring(key)
        return result

    async def write(
        self,
        owner: Owner,
        session_id: SessionId,
        compose: Callable[[SessionWriter], Coroutine[Any, Any, T]],
        *,
        urgent: bool = False,
    ) -> T:
        """Write to one session for its owner."""

        async def entered(entry: JournalTransaction) -> T:
            return await compose(await entry.open(owner, session_id))

        return await self.enter(entered, urgent=urgent, is_brief=True)

    async def write_by_key(
        self,
        key: SessionKey,
        compose: Callable[[SessionWriter], Coroutine[Any, Any, T]],
        *,
        lease: Lease | None = None,
    ) -> T:
        """Write to one session internally, or for the holder of its lease."""

        async def entered(entry: JournalTransaction) -> T:
            return await compose(await entry.open_by_key(key, lease=lease))

        return await self.enter(entered, is_brief=True)


async def find_session_state(tx: Tx, owner: Owner, session_id: SessionId) -> SessionState:
    """Return the state of the owner's session, or raise `NotFound`."""
    head = await tx.sessions.head(owner, session_id)
    if head is None:
        raise session_not_found()
    return head


def session_not_found() -> NotFound:
    """Return the same error for a missing, a deleted and another owner's session."""
    return NotFound(
        Code.SESSION_NOT_FOUND, "There is no such session; `holdfast sessions list` shows yours."
    )


def stale_etag() -> Conflict:
    """Return the error for a conditional change whose precondition (ETag) no longer holds."""
    return Conflict(
        Code.STALE_ETAG, "It was changed since you read it; read it again, then repeat the change."
    )


async def keep_tools(tx: Tx, key: SessionKey, names: Iterable[str]) -> None:
    """Add tools to those of the session."""
    found = await tx.sessions.get_by_key(key)
    if found is None:
        raise session_not_found()
    session, _ = found
    known = {tool.name for tool in session.tools}
    # Names only: a server may change its descriptions, so they are requested when needed.
    fresh = tuple(ToolSpec(name=name) for name in names if name not in known)
    await tx.sessions.patch(key, replace(session, tools=(*session.tools, *fresh)))
