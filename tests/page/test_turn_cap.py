"""A session at its turn cap: the page sends nothing more until somebody says how to go on."""

import pytest
from playwright.sync_api import expect

from tests.page.stage import PATIENCE_MS, Stage

pytestmark = [pytest.mark.slow, pytest.mark.torture]
expect.set_options(timeout=PATIENCE_MS)


def test_a_session_at_its_turn_cap_is_raised_or_forked(stage: Stage) -> None:
    talker = stage.play("Talker", [{"text": "Hello.", "repeat": 9}])
    session = stage.begin(talker, "Hi", turn_cap=1)
    page = stage.window(f"/sessions/{session}")
    send = page.get_by_role("button", name="Send")

    expect(page.get_by_text("This session has used its 1 turns.")).to_be_visible()
    page.get_by_role("textbox", name="Message").fill("More")
    expect(send).to_be_disabled()
    page.get_by_role("button", name="Raise to 1001 turns").click()
    expect(page.get_by_text("This session has used its")).to_have_count(0)
    send.click()

    expect(page.get_by_role("log").get_by_text("Hello.")).to_have_count(2)
    after = stage.ask("GET", f"/v1/sessions/{session}")
    assert (after["turn_cap"], after["turn"]) == (1001, 2)
