"""A page at a terminal: what is written for good, and what is only drawn."""

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.cli.chat.live_page import LivePage
from holdfast.cli.options import GlobalOptions
from holdfast.cli.output import Printer
from holdfast.domain.ids import CallId
from holdfast.domain.messages import Role
from holdfast.domain.turns import TurnRows
from tests.builders import a_message, a_tool_call

pytestmark = pytest.mark.anyio

CALL = CallId("call_1")


class Paper:
    """A region that remembers what was written, and what is live."""

    def __init__(self) -> None:
        self.written = ""
        self.lines: list[str] = []
        self.drawn = 0

    def write(self, text: str) -> None:
        self.written += text

    def live(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        self.drawn += 1


def a_page(*, quiet: bool = False, colored: bool = False) -> tuple[LivePage, Paper]:
    """Return a page and what it is drawn on."""
    paper = Paper()
    printer = Printer(GlobalOptions(quiet=quiet))
    return LivePage(printer, paper, is_colored=colored, shows_users=True), paper


async def test_a_block_is_written_when_it_is_whole_and_drawn_until_then() -> None:
    page, paper = a_page()

    page.text("one\n\ntw")
    before = (paper.written, paper.lines)
    page.text("o")
    page.finish_output()

    assert before == ("one\n", ["tw"])
    assert (paper.written, paper.lines) == ("one\n\ntwo\n", [])


async def test_a_wheel_turns_until_there_is_something_to_see() -> None:
    page, paper = a_page()

    page.busy("saved, waiting …")
    first = paper.lines
    while paper.lines == first:  # noqa: ASYNC110 — a wheel rings no bell
        await asyncio.sleep(0.01)
    page.text("yes")

    assert [line[1:] for line in first] == [" saved, waiting …"]
    assert paper.lines == ["yes"]


async def test_a_call_has_a_wheel_and_then_one_line() -> None:
    page, paper = a_page()

    page.text("I look.")
    page.show_change(["write_file a.txt", "+one"])
    page.show_call(CALL, "read_file a.txt")
    while_it_runs = paper.lines
    page.show_result(CALL, "read_file a.txt: ok", is_well=True)
    page.show_result(CallId("call_2"), "rm: denied", is_well=False)
    page.finish_output()

    assert [line[1:] for line in while_it_runs] == [" read_file a.txt"]
    assert paper.written.split("\n") == [
        *("I look.", "  write_file a.txt", "  +one", "✓ read_file a.txt: ok", "✗ rm: denied", ""),
    ]
    assert paper.lines == []


async def test_what_is_said_waits_below_and_is_written_above_its_answer() -> None:
    page, paper = a_page()

    page.show_queued(a_message("hello\nthere", turn=1))
    page.show_queued(a_message("\n".join(map(str, range(20))), turn=2))
    waiting = paper.lines
    page.show_user(1)
    page.show_user(2)
    page.pause()

    assert waiting[0] == "queued: hello there"
    lines = paper.written.split("\n")
    assert lines[:5] == ["> hello", "  there", "", "", "> 0"]
    assert lines[-3] == "  … 8 more lines"


async def test_thoughts_are_dim_and_left_out_where_nothing_is() -> None:
    page, paper = a_page(colored=True)
    plain, blank = a_page()
    for each in (page, plain):
        each.show_reasoning("hm")
        each.text("yes")
        each.finish_output()

    assert paper.written == "\x1b[2;3mhm\x1b[0m\nyes\n"
    assert blank.written == "yes\n"


async def test_silence_leaves_out_all_but_the_answer_and_what_is_loud() -> None:
    page, paper = a_page(quiet=True)

    page.busy("waiting")
    page.show_call(CALL, "read_file")
    waiting = paper.lines
    page.show_result(CALL, "read_file: ok", is_well=True)
    page.show_change(["x"])
    page.aside("by the way")
    page.aside("It broke.", is_loud=True)
    page.text("yes")
    page.finish_output()

    assert waiting == []
    assert paper.written == "It broke.\nyes\n"


async def test_a_tail_that_is_too_long_shows_its_end() -> None:
    page, paper = a_page()

    page.text("```\n" + "\n".join(f"line {number}" for number in range(500)))

    assert paper.lines[-1] == "line 499"
    assert len(paper.lines) < 100


async def test_an_answer_that_comes_fast_is_not_drawn_word_for_word() -> None:
    page, paper = a_page(colored=True)

    page.text("```python\n")
    for number in range(300):
        page.text(f"x = {number}\n")
    drawn = paper.drawn
    while not paper.lines[-1:] or "299" not in paper.lines[-1]:  # noqa: ASYNC110 — see above
        await asyncio.sleep(0.01)

    assert drawn < 100


async def test_what_waits_leaves_room_on_the_screen_and_is_forgotten_with_its_session() -> None:
    page, paper = a_page()

    for turn in range(1, 101):
        page.show_queued(a_message(f"word {turn}", turn=turn))
    waiting = paper.lines
    page.drop_queued()

    assert len(waiting) < 30
    assert waiting[0] == "queued: word 1"
    assert waiting[-1] == f"… {101 - len(waiting)} more"
    assert (paper.written, paper.lines) == ("", [])


async def test_the_past_looks_as_it_did_then() -> None:
    page, paper = a_page(colored=True)
    call = a_tool_call(name="read_file", arguments={"path": "a"})
    rows = (
        a_message("look at `a`", turn=1),
        a_message(role=Role.TOOL_CALL, parts=(call,), turn=1),
        a_message("It is **bold**.\n\n- one", role=Role.ASSISTANT, turn=1),
    )

    page.show_past(TurnRows(number=1, messages=rows))

    assert paper.written == (
        "\x1b[1m> look at `a`\x1b[0m\n\n"
        '\x1b[2m[read_file {"path":"a"}]\x1b[0m\n'
        "It is \x1b[1mbold\x1b[0m.\n\n\x1b[1m • \x1b[0mone\n"
    )
