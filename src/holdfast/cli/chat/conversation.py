"""A conversation: send a message, follow events until its turn settles, interrupt on a signal.

Input is `repl.py` and `stdin.py`, output is `screen.py`.
"""

import asyncio
import signal
from collections.abc import Awaitable, Iterator
from contextlib import aclosing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.cli.chat.approvals import AutomaticApprovals, InteractiveApprovals
from holdfast.cli.chat.prompt import EndPressedError, KeyboardLock
from holdfast.cli.chat.screen import ChatScreen
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import (
    ApprovalAnswered,
    ApprovalRequested,
    Event,
    Gap,
    MessageAppended,
    SessionClosed,
    ToolEnded,
    TurnEnded,
    TurnPaused,
)
from holdfast.domain.messages import Media, Message, Part, Role, Text
from holdfast.domain.sessions import (
    FEW_TURNS,
    TURN_CAP_LARGEST,
    OnBusy,
    Session,
    Status,
    may_have_few_turns,
    title_of,
)
from holdfast.domain.waits import WaitReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.api import Holdfast
    from holdfast.cli.chat.attachments import AttachedFile


class SignalHandler:
    """Handles signals while it is entered; leaving cancels the task that entered it."""

    def __init__(self) -> None:
        self.is_leaving = False
        self.has_prompt = False
        self._stop: asyncio.Event | None = None
        self._is_own = False
        self._main: asyncio.Task[object] | None = None
        self._before = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Self:
        self._main = asyncio.current_task()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._on_terminate)
        # A command started with SIGHUP ignored (nohup) must continue after a hangup.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._on_terminate)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGHUP)
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
        # Removing our handler would restore Python's default, not the handler that asyncio had set.
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def turn(self, *, own: bool) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the turn must stop; `own` is a turn we started."""
        self._stop = asyncio.Event()
        self._is_own = own
        try:
            yield self._stop
        finally:
            self._stop = None

    def _on_interrupt(self) -> None:
        # A key pressed at the prompt refers to the answer on the screen.
        may_stop = self._is_own or self.has_prompt
        if self._stop is not None and may_stop and not self._stop.is_set():
            self._stop.set()
        elif self._stop is not None or not self.has_prompt:
            # A key meant for the answer may arrive when the turn has just ended (race).
            self.leave()

    def _on_terminate(self) -> None:
        self.is_leaving = True
        if self._stop is not None and self._is_own:
            self._stop.set()
        else:
            self.leave()

    def leave(self) -> None:
        """End the conversation at once, whatever it waits for."""
        self.is_leaving = True
        if self._main is not None:
            self._main.cancel()


async def wait_for_first(*things: Awaitable[Any]) -> None:
    """Wait for the first of several; tasks continue, other awaitables are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in things]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_tasks(*(task for task in tasks if task not in things))


