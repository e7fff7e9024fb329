"""A turn that calls one function, lived by processes that kill themselves at a point.

    python -m tests.torture.clients.functions JSON

The function leaves a line with its key for each time it has its effect.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Conflict, LocalHoldfast, Tool, ToolCallContext, open_holdfast, tool, wiring
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.domain.calls import CallState
from holdfast.domain.ids import SessionId
from holdfast.services.calls import SettlementAction, SettlementRequest
from tests.builders import an_id
from tests.torture.clients.rounds import Life, Striking, StrikingStore, StrikingToolbox

SESSION, MESSAGE = an_id(511), an_id(512)
CALL = "f1"
STEPS = (
    {"tool_calls": [{"id": CALL, "name": "act", "arguments": {"order": "17"}}]},
    {"text": "It is done."},
)


@dataclass(frozen=True, kw_only=True)
class FunctionLife:
    """What one process does: the effect and the kind of its function, and where it ends."""

    folder: str
    effect: str
    is_async: bool
    point: tuple[str, int, str] | None = None
    settles: str = ""
    marks: list[str] = field(default_factory=list)

    @property
    def effects(self) -> Path:
        return Path(self.folder) / "effects.txt"


def a_function(life: FunctionLife, striking: Striking) -> Tool[..., Any]:
    """Return the function of a life, which can end in it, before and after its effect."""

    def act(call: ToolCallContext) -> str:
        number = striking.before("effect", "act")
        with life.effects.open("a") as file:
            file.write(f"{call.idempotency_key} {call.attempt}\n")
        striking.after("effect", number)
        return "done"

    @tool(name="act", effect=life.effect)  # type: ignore[arg-type]
    async def in_task(order: str, *, call: ToolCallContext) -> str:
        """Act."""
        return act(call)

    @tool(name="act", effect=life.effect)  # type: ignore[arg-type]
    def in_thread(order: str, *, call: ToolCallContext) -> str:
        """Act."""
        return act(call)

    return in_task if life.is_async else in_thread


async def lived(life: FunctionLife) -> None:
    """Open, send, wait, settle: each with its key, so that it can be said again."""
    folder = Path(life.folder)
    script = folder / "model.json"
    script.write_text(json.dumps(STEPS))
    striking = Striking(Life(home=life.folder, point=life.point, marks=life.marks))
    made = wiring.build_toolbox
    wiring.build_toolbox = lambda *given: StrikingToolbox(made(*given), striking)  # type: ignore
    try:
        config = Config(home=folder / "home", default_model=f"scripted:{script}")
        outside = Environment(wrap=lambda store: StrikingStore(store, striking))  # type: ignore
        tools = [a_function(life, striking)]
        async with open_holdfast(config=config, outside=outside, tools=tools) as hf:
            with suppress(Conflict):
                await hf.agents.create(hf.owner, {"name": "Actor", "tools": ["act"]})
            await hf.open("actor", id=SESSION)
            await hf.send(SessionId(SESSION), "go", id=MESSAGE)
            await _settled(hf)
            if life.settles:
                await _settle(hf, SettlementAction(life.settles))
                await _settled(hf)
    finally:
        wiring.build_toolbox = made


async def _settled(hf: LocalHoldfast) -> None:
    async with (
        asyncio.timeout(30),
        aclosing(hf.follow(SessionId(SESSION), until_settled=True)) as events,
    ):
        async for _ in events:
            pass


async def _settle(hf: LocalHoldfast, how: SettlementAction) -> None:
    for call in (await hf.calls.list(hf.owner, state=CallState.UNKNOWN)).items:
        result = "as seen" if how is SettlementAction.MARK_DONE else None
        request = SettlementRequest(how=how, by="ada", result=result)
        await hf.calls.settle(hf.owner, SessionId(SESSION), call.id, request)


def forked(life: FunctionLife) -> int:
    """Live in a process of its own and return how it ended; a signal is a negative number."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            asyncio.run(lived(life))
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Live all lives one after the other; print how each of them ended."""
    for given in json.loads(sys.argv[1]):
        if given.get("point"):
            given["point"] = tuple(given["point"])
        code = forked(FunctionLife(**given))
        assert code in {0, -signal.SIGKILL}, given
        print(code, flush=True)


if __name__ == "__main__":
    main()
