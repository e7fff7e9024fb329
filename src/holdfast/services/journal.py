"""The one pen: stamps drafts and writes them, together with what they change, in one transaction.

It decides nothing about turns (`turns.py`) and rings no bell before the commit.
"""

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.domain import calls
from holdfast.domain.calls import Call
from holdfast.domain.costs import CostEntry, Usage
from holdfast.domain.approvals import Question
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Outcome, Summary
from holdfast.domain.errors import Code, Conflict, Internal, NotFound
from holdfast.domain.events import (
    CallSettled,
    Event,
    Payload,
    ToolStarted,
    event_id,
)
from holdfast.domain.ids import CallId, MessageId, Owner, SessionId
from holdfast.domain.leases import Lease
from holdfast.domain.messages import Message, ToolCall, ToolResult, encode_parts, link
from holdfast.domain.sessions import Head, Session
from holdfast.domain.times import instant, microseconds
from holdfast.domain.tools import Effect
from holdfast.ports import Clock, Doorbell, NewRow, Store, Tx
from holdfast.services.mint import Mint

T = TypeVar("T")


class Pen:
    """One notebook, open for writing inside one transaction.

    `head` is where the notebook stands, counting what was written with this pen.
    """

    def __init__(self, tx: Tx, head: Head, clock: Clock, mint: Mint) -> None:
        self.tx = tx
        self.head = head
        self._clock = clock
        self._mint = mint
        # Whole microseconds, because this is compared and added to with every row.
        self._last = microseconds(head.updated_at)
        self._messages: list[NewRow] = []
        self._events: list[Event] = []

    def move(self, **changes: Any) -> None:
        """Change where the notebook stands."""
        self.head = replace(self.head, **changes)

    async def write(self, drafts: Sequence[Draft], turn: int) -> None:
        """Write the drafts of a turn in their order; an `Outcome` is not written but decided on."""
        for draft in drafts:
            match draft:
                case MessageDraft():
                    await self.append(draft, turn)
                case CostDraft():
                    await self._charge(draft, turn)
                case Outcome():
                    raise Internal(Code.INTERNAL, "An outcome ends a turn; it is not a row.")
                case Question() | Summary():
                    raise Internal(Code.INTERNAL, "not yet")
                case _:
                    await self.tell(draft, turn)

    async def append(self, draft: MessageDraft, turn: int) -> Message:
        """Write a row of the record; it takes an event's number, because it is its own news."""
        at = self._now()
        content = encode_parts(draft.parts)
        head = self.head
        message_id = draft.id or MessageId(self._mint.new())
        sequence = head.messages + 1
        columns = (message_id, sequence, turn, draft.role, draft.model_id, self._last)
        # Over what is stored and not over the value, so that the store can be proven by itself.
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
        await self._fold(draft, turn)
        return message

    async def tell(self, payload: Payload, turn: int | None = None) -> Event:
        """Write a piece of news, and what it changes about a call."""
        match payload:
            case ToolStarted():
                await self._advance(payload.call_id, calls.started)
            case CallSettled():
                await self._advance(payload.call_id, lambda call: calls.settled(call, payload.how))
            case _:
                pass
        return self._stamp(payload, turn, self._now())

    async def flush(self) -> None:
        """Put everything that was written into the transaction."""
        key = self.head.key
        if self._messages:
            await self.tx.messages.append(key, self._messages)
        if self._events:
            await self.tx.events.append(key, self._events)
        # Last, because the head counts what the lines above wrote.
        await self.tx.sessions.save(replace(self.head, updated_at=instant(self._last)))

    def _stamp(self, payload: Payload, turn: int | None, at: datetime) -> Event:
        sequence = self.head.events + 1
        event = Event(
            id=event_id(self.head.session_id, sequence, at),
            session_id=self.head.session_id,
            sequence=sequence,
            turn=turn or None,
            at=at,
            payload=payload,
        )
        self._events.append(event)
        self.head = replace(self.head, events=sequence)
        return event

    def _now(self) -> datetime:
        """Return the time, later than anything in this notebook even when the clock goes back."""
        # One microsecond at least: two rows of one instant would have no order by time.
        self._last = max(microseconds(self._clock.now()), self._last + 1)
        return instant(self._last)

    async def _fold(self, draft: MessageDraft, turn: int) -> None:
        """Keep the call that a row speaks of in step with the row."""
        match draft.parts:
            case (ToolCall() as intent,):
                call = Call(
                    id=intent.id,
                    session_id=self.head.session_id,
                    turn=turn,
                    name=intent.name,
                    arguments=intent.arguments,
                    # Unsafe unless declared: a wrong guess the other way would run a call twice.
                    effect=draft.effect or Effect.UNSAFE,
                    idempotency_key=f"{self.head.session_id}:{intent.id}",
                )
                await self.tx.calls.save(self.head.key, call)
            case (ToolResult() as result,):
                await self._advance(
                    result.call_id, lambda call: calls.finished(call, result.status)
                )
            case _:
                pass

    async def _advance(self, call_id: CallId, step: Callable[[Call], Call]) -> None:
        call = await self.tx.calls.by_id(self.head, call_id)
        if call is None:
            raise Internal(Code.INTERNAL, f"Call {call_id} was never intended.")
        await self.tx.calls.save(self.head.key, step(call))

    async def _charge(self, draft: CostDraft, turn: int) -> None:
        """Enter a request in the ledger; one that is there already counts once."""
        usage = draft.usage or Usage()
        entry = CostEntry(
            request_id=draft.request_id,
            session_id=self.head.session_id,
            turn=turn,
            model_id=draft.model_id,
            usage=usage,
            microcents=draft.microcents,
            priced=draft.priced,
            at=self._now(),
        )
        # A request that was entered before a crash and again after it is counted once.
        if await self.tx.costs.add(self.head.key, entry):
            self.move(
                tokens_in=self.head.tokens_in + usage.input,
                tokens_out=self.head.tokens_out + usage.output,
                microcents=self.head.microcents + draft.microcents,
                requests=self.head.requests + 1,
            )


