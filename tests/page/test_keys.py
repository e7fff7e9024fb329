"""Everything that a hand on the keyboard reaches, and what it does not set off while writing."""

import pytest
from playwright.sync_api import Page, expect

from tests.page.stage import PATIENCE_MS, Stage

pytestmark = [pytest.mark.slow, pytest.mark.torture]
expect.set_options(timeout=PATIENCE_MS)

TEXT = "for row in rows[1:]: rows[0] is the header"


def test_keys_walk_begin_and_go_wherever_they_say(stage: Stage) -> None:
    older, newer = (remark(stage, title) for title in ("Older", "Newer"))
    page = stage.window()
    expect(page.get_by_role("list", name="Sessions")).to_contain_text("Older")

    assert pressed(page, "j") == f"/sessions/{newer}"
    assert pressed(page, "j") == f"/sessions/{older}"
    assert pressed(page, "k") == f"/sessions/{newer}"
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    page.keyboard.press("c")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("njk/?")
    expect(page.get_by_label("Message", exact=True)).to_have_value("njk/?")
    page.keyboard.press("Escape")
    assert pressed(page, "n") == "/sessions?new"
    expect(page.get_by_label("First message")).to_be_focused()
    page.keyboard.press("Escape")
    for section in ("agents", "timeline", "sessions"):
        page.keyboard.press("g")
        assert pressed(page, section[0]) == f"/{section}"

    page.keyboard.press("?")
    listed = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(listed).to_contain_text("stop the running turn")
    # What lies below is not meant while this is open.
    page.keyboard.press("j")
    page.keyboard.press("Escape")
    expect(listed).to_have_count(0)
    expect(page).to_have_url(f"{stage.server.url}/sessions")


def test_a_search_shows_the_text_as_it_is_and_leads_to_it(stage: Stage) -> None:
    session = remark(stage, "Rows", TEXT)
    page = stage.window("/agents")
    expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("row")
    hit = page.locator(".hit")
    expect(hit).to_contain_text(TEXT)
    expect(hit.locator("mark")).to_have_text("row")
    page.keyboard.press("Enter")

    expect(page).to_have_url(f"{stage.server.url}/sessions/{session}?at=1")
    expect(page.locator(".row.marked .plain-text")).to_have_text(TEXT)
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_colours_are_chosen_and_kept(stage: Stage) -> None:
    page = stage.window(color_scheme="light")
    light = paper(page)
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    dark = paper(page)
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()

    assert light != dark
    assert paper(page) == dark


def paper(page: Page) -> str:
    """Return the colour that everything is written on."""
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def pressed(page: Page, key: str) -> str:
    """Press a key that leads somewhere, and return where."""
    before = page.url
    page.keyboard.press(key)
    page.wait_for_url(lambda url: url != before)
    return "/" + page.url.split("/", 3)[3]


def remark(stage: Stage, title: str, text: str = "x") -> str:
    """Open a session in which a remark was made, and return its id."""
    body = {"title": title}
    session = str(stage.ask("POST", "/v1/agents/holdfast/sessions", body)["id"])
    said = {"role": "system", "content": {"text": text}}
    stage.ask("POST", f"/v1/sessions/{session}/messages", said)
    return session