async def cancel_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, and return when they have ended."""
    under_way = [each for each in tasks if each is not None]
    for task in under_way:
        task.cancel()
    if under_way:
        await asyncio.wait(under_way)


class ChatConversation:
    """One session, used by one person or program."""

    def __init__(
        self,
        holdfast: "Holdfast",
        session: Session,
        screen: ChatScreen,
        signals: SignalHandler,
        asking: InteractiveApprovals | AutomaticApprovals | None = None,
    ) -> None:
        """Without `asking`, questions are only shown, and answered by other clients.

        `session` is its state before it was resumed here.
        """
        self.holdfast = holdfast
        self.screen = screen
        self.signals = signals
        self.session_id = session.id
        self.cursor = session.last_event
        # The last event when the session was opened or resumed here; None if that must be read.
        self.known: int | None = None
        self._was_waiting = session.waiting is not None
        self.is_over = False
        self.is_left = False
        # Another process ran its turn when this conversation started.
        self.runs_elsewhere = session.status is Status.RUNNING
        self.last: TurnEnded | None = None
        # Set while no turn is open or queued, according to the events so far.
        self.idle = asyncio.Event()
        self.keyboard = (
            asking.keyboard if isinstance(asking, InteractiveApprovals) else KeyboardLock()
        )
        self._approvals = asking
        self._own_turns: set[int] = set()
        self._update_from(session)

    def has_finished(self) -> bool:
        """Return whether nothing more can or should be sent."""
        return self.is_over or self.is_left or self.signals.is_leaving

    def move_to(self, session: Session) -> None:
        """Continue in another session."""
        self.session_id = session.id
        self.cursor = session.last_event
        self.known = None
        self._was_waiting = session.waiting is not None
        self._own_turns.clear()
        self._update_from(session)

    async def session(self) -> Session:
        """Return the session as it is now."""
        return await self.holdfast.sessions.get(self.holdfast.owner, self.session_id)

    async def say(self, content: str | tuple[Part, ...]) -> None:
        """Send a message, and show events until its turn has settled."""
        message = await self.send(content)
        self.screen.show_waiting()
        await self.follow_turn(message.turn, own=True)

    async def store_files(
        self, text: str, files: "Sequence[AttachedFile]", session: Session
    ) -> str | tuple[Part, ...]:
        """Return a message with its files; media are stored for the session."""
        if not files:
            return text
        await self._set_title_if_missing(session, text)
        texts = [each.text for each in files if each.mime_type is None]
        parts: list[Part] = [Text(text="\n\n".join([text, *texts]))]
        for each in files:
            if each.mime_type is not None:
                ref = await self.holdfast.media.keep(
                    self.holdfast.owner, session.id, each.content, mime_type=each.mime_type
                )
                size = len(each.content)
                parts.append(
                    Media(mime_type=each.mime_type, ref=ref, name=each.name, byte_length=size)
                )
        return tuple(parts)

    async def send(
        self,
        content: str | tuple[Part, ...],
        *,
        id: str | None = None,
        on_busy: OnBusy = OnBusy.QUEUE,
    ) -> Message:
        """Store a message; it is durable when this returns."""
        message = await self.holdfast.send(
            self.session_id, content, id=id or _new_id(), on_busy=on_busy
        )
        self._own_turns.add(message.turn)
        self._note_open_turn(message.turn)
        return message

    async def turns_left(self) -> int | None:
        """Return how many turns the turn cap leaves after the queued ones, if they are few."""
        session = await self.session()
        if not may_have_few_turns(session):
            return None
        # No change to an open session; it is the verb that counts its turns.
        resumed = await self.holdfast.sessions.resume(self.holdfast.owner, session.id)
        left = resumed.turns_left - (session.turn - session.settled)
        return max(left, 0) if left <= FEW_TURNS else None

    async def raise_cap(self) -> int:
        """Add the turns that a new session would have to the turn cap, and return it."""
        session, more = await self.session(), (await self.holdfast.defaults()).turn_cap
        changes = {"turn_cap": min(session.turn_cap + more, TURN_CAP_LARGEST)}
        holdfast = self.holdfast
        return (await holdfast.sessions.update(holdfast.owner, session.id, changes)).turn_cap

    async def set_title(self, text: str) -> None:
        """Set the session's title from this text only."""
        changes = {"title": title_of(text)}
        await self.holdfast.sessions.update(self.holdfast.owner, self.session_id, changes)

    async def _set_title_if_missing(self, session: Session, text: str) -> None:
        if session.title is None:
            # From the typed text: the beginning of an attached file makes a poor title.
            await self.set_title(text)

    async def follow_turn(self, turn: int, *, own: bool = False) -> None:
        """Show events until a turn has settled or the session is closed.

        `own` is a turn started by a message of this conversation.
        """
        try:
            with self.signals.turn(own=own) as stop:
                async with asyncio.TaskGroup() as tasks:
                    stopping = tasks.create_task(self._stop_when(stop, turn))
                    await self._follow(turn, tasks, own=own)
                    # Otherwise the task group would wait for a Ctrl-C that may never come.
                    stopping.cancel()
        except ExceptionGroup as group:
            self._leave_or_raise(group)

    async def watch(self) -> None:
        """Show all events and ask pending questions until the session is closed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._follow(None, tasks, own=False)
        except ExceptionGroup as group:
            self._leave_or_raise(group)

    async def interrupt(self) -> bool:
        """Stop the running turn; return whether there was one."""
        owner, id_ = self.holdfast.owner, self.session_id
        session = await self.session()
        if session.turn <= session.settled:
            return False
        # Only this turn: it may end at this moment, and the next one must not be stopped (race).
        done = await self.holdfast.sessions.interrupt(owner, id_, turn=session.settled + 1)
        return done.turn is not None

    async def wait_for_start(self, turn: int) -> None:
        """Return when a turn runs or has ended: an earlier message would become part of it."""
        session = await self.session()
        async with aclosing(self.holdfast.follow(session.id, after=session.last_event)) as items:
            while session.status is not Status.RUNNING and session.settled < turn:
                await anext(items)
                session = await self.session()

    async def catch_up(self) -> None:
        """Show the events that exist already."""
        page = await self.holdfast.events.list(
            self.holdfast.owner, self.session_id, after=self.cursor
        )
        for item in page.items:
            await self._show(item)

    def _leave_or_raise(self, group: ExceptionGroup[Exception]) -> None:
        # Only one of the tasks fails, and its error is raised unchanged.
        error = group.exceptions[0]
        # The question stays in the store and is asked again when the session is resumed.
        self.is_left = isinstance(error, EndPressedError)
        if not self.is_left:
            raise error from None

    def _update_from(self, session: Session) -> None:
        self._turn, self._settled = session.turn, session.settled
        self._note_open_turn(0)

    def _note_open_turn(self, turn: int) -> None:
        """Record a turn that is open or queued."""
        self._turn = max(self._turn, turn)
        if self._turn > self._settled:
            self.idle.clear()
        else:
            self.idle.set()

    async def _follow(self, turn: int | None, tasks: asyncio.TaskGroup, *, own: bool) -> None:
        """Show events until a turn has settled; without one, until the session is closed."""
        # Existing events are shown first: they may contain answers to the questions.
        known = self.known
        if known is None:
            known = (await self.session()).last_event
        # In a session that was opened here, every question comes as an event.
        if 0 < known <= self.cursor:
            await self._ask_pending(turn, tasks, own=own)
        # The event that says what the turn waits for is before the cursor.
        if self._was_waiting:
            await self._require_runner()
        async with aclosing(self.holdfast.follow(self.session_id, after=self.cursor)) as items:
            async for item in items:
                is_behind = self.cursor < known
                await self._show(item)
                if self.is_over or await self._has_settled(item, turn):
                    return
                if isinstance(item, Event) and isinstance(item.payload, TurnPaused):
                    await self._require_runner()
                if self.cursor >= known and (is_behind or _is_question(item)):
                    await self._ask_pending(turn, tasks, own=own)

    async def _require_runner(self) -> None:
        """Leave an unattended chat whose turn waits for a program that no process runs."""
        if not isinstance(self._approvals, AutomaticApprovals):
            return
        wait = (await self.session()).waiting
        if wait is not None and wait.reason in {WaitReason.TOOL, WaitReason.RUNTIME}:
            raise Conflict(
                Code.TURN_RUNNING,
                f"{wait.text} It stays open, and continues when that program runs; "
                f"`holdfast sessions interrupt {self.session_id}` ends it.",
            )

    async def _ask_pending(self, turn: int | None, tasks: asyncio.TaskGroup, *, own: bool) -> None:
        """Ask pending questions; they may be older than this conversation."""
        waiting = (
            await self._approvals.list_pending(self.session_id)
            if self._approvals is not None
            else []
        )
        if self._approvals is None or not waiting:
            return
        # While our turn is queued, the questions belong to the turn before it.
        now = (await self.session()).settled + 1
        is_ours = now in self._own_turns if turn is None else own and now >= turn
        for approval in waiting:
            self._approvals.begin(tasks, approval, own=is_ours)

    async def _show(self, item: Event | Gap) -> None:
        number = item.to_sequence if isinstance(item, Gap) else item.sequence
        # `catch_up` may run while the events are followed, too.
        if number <= self.cursor:
            return
        self.cursor = number
        if isinstance(item, Event):
            await self._note(item)
        await self.screen.show(item)
        # After it is shown, because tasks that wait for the end of the turn wake up here.
        await self._count(item)

    async def _count(self, item: Event | Gap) -> None:
        """Record queued turns, and turns that have settled."""
        if isinstance(item, Gap):
            # The end of a turn may be inside the gap.
            self._update_from(await self.session())
            return
        match item.payload:
            case MessageAppended(role=Role.USER):
                self._note_open_turn(item.turn or 0)
            case TurnEnded():
                self._settled = max(self._settled, item.turn or 0)
                self._note_open_turn(0)
            case SessionClosed():
                self.idle.set()
            case _:
                pass

    async def _note(self, event: Event) -> None:
        match event.payload:
            case ApprovalAnswered() as answered if self._approvals is not None:
                await self._approvals.withdraw(answered)
            case ToolEnded() as ended if self._approvals is not None:
                await self._approvals.withdraw_call(ended.call_id)
            case TurnEnded() as last:
                self.last = last
                await self._withdraw()
            case SessionClosed():
                self.is_over = True
                await self._withdraw()
            case _:
                pass

    async def _withdraw(self) -> None:
        """Withdraw questions: they end with their turn, and would block the prompt."""
        if self._approvals is not None:
            await self._approvals.withdraw_all()

    async def _has_settled(self, item: Event | Gap, turn: int | None) -> bool:
        if turn is None:
            return False
        if isinstance(item, Gap):
            # The end of the turn may be inside the gap.
            return (await self.session()).settled >= turn
        # At least: turns settle in order, so the end of a later turn implies this one's.
        return isinstance(item.payload, TurnEnded) and (item.turn or 0) >= turn

    async def _stop_when(self, stop: asyncio.Event, turn: int) -> None:
        await stop.wait()
        session = await self.session()
        # While our turn is queued, the running one belongs to another client and continues.
        if session.settled + 1 == turn:
            # Only this turn: it may end at this moment, and the next one must not be stopped
            # (race).
            owner, id_ = self.holdfast.owner, self.session_id
            session = (await self.holdfast.sessions.interrupt(owner, id_, turn=turn)).session
        if session.settled >= turn:
            return
        # Only a running turn can be stopped.
        if self.signals.is_leaving:
            self.signals.leave()
        else:
            self.screen.remark(
                "The turn has not started yet; press Ctrl-C again to leave it waiting."
            )


def _new_id() -> str:
    from holdfast.execution.system import SystemClock, SystemRandomness
    from holdfast.services.stamping import IdFactory

    return IdFactory(SystemClock(), SystemRandomness()).new()


def _is_question(item: Event | Gap) -> bool:
    return isinstance(item, Event) and isinstance(item.payload, ApprovalRequested)
