"""What is listed: sessions as they come and change, and moments that lead into them."""

import pytest
from playwright.sync_api import expect

from tests.page.stage import PATIENCE_MS, Stage
from tests.torture.crew import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.torture]
expect.set_options(timeout=PATIENCE_MS)

USAGE = {"input": 9_000, "output": 1_000}
CHECKPOINT = {"name": "checkpoint", "arguments": {"name": "tests green"}}
STEPS = [
    {"text": "I begin.", "tool_calls": [CHECKPOINT]},
    {"text": "I go on.", "usage": USAGE},
]


def test_sessions_come_by_themselves_and_are_found_by_what_they_are(stage: Stage) -> None:
    lister = stage.play("Lister", [{"text": "Done."}])
    page = stage.window("/sessions")
    expect(page.get_by_label("First message")).to_be_visible()
    ebb, flood = (stage.begin(lister, "x", title=each) for each in ("Ebb tide", "Flood tide"))
    wait_until(lambda: stage.ask("GET", f"/v1/sessions/{flood}")["status"] == "completed")
    stage.ask("POST", f"/v1/sessions/{flood}/close", {})
    sessions = page.get_by_role("list", name="Sessions").get_by_role("listitem")
    expect(sessions.filter(has_text="Flood tide")).to_contain_text("closed")
    expect(sessions.filter(has_text="Ebb tide")).to_contain_text("Lister")
    expect(sessions.filter(has_text="Ebb tide")).to_contain_text("idle")
    page.get_by_label("Agent", exact=True).first.select_option(label="Lister")
    expect(sessions).to_have_count(2)
    page.get_by_label("Status").select_option(label="closed")
    expect(sessions).to_contain_text(["Flood tide"])
    page.get_by_label("Status").select_option("")
    page.get_by_label("Filter by title").fill("ebb")
    expect(sessions).to_contain_text(["Ebb tide"])
    page.get_by_label("Filter by title").fill("neither")
    expect(page.get_by_text("No matching sessions.")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    sessions.filter(has_text="Ebb tide").click()
    expect(page).to_have_url(f"{stage.server.url}/sessions/{ebb}")


def test_a_moment_leads_to_what_was_said_then_and_what_it_cost(stage: Stage) -> None:
    worker = stage.play("Worker", STEPS, tools=["checkpoint"])
    session = stage.begin(worker, "Work.", title="Work")
    wait_until(lambda: stage.ask("GET", f"/v1/sessions/{session}")["status"] == "completed")

    page = stage.window("/timeline")
    expect(page.get_by_role("img", name="Sessions over time")).to_be_visible()
    page.locator("path.checkpoint").click()
    expect(page.locator(".row.marked")).to_contain_text("checkpoint")
    expect(page.get_by_label("Context window usage")).to_be_visible()
    expect(page.locator(".meter")).to_have_text("8 %")
    expect(page.locator(".session-head")).to_contain_text("$0.04")
    page.go_back()
    page.get_by_role("link", name="◆ tests green").click()
    expect(page.locator(".row.marked")).to_contain_text("checkpoint")


def test_what_is_not_there_says_where_to_go(stage: Stage) -> None:
    page = stage.window("/sessions/0192f0c1-0000-7000-8000-00000000dead")
    expect(page.get_by_role("heading", name="Session not found")).to_be_visible()
    page.get_by_role("link", name="All sessions").click()
    expect(page.get_by_role("heading", name="New session")).to_be_visible()
    page.goto(f"{stage.server.url}/agents/nobody")
    expect(page.get_by_role("heading", name="Agent not found")).to_be_visible()
    page.get_by_role("link", name="All agents").click()
    expect(page.get_by_role("link", name="New agent")).to_be_visible()
