"""A session that starts agents, lived by processes that kill themselves at a point.

    python -m tests.torture.clients.families JSON

The lead starts two helpers, one after the other; each helper starts an agent of its own.
"""

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from holdfast import LocalHoldfast, open_holdfast
from holdfast.app import Environment
from holdfast.children import service
from holdfast.config import Config
from holdfast.domain.errors import Conflict
from holdfast.domain.ids import CallId, SessionId
from tests.builders import an_id
from tests.torture.clients.rounds import Life, Striking, StrikingStore

SESSION, MESSAGE = an_id(531), an_id(532)
# Seconds until a tree that was cut off is settled.
SETTLED_WITHIN = 5.0


def _start(agent: str, call_id: str) -> dict[str, Any]:
    arguments = {"agent": agent, "task": f"The task of {call_id}"}
    return {"tool_calls": [{"id": call_id, "name": "invoke_agent", "arguments": arguments}]}


AGENTS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "lead": ([_start("helper", "c1"), _start("helper", "c2"), {"text": "lead"}], ["helper"]),
    "helper": ([_start("expert", "d1"), {"text": "helper"}], ["expert"]),
    "expert": ([{"text": "expert"}], []),
}


@dataclass(frozen=True, kw_only=True)
class FamilyLife:
    """What one process does, and where it ends."""

    folder: str
    point: tuple[str, int, str] | None = None
    # For the control: each process has ids of its own for the children of a call.
    forgets: bool = False
    marks: list[str] = field(default_factory=list)


async def lived(life: FamilyLife) -> float:
    """Send the lead its message, or go on; return the seconds until the tree was settled."""
    if life.forgets:
        service.child_id_of = _id_of_this_process  # type: ignore[attr-defined]
    striking = Striking(Life(home=life.folder, point=life.point, marks=life.marks))
    config = Config(home=Path(life.folder) / "home")
    outside = Environment(wrap=lambda store: StrikingStore(store, striking))  # type: ignore
    async with asyncio.timeout(60), open_holdfast(config=config, outside=outside) as hf:
        for slug in AGENTS:
            await _create(hf, slug, Path(life.folder))
        await hf.open("lead", id=SESSION)
        await hf.send(SessionId(SESSION), "Go", id=MESSAGE)
        begun = asyncio.get_running_loop().time()
        while (await hf.sessions.get(hf.owner, SessionId(SESSION))).settled < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time() - begun


def _id_of_this_process(parent: SessionId, call_id: CallId) -> SessionId:
    return SessionId(str(uuid5(UUID(parent), f"{call_id}/{os.getpid()}")))


async def _create(hf: LocalHoldfast, slug: str, folder: Path) -> None:
    steps, starts = AGENTS[slug]
    file = folder / f"{slug}.json"
    file.write_text(json.dumps(steps))
    tools = [{"name": "invoke_agent", "agents": starts}] if starts else []
    fields = {"name": slug, "slug": slug, "models": [f"scripted:{file}"], "tools": tools}
    try:
        await hf.agents.create(hf.owner, fields)
    except Conflict:
        # By an earlier life.
        return


def forked(life: FamilyLife) -> int:
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
        code = forked(FamilyLife(**given))
        assert code in {0, -signal.SIGKILL}, given
        print(code, flush=True)


if __name__ == "__main__":
    main()
