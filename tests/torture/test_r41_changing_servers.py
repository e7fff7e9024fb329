"""R41: what an MCP server becomes after somebody agreed is not what is called."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.ports.tools import CallOutcome, PlannedCall
from holdfast.tools.mcp.tools import McpTools
from tests.marks import proves
from tests.tools.http_hosts import code_of
from tests.tools.mcp_servers import ECHO, Book, Hands, a_tool, welcoming, with_servers
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

NAME = "mcp_books_echo"
STILL = a_tool("still", description="Is always there.")
CLOSED = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 9}}}


@dataclass(frozen=True)
class Change:
    """What becomes of the server, and what comes of the call that was allowed before."""

    name: str
    make: Callable[[Book], None]
    code: str
    # Whether the next question is about the same as before.
    asks_anew: bool = True


def listing(*tools: dict[str, Any]) -> Callable[[Book], None]:
    return lambda book: book.write(tools=[*tools, STILL])


def restarting(*tools: dict[str, Any]) -> Callable[[Book], None]:
    def make(book: Book) -> None:
        book.write(tools=[*tools, STILL])
        book.kill()

    return make


CHANGES = (
    Change(
        "another description", listing({**ECHO, "description": "New."}), "denied/target_changed"
    ),
    Change("another schema", listing({**ECHO, "inputSchema": CLOSED}), "denied/target_changed"),
    Change(
        "other hints",
        listing({**ECHO, "annotations": {"readOnlyHint": True}}),
        "denied/target_changed",
    ),
    Change("another title", listing({**ECHO, "title": "Echo"}), "denied/target_changed"),
    Change("gone", listing(), "error/unavailable"),
    Change("another name", listing({**ECHO, "name": "ECHO"}), "error/unavailable"),
    Change("twice", listing(ECHO, {**ECHO, "description": "Two."}), "error/unavailable"),
    Change(
        "restarted with another description",
        restarting({**ECHO, "description": "New."}),
        "denied/target_changed",
    ),
    Change("restarted without it", restarting(), "error/unavailable"),
    Change("restarted as it was", restarting(ECHO), "ok", asks_anew=False),
)


@proves("R41")
def test_a_definition_that_changed_asks_anew_and_a_tool_that_vanished_fails_cleanly(
    tmp_path: Path, sized: Sized, tell: Tell
) -> None:
    rounds = sized(test=1, torture=5, release=20)
    # Servers on the protocol's own package are slow to start: only every so many.
    every = sized(quick=9, test=3, torture=3)
    codes: Counter[str] = Counter()

    for number in range(rounds):
        for place, change in enumerate(CHANGES[:: sized(quick=3, test=1, torture=1)]):
            era = "full_entry" if (number + place) % every == 0 else "entry"
            folder = tmp_path / f"{number}-{place}"
            folder.mkdir()
            codes[asyncio.run(lived_through(folder, change, era))] += 1

    tell(f"{len(CHANGES)} changes × {rounds}: {dict(codes)}, no call went astray")
    assert set(codes) == {"denied/target_changed", "error/unavailable", "ok"}


@proves("R41")
def test_a_call_of_what_was_not_allowed_would_be_seen(tmp_path: Path) -> None:
    async def trusting() -> list[Any]:
        book, tools = Book(tmp_path), McpTools(welcoming())
        hands = Hands(tools, with_servers(tmp_path, book.entry()))
        await hands.plan(NAME, text="hi")
        book.write(tools=[{**ECHO, "description": "New."}])
        # Whoever plans and runs in one breath never asks, and the book has it.
        await hands.call(NAME, text="hi")
        await tools.aclose()
        return book.calls

    assert asyncio.run(trusting()) == [["echo", {"text": "hi"}]]


async def lived_through(folder: Path, change: Change, era: str) -> str:
    """Have a call allowed, change its server, run it; return what came of it."""
    book, tools = Book(folder), McpTools(welcoming())
    book.write(tools=[ECHO, STILL])
    hands = Hands(tools, with_servers(folder, getattr(book, era)()))
    try:
        allowed = await hands.plan(NAME, text="hi")
        assert isinstance(allowed, PlannedCall)
        change.make(book)

        done = await hands.run(allowed)
        again = await hands.plan(NAME, text="hi")
        other = await hands.call("mcp_books_still")
    finally:
        await tools.aclose()

    assert code_of(done) == change.code, f"{change.name}: {done}"
    assert code_of(other) == "ok", f"{change.name}: the rest of the server is gone too"
    assert [call for call in book.calls if call[0] != "still"] == (
        [["echo", {"text": "hi"}]] if change.code == "ok" else []
    )
    assert asks(allowed, again) == change.asks_anew, change.name
    return change.code


def asks(allowed: PlannedCall, again: PlannedCall | CallOutcome) -> bool:
    """Tell whether no earlier answer covers the new plan; one for the session neither."""
    if isinstance(again, CallOutcome):
        return True
    return again.digest != allowed.digest and again.memory != allowed.memory
