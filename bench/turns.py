"""Whole turns with an instant scripted model: how fast, and whether a long session is slower."""

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import apsw
from msgspec.structs import replace

from bench.figures import Figure, at_least, at_most, below, measures, middle
from bench.split import Split, splitting
from bench.yardsticks import emptied, raw_store, raw_turns, raw_turns_at_once
from holdfast import Holdfast, Session, SessionRequest, open_holdfast
from holdfast.cli.command import run_on_loop
from holdfast.config import load
from holdfast.domain.events import TurnEnded

TURNS = 420
WINDOW = 20
ROUNDS = 5
DELTAS = 2_000
# More turns than a session has by default: one that is refused would be the fastest of all.
UNCAPPED = SessionRequest(turn_cap=100_000)
TOOL_TURN = """
- tool_calls: [{name: checkpoint, arguments: {name: here}}]
  usage: {input: 10, output: 10}
- text: A short answer.
  usage: {input: 10, output: 10}
"""
TEXT_TURN = """
- text: A short answer.
  usage: {input: 10, output: 10}
"""


@measures("turn_1", "turn_50")
def turns(folder: Path) -> dict[str, Figure]:
    """Play user, tool call, result, answer; alternate with the yardstick on the same disk.

    Bare SQLite does the same with as many sessions at a time: one, and fifty.
    """
    one, fifty = run_on_loop(_turns(folder, TOOL_TURN, commits=4))
    return {"turn_1": _figure(one, 0.6), "turn_50": _figure(fifty, 3)}


@measures("text_turn_1", "text_turn_50")
def text_turns(folder: Path) -> dict[str, Figure]:
    """Play user and answer; bare SQLite makes two commits and a read."""
    one, fifty = run_on_loop(_turns(folder, TEXT_TURN, commits=2))
    return {"text_turn_1": _figure(one, 0.5), "text_turn_50": _figure(fifty, 2)}


def _figure(runs: "Runs", goal: float) -> Figure:
    figure = at_least(middle(runs.ours), "turns/s", middle(runs.bare), goal)
    note = f"on uvloop, as `holdfast serve`; {runs.split.told(1 / figure.value)}"
    return replace(figure, note=note)


@dataclass
class Runs:
    """Turns per second of each round, ours and bare, and where the time of ours went."""

    ours: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    split: Split = field(default_factory=Split)


