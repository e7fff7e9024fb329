"""Whole ways through the page: a first question, a tool that asks, and an agent's zone."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.marks import demands
from tests.page.stage import PATIENCE_MS, Stage

pytestmark = pytest.mark.slow
expect.set_options(timeout=PATIENCE_MS)


@demands("S2-132")
def test_a_newcomer_signs_in_asks_forks_and_takes_it_along(stage: Stage, tmp_path: Path) -> None:
    stranger = stage.guest().new_page()
    stranger.goto(stage.server.url)
    expect(stranger.get_by_text("holdfast token link")).to_be_visible()

    page = stage.window()
    page.get_by_label("First message").fill("What is (3.5*4)/2?")
    page.keyboard.press("Enter")

    expect(page.get_by_role("log")).to_contain_text("(3.5*4)/2 = 7")
    session = page.url.rpartition("/")[2]
    expect(page.get_by_role("list", name="Sessions")).to_contain_text("What is (3.5*4)/2?")
    # Whoever has begun with Enter writes on, and no letter of it is a shortcut.
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    expect(page).to_have_title("What is (3.5*4)/2? · Holdfast")
    page.keyboard.type("count the words: one two three")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    expect(page.get_by_role("log")).to_contain_text("3 words.")

    page.get_by_label("assistant 2").hover()
    page.get_by_role("button", name="Fork from message 2").click()
    expect(page).to_have_url(re.compile(f"(?<!{session})$"))
    expect(page.get_by_role("log")).to_contain_text("(3.5*4)/2 = 7")
    expect(page.get_by_role("log")).not_to_contain_text("3 words.")
    fork = stage.ask("GET", f"/v1/sessions/{page.url.rpartition('/')[2]}")
    assert fork["forked_from"] == {"session_id": session, "sequence": 2}

    page.goto(f"{stage.server.url}/sessions/{session}")
    for name in ("Markdown", "JSON lines", "workflow"):
        page.get_by_label("Session actions").click()
        with page.expect_download() as saved:
            page.get_by_role("link", name=f"Export as {name}").click()
        saved.value.save_as(tmp_path / name)
    rows = [json.loads(line) for line in (tmp_path / "JSON lines").read_text().splitlines()]
    assert [row["content"]["text"] for row in rows][:3:2] == [
        "What is (3.5*4)/2?",
        "count the words: one two three",
    ]
    assert "3 words." in (tmp_path / "Markdown").read_text()
    assert "What is (3.5*4)/2?" in (tmp_path / "workflow").read_text()

    page.get_by_label("Session actions").click()
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page.get_by_placeholder("Send a message to reopen this session")).to_be_visible()
    page.get_by_label("Session actions").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_placeholder("Reply")).to_be_visible()

    page.get_by_label("Session actions").click()
    page.get_by_role("button", name="Delete …").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Keep forks").click()
    expect(page).to_have_url(f"{stage.server.url}/sessions")
    assert stage.ask("GET", f"/v1/sessions/{fork['id']}")["forked_from"] is None
    assert session not in [each["id"] for each in stage.ask("GET", "/v1/sessions")["data"]]


def test_a_tool_asks_with_all_it_would_do_and_does_it_once_allowed(
    stage: Stage, tmp_path: Path
) -> None:
    lines = "".join(f"line {number}\n" for number in range(3_000))
    steps = [
        {
            "text": "I write it down.",
            "tool_calls": [
                {"name": "write_file", "arguments": {"path": "notes.txt", "content": lines}}
            ],
        },
        {"text": "It is **written**."},
    ]
    (tmp_path / "steps.json").write_text(json.dumps(steps))
    repo = stage.ask("POST", "/api/repos", {"path": str(stage.repository)})["name"]
    page = stage.window("/agents?new")
    page.get_by_label("Name", exact=True).fill("Clerk")
    page.get_by_label("Model", exact=True).fill(f"scripted:{tmp_path / 'steps.json'}")
    page.get_by_role("textbox", name="Tools").fill("write_file")
    page.get_by_label("File access").select_option("project")
    page.get_by_role("button", name="Create").click()
    page.get_by_role("link", name="New session").click()
    page.get_by_label("Repository").select_option(label=repo)
    page.get_by_label("First message").fill("Write it down.")
    page.get_by_role("button", name="Start").click()

    question = page.get_by_role("region", name="write_file needs approval")
    expect(question).to_contain_text("line 2999")
    expect(page.get_by_role("list", name="Sessions")).to_contain_text("needs approval")
    assert not (stage.repository / "notes.txt").exists()
    question.get_by_role("button", name="Allow once").click()

    expect(page.get_by_role("log").locator("strong")).to_have_text("written")
    expect(question).to_have_count(0)
    assert (stage.repository / "notes.txt").read_text() == lines
    page.get_by_text("write_file", exact=True).click()
    expect(page.get_by_role("log")).to_contain_text("line 1999")


@demands("S4-091")
def test_the_page_of_an_agent_shows_archives_and_restores_its_zone(stage: Stage) -> None:
    agent = stage.ask("POST", "/v1/agents", {"name": "Keeper", "system_prompt": "x"})["id"]
    kinds = ["user", *["say"] * 29]
    for number, kind in enumerate(kinds):
        line = json.dumps({"type": kind, "text": f"line {number}"})
        stage.ask("POST", f"/v1/zones/{agent}/output", {"line": line})
    state = {"schemaVersion": 2, "highWaterMark": 30, "documentState": {}, "paneState": {}}
    stage.ask("PUT", f"/v1/zones/{agent}/state", {"content": json.dumps(state)})

    page = stage.window("/agents/keeper")
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
