"""The one writer of a process: it commits in groups, and the disk is waited for in a thread.

What arrives while a commit is on its way to the disk goes into the next one, and every caller is
told its own fate after the commit that holds its work.

Whoever has the connection has it alone: the thread, or for a moment the loop on which a group of
brief work is played. Python hands itself over between threads with every statement, which costs
more than the statement; so the thread gets what has to be waited for, mostly the commit alone.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Any, Final, TypeVar, cast

from holdfast.domain.errors import Code, Unavailable
from holdfast.storage.commits import Committer
from holdfast.storage.jobs import BREATH, PATIENCE, Job, Kind, Work, tell_everywhere, unheard
from holdfast.storage.reserve import Reserve
from holdfast.storage.sqlite import Connection

# A group is bounded, so that the first of it does not wait for an endless stream of others.
GROUP_MOST: Final = 256

T = TypeVar("T")


class Following(Enum):
    """Who has the connection next."""

    NOBODY = auto()
    LOOP = auto()
    THREAD = auto()
    END = auto()


class Stage(Enum):
    """How far a group has come."""

    TAKEN = auto()
    PLAYED = auto()
    COMMITTING = auto()
    ENDED = auto()


class Writer:
    """Runs work on the writer's connection, in order, in groups."""

    def __init__(
        self, connection: Connection, reopen: Callable[[], Connection], reserve: Reserve
    ) -> None:
        self._committer = Committer(connection, reopen, reserve)
        self._reserve = reserve
        # Guards who waits, whether somebody has the connection, and which loop is to have it next.
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._is_taken = False
        self._host: asyncio.AbstractEventLoop | None = None
        self._closed = False
        # Whether the loop that is to have the connection looks at something with it, and who was
        # the first to wait for that loop when the thread last looked.
        self._is_in_use = False
        self._noticed: Job | None = None
        # The group in hand, and how far it has come: noted here and nowhere else, so that nobody
        # is forgotten when there is no memory to go on. The bell rings when the thread is to act.
        self._jobs: Sequence[Job] = ()
        self._stage = Stage.TAKEN
        # The thread's own: whom it has to tell, whom it has told, and who it decided is next.
        self._untold: Sequence[Job] = ()
        self._told: Sequence[Job] = ()
        self._next: Following | None = None
        self._bell = threading.Lock()
        self._bell.acquire()
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    @property
    def connection(self) -> Connection:
        """Return the connection; after a failure it is another one."""
        return self._committer.connection

    @property
    def generation(self) -> int:
        """Return how often the connection was opened anew."""
        return self._committer.generation

    async def submit(self, work: Work, *, urgent: bool = False, is_brief: bool = False) -> Any:
        """Run work in a transaction and return its result once it is on disk."""
        kind = Kind.URGENT if urgent else Kind.ORDINARY
        return await self._submitted(Job(work, kind, is_brief=is_brief))

    async def look(self, look: Callable[[Connection], T]) -> T:
        """Look at the connection between two transactions, without taking the write lock."""

        async def work() -> T:
            return look(self.connection)

        return cast(T, await self._submitted(Job(work, Kind.LOOK, is_brief=True)))

    def lent(self, use: Callable[[Connection | None], T]) -> T:
        """Lend the connection to this loop for one use, if it is well and nobody else uses it."""
        with self._lock:
            # Invited and not begun: until it begins, nobody but this loop can.
            is_host = self._host is not None and self._host is asyncio.get_running_loop()
            is_well = not self._closed and self._committer.is_well
            is_lent = is_well and (is_host or self._take_if_free())
            self._is_in_use |= is_lent and is_host
        try:
            return use(self.connection if is_lent else None)
        finally:
            if is_lent and is_host:
                self._is_in_use = False
            elif is_lent:
                self._give_back()

    def _give_back(self) -> None:
        with self._lock:
            # On another loop somebody may have come meanwhile.
            is_wanted = self._is_taken = bool(self._waiting) or self._closed
        if is_wanted:
            self._bell.release()

    async def close(self) -> None:
        """Finish what was submitted and let go of the connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            is_mine = self._take_if_free()
        if is_mine:
            self._bell.release()
        try:
            await asyncio.to_thread(self._thread.join)
        except RuntimeError:
            # No thread can be had to wait in.
            while self._thread.is_alive():  # noqa: ASYNC110 — a thread's end sets no event
                await asyncio.sleep(BREATH)

    async def _submitted(self, job: Job) -> Any:
        with self._lock:
            if self._closed:
                raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
            self._waiting.append(job)
            is_mine = self._take_if_free()
            if is_mine and job.is_brief:
                self._host = job.loop
        if is_mine:
            self._start(job)
        return await job.future

    def _take_if_free(self) -> bool:
        """Take the connection, if nobody has it; a loop that is gone has nothing any more."""
        is_free = not self._is_taken or (self._host is not None and self._host.is_closed())
        if is_free:
            self._is_taken, self._host = True, None
        return is_free

    def _start(self, job: Job) -> None:
        if job.is_brief:
            try:
                # Not at once: whatever else is ready on this loop to be written comes along.
                job.loop.call_soon(self._play_here)
                return
            except MemoryError:
                self._host = None
        self._bell.release()

    def _play_here(self) -> None:
        """Play a group on this loop and leave its commit to the thread, or else all of it."""
        with self._lock:
            # Asked twice, or too late: somebody else has the connection.
            if self._host is not asyncio.get_running_loop():
                return
            self._host = None
        try:
            if self._committer.is_well and self._is_brief():
                self._jobs = self._group()
                # An empty group is none: who comes meanwhile has not been played with it.
                if self._jobs and self._committer.is_played(self._jobs):
                    self._stage = Stage.PLAYED
        finally:
            self._bell.release()

    def _is_brief(self) -> bool:
        with self._lock:
            return all(job.is_brief for job in self._waiting)

    def _group(self) -> list[Job]:
        """Return who is next; who has stopped waiting before the work began is spared it."""
        with self._lock:
            count = min(len(self._waiting), GROUP_MOST)
            first = islice(self._waiting, count)
            jobs = [job for job in first if not job.future.cancelled()]
            # Only now: without the memory for a list nobody is lost.
            for _ in range(count):
                self._waiting.popleft()
        return jobs

    def _run(self) -> None:
        is_called = False
        while True:
            try:
                is_called = is_called or self._bell.acquire(timeout=PATIENCE)
                if not is_called:
                    self._remind()
                    is_called = self._is_overdue()
                if is_called and not self._serve():
                    break
                is_called = False
            except MemoryError:
                # Where it was it goes on: a writer that dies leaves every caller waiting for ever.
                time.sleep(BREATH)
        self._committer.close()

    def _remind(self) -> None:
        """Tell again whose loop has lost the word."""
        self._told = unheard(self._told)
        tell_everywhere(self._told)

    def _is_overdue(self) -> bool:
        """Take the connection from a loop that was invited and has not come.

        It may be busy, or have had no memory to remember that it was asked.
        """
        with self._lock:
            is_awaited = self._host is not None and not self._is_in_use
            first = self._waiting[0] if is_awaited and self._waiting else None
            is_overdue = first is not None and first is self._noticed
            self._noticed = first
            if is_overdue:
                self._host = None
        return is_overdue

    def _serve(self) -> bool:
        """Serve until nobody waits or a loop goes on; `False` when the connection can be closed."""
        while True:
            if self._next is None:
                self._end()
                # Decided before anybody is told: whoever is told may come back at once.
                self._decide()
            tell_everywhere(self._untold)
            self._told = (*unheard(self._told), *self._untold)
            self._untold = ()
            following = self._next
            if following is Following.LOOP and not self._is_invited():
                following = Following.THREAD
            self._next = None
            if following is not Following.THREAD:
                return following is not Following.END

    def _end(self) -> None:
        """Bring a group to its end, the one in hand or the next; never anything twice."""
        if self._stage is Stage.COMMITTING:
            # There was no memory to find out what became of it.
            self._committer.give_up(self._jobs)
        elif self._stage is not Stage.ENDED:
            self._jobs = self._jobs or self._group()
            is_played = self._stage is Stage.PLAYED
            self._stage = Stage.COMMITTING
            self._committer.run(self._jobs, is_played=is_played)
        self._stage = Stage.ENDED

    def _decide(self) -> None:
        """Decide who has the connection after this group."""
        with self._lock:
            is_brief = all(job.is_brief for job in self._waiting)
            # From here on it may be somebody else's, and so may the group in hand.
            self._untold, self._jobs, self._stage = self._jobs, (), Stage.TAKEN
            if not self._waiting:
                self._is_taken = self._closed
                self._next = Following.END if self._closed else Following.NOBODY
            elif self._closed or not is_brief:
                self._next = Following.THREAD
            else:
                self._host = self._waiting[0].loop
                self._next = Following.LOOP

    def _is_invited(self) -> bool:
        """Let a loop go on; `False` when it is gone and the thread has to."""
        host = self._host
        while host is not None:
            try:
                host.call_soon_threadsafe(self._play_soon)
                return True
            except MemoryError:
                time.sleep(BREATH)
            except RuntimeError:
                with self._lock:
                    is_mine = self._host is host
                    self._host = None if is_mine else self._host
                return not is_mine
        return True

    def _play_soon(self) -> None:
        """Play behind those who were told just now: what they write next comes along."""
        try:
            asyncio.get_running_loop().call_soon(self._play_here)
        except MemoryError:
            self._play_here()