class Entry:
    """Everything that one transaction writes, in as many notebooks as it takes."""

    def __init__(self, tx: Tx, clock: Clock, mint: Mint) -> None:
        self.tx = tx
        self._clock = clock
        self._mint = mint
        self.pens: dict[SessionId, Pen] = {}
        self.removed: list[SessionId] = []

    def now(self) -> datetime:
        """Return the time of this entry."""
        return self._clock.now()

    async def start(self, session: Session, head: Head, digest: bytes) -> Pen:
        """Begin a new notebook."""
        return self._pen(await self.tx.sessions.add(session, head, digest))

    async def open(
        self, session_id: SessionId, *, owner: Owner | None = None, lease: Lease | None = None
    ) -> Pen:
        """Open a notebook for its owner, or for the holder of its lease."""
        head = await self.tx.sessions.head(session_id)
        # One answer for both: telling them apart would tell that somebody else's id exists.
        if head is None or (owner is not None and head.owner != owner):
            raise session_not_found(session_id)
        # The fence: a holder that slept through its own end is stopped here, at every write.
        if lease is not None and (head.epoch, head.holder) != (lease.epoch, lease.holder):
            raise Conflict(
                Code.LEASE_LOST, "Somebody else runs this session now.", {"epoch": head.epoch}
            )
        return self._pen(head)

    async def remove(self, head: Head) -> None:
        """Take a notebook away; what is left is a tombstone."""
        await self.tx.sessions.remove(head, self.now())
        self.removed.append(head.session_id)

    async def flush(self) -> None:
        """Put everything into the transaction."""
        for pen in self.pens.values():
            await pen.flush()

    def _pen(self, head: Head) -> Pen:
        pen = Pen(self.tx, head, self._clock, self._mint)
        self.pens[head.session_id] = pen
        return pen


class Journal:
    """Writes entries; whoever gets an answer from here can pull the plug."""

    def __init__(self, store: Store, doorbell: Doorbell, clock: Clock, mint: Mint) -> None:
        self._store = store
        self._doorbell = doorbell
        self._clock = clock
        self._mint = mint

    async def enter(
        self, compose: Callable[[Entry], Coroutine[Any, Any, T]], *, urgent: bool = False
    ) -> T:
        """Write an entry; ring for each notebook in it when it is on disk."""
        written: list[Entry] = []

        async def work(tx: Tx) -> T:
            entry = Entry(tx, self._clock, self._mint)
            result = await compose(entry)
            await entry.flush()
            # Known only now: an entry that was refused rings for nobody.
            written.append(entry)
            return result

        # Rung only after the commit: a reader that is woken sooner finds nothing to read.
        result = await self._store.write(work, urgent=urgent)
        for session_id in (*written[-1].pens, *written[-1].removed):
            self._doorbell.ring(session_id)
        return result

    async def write(
        self,
        session_id: SessionId,
        compose: Callable[[Pen], Coroutine[Any, Any, T]],
        *,
        owner: Owner | None = None,
        lease: Lease | None = None,
        urgent: bool = False,
    ) -> T:
        """Write into one notebook."""

        async def entered(entry: Entry) -> T:
            return await compose(await entry.open(session_id, owner=owner, lease=lease))

        return await self.enter(entered, urgent=urgent)


def session_not_found(session_id: str) -> NotFound:
    """Return the one answer for a missing, a deleted and a foreign session."""
    return NotFound(
        Code.SESSION_NOT_FOUND, "There is no such session; `holdfast sessions list` shows yours."
    )
