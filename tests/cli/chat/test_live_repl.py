"""Conversing at a terminal that is redrawn: the line stays usable while a turn runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from holdfast import SessionContext, SessionRequest
from holdfast.api import Holdfast
from holdfast.cli.approval_policy import AttendancePolicy
from holdfast.cli.chat.conversation import ChatConversation, SignalHandler
from holdfast.cli.chat.live_page import LivePage
from holdfast.cli.chat.prompt import PromptRegion
from holdfast.cli.chat.repl import run_repl
from holdfast.cli.chat.screen import TextScreen
from holdfast.cli.options import GlobalOptions
from holdfast.cli.output import Printer
from holdfast.domain.events import Event, MessageAppended, Payload, StepStarted, TurnEnded
from holdfast.domain.sessions import Status
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio

Script = Callable[[str], str]
CTRL_C, CTRL_D, ESCAPE = "\x03", "\x04", "\x1b"
# What was left unanswered comes with the next message, so the later word is looked for first.
FAST_AND_SLOW = (
    "match:\n"
    "- {contains: fast, step: {text: here I am}}\n"
    "- {contains: slow, step: {text: never, delay_ms: 600000}}\n"
)


class Paper(PromptRegion):
    """Keeps what is written for good."""

    def __init__(self) -> None:
        super().__init__()
        self.written = ""

    def write(self, text: str) -> None:
        self.written += text
        super().write(text)


async def until(is_so: Callable[[], bool]) -> None:
    """Return when something is so that no news tell of."""
    while not is_so():  # noqa: ASYNC110 — a screen rings no bell
        await asyncio.sleep(0.01)


class Seat:
    """A person at a terminal: the keys, what was written, and the session they talk in."""

    def __init__(self, conversation: ChatConversation, keys: PipeInput, paper: Paper) -> None:
        self.conversation = conversation
        self.press = keys.send_text
        self._paper = paper

    @property
    def written(self) -> str:
        """Return what was written above the line."""
        return self._paper.written

    @property
    def live(self) -> list[str]:
        """Return the lines that are drawn above the line, and may go."""
        return list(self._paper.lines)

    async def until(self, kind: type[Payload], count: int = 1) -> None:
        """Return when so many news of a kind have come."""
        house, session_id = self.conversation.holdfast, self.conversation.session_id
        async for item in house.follow(session_id):
            count -= isinstance(item, Event) and isinstance(item.payload, kind)
            if not count:
                return

    async def until_written(self, text: str) -> None:
        """Return when a text was written."""
        await until(lambda: text in self.written)

    async def said(self) -> list[str]:
        """Return what was sent to the agent."""
        house = self.conversation.holdfast
        rows = await house.messages.list(house.owner, self.conversation.session_id)
        return [row.text for row in rows.items if row.role == "user"]


@asynccontextmanager
async def seated(
    holdfast: Holdfast, model: str | None = None, desk: Path | None = None
) -> AsyncIterator[tuple[Seat, "asyncio.Task[int]"]]:
    """Converse; the chat is over when the block is left."""
    context = SessionContext(working_dir=str(desk)) if desk else None
    session = await holdfast.open("holdfast", SessionRequest(model=model, context=context))
    printer, paper = Printer(GlobalOptions()), Paper()
    with (
        create_pipe_input() as keys,
        create_app_session(keys, DummyOutput()),
        SignalHandler() as signals,
    ):
        page = LivePage(printer, paper, is_colored=False, shows_users=True)
        screen = TextScreen(printer, holdfast, AttendancePolicy(asks=True), page)
        conversation = ChatConversation(holdfast, session, screen, signals)
        async with asyncio.timeout(PATIENCE):
            talking = asyncio.create_task(
                run_repl(printer, conversation, holdfast.config, resumed=None, whole=False)
            )
            yield Seat(conversation, keys, paper), talking
            await talking


async def test_what_is_said_in_a_turn_is_queued_and_esc_stops_the_turn(
    holdfast: Holdfast, script: Script
) -> None:
    async with seated(holdfast, script(FAST_AND_SLOW)) as (seat, talking):
        seat.press("slow\r")
        await seat.until(StepStarted)
        seat.press("fast\r")
        await seat.until(MessageAppended, 2)
        seat.press(ESCAPE)
        await seat.until(TurnEnded, 2)
        seat.press(CTRL_D)

    assert talking.result() == 0
    assert await seat.said() == ["slow", "fast"]
    assert seat.written.index("> fast") > seat.written.index("Stopped; the partial answer")


async def test_leaving_waits_for_the_turn_and_leaving_again_does_not(
    holdfast: Holdfast, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    async with seated(holdfast, script(FAST_AND_SLOW)) as (seat, talking):
        seat.press("slow\r")
        await seat.until(StepStarted)
        seat.press(CTRL_D)
        await seat.until_written("Leaving when the turn ends;")
        seat.press(CTRL_D)

    assert talking.result() == 0
    assert (
        "A turn is still open; it continues when the session is resumed." in capsys.readouterr().err
    )


async def test_a_chat_that_was_told_to_leave_does_so_when_the_turn_has_ended(
    holdfast: Holdfast, script: Script
) -> None:
    async with seated(holdfast, script(FAST_AND_SLOW)) as (seat, talking):
        seat.press("slow\r")
        await seat.until(StepStarted)
        seat.press("/exit\r")
        await seat.until_written("Leaving when the turn ends;")
        await seat.conversation.interrupt()

    assert talking.result() == 0
    assert (await seat.conversation.session()).status is Status.IDLE


async def test_ctrl_c_stops_first_then_empties_the_line_then_leaves(
    holdfast: Holdfast, script: Script
) -> None:
    async with seated(holdfast, script(FAST_AND_SLOW)) as (seat, talking):
        seat.press("slow\r")
        await seat.until(StepStarted)
        seat.press(f"half a line{CTRL_C}")
        await seat.until(TurnEnded)
        await seat.conversation.idle.wait()
        seat.press(CTRL_C)
        seat.press(CTRL_C)
        await seat.until_written("Press Ctrl-C again, or Ctrl-D, to leave.")
        seat.press(CTRL_C)

    assert talking.result() == 0
    assert await seat.said() == ["slow"]


async def test_lines_are_broken_by_a_backslash_or_alt_and_files_come_along(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("hold fast\n")
    async with seated(holdfast, desk=tmp_path) as (seat, _):
        seat.press(f"one\\\rtwo{ESCAPE}\rsee @notes.txt\r")
        await seat.until(TurnEnded)
        await seat.conversation.idle.wait()
        seat.press(CTRL_D)

    whole = "one\ntwo\nsee @notes.txt\n\nnotes.txt:\n```\nhold fast\n```"
    assert await seat.said() == [whole]
    assert (await seat.conversation.session()).title == "one two see @notes.txt"


async def test_what_cannot_be_sent_is_given_back(
    holdfast: Holdfast, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".env").write_text("KEY=value\n")
    async with seated(holdfast, desk=tmp_path) as (seat, _):
        seat.press("see @.env")
        seat.press("\r")
        await until(lambda: "Nothing was sent." in capsys.readouterr().err)
        seat.press(".sample\r")
        await seat.until(TurnEnded)
        await seat.conversation.idle.wait()
        seat.press(CTRL_D)

    assert await seat.said() == ["see @.env.sample"]


async def test_in_a_turn_cancel_stops_it_and_a_fork_goes_on_elsewhere(
    holdfast: Holdfast, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    async with seated(holdfast, script(FAST_AND_SLOW)) as (seat, _):
        first = seat.conversation.session_id
        seat.press("slow\r")
        await seat.until(StepStarted)
        seat.press("/cancel\r")
        await seat.until(TurnEnded)
        await seat.conversation.idle.wait()
        seat.press("/fork\r")
        await until(lambda: seat.conversation.session_id != first)
        seat.press("fast\r")
        await seat.until(TurnEnded)
        await seat.conversation.idle.wait()
        seat.press("/end\r")

    told = capsys.readouterr().out
    assert told.index("> /cancel\n") < told.index("> /fork\nThis is now session ")
    assert (await seat.conversation.session()).status is Status.COMPLETED


async def test_what_waits_in_a_session_that_was_left_is_not_shown_any_more(
    holdfast: Holdfast, script: Script
) -> None:
    async with seated(holdfast, script(FAST_AND_SLOW)) as (seat, _):
        first = seat.conversation.session_id
        seat.press("fast\r")
        await seat.until(TurnEnded)
        seat.press("slow\r")
        await seat.until(StepStarted, 2)
        seat.press("waits\r")
        await until(lambda: any("queued: waits" in line for line in seat.live))
        seat.press("/fork\r")
        await until(lambda: seat.conversation.session_id != first and not seat.live)
        seat.press("fast again\r")
        await seat.until(TurnEnded)
        await seat.conversation.idle.wait()
        seat.press("/end\r")

    assert "> waits" not in seat.written


async def test_a_turn_that_nobody_plays_cannot_be_stopped_and_is_left_at_the_second_key(
    quiet: Holdfast,
) -> None:
    async with seated(quiet) as (seat, talking):
        seat.press("anybody?\r")
        await until(lambda: not seat.conversation.idle.is_set())
        seat.press(CTRL_C)
        await seat.until_written(
            "The turn has not started yet; press Ctrl-C again to leave it waiting."
        )
        seat.press(CTRL_C)

    assert talking.result() == 0
    assert (await seat.conversation.session()).turn == 1
