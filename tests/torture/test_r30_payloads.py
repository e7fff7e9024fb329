"""R30: whatever stands in a payload, three independent readers decode the same and nothing else."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import browsing, require_chromium
from tests.browser.hearing import heard_in, listen, signed_in
from tests.marks import proves
from tests.torture.callers import Caller
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.ears import Listening
from tests.torture.frames import Checker
from tests.torture.naughty import naughty
from tests.torture.parsers import Heard, Node, by_httpx_sse, strictly
from tests.torture.recovery import waiting
from tests.torture.served import Server

pytestmark = pytest.mark.slow

REASON_LONGEST = 255


@proves("R30", "R29")
def test_three_readers_hear_the_same_bytes_and_no_field_is_injected(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    strings = naughty(luck, sized(quick=5, test=60, torture=500))
    strings = strings[:: sized(quick=5, test=1, torture=1)]
    node = Node(tmp_path / "node", "R30")
    tale = Tale(Checker(patience=sized.within(15)))

    asyncio.run(tell_naughty(tmp_path, crew, strings, node, tale))

    tell(f"{len(strings)} strings in text, tool calls and reasons, alike in 3 readers")
    assert tale.checker.faults == []
    assert tale.heard["httpx-sse"] == tale.heard["strict"]
    assert tale.heard["eventsource"] == tale.heard["strict"]
    assert tale.unlike(strings) == []


@proves("R30")
def test_a_browser_hears_the_same(
    tmp_path: Path, crew: Crew, luck: random.Random, level: str, tell: Tell
) -> None:
    # The row asks for a browser only then; the strings are few in any other run.
    strings = naughty(luck, 500 if level == "release" else 0)
    chromium = require_chromium("R30"), tmp_path / "profile"
    tale = Tale(Checker())

    asyncio.run(tell_naughty(tmp_path, crew, strings, chromium, tale))

    tell(f"{len(strings)} strings alike in a browser")
    assert tale.heard["browser"] == tale.heard["strict"]
    assert tale.unlike(strings) == []


@proves("R30")
def test_a_server_that_lets_line_ends_through_is_found(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    strings = naughty(luck, 0)[:12]
    tale = Tale(Checker())

    asyncio.run(tell_naughty(tmp_path, crew, strings, None, tale, fault="raw"))

    assert tale.checker.faults != []
    assert tale.heard["httpx-sse"] != tale.heard["strict"]


@dataclass
class Tale:
    """What each reader heard."""

    checker: Checker
    heard: dict[str, list[Heard]] = field(default_factory=dict)

    def unlike(self, strings: list[str]) -> list[str]:
        """Return the strings that did not come out as they went in, three times each."""
        events = [json.loads(data) for name, _, data in self.heard["strict"]]
        texts: dict[str, str] = {}
        arguments, reasons = [], []
        for event in events:
            data = event.get("data", {})
            match event.get("event_type"):
                case "step.generating":
                    texts[data["message_id"]] = texts.get(data["message_id"], "") + data["delta"]
                case "tool.started":
                    arguments.append(data["arguments"]["content"])
                case "session.completed" if data["closed"]:
                    reasons.append(data["reason"])
        found = [*texts.values(), *arguments, *reasons]
        # No row can hold a NUL; what a model says is kept with a mark in its place.
        kept = [each.replace("\0", "\ufffd") for each in strings]
        expected = [*kept, *strings, *reasons_of(strings)]
        wrong = [repr(given) for given, got in zip(expected, found, strict=False) if given != got]
        return wrong + ([] if len(found) == len(expected) else [f"{len(found)} of {len(expected)}"])


async def tell_naughty(
    folder: Path,
    crew: Crew,
    strings: list[str],
    other: Node | tuple[str, Path] | None,
    tale: Tale,
    *,
    fault: str = "",
) -> None:
    """Put every string where a stream shows it, then hear the stream in several ways."""
    script = folder / "naughty.json"
    steps = [step for text in strings for step in (called(text), {"text": text})]
    script.write_text(json.dumps(steps))
    server = Server(crew, folder / "home", fault=fault, forked=True, model=f"scripted:{script}")
    server.start()
    async with Caller(server) as caller:
        begin = {"turn_cap": 10_000}
        session = await caller.sure("POST", "/v1/agents/holdfast/sessions", begin)
        base = f"/v1/sessions/{session['id']}"
        for _ in strings:
            await caller.sure("POST", f"{base}/messages", user("Go on."))
            await played(caller, server.home)
        for each in reasons_of(strings):
            await caller.sure("POST", f"{base}/close", {"reason": each})
            await caller.sure("POST", f"{base}/resume", {})
    wish = Listening(session["id"], 0, "until=settled")
    tale.heard["strict"] = await strictly(server, wish, tale.checker)
    tale.heard["httpx-sse"] = await by_httpx_sse(server, wish, tale.checker)
    if isinstance(other, Node):
        tale.heard["eventsource"] = await other.hear(server, wish, tale.checker)
    elif other is not None:
        async with browsing(*other) as browser:
            page = await signed_in(browser, server)
            await listen(page, wish.path, until="closing")
            tale.heard["browser"] = await heard_in(page)
    server.kill()


async def played(caller: Caller, home: Path) -> None:
    """Wait until no turn runs or waits, and allow whatever is asked."""
    async with asyncio.timeout(PATIENCE):
        while waiting(home):
            for each in (await caller.get("/v1/approvals?state=waiting"))["data"]:
                path = f"/v1/sessions/{each['session_id']}/approvals/{each['id']}"
                await caller.ask("POST", path, {"decision": "allow", "scope": "session"})
            await asyncio.sleep(0.01)


def reasons_of(strings: list[str]) -> list[str]:
    """Return what clients may say of it: shorter, and without NUL, which is refused to them."""
    return [each[:REASON_LONGEST] for each in strings if "\0" not in each[:REASON_LONGEST]]


def user(text: str) -> dict[str, Any]:
    """Return the body of a message."""
    return {"role": "user", "content": {"text": text}}


def called(text: str) -> dict[str, Any]:
    """Return a step that calls a tool."""
    arguments = {"path": "notes.txt", "content": text, "mode": "append"}
    return {"tool_calls": [{"name": "write_file", "arguments": arguments}]}
