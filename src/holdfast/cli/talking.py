"""Conversing at a terminal: what is typed is sent at once, and news are shown as they come.

Where the terminal can be redrawn the line stays usable while a turn runs, and what is sent then
waits for the next turn. Elsewhere the line comes back when the turn has ended.
"""

import asyncio
from typing import Final

from holdfast.cli.attaching import attachable_folder, with_files
from holdfast.cli.completing import ChatCompleter
from holdfast.cli.conversation import Conversation
from holdfast.cli.live.drawing import LivePage
from holdfast.cli.live.meter import Meter
from holdfast.cli.live.regions import PromptRegion
from holdfast.cli.meeting import greet, meter_of, part, recall
from holdfast.cli.output import Printer
from holdfast.cli.prompts import MARK, PressedError, Prompt, Surroundings
from holdfast.cli.remembering import PastWords
from holdfast.cli.screen import TextScreen
from holdfast.cli.slash import REGISTRY, SHOWN_TURNS, obey
from holdfast.cli.slashes import Talk
from holdfast.cli.tasks import ended, first_of
from holdfast.domain.errors import Code, HoldfastError

_BOLD: Final = "1"
_IN_VAIN: Final = "The turn has not begun yet; Ctrl-C again leaves it waiting."
_LEAVING: Final = "Leaving when the turn has ended; Ctrl-D again leaves now, and it stays open."


async def talk(
    printer: Printer, conversation: Conversation, *, resumed: str | None, whole: bool
) -> int:
    """Converse until the person leaves; a chat that was left ends with 0."""
    # At the prompt Ctrl-C is a key that is asked about; as a signal it would make us leave.
    conversation.signals.has_prompt = True
    talking = _Talking(printer, conversation)
    # From the beginning: a turn that is read along can be stopped while its past is printed.
    heeding = asyncio.create_task(talking.heed_signals())
    try:
        await greet(printer, conversation)
        if resumed is not None:
            await recall(printer, conversation, None if whole else SHOWN_TURNS)
        await talking.through(await meter_of(conversation))
    finally:
        await ended(heeding)
    part(printer, conversation)
    return 0


