"""Sessions in memory: the only cache of a session, for the process that writes it; and its rows.

A live session is as it will be after its queued commits. It needs no proof that it is current: a
commit on an outdated one is refused by the store, and it is dropped and read again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum, auto
from operator import attrgetter
from typing import Final

from msgspec import Struct

from holdfast.domain.approvals import ApprovalState
from holdfast.domain.calls import is_retry
from holdfast.domain.commits import OpenTurn, SessionCommit
from holdfast.domain.costs import CostEntry
from holdfast.domain.events import StepStarted, name_of
from holdfast.domain.ids import CallId, Owner, SessionId, SessionKey
from holdfast.domain.messages import Message, ToolCall, memory_of
from holdfast.domain.models import Model
from holdfast.domain.sessions import Session, SessionState, has_waiting_turn
from holdfast.ports.store import Segment, Tx

# Bound of all live sessions together.
BYTES_MOST: Final = 32 << 20
# Measured memory overhead of a session, beside its rows.
_OF_A_SESSION: Final = 8 << 10
_STARTED: Final = name_of(StepStarted)


class Unread(Enum):
    """Marks a value that is not in memory and must be read."""

    UNREAD = auto()


UNREAD: Final = Unread.UNREAD


class LiveSession:
    """One session in memory; its state always, everything else when it is needed."""

    __slots__ = (
        "call_ids",
        "history",
        "models",
        "newest",
        "queued",
        "session",
        "state",
        "turn",
        "version",
        "weight",
    )

    def __init__(self, state: SessionState) -> None:
        self.state = state
        # What is frozen at creation or changed by its owner; `None` if it must be read.
        self.session: Session | None = None
        # The version of the store at which `session` was read.
        self.version: tuple[int, int] | None = None
        # The models of its turns: of which session they are, when they were read, and themselves.
        self.models: tuple[Session, float, tuple[Model, ...]] | None = None
        # Where no turn runs or waits, nothing is stored about one; `None` if it must be read.
        self.turn = None if has_waiting_turn(state) else OpenTurn()
        # The last entry of the ledger that belongs to a turn, or that it must be read.
        self.newest: CostEntry | Unread | None = UNREAD if state.requests else None
        # The commit that was queued last.
        self.queued: asyncio.Future[None] | None = None
        # Read when a turn needs it, with the ids of the calls in it.
        self.history: list[Message] | None = None
        self.call_ids: set[CallId] = set()
        self.weight = _OF_A_SESSION

    def extend(self, rows: Iterable[Message]) -> None:
        """Append rows to the history, or begin it."""
        if self.history is None:
            self.history = []
        for row in rows:
            self.history.append(row)
            self.weight += memory_of(row)
            for part in row.parts:
                if isinstance(part, ToolCall):
                    self.call_ids.add(part.id)

    def advance(self, commit: SessionCommit) -> None:
        """Include a commit that was queued, or that is stored already."""
        before, self.state = self.state, commit.state
        if self.history is not None and commit.messages:
            self.extend(map(attrgetter("message"), commit.messages))
        for entry in commit.costs:
            if entry.turn:
                self.newest = entry
        if commit.state.settled != before.settled:
            self.turn = OpenTurn()
        elif self.turn is not None:
            self.turn = _turn_after(self.turn, commit)


def _turn_after(turn: OpenTurn, commit: SessionCommit) -> OpenTurn | None:
    """Return what is stored about the turn after a commit; `None` if it must be read."""
    steps, waiting, calls = turn.steps, turn.waiting, turn.calls
    for event in commit.events:
        if event.name == _STARTED:
            steps += 1
    if commit.calls:
        calls = {**calls}
        number = commit.state.settled + 1
        for call in commit.calls:
            # A new retry needs the call that it repeats, which must be read.
            if is_retry(call) and call.id not in turn.calls:
                return None
            # Calls of other turns, and those that a client recorded, are not for this turn to run.
            if call.turn == number:
                calls[call.id] = call
    if commit.approvals:
        known = {each.id: each for each in (*waiting, *commit.approvals)}
        waiting = tuple(each for each in known.values() if each.state is ApprovalState.WAITING)
    costs = (*turn.costs, *commit.costs)
    return OpenTurn(calls=calls, retried=turn.retried, waiting=waiting, costs=costs, steps=steps)


class LiveSessions:
    """The most recently used sessions, bounded by their size."""

    def __init__(self) -> None:
        self._known: OrderedDict[SessionKey, LiveSession] = OrderedDict()
        self._keys: dict[tuple[Owner, SessionId], SessionKey] = {}
        self._bytes = 0

    def get(self, key: SessionKey) -> LiveSession | None:
        """Return a session that is in memory."""
        return self._known.get(key)

    def find(self, owner: Owner, session_id: SessionId) -> LiveSession | None:
        """Return an owner's session that is in memory."""
        key = self._keys.get((owner, session_id))
        return None if key is None else self._known.get(key)

    def put(self, live: LiveSession) -> None:
        """Keep a session, and drop those not used for the longest time above the bound."""
        state = live.state
        self.drop(state.key)
        self._known[state.key] = live
        self._keys[state.owner, state.session_id] = state.key
        self._bytes += live.weight
        if self._bytes > BYTES_MOST:
            self._trim()

    def use(self, live: LiveSession, before: int) -> None:
        """Note that a session was used, and that its size was `before`."""
        if self._known.get(live.state.key) is live:
            self._known.move_to_end(live.state.key)
            self._bytes += live.weight - before
            if self._bytes > BYTES_MOST:
                self._trim()

    def drop(self, key: SessionKey) -> None:
        """Forget a session, which has ended or may be outdated."""
        live = self._known.pop(key, None)
        if live is not None:
            self._bytes -= live.weight
            self._keys.pop((live.state.owner, live.state.session_id), None)

    def _trim(self) -> None:
        for key, live in list(self._known.items())[:-1]:
            # One with a queued commit stays, because the store does not have its state yet.
            if live.queued is None or live.queued.done():
                self.drop(key)
            if self._bytes <= BYTES_MOST:
                return


ALL: Final = -1


class MessageRange(Struct, frozen=True):
    """A range of rows: first and last number, limit, and from which end.

    With `size`, rows are returned up to that many bytes, at least one and possibly fewer than would
    fit: continue after the number of the last row.
    """

    first: int
    last: int
    limit: int = ALL
    newest: bool = False
    size: int | None = None
    # The hash of the row before the first, if that row was just read.
    previous: bytes | None = None


async def read_messages(tx: Tx, state: SessionState, wanted: MessageRange) -> list[Message]:
    """Return rows of a session, including rows of the sessions it was forked from."""
    if wanted.first > state.inherited:
        own = Segment(state.key, state.session_id, wanted.first, wanted.last)
        return await _span(tx, own, wanted, wanted.limit)
    found: list[Message] = []
    lineage = await tx.sessions.lineage(state.key)
    for part in reversed(lineage) if wanted.newest else lineage:
        first, last = max(part.first, wanted.first), min(part.last, wanted.last)
        left = wanted.limit - len(found) if wanted.limit != ALL else ALL
        if first > last or left == 0 or (found and wanted.size is not None):
            continue
        stretch = Segment(part.key, part.session_id, first, last)
        rows = await _span(tx, stretch, wanted, left)
        found = rows + found if wanted.newest else found + rows
    return found


async def _span(tx: Tx, segment: Segment, wanted: MessageRange, limit: int) -> list[Message]:
    previous = wanted.previous if segment.first == wanted.first else None
    return await tx.messages.span(
        segment, limit=limit, newest=wanted.newest, size=wanted.size, previous=previous
    )
