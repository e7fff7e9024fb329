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


def test_a_session_at_its_turn_cap_goes_on_in_a_fork(stage: Stage) -> None:
    talker = stage.play("Talker", [{"text": "Hello.", "repeat": 9}])
    session = stage.begin(talker, "Hi", turn_cap=1)
    page = stage.window(f"/sessions/{session}")

    used = page.get_by_role("status").filter(has_text="This session has used its 1 turns.")
    used.get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_url(lambda url: session not in url)
    box = page.get_by_role("textbox", name="Message")
    box.fill("More")
    page.get_by_role("button", name="Send").click()

    expect(page.get_by_role("log").get_by_text("Hello.")).to_have_count(2)
    fork = stage.ask("GET", f"/v1/sessions/{page.url.rsplit('/', 1)[1]}")
    assert (fork["forked_from"]["session_id"], fork["turn"]) == (session, 2)
    assert stage.ask("GET", f"/v1/sessions/{session}")["turn"] == 1


def test_the_button_of_a_session_forks_it_at_its_end(stage: Stage) -> None:
    talker = stage.play("Talker", [{"text": "Hello.", "repeat": 9}])
    session = stage.begin(talker, "Hi")
    page = stage.window(f"/sessions/{session}")

    page.get_by_label("Session actions").click()
    page.get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_url(lambda url: session not in url)

    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    fork = stage.ask("GET", f"/v1/sessions/{page.url.rsplit('/', 1)[1]}")
    assert fork["forked_from"] == {"session_id": session, "sequence": 2}
    assert fork["message_count"] == 2
