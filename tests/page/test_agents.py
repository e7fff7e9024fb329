"""Agents of both kinds on the page: made, changed, put away, brought back, and at work."""

import base64
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.house.source import ROOT
from tests.page.stage import PATIENCE_MS, Stage, staged

pytestmark = [pytest.mark.slow, pytest.mark.torture]
expect.set_options(timeout=PATIENCE_MS)

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
STEPS: list[dict[str, Any]] = [
    {"thought": "I look first."},
    {
        "update": {
            "sessionUpdate": "plan",
            "entries": [
                {"content": "Look", "priority": "high", "status": "completed"},
                {"content": "Change a line", "priority": "high", "status": "in_progress"},
            ],
        }
    },
    {
        "update": {
            "sessionUpdate": "tool_call",
            "toolCallId": "t1",
            "title": "Change a.txt",
            "kind": "edit",
            "status": "completed",
            "content": [{"type": "diff", "path": "/a.txt", "oldText": "one\n", "newText": "two\n"}],
        }
    },
    {
        "update": {
            "sessionUpdate": "agent_message_chunk",
            "content": {
                "type": "image",
                "mimeType": "image/png",
                "data": base64.b64encode(PICTURE).decode(),
            },
        }
    },
    {"text": "It is **changed**."},
    {"reply": {"stopReason": "end_turn"}},
]
# A program that is known by its name, and tells its version; what it runs lies beside it.
PROGRAM = """#!/bin/sh
[ "$1" = --version ] && echo 1.2.3 && exit
exec "${0%/*}/behind"
"""


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Stage]:
    """A server on whose machine there is a program that is an agent."""
    folder = tmp_path_factory.mktemp("stage")
    where = installed(folder / "programs")
    with staged(folder, browser, PATH=f"{where}:{os.environ['PATH']}") as found:
        yield found


def installed(folder: Path) -> Path:
    """Put the program into a folder, which is returned."""
    folder.mkdir()
    script = folder / "script.json"
    script.write_text(json.dumps({"on": {"session/prompt": STEPS}}))
    for name in ("peer.py", "scripted_agent.py"):
        shutil.copy(ROOT / "tests" / "acp" / name, folder)
    # The sandbox replaces /tmp, in which the interpreter of a checkout may lie.
    python = os.path.realpath(sys.executable)
    behind = f"#!/bin/sh\nexec {python} {folder / 'peer.py'} {script}\n"
    for name, text in (("qwen", PROGRAM), ("behind", behind)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def test_a_program_of_the_machine_is_taken_changed_and_shows_all_it_does(stage: Stage) -> None:
    repo = stage.ask("POST", "/api/repos", {"path": str(stage.repository)})["name"]
    page = stage.window("/agents?new")
    programs = page.get_by_role("region", name="Programs on this machine")
    expect(programs).to_contain_text("1.2.3")
    programs.get_by_role("button", name="Use Qwen Code").click()
    page.get_by_role("button", name="Create").click()
    expect(page).to_have_url(f"{stage.server.url}/agents/qwen")
    page.get_by_label("Arguments").fill("--acp\n--quiet")
    saved(page)
    runtime = stage.ask("GET", "/v1/agents/qwen")["runtime"]
    assert (runtime["command"], runtime["args"]) == ("qwen", ["--acp", "--quiet"])
    assert runtime["options"]["preset"] == "qwen"

    page.get_by_role("link", name="New session").click()
    page.get_by_label("First message").fill("Change it.")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_contain_text("requires a repository")
    page.get_by_label("Repository").select_option(label=repo)
    page.get_by_role("button", name="Start").click()
    log = page.get_by_role("log")
    expect(log.locator("strong")).to_have_text("changed")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(log.get_by_text("I look first.")).to_be_hidden()
    log.get_by_text("Thoughts").click()
    expect(log.get_by_text("I look first.")).to_be_visible()
    expect(log.locator(".diff-stat")).to_have_text("+1 −1")
    log.get_by_text("Change a.txt").first.click()
    expect(log.locator(".diff .line.added")).to_contain_text("two")
    dock = page.locator(".dock .plan")
    expect(dock).to_contain_text("1 of 2")
    dock.locator("summary").click()
    expect(dock.get_by_role("listitem")).to_contain_text(["Look", "Change a line"])
    page.wait_for_function("document.querySelector('img.image')?.naturalWidth === 1")


def test_an_agent_with_a_model_is_changed_put_away_and_brought_back(stage: Stage) -> None:
    stage.ask("POST", "/v1/agents", {"name": "Old name", "system_prompt": "Be terse."})
    page = stage.window("/agents/old-name")
    expect(page.get_by_role("button", name="Save")).to_be_disabled()
    page.get_by_label("Temperature").fill("9")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("temperature")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Name", exact=True).fill("New name")
    page.get_by_label("System prompt").fill("Be kind.")
    page.get_by_role("button", name="read_file").click()
    page.get_by_label("File access").select_option("project")
    page.get_by_label("Tags").fill("one, two")
    saved(page)
    agent = stage.ask("GET", "/v1/agents/old-name")
    told = ("name", "system_prompt", "temperature", "tools", "tags")
    assert [agent[each] for each in told] == [
        *("New name", "Be kind.", 0.5, ["read_file"], ["one", "two"])
    ]
    assert agent["grant"]["fs"] == "project"

    agents = page.get_by_role("list", name="Agents")
    expect(agents).to_contain_text("New name")
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(page.get_by_role("button", name="Unarchive")).to_be_visible()
    expect(page.get_by_role("link", name="New session")).to_have_count(0)
    expect(agents).not_to_contain_text("New name")
    page.get_by_label("Show archived").check()
    expect(agents.get_by_role("listitem").filter(has_text="New name")).to_contain_text("archived")
    page.get_by_role("button", name="Unarchive").click()
    expect(page.get_by_role("button", name="Archive", exact=True)).to_be_visible()
    assert stage.ask("GET", "/v1/agents/old-name")["status"] == "active"


def saved(page: Page) -> None:
    """Save what was written; once it is, there is nothing more to save."""
    button = page.get_by_role("button", name="Save")
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        button.click()
    expect(button).to_be_disabled()
    expect(page.get_by_role("alert")).to_have_count(0)
