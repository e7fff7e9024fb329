"""Sessions that a framework runs: what it wrote, byte for byte, and the messages made of it.

For every framework module:

- `ForeignSessions.open` finds or creates the session of a native id. Its agent has an
  `ExternalRuntime`, so no process of Holdfast runs its turns.
- `ForeignSessions.write` runs a function in one transaction; it may run more than once, so it must
  change nothing but its `ForeignWriter`. Everything in it is one commit, which needs no lease.
- A record belongs to a stream of the session (a namespace, an agent, a subagent); its ordinals
  are dense from 1. `ForeignWriter.add` takes the bytes that the framework reads back, and the
  drafts of the messages that everything else reads. A call that the session already has is not
  made again: its record refers to the row that is there.
- Nothing is changed or removed. `withdraw` appends a record that removes others from the live view,
  and `forget` does the same for records written ahead that the framework has saved since.
- `ForeignSessions.live` is what the framework reads: the records of a stream that are left.

Turns follow from the messages: a user message begins one, and an assistant's text as the last
message of a commit ends it. Until then the turn waits for its program. Tables of a framework's own
state belong beside `store/foreign_records.py`, written in the same transaction (`writer.tx`).
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import ExternalRuntime
from holdfast.domain.calls import CallState, is_open, start_call
from holdfast.domain.commits import OpenTurn, is_same_version
from holdfast.domain.costs import Usage, price
from holdfast.domain.drafts import CostDraft, MessageDraft, Outcome
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.events import MessageWithdrawn, SessionResumed, ToolEnded
from holdfast.domain.ids import CallId, MessageId, Owner, SessionId, SessionKey, slug_of
from holdfast.domain.leases import EVER
from holdfast.domain.messages import (
    Message,
    Role,
    ToolCall,
    ToolResult,
    Withdrawn,
)
from holdfast.domain.recordings import (
    WITHDRAWAL,
    Disposition,
    ForeignRecord,
    ForeignSession,
    LiveView,
    LiveViews,
)
from holdfast.domain.sessions import (
    OPEN,
    Session,
    SessionRequest,
    StopReason,
    Verb,
    admit_turn,
    has_waiting_turn,
    title_of,
    transition,
)
from holdfast.domain.time import instant
from holdfast.domain.turns import cut_short
from holdfast.domain.waits import Wait, WaitReason
from holdfast.ports.store import Brief, Store, Tx
from holdfast.services.agents import Agents
from holdfast.services.journal import Journal, SessionWriter, find_session_state
from holdfast.services.leases import Leases
from holdfast.services.live_session import LiveSession, MessageRange, read_messages
from holdfast.services.models import Models
from holdfast.services.session_lifecycle import DeletePolicy
from holdfast.services.sessions import Sessions
from holdfast.services.turns import begin, end, repair_turn

T = TypeVar("T")
Version = tuple[int, int]
# Namespace of the session ids that are derived from native ids.
_IDS: Final = UUID("5d1a1f0e-7a53-5c0c-9a6e-3c1f9d1f6f57")
_NATIVE_LONGEST: Final = 1_024
# Sessions whose native ids are in memory.
_FOUND_MOST: Final = 10_000
_encode: Final = msgspec.json.Encoder().encode


class Framework(Struct, frozen=True, kw_only=True):
    """A framework and its installed version."""

    name: str
    version: str


class ForeignEntry(Struct, frozen=True, kw_only=True):
    """A record to be written; without a key it is `i:` and its ordinal.

    The record refers to the first message made of it. `cost` is what a request to a provider used.
    """

    kind: str
    raw: bytes
    key: str | None = None
    drafts: tuple[MessageDraft, ...] = ()
    disposition: Disposition | None = None
    # Contents that the drafts refer to, each with its type.
    media: tuple[tuple[str, bytes], ...] = ()
    # The row that a record written ahead was already made into.
    message_id: MessageId | None = None


class ForeignCost(Struct, frozen=True, kw_only=True):
    """What a request to a provider used; entered once for each request id."""

    request_id: str
    model: str
    usage: Usage


class ForeignWriter:
    """Writes one commit to a session that a framework runs."""

    def __init__(
        self, writer: SessionWriter, views: LiveViews, leases: Leases, models: Models
    ) -> None:
        self.writer = writer
        self._views = views
        self._leases = leases
        self._models = models
        self._open: dict[str, LiveView] = {}
        self.added: list[tuple[str, ForeignRecord]] = []
        # Whether the turn in progress has nothing but user messages of this commit.
        self._is_asking = False
        self._last: Message | None = None
        self._rows: dict[int, MessageId] = {}

    @property
    def tx(self) -> Tx:
        """The transaction."""
        return self.writer.tx

    @property
    def key(self) -> SessionKey:
        """The store's key of the session."""
        return self.writer.state.key

    async def view(self, stream: str) -> LiveView:
        """Return the live records of a stream, with everything added so far."""
        known = self._open.get(stream)
        if known is None:
            base = self._views.get(self.key, stream)
            known = self._open[stream] = LiveView(base)
            for record in await self.tx.foreign.after(self.key, stream, known.last):
                known.apply(record)
        return known

    async def add(self, stream: str, entries: Iterable[ForeignEntry]) -> list[ForeignRecord]:
        """Add records and their messages."""
        view = await self.view(stream)
        made = [await self._record(view, entry) for entry in entries]
        await self.tx.foreign.add(self.key, stream, made)
        self.added += [(stream, record) for record in made]
        return made

    async def _record(self, view: LiveView, entry: ForeignEntry) -> ForeignRecord:
        for mime_type, content in entry.media:
            await self.tx.media.keep(self.key, content, mime_type)
        rows = [await self.say(draft) for draft in entry.drafts]
        ids = [row for row in rows if row is not None]
        is_mapped = bool(ids) or entry.message_id is not None
        ordinal = view.last + 1
        record = ForeignRecord(
            ordinal=ordinal,
            key=f"i:{ordinal}" if entry.key is None else entry.key,
            kind=entry.kind,
            raw=entry.raw,
            disposition=entry.disposition or (Disposition.MAPPED if is_mapped else Disposition.RAW),
            message_id=entry.message_id or (ids[0] if ids else None),
        )
        view.apply(record)
        return record

    async def records(self, stream: str, key: str) -> list[ForeignRecord]:
        """Return the records of a stream with one key, removed ones too."""
        return await self.tx.foreign.of_key(self.key, stream, key)

    async def state(self) -> bytes | None:
        """Return what the framework keeps about the session."""
        return await self.tx.foreign.state(self.key)

    async def set_state(self, state: bytes, changed: int) -> None:
        """Replace what the framework keeps about the session, with a time of its own."""
        await self.tx.foreign.set_state(self.key, state, changed)

    async def next_time(self) -> int:
        """Return the time in milliseconds, later than any the framework was given."""
        last = await self.tx.foreign.changed(self.key)
        return max(self.writer.tick() // 1000, last + 1)

    async def withdraw(self, stream: str, records: Sequence[ForeignRecord], reason: str) -> None:
        """Remove records from the live view, and their messages from what a model would read."""
        if not records:
            return
        await self.forget(stream, records)
        ids = tuple(dict.fromkeys(each.message_id for each in records if each.message_id))
        part = Withdrawn(message_ids=ids, reason=reason)
        row = self.writer.add_message(MessageDraft(role=Role.SYSTEM, parts=(part,)), 0)
        self.writer.add_event(MessageWithdrawn(message_id=row.id, count=len(ids), reason=reason))

    async def forget(self, stream: str, records: Sequence[ForeignRecord]) -> None:
        """Remove records from the live view that others stand for; no message is withdrawn."""
        if records:
            raw = _encode([each.ordinal for each in records])
            await self.add(stream, [ForeignEntry(kind=WITHDRAWAL, raw=raw, key="")])

    async def charge(self, cost: ForeignCost) -> None:
        """Enter what a request used in the ledger, once; an unpriced model is entered as such."""
        writer = self.writer
        state = writer.state
        entries = [*writer.costs(), *await self.tx.costs.of_turn(state, state.settled)]
        if any(entry.request_id == cost.request_id for entry in entries):
            return
        model = await self._models.find_or_add(self.tx, cost.model)
        draft = CostDraft(
            request_id=cost.request_id,
            model_id=model.id,
            usage=cost.usage,
            microcents=price(cost.usage, model.prices) if model.prices else 0,
            priced=model.prices is not None,
        )
        number = state.settled + has_waiting_turn(state)
        writer.add_cost(draft.entry(state.session_id, number, instant(writer.tick())))

    async def say(self, draft: MessageDraft) -> MessageId | None:
        """Add a message in its turn; return its id, or that of the row that already says it."""
        match draft.parts:
            case (ToolCall() as call,):
                known = await self.writer.load_call(call.id)
                if known is not None:
                    return await self._row_at(known.sequence)
            case (ToolResult() as result,):
                known = await self.writer.load_call(result.call_id)
                if known is None:
                    return None
                if not is_open(known):
                    return await self._row_at(known.result_sequence or 0)
                self._run_before(known.id, known.state)
                result = replace(result, name=known.name)
                draft = replace(draft, parts=(result,))
                self._announce_end(result)
            case _:
                pass
        await self._enter_turn(draft)
        turn = self.writer.state.settled + 1 if has_waiting_turn(self.writer.state) else 0
        row = self.writer.add_message(draft, turn)
        self._rows[row.sequence] = row.id
        self._last = self._last if draft.role is Role.SYSTEM else row
        if draft.role is Role.USER and self.writer.state.title is None:
            self.writer.update(title=title_of(row.text))
        return row.id

    def _run_before(self, call_id: CallId, state: CallState) -> None:
        """Note that a call ran elsewhere: its result is known, its start was not announced."""
        if state is CallState.INTENDED:
            at = instant(self.writer.tick())
            self.writer.advance_call(call_id, lambda call: start_call(call, at=at))

    def _announce_end(self, result: ToolResult) -> None:
        self.writer.add_event(
            ToolEnded(
                call_id=result.call_id,
                name=result.name,
                status=result.status,
                result=result.result,
                failure=result.error,
            ),
            self.writer.state.settled + 1,
        )

    async def _row_at(self, sequence: int) -> MessageId | None:
        # A row of this commit is not stored yet.
        if sequence in self._rows:
            return self._rows[sequence]
        rows = await read_messages(self.tx, self.writer.state, MessageRange(sequence, sequence))
        return rows[0].id if rows else None

    async def _enter_turn(self, draft: MessageDraft) -> None:
        if draft.role is Role.SYSTEM:
            return
        is_user = draft.role is Role.USER
        if is_user:
            self.settle()
        if is_user and has_waiting_turn(self.writer.state) and not self._is_asking:
            await self.close(Outcome(stop_reason=StopReason.INTERRUPTED))
        if not has_waiting_turn(self.writer.state):
            self.begin()
            self._is_asking = is_user
        self._is_asking = self._is_asking and is_user

    def begin(self) -> None:
        """Begin a turn; it waits for its program from here on."""
        writer = self.writer
        held = writer.state.holder, writer.state.until
        writer.state = admit_turn(writer.state)
        begin(writer)
        writer.update(holder=held[0], until=held[1] if held[0] else -EVER)

    async def close(self, outcome: Outcome) -> None:
        """End the open turn, unless durable calls of a live run are part of it."""
        writer = self.writer
        if has_waiting_turn(writer.state) and not self._leases.is_live(writer.state):
            await repair_turn(writer, cut_short(None, tuple(writer.turn_calls()), outcome))
            writer.turn = OpenTurn()

    def settle(self) -> None:
        """End the turn if the last message of this commit, notices aside, answers it."""
        last, state = self._last, self.writer.state
        if last is None or last.role is not Role.ASSISTANT or not last.text:
            return
        is_over = has_waiting_turn(state) and not any(map(is_open, self.writer.turn_calls()))
        # A run with a lease ends its turn itself.
        if is_over and not self._leases.is_live(state):
            end(self.writer, Outcome(stop_reason=StopReason.STOP))

    async def enter(self, live: LiveSession | None) -> None:
        """Read what the commit depends on, and reopen a closed session."""
        writer = self.writer
        is_current = live is not None and is_same_version(live.state, writer.state)
        turn = live.turn if live is not None and is_current else None
        if turn is not None:
            writer.turn = turn
        elif has_waiting_turn(writer.state):
            await writer.load_turn()
        else:
            writer.turn = OpenTurn()
        if writer.state.status not in OPEN:
            status = transition(writer.state.status, Verb.RESUME)
            writer.add_event(SessionResumed())
            writer.update(status=status, reason=None)


class ForeignSessions:
    """The sessions of an owner that frameworks run."""

    def __init__(
        self,
        owner: Owner,
        store: Store,
        journal: Journal,
        *,
        loop: asyncio.AbstractEventLoop,
        leases: Leases,
        sessions: Sessions,
        agents: Agents,
        models: Models,
    ) -> None:
        self.owner = owner
        self.loop = loop
        self._store = store
        self._journal = journal
        self._leases = leases
        self._sessions = sessions
        self._agents = agents
        self._models = models
        self._views = LiveViews()
        self._keys: dict[SessionId, SessionKey] = {}
        # The sessions found last, each with the version of the store at which it was.
        self._found: OrderedDict[tuple[str, str], tuple[SessionId, Version]] = OrderedDict()

    async def find(self, framework: str, native_id: str) -> SessionId | None:
        """Return the session that the framework knows by an id."""
        version = self._store.version_now()
        known = self._found.get((framework, native_id))
        if known is not None and known[1] == version and self._is_live(known[0]):
            return known[0]
        found = await self._store.read(
            Brief(lambda tx: tx.foreign.named(self.owner, framework, native_id))
        )
        if found is not None and version is not None:
            self._found[framework, native_id] = found, version
            self._found.move_to_end((framework, native_id))
            if len(self._found) > _FOUND_MOST:
                self._found.popitem(last=False)
        return found

    def _is_live(self, session_id: SessionId) -> bool:
        """Return whether a session is in memory, so that it was not deleted here."""
        return self._journal.find_live(self.owner, session_id) is not None

    async def beginning(self, framework: str, start: str) -> list[ForeignSession]:
        """Return the sessions whose native ids begin with a text."""
        return await self._store.read(lambda tx: tx.foreign.beginning(self.owner, framework, start))

    async def open(
        self,
        framework: Framework,
        native_id: str,
        *,
        agent: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionId:
        """Return the session of a native id; creates it, and its agent, if it is not there."""
        _require_native(native_id)
        found = await self.find(framework.name, native_id)
        if found is not None:
            return found
        slug = await self._agent(framework.name, agent)
        integration = {
            "framework": framework.name,
            "version": framework.version,
            "native_id": native_id,
        }
        request = SessionRequest(metadata={**(metadata or {}), "integration": integration})
        session = await self._create(framework.name, native_id, slug, request)
        wait = Wait(
            reason=WaitReason.HOLDER,
            text=f"The turn waits for the program that uses {framework.name}.",
        )

        async def name(writer: SessionWriter) -> None:
            if await writer.tx.foreign.named(self.owner, framework.name, native_id) is None:
                key = writer.state.key
                await writer.tx.foreign.name(key, self.owner, framework.name, native_id)
                await writer.tx.waits.save(key, wait)

        await self._journal.write(self.owner, session.id, name)
        return session.id

    async def _create(
        self, framework: str, native_id: str, slug: str, request: SessionRequest
    ) -> Session:
        generation = 0
        while True:
            # The same id in every process, so that two of them do not create two sessions.
            id_ = uuid5(_IDS, _encode([self.owner, framework, native_id, generation]).decode())
            try:
                return await self._sessions.open(self.owner, slug, request, id=str(id_))
            except Conflict as error:
                # A session of this id was deleted, and its id is never used again.
                generation += 1
                if error.code is not Code.ID_REUSED or generation > _GENERATIONS_MOST:
                    raise

    async def _agent(self, framework: str, name: str) -> str:
        slug = slug_of(name) or framework
        try:
            known = await self._agents.get(self.owner, slug)
        except NotFound:
            fields = {
                "name": name,
                "slug": slug,
                "runtime": ExternalRuntime(framework=framework),
            }
            try:
                known = await self._agents.create(self.owner, fields)
            except Conflict:
                # Race: another process has created it.
                known = await self._agents.get(self.owner, slug)
        if known.runtime != ExternalRuntime(framework=framework):
            raise Conflict(
                Code.SLUG_TAKEN,
                f"The agent {slug} is not one of {framework}; pass another agent name.",
                {"slug": slug},
            )
        return slug

    async def live(self, session_id: SessionId, stream: str) -> LiveView:
        """Return the records of a stream that are left."""
        # Taken before reading, so that what another process writes meanwhile is read next time.
        version = self._store.version_now()
        live = self._journal.find_live(self.owner, session_id)
        if live is not None and version is not None:
            view = self._views.get(live.state.key, stream)
            if view is not None and view.version == version:
                return view

        async def read(tx: Tx) -> tuple[SessionKey, list[ForeignRecord]]:
            key = (await find_session_state(tx, self.owner, session_id)).key
            known = self._views.get(key, stream)
            return key, await tx.foreign.after(key, stream, known.last if known else 0)

        key, records = await self._store.read(Brief(read))
        view = self._views.extend(key, stream, records)
        view.version = version
        return view

    async def key_of(self, session_id: SessionId) -> SessionKey:
        """Return the store's key of a session."""
        known = self._keys.get(session_id)
        if known is None:
            known = self._keys[session_id] = await self._store.read(
                Brief(lambda tx: _key_of(tx, self.owner, session_id))
            )
        return known

    async def read(
        self, session_id: SessionId, work: Callable[[Tx, SessionKey], Awaitable[T]]
    ) -> T:
        """Read the tables of a framework's own state on one snapshot."""

        async def read(tx: Tx) -> T:
            return await work(tx, await _key_of(tx, self.owner, session_id))

        return await self._store.read(read)

    async def transact(
        self, session_id: SessionId, work: Callable[[Tx, SessionKey], Awaitable[T]]
    ) -> T:
        """Write tables of a framework's own state; no row of the session is added."""

        async def write(tx: Tx) -> T:
            return await work(tx, await _key_of(tx, self.owner, session_id))

        return await self._store.write(Brief(write))

    async def graphs_of_run(self, run_id: str) -> list[tuple[SessionId, str, str]]:
        """Return the checkpoints that a run of a graph has made: session, namespace and id."""
        return await self._store.read(lambda tx: tx.graphs.of_run(self.owner, run_id))

    async def write(
        self,
        session_id: SessionId,
        compose: Callable[[ForeignWriter], Awaitable[T]],
        *,
        settles: bool = True,
    ) -> T:
        """Run a function in one transaction; what it adds is one commit.

        With `settles` the turn ends if the last message answers it.
        """
        begun: list[ForeignWriter] = []

        async def work(writer: SessionWriter) -> T:
            foreign = ForeignWriter(writer, self._views, self._leases, self._models)
            begun.append(foreign)
            await foreign.enter(self._journal.find_live(self.owner, session_id))
            result = await compose(foreign)
            if settles:
                foreign.settle()
            return result

        try:
            result = await self._journal.write(self.owner, session_id, work)
        except BaseException:
            # It may be on disk nevertheless.
            self._views.expire({foreign.key for foreign in begun})
            raise
        # Only now, because a transaction may run again or be rolled back.
        for stream, record in begun[-1].added:
            self._views.extend(begun[-1].key, stream, [record])
        return result

    async def end_turn(self, session_id: SessionId, outcome: Outcome) -> None:
        """End the open turn of a run that is over, unless calls have not begun or wait."""

        async def work(foreign: ForeignWriter) -> None:
            is_cut = outcome.stop_reason is not StopReason.STOP
            calls = [each.state is CallState.INTENDED for each in foreign.writer.turn_calls()]
            if is_cut or not (any(calls) or foreign.writer.waiting()):
                await foreign.close(outcome)

        await self.write(session_id, work)

    async def delete(self, session_id: SessionId) -> None:
        """Delete a session; its native id is free for another one, and forks stay."""
        await self._sessions.delete(self.owner, session_id, policy=DeletePolicy.DETACH)


async def _key_of(tx: Tx, owner: Owner, session_id: SessionId) -> SessionKey:
    return (await find_session_state(tx, owner, session_id)).key


_GENERATIONS_MOST: Final = 1_000


def require_version(framework: Framework, least: str, below: str, *, extra: str) -> None:
    """Refuse a version of a framework that was not tested."""
    found, *bounds = (
        tuple(int(part) for part in re.findall(r"\d+", text)[:3])
        for text in (framework.version, least, below)
    )
    if not bounds[0] <= found < bounds[1]:
        raise Invalid(
            Code.FRAMEWORK_VERSION,
            f"{framework.name} {framework.version} is not supported; install >={least},<{below}, "
            f"for example with pip install 'holdfast[{extra}]'.",
            {"version": framework.version, "range": f">={least},<{below}", "extra": extra},
        )


def _require_native(native_id: str) -> None:
    if not native_id or len(native_id) > _NATIVE_LONGEST or "\x00" in native_id:
        raise Invalid(
            Code.INVALID_ID,
            f"The id of a session has 1 to {_NATIVE_LONGEST:,} characters without NUL.",
            {"field": "session_id"},
        )
