"""The only writer of sessions: builds commits from drafts and stores them.

Decides nothing about turns (`turns.py`); notifies readers only after the commit.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from holdfast.domain.calls import Call, is_retry
from holdfast.domain.commits import (
    CommitBuilder,
    OpenTurn,
    SessionCommit,
    VersionConflictError,
    events_of,
    is_same_version,
)
from holdfast.domain.drafts import Draft
from holdfast.domain.errors import Code, Conflict, Internal, NotFound
from holdfast.domain.events import (
    Channel,
    StepDelta,
    StepStarted,
    ToolRequested,
    TurnContinued,
    TurnEnded,
    TurnPaused,
    encode_envelopes,
    name_of,
)
from holdfast.domain.ids import CallId, Owner, SessionId, SessionKey
from holdfast.domain.leases import DURATION_MS, EVER, Lease
from holdfast.domain.messages import Message
from holdfast.domain.secrets import ScrubbedStream, Scrubber
from holdfast.domain.sessions import OPEN, Session, SessionState, Status, is_paused
from holdfast.domain.time import instant, microseconds
from holdfast.domain.tools import ToolSpec
from holdfast.domain.waits import Wait, WaitReason
from holdfast.ports.store import Brief, Store, Tx
from holdfast.ports.system import REQUESTS, Clock, Doorbell, Frame, Notification
from holdfast.services.live_session import (
    UNREAD,
    LiveSession,
    LiveSessions,
    MessageRange,
    read_messages,
)
from holdfast.services.stamping import Stamping

log = logging.getLogger(__name__)
T = TypeVar("T")
# Limit of rows that are read in well under a millisecond.
ROWS_BRIEF: Final = 50
_FOR_CLIENTS: Final = frozenset({name_of(ToolRequested), name_of(TurnEnded)})


class SessionWriter(CommitBuilder):
    """Builds a commit to one session inside a transaction, in which it may read."""

    def __init__(
        self, entry: "JournalTransaction", state: SessionState, stamping: Stamping
    ) -> None:
        super().__init__(
            state,
            now=stamping.now(),
            new_id=stamping.id_factory.new_at,
            scrubber=stamping.scrubber(),
        )
        self.tx = entry.tx
        # For sessions that a change of this one concerns, such as its children.
        self.entry = entry

    async def load_turn(self) -> None:
        """Read what is stored about the turn in progress; rows that end it depend on it."""
        self.turn = await read_open_turn(self.tx, self.state)

    async def load_call(self, call_id: CallId) -> Call | None:
        """Return a call of the session, and make it known, so that rows may refer to it."""
        call = self.known_call(call_id) or await self.tx.calls.by_id(self.state, call_id)
        if call is not None:
            turn = self.turn or OpenTurn()
            self.turn = replace(turn, calls={**turn.calls, call.id: call})
        return call


async def read_open_turn(tx: Tx, state: SessionState) -> OpenTurn:
    """Return what is stored about the turn in progress."""
    number = state.settled + 1
    found = {call.id: call for call in await tx.calls.of_turn(state, number)}
    retries = {call.idempotency_key for call in found.values() if is_retry(call)}
    originals = [await tx.calls.retried(state, key) for key in retries]
    return OpenTurn(
        calls=found,
        retried={call.idempotency_key: call for call in originals if call is not None},
        waiting=tuple(await tx.approvals.waiting(state)),
        costs=tuple(await tx.costs.of_turn(state, number)),
        steps=await _count_steps(tx, state),
    )


async def _count_steps(tx: Tx, state: SessionState) -> int:
    # The turn has just begun, or none is in progress.
    if state.events == state.began or state.status is not Status.RUNNING:
        return 0
    return len(await tx.events.since(state, state.began, [name_of(StepStarted)]))


class JournalTransaction:
    """Everything one transaction writes, across any number of sessions."""

    def __init__(self, tx: Tx, stamping: Stamping) -> None:
        self.tx = tx
        self._stamping = stamping
        self._writers: dict[SessionKey, SessionWriter] = {}
        self.commits: list[SessionCommit] = []
        self.removed: list[SessionKey] = []

    def now(self) -> datetime:
        """Return the current time."""
        return self._stamping.clock.now()

    async def start(self, session: Session, state: SessionState, digest: bytes) -> SessionWriter:
        """Create a new session."""
        written = self._stamping.scrubber().redact_value(session)
        state = replace(state, title=written.title)
        return self._writer(await self.tx.sessions.add(written, state, digest))

    async def open(self, owner: Owner, session_id: SessionId) -> SessionWriter:
        """Open an owner's session for writing."""
        return self._writer(await find_session_state(self.tx, owner, session_id))

    async def open_by_key(self, key: SessionKey, *, lease: Lease | None = None) -> SessionWriter:
        """Open a session for an internal write, or for the holder of its lease."""
        state = await self.tx.sessions.state_by_key(key)
        if state is None:
            raise session_not_found()
        if lease is not None:
            require_lease(state, lease)
        return self._writer(state)

    async def remove(self, state: SessionState) -> None:
        """Delete a session; only a tombstone remains."""
        await self.tx.sessions.remove(state, self.now())
        self.removed.append(state.key)

    async def flush(self) -> None:
        """Write everything that was built into the transaction."""
        for key, writer in self._writers.items():
            if key in self.removed:
                continue
            commit = writer.commit()
            await self.tx.append(commit)
            if commit.tools:
                await add_tools(self.tx, key, commit.tools)
            self.commits.append(commit)

    def _writer(self, state: SessionState) -> SessionWriter:
        # One writer per session, because a second one would not see the rows of the first.
        writer = self._writers.get(state.key)
        if writer is None:
            writer = self._writers[state.key] = SessionWriter(self, state, self._stamping)
        return writer


