"""A group of jobs as one transaction: played, committed, and what it means when that fails.

The first failed write or sync poisons the connection: nothing is acknowledged until it was closed,
opened anew and verified. On a full disk only urgent work is taken, out of a reserve, until there
is room again.
"""

import logging
from collections.abc import Callable, Sequence

import apsw

from holdfast.domain.errors import Code, HoldfastError, Internal
from holdfast.storage.jobs import Job, Kind, drive
from holdfast.storage.reserve import Reserve, full
from holdfast.storage.sqlite import Connection, meaning

log = logging.getLogger(__name__)


class _SpoiledError(Exception):
    """Work was refused in its middle, and what it had changed is among the work of others."""


class Committer:
    """Has the writer's connection; whoever calls it must be alone with it."""

    def __init__(
        self, connection: Connection, reopen: Callable[[], Connection], reserve: Reserve
    ) -> None:
        self.connection = connection
        self.generation = 0
        self.reserve = reserve
        self._reopen = reopen
        self._poisoned = False

    @property
    def is_well(self) -> bool:
        """Tell whether nothing has to be mended or made room for."""
        anchor = self.connection.anchor
        is_displaced = anchor is not None and anchor.is_displaced
        return not self._poisoned and not is_displaced and self.reserve.has_room

    def is_played(self, jobs: Sequence[Job]) -> bool:
        """Play jobs without a commit; `False` where all has to be done anew, with patience."""
        try:
            self._look([job for job in jobs if job.kind is Kind.LOOK])
            writing = [job for job in jobs if job.kind is not Kind.LOOK]
            if writing:
                with self.connection.at_once():
                    self._begin()
            for job in writing:
                self._play_trusting(job)
        except (apsw.Error, MemoryError, _SpoiledError):
            # Met again, judged and told by `run`, which has the time for it.
            self._undo()
            for job in jobs:
                job.result = job.error = None
            return False
        return True

    def close(self) -> None:
        """Let go of the connection."""
        try:
            self.connection.close()
        except apsw.Error as error:
            # The last one out moves the log; nothing that was acknowledged depends on it.
            log.warning("the store was not closed cleanly: %s", error)

    def run(self, jobs: Sequence[Job], *, is_played: bool) -> None:
        """Bring jobs to their end, on disk or not; nothing but a lack of memory is raised."""
        try:
            writing = [job for job in jobs if job.kind is not Kind.LOOK]
            if is_played:
                self._commit(writing, is_played=True)
                return
            self._look([job for job in jobs if job.kind is Kind.LOOK])
            self._commit(self._admitted(writing))
        except MemoryError:
            self.give_up(jobs)
        except Exception:
            # A writer that dies would leave every caller waiting for ever.
            self._poisoned = True
            for job in jobs:
                job.error = Internal(Code.INTERNAL, "The store's writer failed; try again.")
            log.exception("the writer was stopped by a fault of ours")

    def give_up(self, jobs: Sequence[Job]) -> None:
        """End jobs of which nobody knows how far they came; where memory is short it is raised."""
        self._poisoned = True
        told = meaning(apsw.NoMemError("out of memory"))
        for job in jobs:
            job.error = told

    def _look(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            try:
                job.result = drive(job.work())
            except (apsw.Error, MemoryError) as error:
                job.error = meaning(error)

    def _admitted(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs that the disk has room for; the others are told so."""
        if not jobs or self.reserve.has_room or self.reserve.take():
            return jobs
        urgent = [job for job in jobs if job.kind is Kind.URGENT]
        for job in jobs:
            job.error = None if job in urgent else full()
        return urgent

    def _commit(self, jobs: Sequence[Job], *, is_played: bool = False) -> None:
        """Play all jobs in one transaction; whatever goes wrong with it goes wrong for all."""
        if not jobs:
            return
        try:
            if not is_played:
                self._require_sound()
                self._require_in_place()
                self._begin()
                for job in jobs:
                    self._play(job)
            self.connection.commit()
        except apsw.FullError as error:
            self._fail(jobs, error)
            self._commit_from_reserve([job for job in jobs if job.kind is Kind.URGENT])
        except apsw.Error as error:
            self._fail(jobs, error)
        except MemoryError:
            # Outside of anybody's work, so nobody can tell whether the commit was made.
            self._fail(jobs, apsw.NoMemError("out of memory"))
        except HoldfastError as error:
            for job in jobs:
                job.error = error

    def _begin(self) -> None:
        # Left open by somebody who had no memory even for its end.
        if self.connection.raw.in_transaction:
            self.connection.query("ROLLBACK")
        self.connection.query("BEGIN IMMEDIATE")

    def _commit_from_reserve(self, jobs: Sequence[Job]) -> None:
        if not self.reserve.is_held:
            return
        self.reserve.give_up()
        for job in jobs:
            job.error = None
        self._commit(jobs)

    def _play(self, job: Job) -> None:
        """Run one job in a savepoint: a refused one takes nothing else with it."""
        # Once more, perhaps: what was said of the first time counts no longer.
        job.error = None
        query = self.connection.query
        query("SAVEPOINT job")
        try:
            job.result = drive(job.work())
        except apsw.ConstraintError as error:
            job.error = meaning(error)
            log.exception("a statement broke a constraint")
        except apsw.Error:
            raise
        except MemoryError as error:
            job.error = meaning(error)
        except BaseException as error:  # noqa: BLE001 — the caller's own, told to the caller
            job.error = error
        else:
            query("RELEASE job")
            return
        query("ROLLBACK TO job")
        query("RELEASE job")

    def _play_trusting(self, job: Job) -> None:
        """Run one job without a savepoint: mostly a refused one has changed nothing yet."""
        before = self.connection.raw.total_changes()
        try:
            job.result = drive(job.work())
        except (apsw.Error, MemoryError):
            raise
        except BaseException as error:
            if self.connection.raw.total_changes() != before:
                raise _SpoiledError from error
            job.error = error

    def _fail(self, jobs: Sequence[Job], error: apsw.Error) -> None:
        told = meaning(error)
        log.error("a commit failed: %s (%s)", error, told.code)
        for job in jobs:
            job.error = told
        # Whatever goes wrong while a poisoned store is verified does not make it sound.
        self._poisoned = self._poisoned or told.code is Code.STORE_POISONED
        self._undo()

    def _undo(self) -> None:
        try:
            if self.connection.raw.in_transaction:
                self.connection.query("ROLLBACK")
        except apsw.Error:
            self._poisoned = True

    def _require_in_place(self) -> None:
        """Refuse to write into files that were seen to be gone, until they are back."""
        anchor = self.connection.anchor
        if anchor is not None and anchor.is_displaced:
            anchor.require_in_place()

    def _require_sound(self) -> None:
        """Reopen and verify after a failure; raises while the store cannot be trusted."""
        if not self._poisoned:
            return
        self.connection.close()
        self.connection = self._reopen()
        self.generation += 1
        # After a failed sync the system may call lost pages clean: all that is readable is written
        # and synced once more, into the database file itself, before anything is acknowledged.
        self.connection.empty_log()
        faults = self.connection.query("PRAGMA quick_check(1)")
        if faults != [("ok",)]:
            raise meaning(apsw.CorruptError("quick_check"))
        self._poisoned = False
        log.warning("the store was reopened and verified")
