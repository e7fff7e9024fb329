"""A question as a person at a terminal is asked it: shown whole, answered with a letter."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from holdfast.cli.manners import ANYBODY, Manner
from holdfast.cli.output import Printer
from holdfast.cli.terminal import spelled_out
from holdfast.cli.work_forms import is_for_session
from holdfast.domain.approvals import (
    NOTE_LONGEST,
    Approval,
    ApprovalAnswer,
    ApprovalScope,
    ApprovalState,
)
from holdfast.domain.tools import ToolClass

if TYPE_CHECKING:
    from holdfast.cli.prompts import AnswerPrompt

BY_TERMINAL: Final = "terminal"
BY_HTTP: Final = "http"

_CHANGES: Final = frozenset({ToolClass.WRITE, ToolClass.SENSITIVE_WRITE, ToolClass.COMMIT})
_BOLD, _GREEN, _RED, _CYAN = "1", "32", "31", "36"
_MARKS: Final = {"+": _GREEN, "-": _RED, "@": _CYAN}


class Questions:
    """Asks whoever sits at the terminal, until there is an answer that means something."""

    def __init__(self, printer: Printer, prompt: "AnswerPrompt", manner: Manner = ANYBODY) -> None:
        self._printer = printer
        self._prompt = prompt
        self._manner = manner
        # A server writes down through which door an answer came.
        self._by = BY_HTTP if manner.is_remote else BY_TERMINAL

    async def answer(self, approval: Approval, *, own: bool = False) -> ApprovalAnswer:
        """Show the whole question and return the answer; Ctrl-C and Ctrl-D raise, as prompts do.

        What a server asks about an `own` turn, a flag may answer; a house here knows its flags.
        """
        if own and self._manner.is_remote and self._manner.answers(approval.question):
            return ApprovalAnswer(state=ApprovalState.ALLOWED, by=self._by)
        has_more = is_for_session(approval.question)
        with self._prompt.fresh():
            # After what was typed too early is put aside: nobody answers what was not shown yet.
            for line, style in question_lines(approval):
                self._printer.line(line, style=style)
            self._printer.flush()
            while True:
                said = await self._prompt.answer("Allow? [y/a/n] " if has_more else "Allow? [y/n] ")
                found = read_answer(said, has_more=has_more)
                if isinstance(found, ApprovalAnswer):
                    return replace(found, by=self._by)
                self._printer.warn(found)


def question_lines(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yield the lines of a question, each with its style; not a character of it is left out."""
    question = approval.question
    is_change = question.tool_class in _CHANGES
    yield f"{question.tool} asks ({question.tool_class.replace('_', ' ')}):", _BOLD
    for line in spelled_out(question.question).split("\n"):
        yield line, _MARKS.get(line[:1], "") if is_change else ""
    yield f"y allows it once{_more(approval)}, n or n REASON denies it.", ""


def read_answer(said: str, *, has_more: bool) -> ApprovalAnswer | str:
    """Return the answer that a line means, or what is wrong with it."""
    word, _, rest = said.strip().partition(" ")
    note = rest.strip()
    allowed = ApprovalAnswer(state=ApprovalState.ALLOWED, by=BY_TERMINAL)
    match word.lower().rstrip(",.:;"):
        case "y" | "yes" if not note:
            return allowed
        case "a" | "always" if not note and has_more:
            return ApprovalAnswer(
                state=ApprovalState.ALLOWED, by=BY_TERMINAL, scope=ApprovalScope.SESSION
            )
        case "a" | "always" if not note:
            return "This can be allowed once only."
        case "n" | "no" if len(note) <= NOTE_LONGEST:
            return ApprovalAnswer(state=ApprovalState.DENIED, by=BY_TERMINAL, note=note or None)
        case "n" | "no":
            return f"A reason may have {NOTE_LONGEST} characters; this one has {len(note)}."
        case _:
            return f"Answer y{', a' if has_more else ''} or n; n may be followed by a reason."


def _more(approval: Approval) -> str:
    question = approval.question
    if not is_for_session(question):
        return ""
    return f", a all of the like in this session ({spelled_out(question.memory or '')})"
