"""Readers that share nothing but the standard see one complete stream across restarts.

httpx-sse, the npm package `eventsource`, and the EventSource of a real browser.
"""

import asyncio
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
import httpx_sse
import pytest

from tests.browser.chromium import browsing, require_chromium
from tests.browser.hearing import heard_in, listen, signed_in
from tests.torture.callers import Caller
from tests.torture.clients.house import new_id
from tests.torture.crew import PATIENCE, Crew
from tests.torture.frames import CONTROLS
from tests.torture.parsers import Heard, Node
from tests.torture.recovery import until, waiting
from tests.torture.served import Server

pytestmark = [pytest.mark.slow, pytest.mark.torture]

RESTARTS = 2
Event = tuple[str, int, Any]


def test_independent_readers_and_a_browser_see_the_same_stream_across_restarts(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    program = require_chromium("R30")
    node = Node(tmp_path / "node", "R30")
    server = Server(crew, tmp_path / "home")
    server.start()

    stored, heard = asyncio.run(follow(server, luck, node, (program, tmp_path / "profile")))

    assert len(stored) > 20
    assert heard["httpx-sse"] == stored
    assert heard["eventsource"] == stored
    assert heard["browser"] == stored


async def follow(
    server: Server, luck: random.Random, node: Node, chromium: tuple[str, Path]
) -> tuple[list[Event], dict[str, list[Event]]]:
    """Let all readers follow one session while the server is stopped, killed and started again."""
    async with browsing(*chromium) as browser, Caller(server) as caller:
        session = (await caller.sure("POST", "/v1/agents/holdfast/sessions", {}))["id"]
        path = f"/v1/sessions/{session}/events"
        page = await signed_in(browser, server)
        await listen(page, path, until="closed")
        async with asyncio.TaskGroup() as tasks:
            python = tasks.create_task(by_httpx_sse(server, path))
            javascript = tasks.create_task(node.follow(server, path, until="closed"))
            await restarted(server, caller, session, luck)
            await caller.act("close", session)
            told = await heard_in(page)
        stored = (await caller.get(f"{path}?format=json&limit=1000"))["data"]
    server.stop()
    heard = {"httpx-sse": python.result(), "eventsource": javascript.result(), "browser": told}
    events = [(each["event_type"], each["sequence"], each) for each in stored]
    return events, {name: events_of(each) for name, each in heard.items()}


async def restarted(server: Server, caller: Caller, session: str, luck: random.Random) -> None:
    """Talk, and let the server be gone and come back meanwhile."""
    done = asyncio.Event()

    async def talk() -> None:
        while not done.is_set():
            await caller.send(session, new_id(luck, luck.choice(["long", "short"])))
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(talk())
        for number in range(RESTARTS):
            await asyncio.sleep(1)
            await asyncio.to_thread(server.kill if number % 2 else server.stop)
            await asyncio.to_thread(server.start)
        await asyncio.sleep(1)
        done.set()
    await until(lambda: not waiting(server.home))


async def by_httpx_sse(server: Server, path: str) -> list[Heard]:
    """Follow a session until it is closed, coming back with the last number whenever it ends."""
    heard: list[Heard] = []
    headers = {"authorization": f"Bearer {server.token}"}
    async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
        while True:
            try:
                url = server.url + path
                async with httpx_sse.aconnect_sse(client, "GET", url, headers=headers) as source:
                    async for event in source.aiter_sse():
                        heard.append((event.event, event.id, event.data))
                        headers |= {"last-event-id": event.id} if event.id else {}
                        if is_closed(event.event, event.data):
                            return heard
            except httpx.TransportError:
                await asyncio.sleep(0.1)


def is_closed(name: str, data: str) -> bool:
    """Tell whether an event is the end of the session."""
    return name == "session.completed" and bool(json.loads(data)["data"]["closed"])


def events_of(heard: Iterable[Sequence[str]]) -> list[Event]:
    """Return what is no word about the stream itself, with its number."""
    return [
        (name, int(number), json.loads(data))
        for name, number, data in heard
        if data and name not in CONTROLS
    ]