def require_lease(state: SessionState, lease: Lease) -> None:
    """Stop a holder whose lease was taken over, such as a paused process (fencing)."""
    if (state.epoch, state.holder) != (lease.epoch, lease.holder):
        raise Conflict(
            Code.LEASE_LOST, "Another process is running this session now.", {"epoch": state.epoch}
        )


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
            before = self._open
            if not isinstance(draft, StepDelta):
                if before is not None:
                    found += self.rest()
                found.append(draft)
                continue
            if before is not None and (before.step, before.channel) != (draft.step, draft.channel):
                found += self.rest()
            self._open = draft
            found += self._piece(self._stream.feed(draft.text))
        return found

    def rest(self) -> list[StepDelta]:
        """Return the text that was held back."""
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
        self._live = LiveSessions()
        self._on_end: Callable[[SessionKey], None] | None = None

    def watch_ends(self, on_end: Callable[[SessionKey], None]) -> None:
        """Call a function after each commit that ends a turn, a session or all of it."""
        self._on_end = on_end

    def refresh(self, key: SessionKey) -> None:
        """Read again what is stored beside the state of a session, when it is needed."""
        if (live := self._live.get(key)) is not None:
            live.session = None

    def _note_end(self, commit: SessionCommit) -> None:
        if self._on_end is not None and (
            commit.state.settled != commit.before.settled or commit.state.status not in OPEN
        ):
            self._on_end(commit.state.key)

    def deltas(self) -> RedactedDeltas:
        """Return the redaction filter for the drafts of one turn."""
        return RedactedDeltas(self._stamping.scrubber)

    def now(self) -> int:
        """Return the current time in microseconds."""
        return self._stamping.now()

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
        try:
            result = await self._store.write(Brief(work) if is_brief else work, urgent=urgent)
        except VersionConflictError as error:
            # The transaction has read the newest state, so only an id can be taken.
            raise Internal(Code.INTERNAL, "An id of this write is already taken.") from error
        for commit in written[-1].commits:
            self._follow(commit)
            self._doorbell.ring(commit.state.key, partial(describe, commit))
            if any(event.name in _FOR_CLIENTS for event in commit.events):
                self._doorbell.ring(REQUESTS)
            self._note_end(commit)
        for key in written[-1].removed:
            self.forget(key)
            self._doorbell.ring(key)
            if self._on_end is not None:
                self._on_end(key)
        return result

    def _follow(self, commit: SessionCommit) -> None:
        """Bring the session in memory up to date with a commit of a transaction."""
        live = self._live.get(commit.state.key)
        if live is None:
            if commit.state.status in OPEN:
                self._live.put(LiveSession(commit.state))
        elif is_same_version(live.state, commit.before) and commit.state.status in OPEN:
            before = live.weight
            live.advance(commit)
            # The transaction may have changed what is beside the state.
            live.session = None
            self._live.use(live, before)
        elif live.queued is None or live.queued.done():
            self._live.drop(commit.state.key)
        else:
            # Something is queued behind it: the store decides whether that is outdated.
            live.session = None

    def forget(self, key: SessionKey) -> None:
        """Drop a session from memory."""
        self._live.drop(key)

    def find_live(self, owner: Owner, session_id: SessionId) -> LiveSession | None:
        """Return an owner's session if it is in memory."""
        return self._live.find(owner, session_id)

    async def read_session(
        self, owner: Owner, session_id: SessionId
    ) -> tuple[Session, SessionState]:
        """Return an owner's session and its state, from memory if nothing else was written."""
        version = self._store.version_now()
        live = self._live.find(owner, session_id)
        if live is not None and version is not None and version == live.version:
            session = live.session
            is_resting = live.queued is None and live.state.status is Status.IDLE
            # What changes without a commit is stored beside the state: a lease, a program.
            if is_resting and session is not None and session.program is None:
                return session.at(live.state), live.state
        found = await self._store.read(Brief(lambda tx: tx.sessions.get(owner, session_id)))
        if found is None:
            raise session_not_found()
        if live is not None and is_same_version(live.state, found[1]):
            live.session, live.version = found[0], version
        return found

    async def live(self, key: SessionKey) -> LiveSession:
        """Return a session in memory; reads it if it is not there, or only partly."""
        live = self._live.get(key)
        if live is None:
            # Taken before reading: what is written meanwhile makes the session outdated.
            version = self._store.version_now()
            live = await self._store.read(Brief(lambda tx: _read_live(tx, key)))
            live.version = version
            self._live.put(live)
        elif live.session is None or live.turn is None or live.newest is UNREAD:
            # The store must have everything that the state in memory counts.
            if live.turn is None or live.newest is UNREAD:
                await self.settle(key)
            version = self._store.version_now()
            whole = await self._store.read(Brief(lambda tx: _read_live(tx, key)))
            live.session, live.version = whole.session, version
            if is_same_version(live.state, whole.state):
                live.turn, live.newest = whole.turn, whole.newest
            elif live.turn is None or live.newest is UNREAD:
                # Another process wrote.
                self._live.put(whole)
                return whole
        return live

    async def live_history(self, key: SessionKey) -> tuple[LiveSession, list[Message]]:
        """Return a session in memory with all its rows, inherited ones first."""
        live = await self.live(key)
        while live.history is None:
            if live.queued is not None and not live.queued.done():
                # The store lacks the rows that are queued. A failed commit drops the session.
                await asyncio.wait([live.queued])
                live = await self.live(key)
                continue
            state = live.state

            async def read(tx: Tx, state: SessionState = state) -> list[Message]:
                return await read_messages(tx, state, MessageRange(1, state.messages))

            # On the event loop only if the history is short.
            brief = state.messages <= ROWS_BRIEF
            rows = await self._store.read(Brief(read) if brief else read)
            # Rows may have been queued while these were read.
            if live.state.messages == state.messages:
                before = live.weight
                live.extend(rows)
                self._live.use(live, before)
        return live, live.history

    def rows_now(self, key: SessionKey) -> Sequence[Message]:
        """Return all rows of a session in memory, queued ones included."""
        live = self._live.get(key)
        return () if live is None else live.history or ()

    async def commit(self, lease: Lease, compose: Callable[[CommitBuilder], T]) -> T:
        """Write to a session for the holder of its lease; `compose` may run more than once."""
        live = self._live.get(lease.key)
        if live is None or live.turn is None:
            live = await self.live(lease.key)
        require_lease(live.state, lease)
        builder = self.builder(live)
        result = compose(builder)
        try:
            await self.queue(live, builder)
            return result
        except VersionConflictError:
            log.debug("another process wrote to the session")

        async def write(writer: SessionWriter) -> T:
            await writer.load_turn()
            return compose(writer)

        # In a transaction, because commits on what was read before it could be outrun forever.
        return await self.write_by_key(lease.key, write, lease=lease)

    def builder(self, live: LiveSession) -> CommitBuilder:
        """Return a builder for a commit to a session in memory."""
        return CommitBuilder(
            live.state,
            now=self._stamping.now(),
            new_id=self._stamping.id_factory.new_at,
            scrubber=self._stamping.scrubber(),
            turn=live.turn,
        )

    def queue(self, live: LiveSession, builder: CommitBuilder) -> asyncio.Future[None]:
        """Queue a commit to a session in memory; readers are notified when it is on disk.

        Cancelling the result does not take back the commit.
        """
        commit, before = builder.commit(), live.weight
        future = self._store.commit(commit)
        live.advance(commit)
        live.queued = future
        self._live.use(live, before)
        waiter = future.get_loop().create_future()
        future.add_done_callback(partial(self._end_commit, live, commit, waiter))
        return waiter

    async def settle(self, key: SessionKey) -> None:
        """Wait until everything queued for a session is on disk."""
        live = self._live.get(key)
        if live is not None and live.queued is not None:
            # An outdated one was dropped from memory; its caller gets the error.
            with suppress(VersionConflictError):
                await asyncio.shield(live.queued)

    async def require_stored(self, lease: Lease) -> None:
        """Wait until a lease and everything before it is on disk; raise if it was lost."""
        await self.settle(lease.key)
        require_lease((await self.live(lease.key)).state, lease)

    def _end_commit(
        self,
        live: LiveSession,
        commit: SessionCommit,
        waiter: asyncio.Future[None],
        done: asyncio.Future[None],
    ) -> None:
        key = commit.state.key
        error = done.exception()
        if error is not None:
            if self._live.get(key) is live:
                self._live.drop(key)
            if not waiter.done():
                waiter.set_exception(error)
            return
        if live.queued is done:
            live.queued = None
        # The writer goes on before its readers: when they learn that a turn has ended, its place is
        # free, and the next message begins a turn in its own commit.
        if not waiter.done():
            waiter.set_result(None)
        self._doorbell.ring(key, partial(describe, commit))
        self._note_end(commit)

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


