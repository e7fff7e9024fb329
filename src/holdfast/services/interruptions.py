"""Interruptions: a turn is ended in the store first, and then stopped wherever it is played."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.sessions import Head, Session, Status, has_waiting_turn
from holdfast.ports import Coordinator
from holdfast.services.admissions import abort
from holdfast.services.journal import Journal, Pen

log = logging.getLogger(__name__)

# Seconds that a caller waits for the end of a turn.
PATIENCE: Final = 10.0


class Interruption(Struct, frozen=True, kw_only=True):
    """A session after an interrupt, and the turn that was stopped by it, none where nothing ran.

    Not settled where the store could not be written in time: then it ends as soon as it can be.
    """

    session: Session
    turn: int | None = None
    is_settled: bool = True


class Stop(Struct, frozen=True, kw_only=True):
    """Which turn is meant, without one whichever runs; and why it is stopped."""

    turn: int | None = None
    reason: str | None = None


class Interruptions:
    """Stops turns; of several who stop the same one, one is told that it did."""

    def __init__(
        self,
        journal: Journal,
        coordinator: Coordinator,
        look: Callable[[Owner, SessionId], Awaitable[Session]],
    ) -> None:
        """`look` returns a session as it is."""
        self._journal = journal
        self._coordinator = coordinator
        self._look = look

    async def interrupt(self, owner: Owner, session_id: SessionId, wish: Stop) -> Interruption:
        """Stop a turn, and wait for its end; only so long as somebody may be kept waiting."""
        try:
            async with asyncio.timeout(PATIENCE):
                stopped = await self._stop(owner, session_id, wish)
        except TimeoutError:
            return await self._interrupted_later(owner, session_id, wish)
        return Interruption(session=await self._look(owner, session_id), turn=stopped)

    async def _interrupted_later(
        self, owner: Owner, session_id: SessionId, wish: Stop
    ) -> Interruption:
        session = await self._look(owner, session_id)
        running = session.settled + 1
        if session.status is not Status.RUNNING or wish.turn not in (None, running):
            return Interruption(session=session)
        # This one and no other: when the store can be written, another one may run.
        self._coordinator.start(self._stop_quietly(owner, session_id, replace(wish, turn=running)))
        return Interruption(session=session, turn=running, is_settled=False)

    async def _stop_quietly(self, owner: Owner, session_id: SessionId, wish: Stop) -> None:
        try:
            await self._stop(owner, session_id, wish)
        except HoldfastError as error:
            log.warning("a turn was not stopped: %s", error.message)

    async def _stop(self, owner: Owner, session_id: SessionId, wish: Stop) -> int | None:
        """End a turn in the store, then here; return its number if this call has ended it."""

        async def end(pen: Pen) -> tuple[Head, bool, int | None]:
            running = pen.head.settled + 1
            is_meant = wish.turn in (None, running)
            if not is_meant or pen.head.status is not Status.RUNNING:
                return pen.head, is_meant, None
            await abort(pen, reason=wish.reason)
            return pen.head, is_meant, running

        # Ended on disk first: stopping the task afterwards can lose nothing.
        head, is_meant, stopped = await self._journal.write(owner, session_id, end, urgent=True)
        if is_meant:
            self._coordinator.interrupt(head.key, epoch=head.epoch)
        if has_waiting_turn(head):
            # What waits behind it was asked for before, here or elsewhere.
            self._coordinator.wake(head.key, turn=head.settled)
        return stopped
