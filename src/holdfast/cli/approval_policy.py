"""How a command treats approvals: attended or not, allowed by a flag or asked."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.cli.terminal import is_terminal
from holdfast.domain.approvals import Question, flag_of
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.text import did_you_mean
from holdfast.domain.tools import CATALOGUE, REMOTE, TOOL_NAME, ToolClass

if TYPE_CHECKING:
    from holdfast.cli.output import Printer


# Each call of these classes is asked separately, whatever was allowed before.
ASKED_EACH_TIME: Final = frozenset({ToolClass.SENSITIVE_WRITE, ToolClass.COMMIT, ToolClass.MONEY})
# From this similarity on, a name is a mistyped tool.
_TYPO: Final = 0.85
# Names in the questions of ACP agents: kinds of calls, and two of our methods.
_ACP_TOOL_KINDS: Final = frozenset(
    {"delete", "edit", "execute", "fetch", "move", "other", "read", "search", "switch_mode"}
    | {"think", "fs.write_text_file", "terminal.create"}
)


def is_for_session(question: Question) -> bool:
    """Return whether an approval can cover all similar calls of the session."""
    return question.memory is not None and question.tool_class not in ASKED_EACH_TIME


@dataclass(frozen=True, kw_only=True)
class AttendancePolicy:
    """Approval policy of a command: unattended, a question is denied unless a flag allows the tool.

    `asks` is whether this command can prompt; otherwise a question waits for another client.
    """

    is_attended: bool = True
    asks: bool = False
    # A person types here, line by line.
    converses: bool = False
    yes_to: frozenset[str] = frozenset()
    # Connected to a server, whose own policy does not know whether a person is here.
    is_remote: bool = False

    def answers(self, question: Question) -> bool:
        """Return whether a flag answers a question; never for classes that are asked each time."""
        return flag_of(question) in self.yes_to and question.tool_class not in ASKED_EACH_TIME


# A server leaves questions open: another client may answer at any time.
UNATTENDED: Final = AttendancePolicy()


def attendance_policy(printer: "Printer", yes_to: Iterable[str] | None) -> AttendancePolicy:
    """Return the approval policy of this process; refuses a mistyped tool name."""
    # Both: with one of them redirected, a person could not see or answer the question.
    is_attended = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    return AttendancePolicy(
        is_attended=is_attended,
        asks=is_attended and not printer.is_json,
        yes_to=frozenset(_tool_name(each) for each in yes_to or ()),
        is_remote=printer.settings.server is not None,
    )


def _tool_name(name: str) -> str:
    """Return the name of a tool, or of a kind of call that an ACP agent asks about.

    Refuses a name that is likely a mistyped tool.
    """
    if name in CATALOGUE | _ACP_TOOL_KINDS or name.startswith(REMOTE):
        return name
    similar = did_you_mean(name, CATALOGUE, cutoff=_TYPO)
    # Any other name may be a function of a program that is not running now.
    if TOOL_NAME.fullmatch(name) and not similar:
        return name
    raise Invalid(
        Code.UNKNOWN_TOOL,
        f"There is no tool {name}{similar}; the tools are {', '.join(sorted(CATALOGUE))}, tools "
        f"of MCP servers, {REMOTE}SERVER_TOOL, and functions of programs.",
        {"field": "--yes-to", "tool": name},
    )
