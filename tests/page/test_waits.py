"""A paused turn: the page says what it waits for, and answers the calls that a client runs."""

from uuid import uuid4

import pytest
from playwright.sync_api import expect

from tests.page.stage import PATIENCE_MS, Stage

pytestmark = [pytest.mark.slow]
expect.set_options(timeout=PATIENCE_MS)

REFUND = {
    "name": "refund",
    "description": "Refund an order.",
    "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
}
CALL = {"id": "c1", "name": "refund", "arguments": {"order": "17"}}
STEPS = [{"tool_calls": [CALL]}, {"text": "It is refunded."}]


def test_a_call_of_a_client_is_shown_and_answered(stage: Stage) -> None:
    agent = stage.play("Desk", STEPS, tools=[REFUND])
    session = stage.begin(agent, "Refund order 17.")
    page = stage.window(f"/sessions/{session}")
    request = page.get_by_role("region", name="refund waits for a client")

    expect(page.get_by_role("status").filter(has_text="waits for a client")).to_be_visible()
    expect(page.locator(".session-head .status")).to_have_text("waiting")
    expect(request).to_contain_text("17")
    request.get_by_role("textbox").fill('{"refunded": true}')
    request.get_by_role("button", name="Send result").click()

    expect(page.get_by_role("log")).to_contain_text("It is refunded.")
    expect(request).to_have_count(0)
    (call,) = stage.ask("GET", f"/v1/sessions/{session}/calls")["data"]
    assert call["state"] == "finished"


def test_a_call_that_a_worker_claims_is_not_answered_here(stage: Stage) -> None:
    agent = stage.play("Desk", STEPS, tools=[REFUND])
    session = stage.begin(agent, "Refund order 17.")
    page = stage.window(f"/sessions/{session}")
    request = page.get_by_role("region", name="refund waits for a client")
    expect(request).to_be_visible()

    claim = str(uuid4())
    call = f"/v1/sessions/{session}/calls/c1"
    # For longer than the page has time to show it, so that the claim does not end by itself.
    stage.ask("POST", f"{call}/claim", {"claim": claim, "lease_s": 2 * PATIENCE_MS / 1000})
    expect(request).to_have_count(0)
    stage.ask("POST", f"{call}/result", {"status": "released", "claim": claim})
    expect(request).to_be_visible()
    request.get_by_role("textbox").fill("done")
    request.get_by_role("button", name="Send result").click()

    expect(page.get_by_role("log")).to_contain_text("It is refunded.")