class _Talking:
    """A person at a terminal, and a session whose news are shown meanwhile."""

    def __init__(self, printer: Printer, conversation: Conversation) -> None:
        self._printer = printer
        self._conversation = conversation
        self._is_remote = printer.settings.server is not None
        self._page: LivePage | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._is_in_vain = False
        self._presses = 0
        self._is_leaving = False

    async def through(self, meter: Meter) -> None:
        """Take what is typed until the person leaves, or the session is closed."""
        conversation, self._meter = self._conversation, meter
        self._prompt = await self._new_prompt()
        self._watching = asyncio.create_task(conversation.watch())
        try:
            while not conversation.has_finished():
                try:
                    line = await self._line()
                except PressedError:
                    if self._is_last_press():
                        break
                    continue
                if conversation.has_finished() or await self._is_last(line):
                    break
        finally:
            await ended(self._watching, self._stopping)
            conversation.screen.pause()

    async def _new_prompt(self) -> Prompt:
        conversation, screen = self._conversation, self._conversation.screen
        folder = attachable_folder(await conversation.session(), is_remote=self._is_remote)
        completer, history = ChatCompleter(REGISTRY, folder), PastWords(conversation.holdfast)
        page = screen.page if isinstance(screen, TextScreen) else None
        if isinstance(screen, TextScreen):
            screen.meter = self._meter
        if not isinstance(page, LivePage) or not isinstance(page.region, PromptRegion):
            return Prompt(completer, history)
        self._page = page
        around = Surroundings(
            region=page.region,
            meter=self._meter.line,
            stop=self._stop,
            is_colored=page.is_colored,
        )
        return Prompt(completer, history, around)

    async def _line(self) -> str | None:
        """Return what is typed; nothing when the person leaves. A question goes first."""
        conversation = self._conversation
        while not conversation.has_finished():
            if self._page is None:
                await first_of(conversation.is_calm.wait(), self._watching)
            async with conversation.keyboard.for_line():
                typing = asyncio.create_task(self._prompt.line())
                ends = [conversation.is_calm.wait()] if self._is_leaving else []
                wanted = conversation.keyboard.is_wanted.wait()
                try:
                    await first_of(typing, self._watching, wanted, *ends)
                    if typing.done():
                        return typing.result()
                finally:
                    # Until the prompt has put the terminal back, nothing can be written to it.
                    await ended(typing)
            if self._watching.done():
                self._watching.result()
            if self._is_leaving and conversation.is_calm.is_set():
                break
        return None

    async def _is_last(self, line: str | None) -> bool:
        """Do what a line says, and tell whether the chat is left."""
        if line is None:
            return self._leaves()
        self._presses, self._is_leaving, self._is_in_vain = 0, False, False
        try:
            if line.startswith("/") and not line.startswith("//"):
                return await self._obeys(line) and self._leaves()
            if line.strip():
                await self._send(line)
        except HoldfastError as error:
            self._printer.warn(f"holdfast: {error.message}")
            # Closed from elsewhere: there is nothing more to say here until it is resumed.
            self._conversation.is_over = error.code is Code.SESSION_CLOSED
        return False

    async def _obeys(self, line: str) -> bool:
        conversation = self._conversation
        if self._page is not None:
            self._printer.line(f"{MARK}{line}", style=_BOLD)
        before = conversation.session_id
        is_left = await obey(Talk(self._printer, conversation), line)
        self._printer.flush()
        if conversation.session_id != before:
            await ended(self._watching)
            if self._page is not None:
                self._page.forget()
            self._watching = asyncio.create_task(conversation.watch())
        await self._meter.recall(conversation.holdfast, await conversation.session())
        return is_left

    async def _send(self, line: str) -> None:
        conversation, config = self._conversation, self._conversation.holdfast.config
        session, text = await conversation.session(), line.removeprefix("/")
        try:
            whole = await asyncio.to_thread(
                with_files, text, session, config, is_remote=self._is_remote
            )
            if whole != text and session.title is None:
                # Made of what was typed: the beginning of a file says little.
                await conversation.entitle(text)
            await conversation.put(whole)
        except HoldfastError:
            # It is not on the screen any more, and it can be mended.
            if self._page is not None:
                self._prompt.begin_with(line)
            raise

    def _leaves(self) -> bool:
        """Tell whether the chat is left now; a turn that runs is waited for once."""
        if self._conversation.is_over or self._conversation.is_calm.is_set() or self._is_leaving:
            return True
        self._is_leaving = True
        self._conversation.screen.remark(_LEAVING)
        return False

    def _is_last_press(self) -> bool:
        self._presses += 1
        if self._presses == 2 or not self._conversation.is_calm.is_set():
            return True
        self._conversation.screen.remark("Ctrl-C again, or Ctrl-D, leaves.")
        return False

    def _stop(self) -> bool:
        """Stop the turn that runs; tell whether there is one that this could stop."""
        is_under_way = self._stopping is not None and not self._stopping.done()
        if self._conversation.is_calm.is_set() or is_under_way or self._is_in_vain:
            return False
        self._stopping = asyncio.create_task(self._interrupt())
        return True

    async def _interrupt(self) -> None:
        screen = self._conversation.screen
        try:
            self._is_in_vain = not await self._conversation.interrupt()
        except HoldfastError as error:
            screen.remark(f"holdfast: {error.message}")
        if self._is_in_vain and not self._conversation.is_calm.is_set():
            screen.remark(_IN_VAIN)

    async def heed_signals(self) -> None:
        """Stop the turn when a signal says so; one that wants us to leave has its way then."""
        signals = self._conversation.signals
        while True:
            with signals.turn(own=True) as stop:
                await stop.wait()
            was_in_vain = self._is_in_vain
            if not self._conversation.is_calm.is_set():
                await self._interrupt()
                if was_in_vain and self._is_in_vain:
                    signals.leave()
            if signals.is_leaving:
                signals.leave()
