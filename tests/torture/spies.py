"""What a write is about, told from what it writes: a store that watches and can strike.

Works through the seam `Outside(wrap=…)`; the product is not changed. A write is a transaction or a
commit: both are watched, and every control spoils both.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast import HoldfastError, StorageFull, Unavailable
from holdfast.domain.commits import SessionCommit
from holdfast.domain.errors import Code
from holdfast.domain.events import TurnEnded, decode_payload
from holdfast.domain.sessions import is_paused
from holdfast.ports.store import Store, Tx

T = TypeVar("T")
Work = Callable[[Tx], Coroutine[Any, Any, T]]

# The first that fits names the write.
KINDS = (
    ("session.closed", "close"),
    ("session.forked", "fork"),
    ("session.opened", "open"),
    ("session.resumed", "resume"),
    ("session.compacted", "compact"),
    ("call.settled", "settle"),
    ("step.failed+acquire", "mend"),
    ("turn.ended:aborted", "interrupt"),
    ("turn.ended:error", "turn failure"),
    ("turn.ended:interrupted", "cut off"),
    ("turn.ended", "turn end"),
    # Mostly together with the start of its turn.
    ("message:user", "admit"),
    ("turn.started", "turn start"),
    ("approval.requested", "question"),
    ("approval.answered", "answer"),
    # Perhaps together with the start of a call that may be run twice.
    ("message:tool_call", "intent"),
    ("tool.started", "start"),
    # Often together with the start of the next step.
    ("message:tool_result", "result"),
    ("step.started", "step"),
    ("step.delta", "delta batch"),
    ("sessions.remove", "delete"),
    ("sessions.patch", "update"),
    ("sessions.extend", "renew"),
    ("events.prune", "prune"),
    ("agents.add", "agent"),
    ("agents.save", "agent change"),
    ("acquire", "acquire"),
    ("pause", "pause"),
    # Rows of a turn that come without an event: the details of a call, or what a request cost.
    ("details", "details"),
    ("release", "release"),
)


TABLES = tuple(Tx.__annotations__)


def marks_of(commit: SessionCommit) -> set[str]:
    """Return what a commit does, as `KINDS` names it."""
    before, state = commit.before, commit.state
    marks = {event.name for event in commit.events}
    for event in commit.events:
        payload = decode_payload(event.content)
        if isinstance(payload, TurnEnded):
            marks.add(f"{event.name}:{payload.stop_reason}")
    marks |= {f"message:{row.message.role}" for row in commit.messages}
    # An interrupt takes the lease from its holder, and holds nothing itself.
    if is_paused(state) and state.epoch != before.epoch:
        marks.add("pause")
    elif state.holder is not None and state.epoch != before.epoch:
        marks |= {"acquire", *(f"{mark}+acquire" for mark in marks)}
    if commit.calls or commit.costs or commit.approvals or commit.tools:
        marks.add("details")
    if before.holder is not None and state.holder is None:
        marks.add("release")
    return marks


class SpyTable:
    """One table, with everything that is done to it noted."""

    def __init__(self, name: str, table: Any, seen: set[str]) -> None:
        self._name = name
        self._table = table
        self._seen = seen

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self._table, verb)

        async def noted(*given: Any, **named: Any) -> Any:
            self._seen.add(f"{self._name}.{verb}")
            return await method(*given, **named)

        return noted


class SpyTx:
    """A transaction whose tables are watched."""

    def __init__(self, tx: Tx) -> None:
        self.seen: set[str] = set()
        for name in TABLES:
            setattr(self, name, SpyTable(name, getattr(tx, name), self.seen))
        self._tx = tx

    async def append(self, commit: SessionCommit) -> None:
        """Write a commit, watched."""
        self.seen |= marks_of(commit)
        await self._tx.append(commit)


class SpyStore:
    """A store that names every write and lets a test act around it."""

    def __init__(self, store: Store, before: "Strike", after: "Strike") -> None:
        """`before` acts inside a transaction, or when a commit is queued.

        `after` acts when it is on disk and nobody knows.
        """
        self._store = store
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run the work, watched."""
        seen: set[str] = set()

        async def watched(tx: Tx) -> T:
            spy = SpyTx(tx)
            result = await work(spy)  # type: ignore[arg-type]
            seen.update(spy.seen)
            self._before(kind_of(seen))
            return result

        result = await self._store.write(watched, urgent=urgent)
        self._after(kind_of(seen))
        return result

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Queue a commit, watched."""
        kind = kind_of(marks_of(commit))
        self._before(kind)
        return watched(self._store.commit(commit), lambda: self._after(kind))


Strike = Callable[[str], None]


def kind_of(seen: set[str]) -> str:
    """Return the name of a write that did this."""
    return next((kind for mark, kind in KINDS if mark in seen), "other")


def watched(done: asyncio.Future[None], after: Callable[[], None]) -> asyncio.Future[None]:
    """Act when a commit is on disk, before anybody who waits for it is told."""

    def act(ended: asyncio.Future[None]) -> None:
        if not ended.cancelled() and ended.exception() is None:
            after()

    # The first callback of a future runs first.
    done.add_done_callback(act)
    return done


def answered(
    done: asyncio.Future[None],
    answer: Callable[[BaseException | None], BaseException | None],
    told: asyncio.Future[None] | None = None,
) -> asyncio.Future[None]:
    """Return a future that ends with another answer than the store gave."""
    told = told or asyncio.get_running_loop().create_future()

    def act(ended: asyncio.Future[None]) -> None:
        if told.done():
            return
        error = answer(ended.exception())
        if error is None:
            told.set_result(None)
        else:
            told.set_exception(error)

    done.add_done_callback(act)
    return told


class EarlyStore:
    """A store that lies: it answers first and writes a moment later what is of one kind.

    The control of the rows that kill: whoever cannot see its losses cannot see ours.
    """

    def __init__(self, store: Store, delay: float = 0.3, kind: str = "admit") -> None:
        self._store = store
        self._delay = delay
        self._kind = kind
        self._late: set[Awaitable[object]] = set()
        # Commits that were answered, and those queued behind them.
        self._held: deque[tuple[SessionCommit, asyncio.Future[None]]] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Do the work twice, and the first time for show."""

        async def rehearsed(tx: Tx) -> T:
            spy = SpyTx(tx)
            result = await work(spy)  # type: ignore[arg-type]
            if kind_of(spy.seen) == self._kind:
                raise _UndoneError(result)
            return result

        try:
            return await self._store.write(rehearsed, urgent=urgent)
        except _UndoneError as undone:
            task = asyncio.create_task(self._do_later(work))
            self._late.add(task)
            return undone.result  # type: ignore[no-any-return]

    async def _do_later(self, work: Work[T]) -> None:
        await asyncio.sleep(self._delay)
        await self._store.write(work)

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Answer and queue the commit later, in front of those that build on it."""
        is_early = kind_of(marks_of(commit)) == self._kind
        if not is_early and not self._held:
            return self._store.commit(commit)
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        if is_early:
            told.set_result(None)
        if not self._held:
            loop.call_later(self._delay, self._queue_held)
        self._held.append((commit, told))
        return told

    def _queue_held(self) -> None:
        while self._held:
            commit, told = self._held.popleft()
            answered(self._store.commit(commit), lambda error: error, told)


class DeafStore:
    """A store that answers as if all was well although the disk has said otherwise.

    The control of the rows of failing and full disks; `heard` are the errors it overhears.
    """

    def __init__(self, store: Store, heard: type[HoldfastError]) -> None:
        self._store = store
        self._heard = heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run the work and do not listen."""
        results: list[T] = []

        async def kept(tx: Tx) -> T:
            results.append(await work(tx))
            return results[-1]

        try:
            return await self._store.write(kept, urgent=urgent)
        except self._heard:
            if not results:
                raise
            return results[-1]

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Queue the commit and do not listen."""
        return answered(
            self._store.commit(commit),
            lambda error: None if isinstance(error, self._heard) else error,
        )


class WellStore:
    """A store that asks its lock and not its disk whether it can be written.

    The control of the row that fills the disk.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def require_writable(self) -> None:
        """Write nothing, which a full disk does not refuse."""

        async def nothing(_: Tx) -> None:
            return None

        await self._store.write(nothing, urgent=True)


