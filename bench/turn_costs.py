"""What one warm turn costs: Python calls, statements, commits and frames of the log."""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
from msgspec.structs import replace

from bench.figures import Figure, below, measures, middle
from bench.statements import Counts, counting
from bench.turns import TEXT_TURN, TOOL_TURN, UNCAPPED, play_turn
from holdfast import Holdfast, RunScope, Session, StopReason, open_holdfast
from holdfast.cli.command import run_on_loop
from holdfast.domain.events import TurnEnded

WARM = 10
COUNTED = 21
# Offset of the number of valid frames in the index of the log (SQLite's walformat, section 2.1).
_FRAMES_AT = 16


@measures("turn_statements", "turn_commits")
def statements(folder: Path) -> dict[str, Figure]:
    """Count what the store is asked to do for a message and its answer, without tools."""
    counts = run_on_loop(counted_turn(folder))
    return {
        "turn_statements": replace(below(counts.statements, "", 30), note=_named(counts)),
        "turn_commits": below(counts.commits, "", 6),
    }


@measures("turn_calls", "turn_c_calls", "tool_statements", "tool_commits", "turn_frames")
def calls(folder: Path) -> dict[str, Figure]:
    """Count a turn with one tool call: sent, followed and answered, on all threads."""
    for name in ("calls", "statements"):
        (folder / name).mkdir()
    python, c, frames = run_on_loop(counted_calls(folder / "calls"))
    counts = run_on_loop(counted_turn(folder / "statements", TOOL_TURN))
    return {
        "turn_calls": replace(below(python, "", 900), note="on uvloop, as `holdfast serve`"),
        "turn_c_calls": Figure(value=c, unit=""),
        "tool_statements": replace(below(counts.statements, "", 30), note=_named(counts)),
        "tool_commits": below(counts.commits, "", 4),
        "turn_frames": below(frames, "", 25),
    }


def _named(counts: Counts) -> str:
    named = ", ".join(f"{count} × {name}" for name, count in counts.by_name.items())
    return f"{named}; beside them {counts.triggers} triggers"


async def counted_turn(folder: Path, steps: str = TEXT_TURN) -> Counts:
    """Return what a turn cost that was not the session's first, with nobody else writing."""
    with counting() as counts:
        async with _stage(folder, steps) as (holdfast, session):
            # Read through another door, so that only the turn itself is counted.
            apsw.connection_hooks.remove(counts.watch)
            async with open_holdfast(folder / "home", scope=RunScope.NONE) as reader:
                apsw.connection_hooks.append(counts.watch)
                for _ in range(2):
                    counts.clear()
                    await _sent(holdfast, reader, session)
                    await asyncio.sleep(0)
                return counts


async def counted_calls(folder: Path) -> tuple[float, float, float]:
    """Return the Python calls, the C calls and the log frames of a turn with a tool."""
    with profiling() as profile:
        async with _stage(folder, TOOL_TURN) as (holdfast, session):
            # Closed after the store: closing it earlier would drop the locks of this process.
            index = os.open(folder / "home" / "history.db-shm", os.O_RDONLY)
            try:
                for _ in range(WARM):
                    await play_turn(holdfast, session, "Do it.")
                # A collection would count the destructors of other turns.
                gc.disable()
                turns = [await _counted(holdfast, session, profile, index) for _ in range(COUNTED)]
            finally:
                gc.enable()
    os.close(index)
    python, c, frames = (list(each) for each in zip(*turns, strict=True))
    # Fewer than none: the log was reset meanwhile.
    return middle(python), middle(c), middle([each for each in frames if each >= 0])


async def _counted(
    holdfast: Holdfast, session: Session, profile: "Calls", index: int
) -> tuple[float, float, float]:
    frames = _frames(index)
    profile.clear()
    await play_turn(holdfast, session, "Do it.")
    # What the turn left to be done afterwards belongs to it.
    await asyncio.sleep(0.02)
    return profile.python, profile.c, _frames(index) - frames


def _frames(index: int) -> int:
    return int.from_bytes(os.pread(index, 4, _FRAMES_AT), sys.byteorder)


class Calls:
    """Calls of Python functions, coroutines that go on included, and of C functions."""

    def __init__(self) -> None:
        self.python = 0
        self.c = 0

    def clear(self) -> None:
        """Begin anew."""
        self.python = self.c = 0

    def count(self, _: FrameType, event: str, __: Any) -> None:
        """Count one event of the interpreter."""
        if event == "call":
            self.python += 1
        elif event == "c_call":
            self.c += 1


@contextmanager
def profiling() -> Iterator[Calls]:
    """Count on this thread and on every thread that starts inside the block."""
    calls = Calls()
    threading.setprofile(calls.count)
    sys.setprofile(calls.count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@asynccontextmanager
async def _stage(folder: Path, steps: str) -> AsyncIterator[tuple[Holdfast, Session]]:
    script = folder / "script.yaml"
    script.write_text(steps * (WARM + COUNTED))
    async with open_holdfast(folder / "home") as holdfast:
        fields = {"name": "Bench", "tools": ["checkpoint"], "models": [f"scripted:{script}"]}
        agent = await holdfast.agents.create(holdfast.owner, fields)
        yield holdfast, await holdfast.open(agent.slug, UNCAPPED)


async def _sent(holdfast: Holdfast, reader: Holdfast, session: Session) -> None:
    now = await reader.sessions.get(reader.owner, session.id)
    async with aclosing(reader.follow(session.id, after=now.last_event)) as news:
        await holdfast.send(session.id, "A question.")
        async for event in news:
            if isinstance(event.payload, TurnEnded):
                if event.payload.stop_reason is not StopReason.STOP:
                    raise AssertionError(event.payload)
                return
