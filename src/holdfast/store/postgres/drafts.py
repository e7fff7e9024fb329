"""Drafts: optimistic batches that run on cached session rows and are written by one statement.

Usually one process writes to a session, and it has the last row in its cache. Work that needs only
this row runs without a query. The writing statement commits by itself, and writes nothing if any
row differs from the cache; then all jobs run again on locked rows. Results are therefore never
returned on the basis of the cache alone.
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
    """Work needs data that is not cached; a BaseException, so that work cannot catch it."""


class _Memory:
    """Implements `Database` on cached session rows, for one job at a time."""

    is_sealed = True

    def __init__(self, known: Heads) -> None:
        self._known = known
        self.begin(Heads())

    def begin(self, moved: Heads) -> None:
        """Start a job on the rows that earlier jobs of the batch have changed."""
        self._moved = moved
        self.read: dict[int, Row] = {}
        self.ledger = Ledger()

    async def fetch(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        form = form_of(sql)
        place = place_of(form.plain, parameters) if form.is_keyed else ()
        row = (self._moved.get(place) or self._known.get(place)) if place else None
        # A row that this job has saved would have to be computed from the saved values.
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
        # A stale epoch is rejected by fencing when the job runs on the stored row.
        if table is SESSIONS and key in self.read and self.read[key][EPOCH] > parameters["epoch"]:
            raise _UnknownError
        self.ledger.add(table, key, values_of(form.plain, parameters, is_write=True))


class Draft:
    """Writes of the jobs of a batch that ran on cached rows."""

    def __init__(self, known: Heads) -> None:
        self._memory = _Memory(known)
        self._tables = Tables(self._memory, {})
        self.begin(())

    def begin(self, busy: Collection[int]) -> None:
        """Reset, and exclude sessions that another draft is writing."""
        self.jobs: list[Job] = []
        self.moved = Heads()
        self._ledger = Ledger()
        self._first: dict[int, Row] = {}
        # Whether a job exceeded the size limit.
        self.is_full = False
        # Jobs on these sessions run elsewhere, and later jobs must not overtake them.
        self._closed = set(busy)

    def is_played(self, job: Job) -> bool:
        """Run a job if possible; returns `False` without side effects otherwise."""
        memory = self._memory
        memory.begin(self.moved)
        try:
            result = drive(job.work(self._tables))
        except (Exception, _UnknownError):  # noqa: BLE001 — the retry reports it
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
        # The first row read is the stored one; later rows include changes of this batch.
        self._first.setdefault(key, row)
        self.moved.keep((row,))
        self.moved.move(key, self._memory.ledger.sessions[key])
        self._ledger.join(self._memory.ledger)

    @property
    def keys(self) -> set[int]:
        """Return the keys of the sessions that the draft changes."""
        return set(self._first)

    def statement(self, *note: Any) -> tuple[str, list[Any]]:
        """Return the statement that writes the draft with its commit number, and its values."""
        known = bound([_known_by(row) for row in self._first.values()])
        values = [*note, len(self._first), *known, *self._ledger.values()]
        return filled(DRAFT, self._ledger.shape, len(note) + 1), values
