"""Three readers of streams that share no code: our strict one, a Python package's, and Node's."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import httpx_sse

from tests.marks import skip_row
from tests.torture.crew import PATIENCE
from tests.torture.ears import Listening, listening
from tests.torture.frames import CONTROLS, HEARTBEAT, Checker
from tests.torture.served import Server

PACKAGE = "eventsource@4"
NODE_LEAST = 20
# A name, the number, and the data.
Heard = tuple[str, str, str]
Hear = Callable[[Server, Listening, Checker], Coroutine[Any, Any, list[Heard]]]

NAMES = (
    *("connected", "closing", "gap", "session.opened", "session.resumed", "session.forked"),
    *("session.compacted", "session.exported", "session.observed", "zone.archived"),
    *("session.started", "step.started", "step.generating", "step.generated", "step.error"),
    *("message.created", "message.delta", "tool.started", "tool.completed", "session.completed"),
    *("session.failed", "tool.settled", "tool.approval_requested", "tool.approval_answered"),
    *("plan.changed", "message"),
)

SCRIPT = """
import { EventSource } from "eventsource";
const [url, token, names, until] = process.argv.slice(2);
const source = new EventSource(url, {
  fetch: (input, init) =>
    fetch(input, { ...init, headers: { ...init.headers, Authorization: `Bearer ${token}` } }),
});
for (const name of JSON.parse(names)) {
  source.addEventListener(name, (event) => {
    process.stdout.write(JSON.stringify([event.type, event.lastEventId, event.data]) + "\\n");
    const isClosed = name === "session.completed" && JSON.parse(event.data).data.closed;
    if (until === "closing" ? name === "closing" : isClosed) source.close();
  });
}
"""


async def strictly(server: Server, wish: Listening, checker: Checker) -> list[Heard]:
    """Hear one stream to its end with our own reader."""
    heard: list[Heard] = []
    last = ""
    async with listening(server, wish, checker) as ear:
        async for frame in ear:
            last = str(frame.id) if frame.id is not None else last
            if frame.event != HEARTBEAT:
                heard.append(noted(frame.event, last, frame.raw.decode()))
    return heard


async def by_httpx_sse(server: Server, wish: Listening, _: Checker) -> list[Heard]:
    """Hear one stream to its end with httpx-sse."""
    headers = {"authorization": f"Bearer {server.token}"}
    heard: list[Heard] = []
    async with (
        httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client,
        httpx_sse.aconnect_sse(client, "GET", server.url + wish.path, headers=headers) as source,
    ):
        async for event in source.aiter_sse():
            # It takes the blank line behind a comment for an event without anything in it.
            if (event.event, event.data) != ("message", ""):
                heard.append(noted(event.event, event.id, event.data))
    return heard


class Node:
    """The npm package `eventsource`, installed into a folder of its own."""

    def __init__(self, folder: Path, row: str) -> None:
        """Leaves the row unproven where there is no Node, or the package cannot be had."""
        self._folder = folder
        _require_node(row)
        folder.mkdir()
        (folder / "listen.mjs").write_text(SCRIPT)
        command = ["npm", "install", "--no-fund", "--no-audit", "--ignore-scripts", PACKAGE]
        run = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        if run.returncode != 0:
            skip_row(row, f"the npm package {PACKAGE}")

    async def hear(self, server: Server, wish: Listening, _: Checker) -> list[Heard]:
        """Hear one stream to its end."""
        return await self.follow(server, wish.path, until="closing")

    async def follow(self, server: Server, path: str, *, until: str) -> list[Heard]:
        """Hear a stream, coming back whenever it ends, until the stream or the session closes."""
        given = [server.url + path, server.token, json.dumps(NAMES), until]
        process = await asyncio.create_subprocess_exec(
            "node", "listen.mjs", *given, cwd=self._folder, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        heard = [json.loads(line) for line in output.splitlines()]
        return [noted(*each) for each in heard]


def noted(name: str, last: str, data: str) -> Heard:
    """Return what was heard as it can be compared."""
    # Of what carries no number some show the last one, some none.
    return (name, "" if name in CONTROLS else last, data)


def _require_node(row: str) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        skip_row(row, "node and npm")
    told = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    if int(told.stdout.strip().removeprefix("v").split(".")[0]) < NODE_LEAST:
        skip_row(row, f"Node {NODE_LEAST}")
