"""S09: whatever a text says, the page shows it, and neither runs nor fetches anything."""

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.marks import proves
from tests.page.payloads import beacons, scripts
from tests.page.stage import PATIENCE_MS, Stage
from tests.torture.conftest import Sized, Tell
from tests.torture.naughty import naughty

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE_MS)

# So many rows a session shows at once, counting from one that was asked for.
SHOWN = 30
WATCH = """
window.hits = [];
window.hit = (...given) => window.hits.push(String(given));
window.alert = window.hit;
"""
# Scrolls to the end, and tells whether there are rows behind a number; and all that are there.
MORE = """(known) => {
  const box = document.querySelector(".transcript");
  if (box) box.scrollTop = box.scrollHeight;
  return Number([...document.querySelectorAll(".row .number")].at(-1)?.textContent) > known;
}"""
ROWS = """() => [...document.querySelectorAll(".row")].map((row) =>
  [".number", ".plain-text"].map((name) => row.querySelector(name).textContent))"""
HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


@proves("S09")
def test_no_script_runs_and_nothing_is_fetched(
    stage: Stage, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    found = sorted(set(scripts()))
    most = sized(quick=40, test=200, torture=len(found))
    texts = [*luck.sample(found, min(most, len(found))), *beacons()]

    hits: list[str] = []
    page = watched(stage)
    for number in range(0, len(texts), SHOWN):
        part = texts[number : number + SHOWN]
        session = told(stage, part)
        page.goto(f"{stage.server.url}/sessions/{session}?at=1")
        expect(page.locator(".row")).to_have_count(len(part))
        hits += opened(page)
    hits += searched(stage, page, texts)

    tell(f"{len(texts)} texts in titles, names, answers, remarks, calls and results; 0 ran")
    assert hits == []
    # What would have been fetched from us or anybody: the stage looks after the latter itself.
    assert [url for url in stage.loaded if not re.search(r"/assets/[\w.-]+$", url)] == []


@proves("S09")
def test_a_page_that_takes_text_for_html_is_found(browser: Browser) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.add_init_script(WATCH)
    page.goto("about:blank")
    page.set_content("".join([*list(scripts())[:40], *beacons()]), wait_until="commit")
    page.wait_for_function("window.hits.length > 0")

    assert any("beacon.test" in url for url in asked)


@pytest.mark.torture
@pytest.mark.torture
def test_hostile_strings_are_shown_as_they_are(stage: Stage, tell: Tell) -> None:
    texts = [text for text in naughty(random.Random(515), 515) if text.strip() and "\0" not in text]
    session = stage.ask("POST", "/v1/agents/holdfast/sessions", {})["id"]
    for text in texts:
        say(stage, session, {"role": "system", "content": {"text": text}})
    page = watched(stage)
    page.goto(f"{stage.server.url}/sessions/{session}?at=1")

    seen: dict[int, str] = {}
    while len(seen) < len(texts):
        page.wait_for_function(MORE, arg=max(seen, default=0))
        seen |= {int(number): text for number, text in page.evaluate(ROWS)}

    tell(f"{len(texts)} strings")
    assert [seen[number] for number in sorted(seen)] == list(map(shown, texts))


def shown(text: str) -> str:
    """Return a text as the page writes it: what hides is spelled out."""

    def spelled(found: re.Match[str]) -> str:
        code = ord(found[0])
        return chr(0x2400 + code) if code < 0x20 else f"⟨{code:04X}⟩"

    return HIDDEN.sub(spelled, text.replace("\r\n", "\n"))


def watched(stage: Stage) -> Page:
    """Open a window in which everything that runs or breaks is noted."""
    page = stage.window("/timeline")
    page.add_init_script(WATCH)
    return page


def told(stage: Stage, texts: Sequence[str]) -> str:
    """Have each text said in a session, in every way in turn; returns the session."""
    first = texts[0]
    agent = stage.ask("POST", "/v1/agents", {"name": first[:200], "system_prompt": first})
    path = f"/v1/agents/{agent['id']}/sessions"
    session = str(stage.ask("POST", path, {"title": texts[-1][:200]})["id"])
    for number, text in enumerate(texts):
        match number % 4:
            case 0:
                call = {"id": f"c{number}", "name": text[:200], "arguments": {text: text}}
                say(stage, session, {"role": "tool_call", "content": call})
                came = {"result": text} if number % 8 else {"error": text}
                answer = {"role": "tool_result", "tool_call_id": f"c{number}", "content": came}
                say(stage, session, answer)
            case 1:
                say(stage, session, {"role": "system", "content": {"text": text}})
            case _:
                say(stage, session, {"role": "assistant", "content": {"text": text}})
    return session


def say(stage: Stage, session: str, body: dict[str, Any]) -> None:
    stage.ask("POST", f"/v1/sessions/{session}/messages", body)


def opened(page: Page) -> list[str]:
    """Unfold everything that can be unfolded, and return what ran."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    expect(page.locator(".tool .code").first).to_be_visible()
    # Colours come late, and are drawn for what is seen.
    page.evaluate("document.querySelectorAll('.row').forEach((each) => each.scrollIntoView())")
    page.evaluate("new Promise((done) => requestIdleCallback(done))")
    return list(page.evaluate("window.hits"))


def searched(stage: Stage, page: Page, texts: Sequence[str]) -> list[str]:
    """Look at the same texts in lists: agents, and what a search finds."""
    page.goto(f"{stage.server.url}/agents")
    expect(page.get_by_role("list", name="Agents").get_by_role("listitem").first).to_be_visible()
    page.keyboard.press("/")
    page.get_by_label("Search query").fill("hit OR beacon OR onerror")
    page.get_by_label("Search query").fill("hit")
    expect(page.locator(".hit").first).to_be_visible()
    return list(page.evaluate("window.hits"))
