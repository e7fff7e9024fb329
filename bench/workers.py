"""Calls that clients run: how soon a turn goes on, and what a turn costs that waits."""

import asyncio
import gc
import json
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from typing import Final

from msgspec.structs import replace

from bench.figures import Figure, below, measures
from bench.servers import holdfast_server, memory_of
from holdfast import (
    Event,
    Holdfast,
    LocalHoldfast,
    RunScope,
    SessionRequest,
    connect,
    open_holdfast,
    tool,
)
from holdfast.domain.events import StepStarted, ToolRequested
from holdfast.domain.ids import SessionId

CALLS: Final = 200
AT_ONCE: Final = 32
# As many sessions as wait for their clients, and how many of them are made at a time.
WAITING: Final = int(os.environ.get("BENCH_WAITING", "100000"))
BATCH: Final = 50
# More than any bounded cache holds, so that only what grows without bound is measured.
WARM: Final = int(os.environ.get("BENCH_WARM", "12000"))


@tool(effect="pure")
async def lookup(order: str) -> str:
    """Return the order."""
    return order


def a_script(folder: Path) -> Path:
    script = folder / "model.json"
    call = {"tool_calls": [{"name": "lookup", "arguments": {"order": "17"}}]}
    script.write_text(json.dumps([call, {"text": "Done."}]))
    return script


@measures("client_call_ms", "client_call_p99_ms", "client_call_32_ms", "client_call_32_p99_ms")
def client_calls(folder: Path) -> dict[str, Figure]:
    """Run calls in this process for a server; from the request to the next step of the turn."""
    with holdfast_server(folder / "home") as server:
        address = f"http://127.0.0.1:{server.port}"
        one, many = asyncio.run(_client_calls(address, server.token, a_script(folder)))
        spent = server.cpu * 1_000 / (len(one) + len(many))
    note = f"{spent:.1f} ms of the server's processor for each session with its turn"
    figures = {}
    for name, found in (("client_call", one), ("client_call_32", many)):
        cuts = quantiles(found, n=100)
        figures[f"{name}_ms"] = replace(below(cuts[49], "ms", 15), note=note)
        figures[f"{name}_p99_ms"] = below(cuts[98], "ms", 100)
    return figures


async def _client_calls(url: str, token: str, script: Path) -> tuple[list[float], list[float]]:
    async with connect(url, token) as hf:
        fields = {"name": "Clerk", "tools": [lookup.definition], "models": [f"scripted:{script}"]}
        await hf.agents.create(hf.owner, fields)
        serving = asyncio.create_task(hf.serve_tools([lookup], concurrency=AT_ONCE))
        one = [await _call(hf) for _ in range(CALLS)]
        many: list[float] = []
        for _ in range(CALLS // AT_ONCE + 1):
            many += await asyncio.gather(*(_call(hf) for _ in range(AT_ONCE)))
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        return one, many


async def _call(hf: Holdfast) -> float:
    """Have one call run; return the milliseconds from its request to the step after it."""
    session = await hf.open("clerk")
    await hf.send(session.id, "go")
    asked: datetime | None = None
    async for item in hf.follow(session.id, until_settled=True):
        match item:
            case Event(payload=ToolRequested(), at=at):
                asked = at
            case Event(payload=StepStarted(), at=at) if asked is not None:
                return (at - asked).total_seconds() * 1_000
            case _:
                pass
    raise AssertionError("the turn ended without its call")


@measures("waiting_clients")
def waiting_clients(folder: Path) -> dict[str, Figure]:
    """Let turns wait for a client, and measure what each adds to a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        kilobytes, tasks = fresh.submit(_in_memory, folder).result()
    figure = below(kilobytes, "KiB each", 1)
    return {"waiting_clients": replace(figure, note=f"{WAITING:,} sessions, {tasks} tasks more")}


def _in_memory(folder: Path) -> tuple[float, int]:
    return asyncio.run(_added(folder, a_script(folder)))


async def _added(folder: Path, script: Path) -> tuple[float, int]:
    async with open_holdfast(folder / "home", scope=RunScope.ALL) as hf:
        fields = {"name": "Clerk", "tools": [lookup.definition]}
        await hf.agents.create(hf.owner, fields)
        request = SessionRequest(model=f"scripted:{script}")
        await _wait(hf, request, WARM)
        before, tasks = memory_of(os.getpid()), len(asyncio.all_tasks())
        await _wait(hf, request, WAITING)
        return (memory_of(os.getpid()) - before) * 1024 / WAITING, len(asyncio.all_tasks()) - tasks


async def _wait(hf: LocalHoldfast, request: SessionRequest, count: int) -> None:
    """Let so many more turns wait for their clients."""
    for _ in range(count // BATCH):
        sessions = await asyncio.gather(*(hf.open("clerk", request) for _ in range(BATCH)))
        await asyncio.gather(*(hf.send(each.id, "go") for each in sessions))
        for each in sessions:
            while not await _is_asked(hf, each.id):  # noqa: ASYNC110 — nothing tells of it
                await asyncio.sleep(0.001)
    gc.collect()


async def _is_asked(hf: LocalHoldfast, session_id: SessionId) -> bool:
    head = await hf.store.read(lambda tx: tx.sessions.state(hf.owner, session_id))
    return head is not None and head.until < 0
