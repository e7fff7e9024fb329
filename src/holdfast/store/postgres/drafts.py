"""Drafts: brief work that is played on what is remembered, and written by one statement.

A process mostly is the only one that writes to a session, and then it knows the row it wrote last.
Work that needs to know no more is played without asking Postgres for anything. The statement that
writes it commits itself, and writes nothing where a single row is not as it was remembered: then
all is played again, on rows that are locked. So nothing is ever told that rests on memory alone.
"""

from collections.abc import Collection
from operator import itemgetter
from typing import Any, Final

from holdfast.store.database import NOTHING, Parameters, Row
from holdfast.store.postgres.columns import KNOWN, SESSIONS
from holdfast.store.postgres.dialect import form_of
from holdfast.store.postgres.heads import EPOCH, Heads
from holdfast.store.postgres.ledger import BYTES_MOST, Ledger, bound
from holdfast.store.postgres.ledger_sql import DRAFT, filled
from holdfast.store.postgres.values import place_of, values_of
from holdfast.store.sessions import HEAD_NAMES
from holdfast.store.sqlite.jobs import Job, drive
from holdfast.store.sqlite.store import Tables

_known_by: Final = itemgetter(*map(HEAD_NAMES.index, KNOWN))


class _UnknownError(BaseException):
    """Work asked for something that is not remembered; nobody but us may catch it."""


class _Memory:
    """Implements `Database` on heads that are remembered, for one job after another."""

    is_sealed = True

    def __init__(self, known: Heads) -> None:
        self._known = known
        self.begin(Heads())

    def begin(self, moved: Heads) -> None:
        """Begin a job, after others have moved some heads."""
        self._moved = moved
        self.read: dict[int, Row] = {}
        self.ledger = Ledger()

    async def fetch(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        form = form_of(sql)
        place = place_of(form.plain, parameters) if form.is_keyed else ()
        row = (self._moved.get(place) or self._known.get(place)) if place else None
        # Of what it has saved itself it would have to know what it has become.
        if row is None or row[0] in self.ledger.sessions:
            raise _UnknownError
        self.read[row[0]] = row
        return [row]

    async def fetch_within(
        self, sql: str, sizes: str, parameters: Parameters, size: int
    ) -> tuple[list[Row], bool]:
        raise _UnknownError

    async def execute(self, sql: str, parameters: Parameters = NOTHING) -> None:
        form = form_of(sql)
        if form.waits is None:
            raise _UnknownError
        name, table = form.waits
        key = parameters[name]
        # Whoever is behind what it has read is refused by the row itself.
        if table is SESSIONS and key in self.read and self.read[key][EPOCH] > parameters["epoch"]:
            raise _UnknownError
        self.ledger.add(table, key, values_of(form.plain, parameters, is_write=True))


class Draft:
    """What jobs of a group write, played on what is remembered."""

    def __init__(self, known: Heads) -> None:
        self._memory = _Memory(known)
        self._tables = Tables(self._memory, {})
        self.begin(())

    def begin(self, busy: Collection[int]) -> None:
        """Begin anew, while others are busy with some sessions."""
        self.jobs: list[Job] = []
        self.moved = Heads()
        self._ledger = Ledger()
        self._first: dict[int, Row] = {}
        # Whether somebody found no room in it.
        self.is_full = False
        # Work on these is played elsewhere, and what comes after it not before it.
        self._closed = set(busy)

    def is_played(self, job: Job) -> bool:
        """Play one job if it can be; otherwise nothing has happened."""
        memory = self._memory
        memory.begin(self.moved)
        try:
            result = drive(job.work(self._tables))
        except (Exception, _UnknownError):  # noqa: BLE001 — judged by the rows, when it is played again
            self._closed |= memory.read.keys()
            return False
        if not memory.ledger.is_of_one(memory.read) or not self._closed.isdisjoint(memory.read):
            self._closed |= memory.read.keys()
            return False
        self.is_full = bool(self.jobs) and self._ledger.size + memory.ledger.size > BYTES_MOST
        if self.is_full:
            return False
        self._take(job, result)
        return True

    def _take(self, job: Job, result: Any) -> None:
        job.result, job.error = result, None
        self.jobs.append(job)
        ((key, row),) = self._memory.read.items()
        # What others of the group have moved it from is what is stored.
        self._first.setdefault(key, row)
        self.moved.keep((row,))
        self.moved.move(key, self._memory.ledger.sessions[key])
        self._ledger.join(self._memory.ledger)

    @property
    def keys(self) -> set[int]:
        """Return the keys of the sessions that it is about."""
        return set(self._first)

    def statement(self, *note: Any) -> tuple[str, list[Any]]:
        """Return what writes it, with a note of the commit, and what is bound to that."""
        known = bound([_known_by(row) for row in self._first.values()])
        values = [*note, len(self._first), *known, *self._ledger.values()]
        return filled(DRAFT, self._ledger.shape, len(note) + 1), values
