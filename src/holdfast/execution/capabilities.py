"""What this process can run that not every process can, and the paused turns that wait for it."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.sessions import Session, SessionState, is_paused
from holdfast.domain.waits import Wait, WaitReason
from holdfast.execution.coordinator import LocalCoordinator
from holdfast.ports.store import Store, Tx
from holdfast.ports.system import Clock
from holdfast.services.background_tasks import sleep_despite_memory_error
from holdfast.services.journal import (
    Journal,
    SessionWriter,
    continue_turn,
    find_session_state,
)

log = logging.getLogger(__name__)

_REASONS: Final = (WaitReason.TOOL, WaitReason.RUNTIME)
# Another process may pause a turn at any time, and does not know who has what it lacks.
_LOOK_SECONDS: Final = 1.0
# A third of the time for which an announcement holds; each one is a commit.
_ANNOUNCE_SECONDS: Final = 10.0


class Capabilities:
    """The capabilities that this process has registered, for sessions of one owner."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        coordinator: LocalCoordinator,
        clock: Clock,
        *,
        owner: Owner,
        missing: Callable[[Session], Sequence[str]],
        announce: Callable[[Iterable[str]], Awaitable[None]],
        withdraw: Callable[[], Awaitable[None]],
    ) -> None:
        """`missing` returns the functions of a session that this process does not have.

        `announce` writes for a while what this process has, and `withdraw` that it has gone.
        """
        self._missing = missing
        self._announce = announce
        self._withdraw = withdraw
        self._announced: tuple[float, frozenset[str]] = 0.0, frozenset()
        self._is_looking = False
        self._store = store
        self._journal = journal
        self._coordinator = coordinator
        self._clock = clock
        self._owner = owner
        self._names: set[str] = set()

    def add(self, names: Iterable[str]) -> None:
        """Register capabilities, and continue the turns that wait for them, now and later."""
        self._names.update(names)
        if self._names:
            self._look()

    def _look(self) -> None:
        # A process that runs no turns would continue what it cannot run.
        if not self._is_looking and self._coordinator.runs_turns:
            self._is_looking = True
            self._coordinator.start(self._look_for_ever())

    async def _look_for_ever(self) -> None:
        try:
            while True:
                try:
                    await self.continue_turns()
                    await self._announce_when_due()
                except HoldfastError as error:
                    log.warning("waiting turns could not be looked up: %s", error.message)
                await sleep_despite_memory_error(_LOOK_SECONDS)
        finally:
            await self._end_announcement()

    async def _end_announcement(self) -> None:
        """Withdraw the announcement, because the process may live on without its functions."""
        if self._names:
            try:
                await self._withdraw()
            except HoldfastError as error:
                log.warning("an announcement could not be withdrawn: %s", error.message)

    async def _announce_when_due(self) -> None:
        """Announce the capabilities when there are new ones, and now and then."""
        at, names = self._announced
        now, mine = time.monotonic(), frozenset(self._names)
        if mine and (mine != names or now - at >= _ANNOUNCE_SECONDS):
            await self._announce(mine)
            self._announced = now, mine

    async def continue_turns(self) -> None:
        """Continue the paused turns that wait for nothing but what this process has."""
        for key, wait in await self._store.read(lambda tx: tx.waits.paused(_REASONS)):
            found = await self._store.read(partial(_session_of, key))
            # Functions of a program act for the owner that it was opened for.
            if found is None or found[0].owner != self._owner:
                continue
            has_all = self._has_all(found[0], wait)
            if has_all and self._coordinator.has_free_slot and await self._continue(key, wait):
                self._coordinator.wake(key)

    def _has_all(self, session: Session, wait: Wait) -> bool:
        if wait.reason is WaitReason.TOOL:
            return not self._missing(session)
        return self._names.issuperset(wait.needs)

    async def continue_session(self, session_id: SessionId) -> None:
        """Continue the turn of a session that waits for functions, which were given to it."""
        self._look()

        async def read(tx: Tx) -> tuple[SessionKey, Wait | None]:
            state = await find_session_state(tx, self._owner, session_id)
            return state.key, await tx.waits.of(state.key) if is_paused(state) else None

        key, wait = await self._store.read(read)
        if wait is not None and wait.reason is WaitReason.TOOL and await self._continue(key, wait):
            self._coordinator.wake(key)

    async def _continue(self, key: SessionKey, wait: Wait) -> bool:
        async def write(writer: SessionWriter) -> bool:
            await continue_turn(writer, wait.reason, self._clock)
            return not is_paused(writer.state)

        return await self._journal.write_by_key(key, write)


async def _session_of(key: SessionKey, tx: Tx) -> tuple[Session, SessionState] | None:
    return await tx.sessions.get_by_key(key)