async def _read_live(tx: Tx, key: SessionKey) -> LiveSession:
    found = await tx.sessions.get_by_key(key)
    if found is None:
        raise session_not_found()
    session, state = found
    live = LiveSession(state)
    live.session = session
    live.newest = await tx.costs.newest(state) if state.requests else None
    live.turn = live.turn or await read_open_turn(tx, state)
    return live


async def find_session_state(tx: Tx, owner: Owner, session_id: SessionId) -> SessionState:
    """Return the state of the owner's session, or raise `NotFound`."""
    state = await tx.sessions.state(owner, session_id)
    if state is None:
        raise session_not_found()
    return state


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


def describe(commit: SessionCommit) -> Notification:
    """Return a commit as a notification for readers that are up to date."""
    events = events_of(commit)
    envelopes = encode_envelopes(commit.state.session_id, events)
    sequences = map(attrgetter("sequence"), events)
    return Notification(commit.state, list(map(Frame, sequences, envelopes)))


async def add_tools(tx: Tx, key: SessionKey, names: Iterable[str]) -> None:
    """Add tools to those of the session."""
    found = await tx.sessions.get_by_key(key)
    if found is None:
        raise session_not_found()
    session, _ = found
    known = {tool.name for tool in session.tools}
    # Names only: a server may change its descriptions, so they are requested when needed.
    fresh = tuple(ToolSpec(name=name) for name in names if name not in known)
    await tx.sessions.patch(key, replace(session, tools=(*session.tools, *fresh)))


