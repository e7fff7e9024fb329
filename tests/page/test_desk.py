"""An agent's desk on the page: what was left there, cleared into an archive and brought back."""

import json

import pytest
from playwright.sync_api import expect

from tests.marks import demands
from tests.page.stage import PATIENCE_MS, Stage

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE_MS)


@demands("S4-091")
def test_what_lies_on_a_desk_is_read_when_its_agent_is_opened(stage: Stage) -> None:
    agent = stage.ask("POST", "/v1/agents", {"name": "Clerk", "system_prompt": "x"})["id"]
    kinds = ["user", *["say"] * 29]
    for number, kind in enumerate(kinds):
        line = json.dumps({"type": kind, "text": f"line {number}"})
        stage.ask("POST", f"/v1/zones/{agent}/output", {"line": line})
    state = {"schemaVersion": 2, "highWaterMark": 30, "documentState": {}, "paneState": {}}
    stage.ask("PUT", f"/v1/zones/{agent}/state", {"content": json.dumps(state)})

    page = stage.window("/agents/clerk")
    desk = page.get_by_role("region", name="Desk")
    expect(desk).to_contain_text("line 29")
    expect(desk).not_to_contain_text("line 9\n")
    desk.get_by_role("button", name="Clear it into an archive").click()
    expect(desk).to_contain_text("Nothing lies on it.")
    assert stage.ask("GET", f"/v1/zones/{agent}")["files"] == []
    # What it was about: the first that somebody said.
    expect(desk.get_by_role("listitem").locator(".preview")).to_have_text("line 0")
    expect(desk.get_by_role("listitem")).to_contain_text("30 lines")

    desk.get_by_role("button", name="Restore").click()
    expect(desk).to_contain_text("line 29")
    files = stage.ask("GET", f"/v1/zones/{agent}")["files"]
    assert [each["lines"] for each in files if each["lines"] == 30] == [30]
