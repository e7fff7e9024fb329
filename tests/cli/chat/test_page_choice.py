"""Which page a conversation is written on."""

import sys

import pytest

from holdfast.cli.approval_policy import AttendancePolicy
from holdfast.cli.chat.live_page import LivePage, PlainRegion, choose_page
from holdfast.cli.chat.prompt import PromptRegion
from holdfast.cli.chat.screen import PlainPage
from holdfast.cli.options import Color, GlobalOptions
from holdfast.cli.output import Printer
from tests.cli.test_terminal import StandInTerminal

TYPED = AttendancePolicy(asks=True, converses=True)
NEVER = GlobalOptions(color=Color.NEVER)


def at_terminal(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    """Put a person before stdout."""
    monkeypatch.setattr(sys, "stdout", StandInTerminal())
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize(
    ("settings", "manner", "region"),
    [
        (GlobalOptions(), TYPED, PromptRegion),
        (NEVER, TYPED, PromptRegion),
        (GlobalOptions(), AttendancePolicy(), PlainRegion),
    ],
)
def test_where_it_can_be_redrawn_it_is(
    settings: GlobalOptions,
    manner: AttendancePolicy,
    region: type[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_terminal(monkeypatch, "xterm")

    page = choose_page(Printer(settings), manner)

    assert isinstance(page, LivePage)
    assert isinstance(page.region, region)
    assert page.is_colored is (settings is not NEVER)
    assert page.shows_users is manner.converses


@pytest.mark.parametrize(
    ("settings", "manner", "term"),
    [
        (NEVER, AttendancePolicy(), "xterm"),
        (GlobalOptions(json=True), AttendancePolicy(), "xterm"),
        (GlobalOptions(), TYPED, "dumb"),
        (GlobalOptions(), TYPED, ""),
    ],
)
def test_elsewhere_it_is_written_once(
    settings: GlobalOptions, manner: AttendancePolicy, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_terminal(monkeypatch, term)

    assert isinstance(choose_page(Printer(settings), manner), PlainPage)
