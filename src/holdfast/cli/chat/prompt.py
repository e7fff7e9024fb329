"""Prompts at a terminal: key bindings, the message line, answers to questions, and who reads the
keyboard.

The only module that builds prompt_toolkit sessions.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli.chat.live_page import PromptRegion
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


class KeyboardLock:
    """Lent to one reader at a time; who types steps aside when a question comes up."""

    def __init__(self) -> None:
        self.is_wanted = asyncio.Event()
        self._taken = asyncio.Lock()

    @asynccontextmanager
    async def for_question(self) -> AsyncIterator[None]:
        """Have the keys as soon as who types has stepped aside."""
        self.is_wanted.set()
        try:
            async with self._taken:
                self.is_wanted.clear()
                yield
        finally:
            # Also where the question was taken back before it had the keys.
            self.is_wanted.clear()

    @asynccontextmanager
    async def for_line(self) -> AsyncIterator[None]:
        """Have the keys while no question wants them."""
        async with self._taken:
            yield


def chat_key_bindings(stop: Callable[[], bool]) -> "KeyBindings":
    """Return the keys; `stop` stops what runs, and tells whether there was something to stop."""
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
        # As in a shell: a backslash at the end says that the line goes on.
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
        # The name is in the line already; the sentence around it goes on.
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
    """Return the keys of a question: Esc stops the turn as Ctrl-C does."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("escape")
    def stop(event: Any) -> None:
        event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


def shorten_escape_timeout(app: "Application[Any]") -> None:
    """Tell a lone Esc from the beginning of a longer key by a short pause."""
    app.ttimeoutlen, app.timeoutlen = 0.05, 0.2


def _is_choosing_file(buffer: Any) -> bool:
    state = buffer.complete_state
    is_chosen = state is not None and state.current_completion is not None
    return is_chosen and not buffer.text.startswith("/")


MARK: Final = "> "


class InterruptPressedError(Exception):
    """Ctrl-C was pressed at a prompt."""


class EndPressedError(Exception):
    """Ctrl-D was pressed at a question: the person leaves, and the question waits."""


@dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """What stands around the line at a terminal that can be redrawn, and what its keys stop."""

    region: PromptRegion
    # Given the columns there are.
    meter: Callable[[int], str]
    stop: Callable[[], bool]
    is_colored: bool


class MessagePrompt:
    """The line at which a person types."""

    def __init__(
        self,
        completer: "Completer | None" = None,
        history: "History | None" = None,
        around: PromptSettings | None = None,
    ) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.application.current import get_app_session
        from prompt_toolkit.output.vt100 import Vt100_Output

        self._around = around
        output = get_app_session().output
        if isinstance(output, Vt100_Output):
            # Where the cursor is need not be asked: the lines stand where the text ends.
            output.enable_cpr = False
        self._session: PromptSession[str] = PromptSession(
            completer=completer, history=history, complete_while_typing=False
        )
        if around is not None:
            self._dress(around)
        self._begun: Document | str = ""

    def _dress(self, around: PromptSettings) -> None:
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.output import ColorDepth

        session = self._session
        session.multiline = True
        session.key_bindings = chat_key_bindings(around.stop)
        session.complete_while_typing = Condition(self._is_naming)
        session.reserve_space_for_menu = 5
        session.prompt_continuation = "  "
        if not around.is_colored:
            session.color_depth = ColorDepth.DEPTH_1_BIT
        # What was typed is written by the page, when its turn has come.
        session.app.erase_when_done = True
        shorten_escape_timeout(session.app)
        around.region.belong_to(session.app)

    def _is_naming(self) -> bool:
        """Tell whether a command or a file is being named, so that names are offered at once."""
        text = self._session.default_buffer.document.text_before_cursor
        return text.startswith("/") or (text.split() or [""])[-1].startswith("@")

    def _message(self) -> "AnyFormattedText":
        from prompt_toolkit.formatted_text import ANSI

        around = self._around
        if around is None:
            return MARK
        meter = around.meter(size_of_screen().columns)
        below = f"\x1b[2m{meter}\x1b[0m" if around.is_colored else meter
        return ANSI("\n".join([*around.region.lines, below, MARK]))

    async def line(self) -> str | None:
        """Return the next line; `None` when the person leaves with Ctrl-D.

        Ctrl-C raises `PressedError`. When cancelled, what was typed so far is the beginning of the
        next line.
        """
        begun, self._begun = self._begun, ""
        try:
            return await _read_line(self._session, self._message, begun)
        except EOFError:
            return None
        except asyncio.CancelledError:
            self._begun = self._session.default_buffer.document
            raise

    def begin_with(self, text: str) -> None:
        """Give a line back that could not be taken, so that it can be mended."""
        self._begun = text


class AnswerPrompt:
    """The line at which a question is answered; answers are not remembered."""

    @cached_property
    def _session(self) -> "PromptSession[str]":
        # When it is first needed: most turns ask nothing, and the library is large.
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import DummyHistory

        session: PromptSession[str] = PromptSession(
            history=DummyHistory(), key_bindings=answer_key_bindings()
        )
        shorten_escape_timeout(session.app)
        return session

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Put aside what was typed before; it is there for the next prompt afterwards."""
        from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead

        terminal = self._session.input
        early = [*get_typeahead(terminal), *_pending_keys(terminal)]
        try:
            yield
        finally:
            store_typeahead(terminal, [*early, *get_typeahead(terminal)])

    async def answer(self, question: str) -> str:
        """Return what was typed; Esc and Ctrl-C raise `PressedError`, Ctrl-D `LeftError`."""
        try:
            return await _read_line(self._session, question, "")
        except EOFError:
            raise EndPressedError from None


async def _read_line(session: Any, question: "AnyFormattedText", begun: "Document | str") -> str:
    try:
        # Its own handler would take ours away: Ctrl-C must stop the next answer, too.
        line = await session.prompt_async(question, default=begun, handle_sigint=False)
    # Here and not further up: it must not leave a task, because it would end the loop.
    except KeyboardInterrupt:
        raise InterruptPressedError from None
    return str(line)


def _pending_keys(terminal: "Input") -> "Iterator[KeyPress]":
    """Yield the keys that were pressed and that nobody has read."""
    # As a prompt would read them: otherwise the terminal keeps a line until its end.
    with terminal.raw_mode():
        while keys := terminal.read_keys():
            yield from keys
        yield from terminal.flush_keys()
