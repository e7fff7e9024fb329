"""How a command that runs turns treats approvals: attended or not, allowed by a flag or asked."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.cli.terminal import is_terminal
from holdfast.domain.approvals import Question, flag_of
from holdfast.domain.tools import ToolClass, require_tool

if TYPE_CHECKING:
    from holdfast.cli.output import Printer


# Each of these is looked at by itself, whatever was allowed before.
ASKED_EACH_TIME: Final = frozenset({ToolClass.SENSITIVE_WRITE, ToolClass.COMMIT, ToolClass.MONEY})
# What agents that are programs ask about: they name kinds of calls, and two verbs of ours.
_ACP_TOOL_KINDS: Final = frozenset(
    {"delete", "edit", "execute", "fetch", "move", "other", "read", "search", "switch_mode"}
    | {"think", "fs.write_text_file", "terminal.create"}
)


@dataclass(frozen=True, kw_only=True)
class AttendancePolicy:
    """Where nobody is there, a question is a no, but for the tools that a flag answers for.

    `asks` is whether this command itself can ask; otherwise a question waits for an answer from
    elsewhere.
    """

    is_attended: bool = True
    asks: bool = False
    # Somebody types here, line by line.
    converses: bool = False
    yes_to: frozenset[str] = frozenset()
    # Behind a server, whose own rules say nothing about who sits here.
    is_remote: bool = False

    def answers(self, question: Question) -> bool:
        """Tell whether a flag answers a question; it does not where each has to be seen."""
        return flag_of(question) in self.yes_to and question.tool_class not in ASKED_EACH_TIME


# A server waits: whoever may answer can come at any time.
UNATTENDED: Final = AttendancePolicy()


def attendance_policy(printer: "Printer", yes_to: Iterable[str] | None) -> AttendancePolicy:
    """Return how questions are treated here; a tool that there is not is refused."""
    # Both: with one of them redirected, nobody would see the question or answer it.
    is_attended = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    return AttendancePolicy(
        is_attended=is_attended,
        asks=is_attended and not printer.is_json,
        yes_to=frozenset(_tool_name(each) for each in yes_to or ()),
        is_remote=printer.settings.server is not None,
    )


def _tool_name(name: str) -> str:
    """Return the name of a tool, or of a kind of call that somebody else's agent asks about."""
    return name if name in _ACP_TOOL_KINDS else require_tool(name, field="--yes-to")
