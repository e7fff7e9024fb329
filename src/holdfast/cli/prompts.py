"""Where a person types: lines of a conversation, and answers to questions.

Nothing that was typed is lost: a line that a question breaks into is there again after it, and
what was typed before a question was shown is never taken for its answer.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prompt_toolkit.document import Document
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPress


class PressedError(Exception):
    """Ctrl-C was pressed at a prompt."""


class LeftError(Exception):
    """Ctrl-D was pressed at a question: the person leaves, and the question waits."""


class Prompt:
    """The line at which a person types; what was typed before is remembered while it lives."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are offered for completion behind a slash."""
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import InMemoryHistory

        self._session: PromptSession[str] = PromptSession(
            # A history on disk would lie beside the encrypted store as plain text.
            history=InMemoryHistory(),
            # The whole line is matched, because to the completer a slash is no part of a word.
            completer=WordCompleter(list(names), sentence=True),
            complete_while_typing=False,
        )
        self._begun: Document | str = ""

    async def line(self) -> str | None:
        """Return the next line; `None` when the person leaves with Ctrl-D.

        Ctrl-C raises `PressedError`. When cancelled, what was typed so far is the beginning of the
        next line.
        """
        begun, self._begun = self._begun, ""
        try:
            return await _typed(self._session, "> ", begun)
        except EOFError:
            return None
        except asyncio.CancelledError:
            self._begun = self._session.default_buffer.document
            raise


class AnswerPrompt:
    """The line at which a question is answered; answers are not remembered."""

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import DummyHistory

        self._session: PromptSession[str] = PromptSession(history=DummyHistory())

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Put aside what was typed before; it is there for the next prompt afterwards."""
        from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead

        terminal = self._session.input
        early = [*get_typeahead(terminal), *_unread(terminal)]
        try:
            yield
        finally:
            store_typeahead(terminal, [*early, *get_typeahead(terminal)])

    async def answer(self, asked: str) -> str:
        """Return what was typed; Ctrl-C raises `PressedError`, Ctrl-D `LeftError`."""
        try:
            return await _typed(self._session, asked, "")
        except EOFError:
            raise LeftError from None


async def _typed(session: Any, asked: str, begun: "Document | str") -> str:
    try:
        # Its own handler would take ours away: Ctrl-C must stop the next answer, too.
        line = await session.prompt_async(asked, default=begun, handle_sigint=False)
    # Here and not further up: it must not leave a task, because it would end the loop.
    except KeyboardInterrupt:
        raise PressedError from None
    return str(line)


def _unread(terminal: "Input") -> "Iterator[KeyPress]":
    """Yield the keys that were pressed and that nobody has read."""
    # As a prompt would read them: otherwise the terminal keeps a line until its end.
    with terminal.raw_mode():
        while keys := terminal.read_keys():
            yield from keys
        yield from terminal.flush_keys()
