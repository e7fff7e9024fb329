"""A loop of a program's own, lived by processes that kill themselves at a point.

    python -m tests.torture.clients.loops JSON
    python -m tests.torture.clients.loops parked FOLDER

Each entry leaves a line for each time it has its effect.
"""

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Conflict, Event, LocalHoldfast, Turn, TurnPaused, Usage, open_holdfast
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.domain.ids import SessionId
from tests.builders import an_id
from tests.torture.clients.rounds import Life, Striking, StrikingStore

SESSION, MESSAGE = an_id(521), an_id(522)


@dataclass(frozen=True, kw_only=True)
class LoopLife:
    """What one process does: where it ends, and whether it asks for something else."""

    folder: str
    point: tuple[str, int, str] | None = None
    changed: str = ""
    marks: list[str] = field(default_factory=list)

    @property
    def effects(self) -> Path:
        return Path(self.folder) / "effects.txt"


async def lived(life: LoopLife) -> str:
    """Run the loop, or go on with it; return the code of the error that stopped it."""
    striking = Striking(Life(home=life.folder, point=life.point, marks=life.marks))
    config = Config(home=Path(life.folder) / "home")
    outside = Environment(wrap=lambda store: StrikingStore(store, striking))  # type: ignore
    async with open_holdfast(config=config, outside=outside) as hf:
        await hf.open(id=SESSION)
        try:
            await _turn(hf, life, striking)
        except Conflict as error:
            return str(error.code)
    return ""


async def _turn(hf: LocalHoldfast, life: LoopLife, striking: Striking) -> None:
    def act(line: str) -> str:
        number = striking.before("effect", line)
        with life.effects.open("a") as file:
            file.write(f"{line}\n")
        striking.after("effect", number)
        return line.upper()

    async def branch(turn: Turn, name: str) -> str:
        own = turn.branch(name)
        await own.step("look", act, f"{name}1")
        return str(await own.call("pure", {"line": f"{name}2"}, run=act, effect="pure"))

    async with hf.turn(SessionId(SESSION), "Go", id=MESSAGE, wait=True) as turn:
        first = "other" if life.changed == "name" else "first"
        line = "z" if life.changed == "arguments" else "a"
        found: list[Any] = [await turn.call(first, {"line": line}, run=act, effect="idempotent")]
        found.append(await turn.step("think", act, "b"))
        await turn.delta("Half of ")
        branches = (asyncio.create_task(branch(turn, name)) for name in ("x", "y"))
        found += await asyncio.gather(*branches)
        found.append(await turn.call("send", {"line": "c"}, run=act))
        await turn.say(" ".join(found), usage=Usage(input=2, output=3), request_id=an_id(523))


async def parked(folder: str, *, dies: bool) -> None:
    """Run a registered loop that asks for an approval; die at once when it waits, or see its end.

    The process that comes back finds the answer, or nothing.
    """

    async def plan(turn: Turn) -> str:
        def act(line: str) -> None:
            with (Path(folder) / "effects.txt").open("a") as file:
                file.write(f"{line}\n")

        await turn.call("first", {"line": "a"}, run=act, effect="idempotent")
        await turn.call("send", {"line": "b"}, run=act, approval="ask")
        return "sent"

    async with open_holdfast(config=Config(home=Path(folder) / "home")) as hf:
        hf.runtime("planner", park_after=0.01)(plan)
        session = await hf.open("planner", id=SESSION)
        await hf.send(session.id, "Go", id=MESSAGE)
        async for each in hf.follow(session.id, until_settled=True):
            if dies and isinstance(each, Event) and isinstance(each.payload, TurnPaused):
                os.kill(os.getpid(), signal.SIGKILL)


def forked(life: LoopLife) -> int:
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
    if sys.argv[1] == "parked":
        asyncio.run(parked(sys.argv[2], dies=True))
        return
    for given in json.loads(sys.argv[1]):
        if given.get("point"):
            given["point"] = tuple(given["point"])
        code = forked(LoopLife(**given))
        assert code in {0, -signal.SIGKILL}, given
        print(code, flush=True)


if __name__ == "__main__":
    main()