class RegrettingStore:
    """A store that calls the disk full after it has written: nothing changed, it says, and it did.

    The control for refusals: whoever believes them cannot see this.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Write what a client asks for, and then refuse it."""
        seen: set[str] = set()

        async def watched(tx: Tx) -> T:
            spy = SpyTx(tx)
            result = await work(spy)  # type: ignore[arg-type]
            seen.update(spy.seen)
            return result

        result = await self._store.write(watched, urgent=urgent)
        if kind_of(seen) == "admit":
            raise self._refusal()
        return result

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Write what a client asks for, and then refuse it."""
        done = self._store.commit(commit)
        if kind_of(marks_of(commit)) != "admit":
            return done
        return answered(done, lambda error: error or self._refusal())

    @staticmethod
    def _refusal() -> StorageFull:
        return StorageFull(Code.STORAGE_FULL, "The disk is full; nothing was changed.")


class StumblingStore:
    """A store that raises, at each third step, what no caller is prepared for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Queue a commit, or stumble."""
        self._steps += kind_of(marks_of(commit)) == "step"
        if self._steps == 3:
            self._steps = 0
            raise RuntimeError("the store has stumbled")
        return self._store.commit(commit)


class FrankStore:
    """A store that passes on what the machine says, in words no caller is prepared for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, work: Work[T]) -> T:
        """Read, and raise what lies behind a refusal."""
        try:
            return await self._store.read(work)
        except Unavailable as error:
            raise OSError("the machine has run out of something") from error


