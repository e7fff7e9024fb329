"""Turns that call a function of the program, beside the same turns with a built-in tool."""

import asyncio
import time
from pathlib import Path

from bench.figures import Figure, at_least, below, measures, middle
from bench.turns import ROUNDS, TOOL_TURN, UNCAPPED, played
from holdfast import open_holdfast, tool

TURNS = 50
BUILDS = 200


@tool(effect="pure")
async def in_task(name: str) -> str:
    """Return the name."""
    return name


@tool(effect="pure")
def in_thread(name: str) -> str:
    """Return the name."""
    return name


@measures("py_tool_turn", "py_tool_thread")
def function_turns(folder: Path) -> dict[str, Figure]:
    """Play turns of one call, alternating between a built-in tool, a task and a thread."""
    return asyncio.run(_function_turns(folder))


async def _function_turns(folder: Path) -> dict[str, Figure]:
    names = ("checkpoint", "in_task", "in_thread")
    rates: dict[str, list[float]] = {name: [] for name in names}
    async with open_holdfast(folder / "home", tools=[in_task, in_thread]) as hf:
        sessions = {}
        for name in names:
            script = folder / f"{name}.yaml"
            script.write_text(TOOL_TURN.replace("checkpoint", name) * (TURNS * (ROUNDS + 1)))
            fields = {"name": f"Bench {name}", "tools": [name], "models": [f"scripted:{script}"]}
            agent = await hf.agents.create(hf.owner, fields)
            sessions[name] = await hf.open(agent.slug, UNCAPPED)
            await played(hf, [sessions[name]], TURNS)
        for _ in range(ROUNDS):
            for name in names:
                rates[name].append(await played(hf, [sessions[name]], TURNS))
    # Turns per second of the same turn: 1.05 times as long is 0.95 times as many.
    bare, task, thread = (middle(rates[name]) for name in names)
    return {
        "py_tool_turn": at_least(task, "turns/s", bare, 1 / 1.05),
        "py_tool_thread": at_least(thread, "turns/s", bare, 1 / 1.15),
    }


@measures("tool_build_us")
def tool_build(_: Path) -> dict[str, Figure]:
    """Build the tool of a function with two parameters, and count the processor's time."""

    def function(order: str, cents: int = 0) -> str:
        """Refund an order.

        Args:
            order: The order's number.
        """
        return order * cents

    spent = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(BUILDS):
            tool(function)
        spent.append((time.process_time() - started) / BUILDS * 1e6)
    return {"tool_build_us": below(middle(spent), "µs", 250)}
