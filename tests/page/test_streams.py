"""In the middle of a sentence: stopped, reloaded, cut off, and seen by two at once."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.marks import demands
from tests.page.speaker import Speaker, speaking
from tests.page.stage import PATIENCE_MS, Stage, staged

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def speaker() -> Iterator[Speaker]:
    """A model that waits in the middle of what it says."""
    with speaking() as found:
        yield found


@pytest.fixture(scope="module")
def theatre(
    tmp_path_factory: pytest.TempPathFactory, browser: Browser, speaker: Speaker
) -> Iterator[Stage]:
    """A server whose model is the speaker."""
    with staged(tmp_path_factory.mktemp("stage"), browser, **speaker.environment) as found:
        yield found


def seen(*windows: Page) -> Iterator[Page]:
    """Yield windows one after the other, each in front: others are drawn once in a while only."""
    for window in windows:
        window.bring_to_front()
        yield window


def expect_words(page: Page, *words: str) -> None:
    """Wait until this is what everybody has said, as it is seen, and nothing else."""
    expect(page.locator(".row:not(.system) :is(.plain-text, .prose)")).to_have_text(list(words))


@demands("S2-132b")
def test_a_reload_and_a_second_window_in_the_middle_double_no_word(
    stage: Stage, speaker: Speaker
) -> None:
    speaker.begin("Half of it", " and the rest.")
    page = stage.window()
    page.get_by_label("First message").fill("Say it.")
    page.keyboard.press("Enter")
    expect(page.locator(".streaming")).to_have_text("…Half of it")

    page.reload()
    other = stage.window(page.url.removeprefix(stage.server.url))
    for window in seen(other, page):
        expect(window.locator(".streaming")).to_have_text("…Half of it")
        expect_words(window, "Say it.", "Half of it")
    page.get_by_label("Message", exact=True).fill("And more.")
    page.get_by_role("button", name="Queue").click()
    for window in seen(page, other):
        expect(window.get_by_label("user 2")).to_contain_text("queued")
        expect_words(window, "Say it.", "Half of it", "And more.")
    speaker.gate.set()

    for window in seen(other, page):
        expect(window.locator(".row.assistant .prose")).to_have_count(2)
        expect(window.get_by_role("button", name="Stop")).to_have_count(0)
        expect(window.locator(".streaming")).to_have_count(0)
        whole = "Half of it and the rest."
        expect_words(window, "Say it.", whole, "And more.", whole)
        expect(window.get_by_text("queued")).to_have_count(0)


@pytest.mark.torture
@pytest.mark.torture
def test_what_was_said_before_a_stop_stays(stage: Stage, speaker: Speaker) -> None:
    speaker.begin("Half of it", " and the rest.")
    page = stage.window()
    page.get_by_label("First message").fill("Say it.")
    page.keyboard.press("Enter")
    expect(page.locator(".streaming")).to_be_visible()

    page.get_by_role("log").focus()
    page.keyboard.press("Escape")

    expect(page.get_by_text("stopped here")).to_be_visible()
    expect_words(page, "Say it.", "Half of it")
    expect(page.locator(".session-head .status")).to_have_text("stopped")
    expect(page.locator(".row.system .notice")).to_have_text("Stopped.")
    expect(page.locator(".failure, .error-message")).to_have_count(0)


@pytest.mark.torture
@pytest.mark.torture
def test_a_server_that_dies_in_the_middle_is_waited_for_and_loses_nothing(
    stage: Stage, speaker: Speaker
) -> None:
    speaker.begin("Half of it", " and the rest.")
    page = stage.window()
    page.get_by_label("First message").fill("Say it.")
    page.keyboard.press("Enter")
    expect(page.locator(".streaming")).to_have_text("…Half of it")

    stage.server.kill()
    expect(page.get_by_text("Connection lost.")).to_be_visible()
    expect_words(page, "Say it.", "Half of it")
    page.get_by_label("Message", exact=True).fill("And more.")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Not sent yet")).to_be_visible()
    stage.start()

    expect(page.get_by_text("Connection lost.")).to_have_count(0)
    # The turn is played again, and what it said before is not said twice; what was written
    # meanwhile is sent by itself, once.
    expect(page.locator(".streaming")).to_have_text("…Half of it")
    expect_words(page, "Say it.", "Half of it", "And more.")
    expect(page.get_by_text("Not sent yet")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)
    speaker.gate.set()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    whole = "Half of it and the rest."
    expect_words(page, "Say it.", whole, "And more.", whole)
