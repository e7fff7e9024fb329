"""A conversation: say something, follow the log until its turn has settled, stop it when asked.

It shows nothing itself and reads no input; a screen and a command do that.
"""

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from holdfast.cli.screen import Screen
from holdfast.cli.signals import Signals
from holdfast.domain.events import Event, Gap, SessionClosed, TurnEnded
from holdfast.domain.sessions import Session

if TYPE_CHECKING:
    from holdfast.bootstrap import Holdfast


class Conversation:
    """One session, talked in by one person or program."""

    def __init__(
        self, holdfast: "Holdfast", session: Session, screen: Screen, signals: Signals
    ) -> None:
        self.holdfast = holdfast
        self.screen = screen
        self.signals = signals
        self.session_id = session.id
        self.cursor = session.last_event
        self.is_over = False
        self.last: TurnEnded | None = None

    def has_finished(self) -> bool:
        """Tell whether nothing more can or should be said."""
        return self.is_over or self.signals.is_leaving

    def move_to(self, session: Session) -> None:
        """Go on in another session."""
        self.session_id = session.id
        self.cursor = session.last_event

    async def session(self) -> Session:
        """Return the session as it is now."""
        return await self.holdfast.sessions.get(self.holdfast.owner, self.session_id)

    async def say(self, text: str) -> None:
        """Write a message down, and show the news until its turn has settled."""
        message = await self.holdfast.send(self.session_id, text, id=_new_id())
        self.screen.waiting()
        await self.settle(message.turn, own=True)

    async def settle(self, turn: int, *, own: bool = False) -> None:
        """Show the news until a turn has settled, or the session was closed.

        `own` is a turn that a message of this conversation asked for.
        """
        try:
            with self.signals.turn(own=own) as stop:
                async with asyncio.TaskGroup() as tasks:
                    stopping = tasks.create_task(self._stop_when(stop, turn))
                    await self._follow(turn)
                    # Otherwise the group would wait for a Ctrl-C that nobody owes it.
                    stopping.cancel()
        except ExceptionGroup as group:
            # Of the two tasks only one fails, and its error is told as it is.
            raise group.exceptions[0] from None

    async def catch_up(self) -> None:
        """Show the news that is there already."""
        page = await self.holdfast.events.list(
            self.holdfast.owner, self.session_id, after=self.cursor
        )
        for item in page.items:
            await self._show(item)

    async def _follow(self, turn: int) -> None:
        async with aclosing(self.holdfast.follow(self.session_id, after=self.cursor)) as news:
            async for item in news:
                await self._show(item)
                if self.is_over or await self._has_settled(item, turn):
                    return

    async def _show(self, item: Event | Gap) -> None:
        self.cursor = item.to_sequence if isinstance(item, Gap) else item.sequence
        if isinstance(item, Event):
            match item.payload:
                case TurnEnded() as ended:
                    self.last = ended
                case SessionClosed():
                    self.is_over = True
                case _:
                    pass
        await self.screen.show(item)

    async def _has_settled(self, item: Event | Gap, turn: int) -> bool:
        if isinstance(item, Gap):
            # The end of the turn may be among the numbers that will not come.
            return (await self.session()).settled >= turn
        # At least: turns settle in their order, so a later one says that this one has.
        return isinstance(item.payload, TurnEnded) and (item.turn or 0) >= turn

    async def _stop_when(self, stop: asyncio.Event, turn: int) -> None:
        await stop.wait()
        session = await self.session()
        # While ours waits behind another one, that is somebody else's and goes on.
        if session.settled + 1 == turn:
            session = await self.holdfast.sessions.interrupt(self.holdfast.owner, self.session_id)
        if session.settled >= turn:
            return
        # Only a turn that runs can be stopped.
        if self.signals.is_leaving:
            self.signals.leave()
        else:
            self.screen.remark("The turn has not begun yet; Ctrl-C again leaves it waiting.")


def _new_id() -> str:
    from holdfast.execution.machine import SystemClock, SystemRandomness
    from holdfast.services.mint import Mint

    return Mint(SystemClock(), SystemRandomness()).new()