class SulkingStore:
    """A store that never reads again after it has once been refused something."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._refusal: HoldfastError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, work: Work[T]) -> T:
        """Read, unless something has ever gone wrong."""
        if self._refusal is not None:
            raise self._refusal
        try:
            return await self._store.read(work)
        except Unavailable as error:
            self._refusal = error
            raise


def careless(store: Store) -> Store:
    """Set the writer to `synchronous=NORMAL`: the control of the rows that cut the power.

    Without an anchor, which would name the loss.
    """
    connection = store._writer.connection  # type: ignore[attr-defined]
    connection.pragma("synchronous", "NORMAL")
    connection.anchor.advance = lambda: None
    return store


def reckless(store: Store) -> Store:
    """Take the reserve away: the control of the row that fills the disk."""
    reserve = store._writer._reserve  # type: ignore[attr-defined]
    reserve.give_up()
    reserve.has_room = True
    reserve.take = lambda: True
    return store


class UnfencedStore:
    """A store that shows its process every session it ever held as still its own.

    The control of the row that pauses: this is what a lease without a fence amounts to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[int, tuple[str, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, work: Work[T]) -> T:
        """Read sessions as they were when we held them."""

        async def unfenced(tx: Tx) -> T:
            return await work(_UnfencedTx(tx, self._held))

        return await self._store.read(unfenced)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run the work on sessions that look as they were when we held them."""

        async def unfenced(tx: Tx) -> T:
            return await work(_UnfencedTx(tx, self._held))

        return await self._store.write(unfenced, urgent=urgent)

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Queue a commit that no other holder stops."""
        return asyncio.ensure_future(self.write(lambda tx: tx.append(commit)))


class _UnfencedTx:
    def __init__(self, tx: Tx, held: dict[int, tuple[str, int]]) -> None:
        self._tx = tx
        self._held = held
        self.sessions = _UnfencedSessions(tx.sessions, held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    async def append(self, commit: SessionCommit) -> None:
        state, stored = commit.state, await self._tx.sessions.state_by_key(commit.state.key)
        if state.holder is not None:
            self._held[state.key] = (state.holder, state.epoch)
        if stored is not None:
            real = replace(commit.before, holder=stored.holder, epoch=stored.epoch)
            commit = replace(commit, before=real)
        await self._tx.append(commit)


class _UnfencedSessions:
    def __init__(self, table: Any, held: dict[int, tuple[str, int]]) -> None:
        self._table = table
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    async def state(self, owner: Any, session_id: Any) -> Any:
        return self._as_it_was(await self._table.state(owner, session_id))

    async def state_by_key(self, key: Any) -> Any:
        return self._as_it_was(await self._table.state_by_key(key))

    async def get_by_key(self, key: Any) -> Any:
        found = await self._table.get_by_key(key)
        return found and (found[0], self._as_it_was(found[1]))

    def _as_it_was(self, head: Any) -> Any:
        if head is None or head.key not in self._held:
            return head
        holder, epoch = self._held[head.key]
        return replace(head, holder=holder, epoch=epoch)

    async def extend(self, holder: str, until: int) -> set[Any]:
        return set(await self._table.extend(holder, until)) | set(self._held)


class _UndoneError(Exception):
    def __init__(self, result: Any) -> None:
        super().__init__("undone")
        self.result = result