# What the pausing process itself lacks; for the rest it is the first that may continue the turn.
ELSEWHERE: Final = frozenset(
    {WaitReason.CLIENT, WaitReason.TOOL, WaitReason.RUNTIME, WaitReason.HOLDER}
)


async def pause_turn(writer: SessionWriter, wait: Wait) -> None:
    """Record what the open turn waits for, and give its lease back."""
    event = TurnPaused(
        reason=wait.reason,
        text=wait.text,
        until=wait.until,
        needs=wait.needs,
        call_ids=wait.call_ids,
        approval_id=wait.approval_id,
        children=wait.children,
    )
    at = writer.add_event(event, writer.state.settled + 1)
    await writer.tx.waits.save(writer.state.key, replace(wait, since=instant(at)))
    until = EVER if wait.until is None else microseconds(wait.until)
    # The new epoch fences what the process that gives the lease back may still write.
    writer.update(until=-until, epoch=writer.state.epoch + 1)
    if wait.reason in ELSEWHERE:
        writer.update(holder=None)


async def continue_turn(writer: SessionWriter, reason: WaitReason, clock: Clock) -> None:
    """End the pause: the process that paused the turn continues it, or if it is gone any other.

    A turn that waits for something else goes on waiting.
    """
    if not is_paused(writer.state):
        return
    stored = await writer.tx.waits.of(writer.state.key)
    if stored is not None and stored.reason is not reason:
        return
    writer.add_event(TurnContinued(reason=reason), writer.state.settled + 1)
    is_held = writer.state.holder is not None
    writer.update(until=clock.lease_clock_ms() + DURATION_MS if is_held else 0)
