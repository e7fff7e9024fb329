"""A session that is longer than a page holds: every row can be reached, and few are there."""

import pytest
from playwright.sync_api import Page, expect

from tests.page.stage import PATIENCE_MS, Stage

pytestmark = [pytest.mark.slow, pytest.mark.torture]
expect.set_options(timeout=PATIENCE_MS)

ROWS = 450
MAX_MESSAGES = 400


@pytest.mark.torture
def test_a_long_session_is_scrolled_from_end_to_end_and_back(stage: Stage) -> None:
    session = stage.ask("POST", "/v1/agents/holdfast/sessions", {})["id"]
    for number in range(ROWS):
        remark = {"role": "system", "content": {"text": f"row {number + 1}"}}
        stage.ask("POST", f"/v1/sessions/{session}/messages", remark)
    page = stage.window(f"/sessions/{session}")
    expect(page.get_by_text(f"row {ROWS}", exact=True)).to_be_in_viewport()

    scroll(page, -2_000, until=1)
    scroll(page, 2_000, until=ROWS)
    page.get_by_role("log").press("End")
    expect(page.get_by_text(f"row {ROWS}", exact=True)).to_be_in_viewport()
    remark = {"role": "system", "content": {"text": "one more"}}
    stage.ask("POST", f"/v1/sessions/{session}/messages", remark)

    expect(page.get_by_text("one more", exact=True)).to_be_in_viewport()
    page.goto(f"{stage.server.url}/sessions/{session}?at=200")
    expect(page.get_by_text("row 200", exact=True)).to_be_in_viewport()
    scroll(page, 2_000, until=ROWS + 1)


def scroll(page: Page, pixels: int, *, until: int) -> None:
    """Turn the wheel until a row is there; those that are there are neighbours, and not many."""
    page.locator(".transcript").hover()
    while True:
        page.mouse.wheel(0, pixels)
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)))")
        numbers = [int(each) for each in page.locator(".row .number").all_text_contents()]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert len(numbers) <= MAX_MESSAGES
        if until in numbers:
            return
