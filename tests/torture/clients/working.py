"""A worker of a server, which kills itself at a point.

    python -m tests.torture.clients working JSON

Its function leaves a line with the key of its call for each time it has its effect.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from holdfast import RemoteHoldfast, Tool, ToolCallContext, connect, tool
from holdfast.client.requests import Timeouts
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.tools import Effect

# Where a worker can be killed, in the order in which it gets there.
POINTS = ("offer", "claim", "function", "effect", "result")


def a_function(
    effect: str, effects: Path, *, point: str = "", seconds: float = 0.0
) -> Tool[..., Any]:
    """Return the function of a worker; `seconds` is how long it takes."""

    @tool(name="act", effect=effect)  # type: ignore[arg-type]
    async def act(order: str, *, call: ToolCallContext) -> str:
        """Act."""
        die_at("function", point)
        with effects.open("a") as file:
            file.write(f"{call.idempotency_key} {call.attempt}\n")
        await asyncio.sleep(seconds)
        die_at("effect", point)
        return "worker"

    return act


def die_at(here: str, point: str) -> None:
    """End the process if this is where it is to be killed."""
    if here == point:
        os.kill(os.getpid(), signal.SIGKILL)


def strike(hf: RemoteHoldfast, point: str) -> None:
    """Let the process end when an answer of the server has arrived that it does not use."""
    verbs = {
        "offer": (hf.workers, "next"),
        "claim": (hf.workers, "claim"),
        "result": (hf.calls, "answer"),
    }
    if point not in verbs:
        return
    part, verb = verbs[point]
    plain = getattr(part, verb)

    async def struck(*given: Any, **named: Any) -> Any:
        answered = await plain(*given, **named)
        # A worker that waits gets empty answers.
        if point != "offer" or answered.calls:
            die_at(point, point)
        return answered

    setattr(part, verb, struck)


def run_unclaimed(hf: RemoteHoldfast) -> None:
    """Run what is offered, and claim nothing: what the control of a row breaks on purpose."""

    async def claim(owner: Owner, session_id: SessionId, call_id: str, _: Any) -> Any:
        return await hf.calls.get(owner, session_id, call_id)

    hf.workers.claim = claim  # type: ignore[method-assign]


async def main(
    *,
    url: str,
    token: str,
    effects: str,
    effect: str = Effect.UNSAFE,
    agent: str | None = None,
    point: str = "",
    seconds: float = 0.0,
    unclaimed: bool = False,
) -> None:
    """Serve the function until the process is killed."""
    # Longer than a server needs to start again.
    async with connect(url, token, timeouts=Timeouts(request=60.0)) as hf:
        if unclaimed:
            run_unclaimed(hf)
        strike(hf, point)
        act = a_function(effect, Path(effects), point=point, seconds=seconds)
        await hf.serve_tools([act], agent=agent)
