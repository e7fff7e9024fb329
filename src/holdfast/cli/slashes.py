"""What slash commands are made of: what they work on, and how their arguments are read."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.cli.conversation import Conversation
from holdfast.cli.output import Printer


@dataclass(frozen=True)
class Talk:
    """What a slash command works on."""

    printer: Printer
    conversation: Conversation


class WrongArgumentError(Exception):
    """The argument of a slash command does not fit."""


# Returns whether the chat is left.
Run = Callable[[Talk, str], Awaitable[bool]]


@dataclass(frozen=True)
class Slash:
    """One command: its name, how it is written, what it does."""

    name: str
    usage: str
    help: str
    run: Run
    # What may stand behind it, where that is known beforehand.
    choices: tuple[str, ...] = ()


def require_nothing(argument: str) -> None:
    """Refuse an argument where none is taken."""
    if argument:
        raise WrongArgumentError


def number(argument: str) -> int:
    """Return an argument as a number of at least 1."""
    # Bounded, because int() refuses very long numbers with an error of its own.
    if not argument.isascii() or not argument.isdigit() or not 0 < len(argument) <= 9:
        raise WrongArgumentError
    return max(int(argument), 1)
