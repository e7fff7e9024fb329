"""Which page a conversation is written on."""

import sys

import pytest

from holdfast.cli.approval_policy import Manner
from holdfast.cli.chat.live_page import BareRegion, LivePage, PromptRegion, fitting_page
from holdfast.cli.chat.screen import PlainPage
from holdfast.cli.options import Color, Settings
from holdfast.cli.output import Printer
from tests.cli.test_terminal import StandInTerminal

TYPED = Manner(asks=True, converses=True)
NEVER = Settings(color=Color.NEVER)


def at_terminal(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    """Put a person before stdout."""
    monkeypatch.setattr(sys, "stdout", StandInTerminal())
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize(
    ("settings", "manner", "region"),
    [
        (Settings(), TYPED, PromptRegion),
        (NEVER, TYPED, PromptRegion),
        (Settings(), Manner(), BareRegion),
    ],
)
def test_where_it_can_be_redrawn_it_is(
    settings: Settings, manner: Manner, region: type[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_terminal(monkeypatch, "xterm")

    page = fitting_page(Printer(settings), manner)

    assert isinstance(page, LivePage)
    assert isinstance(page.region, region)
    assert page.is_colored is (settings is not NEVER)
    assert page.hears_users is manner.converses


@pytest.mark.parametrize(
    ("settings", "manner", "term"),
    [
        (NEVER, Manner(), "xterm"),
        (Settings(json=True), Manner(), "xterm"),
        (Settings(), TYPED, "dumb"),
        (Settings(), TYPED, ""),
    ],
)
def test_elsewhere_it_is_written_once(
    settings: Settings, manner: Manner, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_terminal(monkeypatch, term)

    assert isinstance(fitting_page(Printer(settings), manner), PlainPage)