async def _turns(folder: Path, steps: str, *, commits: int) -> tuple[Runs, Runs]:
    script = folder / "script.yaml"
    each = 100
    script.write_text(steps * (each * (ROUNDS + 2)))
    raw = raw_store(folder / "raw.db")
    raw_many = [raw_store(folder / "raw.db") for _ in range(50)]
    one, fifty = Runs(), Runs()
    async with open_holdfast(folder / "home") as holdfast:
        fields = {"name": "Bench", "tools": ["checkpoint"], "models": [f"scripted:{script}"]}
        agent = await holdfast.agents.create(holdfast.owner, fields)
        single = await holdfast.open(agent.slug, UNCAPPED)
        many = [await holdfast.open(agent.slug, UNCAPPED) for _ in range(50)]
        # A log that has been round once no longer grows, which is how it spends its life.
        raw_turns(raw, 500, commits=commits)
        await played(holdfast, [single], 50)
        for _ in range(ROUNDS):
            one.bare.append(raw_turns(emptied(raw), 200, commits=commits))
            one.ours.append(await played(holdfast, [single], each // 2))
            emptied(raw)
            fifty.bare.append(raw_turns_at_once(raw_many, 10, commits=commits))
            fifty.ours.append(await played(holdfast, many, each // 10))
        with splitting(one.split):
            await played(holdfast, [single], each // 2)
        with splitting(fifty.split):
            await played(holdfast, many, each // 10)
    return one, fifty


async def played(holdfast: Holdfast, sessions: list[Session], rounds: int) -> float:
    """Return turns per second, each ended before its session's next one begins."""

    async def play(session: Session) -> None:
        for _ in range(rounds):
            await play_turn(holdfast, session, "Do it.")

    started = time.perf_counter()
    await asyncio.gather(*(play(session) for session in sessions))
    return len(sessions) * rounds / (time.perf_counter() - started)


@measures("delta_cpu_ms")
def deltas(folder: Path) -> dict[str, Figure]:
    """Play turns of many deltas and count the processor's time for a hundred of them."""
    return run_on_loop(_deltas(folder))


async def _deltas(folder: Path) -> dict[str, Figure]:
    script = folder / "script.yaml"
    text = "word " * DELTAS
    script.write_text(
        f"- text: {text}\n  chunks: {DELTAS}\n  repeat: 9\n  usage: {{input: 1, output: 1}}\n"
    )
    spent = []
    async with open_holdfast(folder / "home") as holdfast:
        session = await holdfast.open(request=SessionRequest(model=f"scripted:{script}"))
        await play_turn(holdfast, session, "Warm up.")
        for _ in range(7):
            started = time.process_time()
            await play_turn(holdfast, session, "Tell me.")
            spent.append((time.process_time() - started) * 1000 / (DELTAS / 100))
    return {"delta_cpu_ms": below(middle(spent), "ms", 2)}


@measures("growth", "bytes_per_turn")
def growth(folder: Path) -> dict[str, Figure]:
    """Compare the time per turn around turn 400 with the one around turn 20."""
    return run_on_loop(_growth(folder))


async def _growth(folder: Path) -> dict[str, Figure]:
    script = folder / "script.yaml"
    answer = "An answer of the usual length. " * 20
    # The usage is given: no provider counts the words of the whole request on our time.
    usage = "{input: 100, output: 100}"
    script.write_text(f"- text: {answer}\n  chunks: 4\n  repeat: {TURNS + 1}\n  usage: {usage}\n")
    question = "A question of the usual length. " * 10
    seconds = []
    # Plain, so that the pages in use can be counted from outside; encryption adds none.
    config = load({"home": folder / "home", "encryption": "off"})
    async with open_holdfast(config=config) as holdfast:
        request = replace(UNCAPPED, model=f"scripted:{script}")
        session = await holdfast.open(request=request)
        await play_turn(holdfast, session, question)
        await holdfast.maintenance.prune(timedelta(0))
        before = _used(folder)
        for _ in range(TURNS):
            started = time.perf_counter()
            await play_turn(holdfast, session, question)
            seconds.append(time.perf_counter() - started)
        await holdfast.maintenance.prune(timedelta(0))
        after = _used(folder)
    early = middle(seconds[WINDOW - 10 : WINDOW + 10])
    late = middle(seconds[400 - 10 : 400 + 10])
    content = len(question) + len(answer)
    return {
        "growth": Figure(
            value=late / early,
            unit="×",
            yardstick=1.0,
            ratio=late / early,
            goal="≤ 1.2×",
            met=late / early <= 1.2,
            note=f"{early * 1000:.2f} ms a turn at 20, {late * 1000:.2f} ms at 400",
        ),
        "bytes_per_turn": at_most((after - before) / TURNS, "bytes", content, 2),
    }


async def play_turn(holdfast: Holdfast, session: Session, question: str) -> None:
    """Send a message and follow the session to the end of its turn."""
    now = await holdfast.sessions.get(holdfast.owner, session.id)
    await holdfast.send(session.id, question)
    async with aclosing(holdfast.follow(session.id, after=now.last_event)) as news:
        async for event in news:
            if isinstance(event.payload, TurnEnded):
                return


def _used(folder: Path) -> int:
    """Return the bytes of the pages that hold something."""
    with apsw.Connection(str(folder / "home" / "history.db")) as connection:
        pages = connection.pragma("page_count") - connection.pragma("freelist_count")
        return int(pages * connection.pragma("page_size"))
