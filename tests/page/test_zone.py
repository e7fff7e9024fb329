"""An agent's active zone on the page: shown, archived and restored."""

import json

import pytest
from playwright.sync_api import expect

from tests.marks import demands
from tests.page.stage import PATIENCE_MS, Stage

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE_MS)


@demands("S4-091")
def test_the_page_of_an_agent_shows_archives_and_restores_its_zone(stage: Stage) -> None:
    agent = stage.ask("POST", "/v1/agents", {"name": "Clerk", "system_prompt": "x"})["id"]
    kinds = ["user", *["say"] * 29]
    for number, kind in enumerate(kinds):
        line = json.dumps({"type": kind, "text": f"line {number}"})
        stage.ask("POST", f"/v1/zones/{agent}/output", {"line": line})
    state = {"schemaVersion": 2, "highWaterMark": 30, "documentState": {}, "paneState": {}}
    stage.ask("PUT", f"/v1/zones/{agent}/state", {"content": json.dumps(state)})

    page = stage.window("/agents/clerk")
    zone = page.get_by_role("region", name="Active zone")
    expect(zone).to_contain_text("line 29")
    expect(zone).not_to_contain_text("line 9\n")
    zone.get_by_role("button", name="Archive zone").click()
    expect(zone).to_contain_text("The zone is empty.")
    assert stage.ask("GET", f"/v1/zones/{agent}")["files"] == []
    # The preview is the first message of the user.
    expect(zone.get_by_role("listitem").locator(".preview")).to_have_text("line 0")
    expect(zone.get_by_role("listitem")).to_contain_text("30 lines")

    zone.get_by_role("button", name="Restore").click()
    expect(zone).to_contain_text("line 29")
    files = stage.ask("GET", f"/v1/zones/{agent}")["files"]
    assert [each["lines"] for each in files if each["lines"] == 30] == [30]
