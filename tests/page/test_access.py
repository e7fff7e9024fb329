"""What axe, a judge of accessibility, says of every view, in both themes and on a phone."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.house.source import ROOT
from tests.page.demo import prepare
from tests.page.stage import PATIENCE_MS, Stage

pytestmark = [pytest.mark.slow, pytest.mark.torture]
expect.set_options(timeout=PATIENCE_MS)

AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = {"serious", "critical"}


def test_axe_finds_nothing_serious_in_any_view(stage: Stage) -> None:
    sessions = prepare(stage)
    page = stage.window(f"/sessions/{sessions['asking']}", bypass_csp=True)
    expect(page.get_by_role("button", name="Allow once")).to_be_visible()
    found = faults(page)

    for path in (f"/sessions/{sessions['fixed']}", "/agents/code-reviewer", "/timeline", "/"):
        page.emulate_media(color_scheme="light")
        page.goto(stage.server.url + path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        found += faults(page)
        # Between the themes only colours differ.
        page.emulate_media(color_scheme="dark")
        found += faults(page, "color-contrast")
    page.set_viewport_size({"width": 390, "height": 780})
    page.goto(f"{stage.server.url}/sessions")
    expect(page.get_by_role("list", name="Sessions").get_by_role("listitem")).to_have_count(4)
    found += faults(page)
    page.keyboard.press("?")
    found += faults(page)

    assert found == []


def faults(page: Page, *rules: str) -> list[str]:
    """Return what axe calls serious or worse, by all of its rules or by these."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text("utf-8"))
    wish = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    told: dict[str, Any] = page.evaluate("(wish) => axe.run(wish)", wish)
    return [
        f"{page.url}: {each['id']} at {node['target']}: {node['failureSummary']}"
        for each in told["violations"]
        if each["impact"] in GRAVE
        for node in each["nodes"]
    ]
