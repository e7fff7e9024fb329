"""A call that was cut off: the page asks what came of it, and does what it is told."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.page.stage import PATIENCE_MS, Stage, staged
from tests.torture.crew import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.torture]
expect.set_options(timeout=PATIENCE_MS)

COMMAND = "cat gate"
CALL = {"id": "c1", "name": "run_command", "arguments": {"command": "cat", "args": ["gate"]}}
GRANT = {"fs": "project", "commands": [COMMAND]}
STEPS = [{"text": "I look.", "tool_calls": [CALL]}]


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Stage]:
    """A server that lets this command be run."""
    allowed = {"HOLDFAST_CHAT_ALLOWED_COMMANDS": COMMAND, "HOLDFAST_CHAT_APPROVAL": "auto"}
    with staged(tmp_path_factory.mktemp("stage"), browser, **allowed) as found:
        yield found


def test_calls_that_a_dead_server_left_are_run_again_skipped_or_written_down(stage: Stage) -> None:
    # Nobody writes into it, so whoever reads it waits.
    gate = stage.repository / "gate"
    os.mkfifo(gate)
    clerk = stage.play("Clerk", STEPS, tools=["run_command"], grant=GRANT)
    repo = stage.ask("POST", "/api/repos", {"path": str(stage.repository)})["id"]
    again, skipped, done = (
        stage.begin(clerk, "Look.", repo_id=repo, approval="auto") for _ in range(3)
    )
    page = stage.window(f"/sessions/{again}")
    expect(page.get_by_role("status").filter(has_text="is running run_command")).to_be_visible()
    wait_until(lambda: states(stage) == ["started"] * 3)

    stage.server.kill()
    gate.unlink()
    gate.write_text("It was open.\n")
    stage.start()

    expect(banner(page)).to_contain_text("cat gate")
    expect(page.locator(".tool-status")).to_have_text("outcome unknown")
    other = stage.window(f"/sessions/{again}")
    banner(other).get_by_role("button", name="Run again").click()
    for window in (other, page):
        # One that lies behind another is drawn once in a while only.
        window.bring_to_front()
        expect(banner(window)).to_have_count(0)
        expect(window.locator(".tool.ok")).to_have_count(1)
    page.locator(".tool.ok summary").click()
    expect(page.get_by_role("log")).to_contain_text("It was open.")

    page.goto(f"{stage.server.url}/sessions/{skipped}")
    banner(page).get_by_role("button", name="Skip").click()
    expect(banner(page)).to_have_count(0)

    page.goto(f"{stage.server.url}/sessions/{done}")
    banner(page).get_by_role("button", name="Mark as done …").click()
    expect(page.get_by_role("button", name="Save outcome")).to_be_disabled()
    page.get_by_role("textbox", name="Outcome").fill("I read it myself.")
    page.get_by_role("button", name="Save outcome").click()
    expect(banner(page)).to_have_count(0)
    expect(page.get_by_role("log")).to_contain_text("I read it myself.")
    found = [settled(stage, session) for session in (again, skipped, done)]
    assert found == ["retried", "skipped", "marked_done"]


def banner(page: Page) -> Locator:
    """Return what asks about the call, whether it is there or not."""
    return page.get_by_role("region", name="The outcome of run_command is unknown")


def states(stage: Stage) -> list[str]:
    """Return how far the calls of all sessions have come."""
    return [each["state"] for each in stage.ask("GET", "/v1/calls")["data"]]


def settled(stage: Stage, session: str) -> str:
    """Return how the call of a session was put right."""
    first, *_ = stage.ask("GET", f"/v1/sessions/{session}/calls")["data"]
    return str(first["settled"])
