"""Prompts at a terminal: key bindings, message line, approval answers, lines above, keyboard lock.

The only module that builds prompt_toolkit sessions.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli.terminal import size_of_screen

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import Application
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.document import Document
    from prompt_toolkit.formatted_text import AnyFormattedText
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyBindings, KeyPress


# Synchronized output: terminals that support it draw the text between the two at once.
BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"


class PromptRegion:
    """Live lines above the line at which a person types.

    They are part of the prompt, which draws them; without a prompt they are not visible.
    """

    def __init__(self) -> None:
        self.lines: Sequence[str] = ()
        self._prompt: Application[Any] | None = None

    def belong_to(self, prompt: "Application[Any]") -> None:
        """Set the prompt that draws the lines."""
        self._prompt = prompt

    def write(self, text: str) -> None:
        """Write above the prompt, and redraw the prompt."""
        prompt = self._prompt
        if prompt is None or not prompt.is_running:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        output = prompt.output
        output.write_raw(BEGIN_UPDATE)
        prompt.renderer.erase()
        output.write_raw(text)
        # At once and not in the next loop iteration, because a gap would flicker.
        prompt.renderer.render(prompt, prompt.layout)
        output.write_raw(END_UPDATE)
        output.flush()

    def live(self, lines: Sequence[str]) -> None:
        """Show the lines with the next redraw."""
        if lines != self.lines:
            self.lines = lines
            if self._prompt is not None:
                self._prompt.invalidate()


class KeyboardLock:
    """Gives the keyboard to one reader at a time; a question precedes the message line."""

    def __init__(self) -> None:
        self.is_wanted = asyncio.Event()
        self._taken = asyncio.Lock()

    @asynccontextmanager
    async def for_question(self) -> AsyncIterator[None]:
        """Acquire the keyboard as soon as the message line has released it."""
        self.is_wanted.set()
        try:
            async with self._taken:
                self.is_wanted.clear()
                yield
        finally:
            # Also if the question was withdrawn before it acquired the keyboard.
            self.is_wanted.clear()

    @asynccontextmanager
    async def for_line(self) -> AsyncIterator[None]:
        """Acquire the keyboard while no question wants it."""
        async with self._taken:
            yield


def chat_key_bindings(stop: Callable[[], bool]) -> "KeyBindings":
    """Return the key bindings; `stop` stops a running turn and returns whether there was one."""
    from prompt_toolkit.application.current import get_app
    from prompt_toolkit.enums import DEFAULT_BUFFER
    from prompt_toolkit.filters import Condition, has_focus
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()
    is_typing = has_focus(DEFAULT_BUFFER)
    is_choosing = Condition(lambda: _is_choosing_file(get_app().current_buffer))

    @keys.add("enter", filter=is_typing & ~is_choosing)
    def send(event: Any) -> None:
        buffer = event.current_buffer
        # As in a shell: a backslash at the end continues the line.
        if (
            buffer.document.text_before_cursor.endswith("\\")
            and buffer.document.is_cursor_at_the_end
        ):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("enter", filter=is_typing & is_choosing)
    def choose(event: Any) -> None:
        # The completion is already inserted; Enter must not send the message yet.
        event.current_buffer.complete_state = None

    @keys.add("escape", "enter", filter=is_typing)
    def break_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=is_typing)
    def give_up(event: Any) -> None:
        if stop():
            return
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    @keys.add("escape", filter=is_typing)
    def stop_what_runs(event: Any) -> None:
        if event.current_buffer.complete_state:
            event.current_buffer.cancel_completion()
        else:
            stop()

    return keys


def answer_key_bindings() -> "KeyBindings":
    """Return the key bindings of a question: Esc stops the turn as Ctrl-C does."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("escape")
    def stop(event: Any) -> None:
        event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


def shorten_escape_timeout(app: "Application[Any]") -> None:
    """Use a short timeout to distinguish a lone Esc from an escape sequence."""
    app.ttimeoutlen, app.timeoutlen = 0.05, 0.2


def _is_choosing_file(buffer: Any) -> bool:
    state = buffer.complete_state
    is_chosen = state is not None and state.current_completion is not None
    return is_chosen and not buffer.text.startswith("/")


PROMPT_SIGN: Final = "> "


class InterruptPressedError(Exception):
    """Ctrl-C was pressed at a prompt."""


class EndPressedError(Exception):
    """Ctrl-D was pressed at a question: the person leaves, and the question stays open."""


@dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """What surrounds the prompt on a terminal that can be redrawn, and its stop callback."""

    region: PromptRegion
    # Called with the number of columns.
    meter: Callable[[int], str]
    stop: Callable[[], bool]
    is_colored: bool


class MessagePrompt:
    """The line at which a person types."""

    def __init__(
        self,
        completer: "Completer | None" = None,
        history: "History | None" = None,
        settings: PromptSettings | None = None,
    ) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.application.current import get_app_session
        from prompt_toolkit.output.vt100 import Vt100_Output

        self._settings = settings
        output = get_app_session().output
        if isinstance(output, Vt100_Output):
            # No cursor position request is needed: the prompt begins where the text ends.
            output.enable_cpr = False
        self._session: PromptSession[str] = PromptSession(
            completer=completer, history=history, complete_while_typing=False
        )
        if settings is not None:
            self._configure(settings)
        self._initial: Document | str = ""

    def _configure(self, settings: PromptSettings) -> None:
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.output import ColorDepth

        session = self._session
        session.multiline = True
        session.key_bindings = chat_key_bindings(settings.stop)
        session.complete_while_typing = Condition(self._is_typing_name)
        session.reserve_space_for_menu = 5
        session.prompt_continuation = "  "
        if not settings.is_colored:
            session.color_depth = ColorDepth.DEPTH_1_BIT
        # The page writes the typed message when its turn starts.
        session.app.erase_when_done = True
        shorten_escape_timeout(session.app)
        settings.region.belong_to(session.app)

    def _is_typing_name(self) -> bool:
        """Return whether a command or file name is being typed, which opens completion."""
        text = self._session.default_buffer.document.text_before_cursor
        return text.startswith("/") or (text.split() or [""])[-1].startswith("@")

    def _message(self) -> "AnyFormattedText":
        from prompt_toolkit.formatted_text import ANSI

        around = self._settings
        if around is None:
            return PROMPT_SIGN
        meter = around.meter(size_of_screen().columns)
        below = f"\x1b[2m{meter}\x1b[0m" if around.is_colored else meter
        return ANSI("\n".join([*around.region.lines, below, PROMPT_SIGN]))

    async def line(self) -> str | None:
        """Return the next line; None when the person leaves with Ctrl-D.

        Ctrl-C raises `InterruptPressedError`. When cancelled, the text typed so far becomes the
        beginning of the next line.
        """
        begun, self._initial = self._initial, ""
        try:
            return await _read_line(self._session, self._message, begun)
        except EOFError:
            return None
        except asyncio.CancelledError:
            self._initial = self._session.default_buffer.document
            raise

    def begin_with(self, text: str) -> None:
        """Restore a line that could not be sent, so that it can be corrected."""
        self._initial = text


class AnswerPrompt:
    """The prompt at which a question is answered; answers are not added to the history."""

    @cached_property
    def _session(self) -> "PromptSession[str]":
        # Imported on first use: most turns ask nothing, and the library is large.
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import DummyHistory

        session: PromptSession[str] = PromptSession(
            history=DummyHistory(), key_bindings=answer_key_bindings()
        )
        shorten_escape_timeout(session.app)
        return session

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Set earlier typed keys aside, and restore them for the next prompt."""
        from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead

        terminal = self._session.input
        early = [*get_typeahead(terminal), *_pending_keys(terminal)]
        try:
            yield
        finally:
            store_typeahead(terminal, [*early, *get_typeahead(terminal)])

    async def answer(self, question: str) -> str:
        """Return the typed answer.

        Esc and Ctrl-C raise `InterruptPressedError`, Ctrl-D raises `EndPressedError`.
        """
        try:
            return await _read_line(self._session, question, "")
        except EOFError:
            raise EndPressedError from None


async def _read_line(session: Any, question: "AnyFormattedText", initial: "Document | str") -> str:
    try:
        # Its own SIGINT handler would replace ours: Ctrl-C must stop the next answer, too.
        line = await session.prompt_async(question, default=initial, handle_sigint=False)
    # Caught here, because a KeyboardInterrupt that leaves a task ends the event loop.
    except KeyboardInterrupt:
        raise InterruptPressedError from None
    return str(line)


def _pending_keys(terminal: "Input") -> "Iterator[KeyPress]":
    """Yield the keys that were pressed and not read yet."""
    # Raw mode, because otherwise the terminal buffers a line until its end.
    with terminal.raw_mode():
        while keys := terminal.read_keys():
            yield from keys
        yield from terminal.flush_keys()
