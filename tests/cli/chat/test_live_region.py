"""Live lines below what was written for good."""

import pytest

from holdfast.cli.chat.live_page import PlainRegion
from holdfast.cli.chat.prompt import PromptRegion

BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"


def test_live_lines_are_erased_and_drawn_again_below_what_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    region = PlainRegion()

    region.live(["a", "b"])
    region.live(["a", "b"])
    first = capsys.readouterr().out
    region.write("text\n")
    second = capsys.readouterr().out
    region.live(())
    third = capsys.readouterr().out

    assert first == f"{BEGIN}a\nb\n{END}"
    assert second == f"{BEGIN}\r\x1b[2A\x1b[Jtext\na\nb\n{END}"
    assert third == f"{BEGIN}\r\x1b[2A\x1b[J{END}"


def test_without_a_prompt_what_is_written_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    region = PromptRegion()

    region.live(["soon"])
    region.write("text\n")

    assert capsys.readouterr().out == "text\n"
    assert region.lines == ["soon"]
