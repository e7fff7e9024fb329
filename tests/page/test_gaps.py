"""Events that are no longer kept: the page reads the messages instead, and says so."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

from holdfast import open_holdfast
from holdfast.domain.events import TurnEnded
from holdfast.domain.ids import SessionId
from tests.houses import news_until, raw
from tests.page.stage import PATIENCE_MS, Stage

pytestmark = [pytest.mark.slow, pytest.mark.torture]
expect.set_options(timeout=PATIENCE_MS)


def test_what_was_said_and_forgotten_while_the_line_was_broken_is_read_from_the_record(
    stage: Stage,
) -> None:
    page = stage.window()
    expect(page.get_by_text("No sessions yet.")).to_be_visible()
    page.get_by_label("First message").fill("count the words: one two")
    page.keyboard.press("Enter")
    expect(page.get_by_role("log")).to_contain_text("2 words.")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    session = page.url.rpartition("/")[2]

    stage.server.stop()
    expect(page.get_by_text("Connection lost.")).to_be_visible()
    # In another thread, because the browser's driver has a loop running in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, said_and_forgotten(stage.server.home, session)).result()
    stage.start()

    (gap,) = stage.ask("GET", f"/v1/sessions/{session}/events?format=json&limit=1000")["gaps"][1:]
    told = f"Events {gap['from']} to {gap['to']} are no longer kept"
    expect(page.locator(".banner")).to_contain_text(told)
    words = page.locator(".row :is(.plain-text, .prose)")
    expect(words).to_contain_text(["one two", "2 words.", "three", "1 word."])
    expect(words).to_have_count(4)
    page.get_by_label("Message", exact=True).fill("count the words: a b c")
    page.keyboard.press("Enter")
    expect(words.last).to_have_text("3 words.")
    expect(words).to_have_count(6)


def test_a_session_whose_events_are_gone_is_shown_from_its_messages(stage: Stage) -> None:
    page = stage.window()
    page.get_by_label("First message").fill("count the words: one two")
    page.keyboard.press("Enter")
    expect(page.get_by_role("log")).to_contain_text("2 words.")
    words = page.locator(".row :is(.plain-text, .prose)")

    with raw(stage.server.home) as connection:
        connection.execute("DELETE FROM events")
        connection.execute("DELETE FROM deltas")
    page.reload()

    expect(words).to_contain_text(["one two", "2 words."])
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    expect(page.get_by_text("corrupt_row")).to_have_count(0)
    page.get_by_label("Message", exact=True).fill("count the words: a b c")
    page.keyboard.press("Enter")
    expect(words.last).to_have_text("3 words.")
    expect(words).to_have_count(4)


async def said_and_forgotten(home: Path, session: str) -> None:
    """Let a turn be played while nobody listens, and what was streamed of it be forgotten."""
    async with open_holdfast(home) as house:
        before = (await house.sessions.get(house.owner, SessionId(session))).last_event
        await house.messages.send(house.owner, SessionId(session), "count the words: three")
        await news_until(house, SessionId(session), TurnEnded, after=before)
        await house.maintenance.prune(timedelta())
