"""S10: whatever models, tools and files say, a terminal is told words, our colours, and no more."""

import asyncio
import io
import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from holdfast import Holdfast, RunScope, open_holdfast
from holdfast.cli.approval_policy import AttendancePolicy
from holdfast.cli.chat.approvals import question_lines
from holdfast.cli.chat.live_page import LivePage
from holdfast.cli.chat.repl import ChatCompleter
from holdfast.cli.chat.screen import PlainPage, ScreenPage, TextScreen
from holdfast.cli.chat.transcript import lines_of
from holdfast.cli.options import Color, GlobalOptions
from holdfast.cli.output import Printer
from holdfast.domain.approvals import Approval, Question
from holdfast.domain.events import (
    Channel,
    Failure,
    FailureCode,
    Payload,
    StepDelta,
    ToolEnded,
    ToolStarted,
    TurnEnded,
)
from holdfast.domain.ids import CallId
from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import ToolClass
from tests.builders import APPROVAL_ID, AT, SESSION_ID, a_message, an_event
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.steering import steering

pytestmark = pytest.mark.slow

OURS = re.compile(r"\x1b\[(?:0|1|2|3|4|9|3[0-7]|9[0-7])(?:;(?:1|2|3|4|9|3[0-7]|9[0-7]))*m")
# Between letters of other scripts, and in pictures, these belong to the writing.
JOINERS = re.compile("(?<=[^\x00-\u024f\u200c\u200d])[\u200c\u200d](?=[^\x00-\u024f\u200c\u200d])")


class Paper:
    """Keeps all that is drawn, whether it stays or not."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def write(self, text: str) -> None:
        self.drawn.append(text)

    def live(self, lines: Sequence[str]) -> None:
        self.drawn += lines


@proves("S10")
def test_no_text_steers_the_terminal_that_shows_it(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = sized(quick=100, test=300, torture=300)
    texts = steering(luck, count)
    monkeypatch.setenv("TERM", "xterm-256color")

    strays = asyncio.run(shown_everywhere(tmp_path, texts, luck))

    tell(f"{len(texts)} texts in answers, tools, names, questions and tables")
    assert len(texts) == count
    assert strays == []


async def shown_everywhere(
    folder: Path, texts: list[str], luck: random.Random
) -> list[tuple[str, str]]:
    """Show each text wherever a terminal shows texts; return what should not have come out."""
    async with open_holdfast(folder / "home", scope=RunScope.NONE) as house:
        found = []
        for text in texts:
            for door in (answered, plainly_answered, worked, asked, told):
                drawn = await door(house, text, luck)
                found += [(text, each) for each in strays_in(drawn)]
        return found + [("a name", each) for each in strays_in(completed(folder, texts))]


def strays_in(drawn: str) -> list[str]:
    """Return the characters that are neither words nor ours."""
    plain = JOINERS.sub("", OURS.sub("", drawn))
    return [repr(each) for each in plain if not each.isprintable() and each not in "\n\t"]


async def answered(house: Holdfast, text: str, luck: random.Random) -> str:
    """Let a model say and think it, in pieces of any size, at a terminal that is redrawn."""
    paper = Paper()
    page = LivePage(Printer(GlobalOptions()), paper, is_colored=True, shows_users=True)
    page.show_queued(a_message(text, turn=1))
    page.show_user(1)
    await streamed(TextScreen(Printer(GlobalOptions()), house, page=page), text, luck)
    return "".join(paper.drawn)


async def plainly_answered(house: Holdfast, text: str, luck: random.Random) -> str:
    """Let a model say it where nothing is redrawn."""
    return await captured(
        lambda: streamed(TextScreen(Printer(GlobalOptions(color=Color.ALWAYS)), house), text, luck)
    )


async def streamed(screen: TextScreen, text: str, luck: random.Random) -> None:
    offset, failure = 0, Failure(code=FailureCode.TOOL_FAILED, message=text)
    cuts = sorted(luck.sample(range(len(text) + 1), min(1, len(text))))
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        for channel in (Channel.REASONING, Channel.TEXT):
            piece = text[start:stop]
            at = offset if channel is Channel.TEXT else 0
            await screen.show(
                an_event(StepDelta(step=1, channel=channel, offset=at, text=piece), turn=1)
            )
        offset += stop - start
    await screen.show(an_event(TurnEnded(stop_reason=StopReason.ERROR, failure=failure), turn=1))


async def worked(house: Holdfast, text: str, _: random.Random) -> str:
    """Let a tool be called with it, change a file to it, find it, and fail with it."""
    call = CallId("call_1")
    failure = ToolError(code="failed", message=text)
    news: list[Payload] = [
        ToolStarted(call_id=call, name="write_file", arguments={"path": text, "content": text}),
        ToolEnded(call_id=call, name="write_file", status=ResultStatus.OK, result={text: text}),
        ToolStarted(
            call_id=call, name="edit_file", arguments={"path": text, "old": text, "new": "x"}
        ),
        ToolEnded(call_id=call, name=text, status=ResultStatus.ERROR, failure=failure),
    ]
    paper = Paper()
    drawn: ScreenPage = LivePage(Printer(GlobalOptions()), paper, is_colored=True)
    for page in (drawn, PlainPage(Printer(GlobalOptions()))):
        screen = TextScreen(Printer(GlobalOptions()), house, AttendancePolicy(), page)
        paper.drawn.append(await captured(lambda shown=screen: shown_all(shown, news)))
    return "".join(paper.drawn)


async def shown_all(screen: TextScreen, news: list[Payload]) -> None:
    for payload in news:
        await screen.show(an_event(payload, turn=1))


async def asked(_: Holdfast, text: str, __: random.Random) -> str:
    """Ask a person about it."""

    async def ask() -> None:
        printer = Printer(GlobalOptions(color=Color.ALWAYS))
        for line, style in question_lines(_approval(text)):
            printer.line(line, style=style)

    return await captured(ask)


def _approval(text: str) -> Approval:
    question = Question(
        id=APPROVAL_ID,
        tool=text,
        tool_class=ToolClass.WRITE,
        question=text,
        digest="0" * 64,
        memory=text,
    )
    return Approval(session_id=SESSION_ID, question=question, asked_at=AT)


async def told(_: Holdfast, text: str, __: random.Random) -> str:
    """List it, recall it, and remark on it."""
    said = a_message(text)

    async def tell_all() -> None:
        printer = Printer(GlobalOptions(color=Color.ALWAYS))
        printer.table(("ID", "TITLE"), [("1", text)])
        for line in lines_of(said):
            printer.line(line)
        printer.remark(text)
        printer.record({}, {"name": text})

    return await captured(tell_all)


def completed(folder: Path, texts: list[str]) -> str:
    """Offer the names of a folder that somebody else has filled."""
    names = folder / "names"
    names.mkdir()
    for number, text in enumerate(texts):
        name = f"{number}{text}".replace("/", "").replace("\x00", "").encode(errors="replace")[:200]
        (names / name.decode(errors="ignore")).touch()
    offered = ChatCompleter((), str(names)).get_completions(Document("@"), CompleteEvent())
    return "\n".join(each.text + each.display_text for each in offered)


async def captured(work: Callable[[], Any]) -> str:
    """Return what is written to a terminal meanwhile."""
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = stream
    try:
        await work()
    finally:
        sys.stdout, sys.stderr = before
    return stream.getvalue()
