"""What a loop of the user's own has done, and the sessions below a session."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import expect

from holdfast import Turn, open_holdfast
from tests.page.stage import PATIENCE_MS, Stage
from tests.torture.crew import wait_until

pytestmark = [pytest.mark.slow]
expect.set_options(timeout=PATIENCE_MS)


async def count(home: Path) -> str:
    """Run a loop of two steps, of which one has no result, and return its session."""
    async with open_holdfast(home) as hf:

        @hf.runtime("counter")
        async def counter(turn: Turn) -> str:
            pages = await turn.step("fetch", lambda: {"pages": 3})
            await turn.step("book", lambda: None)
            return f"{pages}"

        answer = await hf.ask("Count.", agent="counter")
    return str(answer.session_id)


def test_a_step_of_a_loop_shows_its_name_result_and_duration(stage: Stage) -> None:
    # In a thread, because the driver of the browser has its own loop running in this one.
    with ThreadPoolExecutor(1) as apart:
        session = apart.submit(lambda: asyncio.run(count(stage.server.home))).result()
    page = stage.window(f"/sessions/{session}")
    steps = page.locator(".row .tool")

    expect(steps).to_have_count(2)
    fetch, book = steps.all()
    expect(fetch.locator(".tool-name")).to_have_text("fetch")
    expect(fetch.locator(".tool-summary")).to_have_text('{"pages":3}')
    expect(fetch.locator(".tool-time")).to_contain_text(" ms")
    expect(book.locator(".tool-name")).to_have_text("book")
    expect(book.locator(".tool-summary")).to_be_empty()
    fetch.locator("summary").click()
    expect(fetch.locator(".tool-details")).to_contain_text('"pages": 3')


def _begin_below(stage: Stage, above: str, agent: str, title: str) -> str:
    """Give a task to an agent below a session, and return the session of the agent."""
    body = {"agent": agent, "task": "Go on.", "title": title}
    found = str(stage.ask("POST", f"/v1/sessions/{above}/children", body)["id"])
    wait_until(lambda: stage.ask("GET", f"/v1/sessions/{found}")["status"] == "completed")
    return found


def test_the_head_shows_all_sessions_below_a_session(stage: Stage) -> None:
    agent = stage.play("Family", [{"text": "Done."}] * 9)
    top = above = stage.begin(agent, "Begin.", title="Top")
    middle, low = [above := _begin_below(stage, above, agent, name) for name in ("Middle", "Low")]
    page = stage.window(f"/sessions/{top}")
    family = page.get_by_role("navigation", name="Related sessions")

    expect(family.locator(":scope > ul > li > a")).to_have_attribute("href", f"/sessions/{middle}")
    inner = family.locator("ul ul a")
    expect(inner).to_have_text("Started: Low (completed)")
    inner.click()
    expect(page).to_have_url(stage.server.url + f"/sessions/{low}")
    expect(family).to_have_text("Started by another session")
