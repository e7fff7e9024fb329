"""What an agent does, as a person reads along: each call begins and ends with one line."""

from typing import Final

from holdfast.cli.changing import change_lines
from holdfast.cli.manners import Manner
from holdfast.cli.pages import Page
from holdfast.cli.terminal import spelled_out
from holdfast.cli.tool_lines import call_line, outcome
from holdfast.domain.events import ApprovalAnswered, ApprovalRequested, ToolEnded, ToolStarted
from holdfast.domain.ids import CallId
from holdfast.domain.messages import Message, ResultStatus, ToolCall
from holdfast.engine.tool_calls import REFUSALS
from holdfast.services.approval_policy import Ruling

Work = ToolStarted | ToolEnded | ApprovalRequested | ApprovalAnswered

# A flag does not answer for it, so the flag is not recommended.
NEVER_BY_FLAG: Final = "git_commit"


class Working:
    """Tells of calls and questions; remembers the line of each call until it has ended."""

    def __init__(self, page: Page, manner: Manner) -> None:
        self._page = page
        self._manner = manner
        self._lines: dict[CallId | None, str] = {}
        # What was asked about was shown whole already.
        self._seen: set[CallId | None] = set()

    def note(self, message: Message) -> None:
        """Take note of what a call asks for: the news of a refusal do not repeat it."""
        for part in message.parts:
            if isinstance(part, ToolCall):
                self._lines[part.id] = call_line(part.name, part.arguments)

    def show(self, news: Work) -> None:
        """Tell a piece of news."""
        match news:
            case ToolStarted():
                self._begin(news)
            case ToolEnded():
                line = self._lines.pop(news.call_id, news.name)
                told = outcome(news.name, news.status, news.result, news.failure)
                is_well = news.status is ResultStatus.OK
                self._page.ended(
                    news.call_id, f"{line}: {told}{self._advice(news)}", is_well=is_well
                )
            case ApprovalRequested():
                self._seen.add(news.call_id)
                # Where somebody is asked, the question is shown by whoever asks it.
                if not self._manner.asks:
                    self._page.aside(f"{news.tool} asks: {spelled_out(news.question)}")
            case ApprovalAnswered() if not self._manner.asks:
                line = self._lines.get(news.call_id, "The question")
                self._page.aside(f"{line}: {news.decision}, by {news.by}")
            case _:
                pass

    def _begin(self, news: ToolStarted) -> None:
        line = call_line(news.name, news.arguments)
        self._lines[news.call_id] = line
        if news.call_id not in self._seen and (lines := change_lines(news.name, news.arguments)):
            self._page.change([line, *lines])
        self._page.begun(news.call_id, line)

    def _advice(self, ended: ToolEnded) -> str:
        """Return how a call is allowed where nobody can be asked."""
        failure = ended.failure
        if failure is None or ended.status is not ResultStatus.DENIED:
            return ""
        is_unattended = (failure.code, failure.message) == REFUSALS[Ruling.UNATTENDED]
        if not is_unattended or ended.name in {*self._manner.yes_to, NEVER_BY_FLAG}:
            return ""
        return f" --yes-to {ended.name} answers for you."
