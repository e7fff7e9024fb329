"""One cell of the kill table for the Claude Agent SDK: `FOLDER own|store|durable kill|again`.

The bundled program asks a model server in this process, which requests two calls until it is shown
a result of one. `kill` ends the process by SIGKILL inside the second call; `again` resumes the
session and prints what was seen.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, query, tool

from holdfast import CallState, open_holdfast
from holdfast.integrations.claude_agent_sdk import HoldfastSessionStore, options

FOLDER, COLUMN, PHASE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
SESSION = "0b2f6c1e-0000-4000-8000-000000000001"
NAME = "mcp__till__charge"
REQUESTS: list[dict[str, Any]] = []


@tool("charge", "Charge.", {"number": int})
async def charge(arguments: dict[str, Any]) -> dict[str, Any]:
    """Charge; the second call is cut off."""
    number = int(arguments["number"])
    with (FOLDER / "effects").open("a") as file:
        file.write(f"{number}\n")
        file.flush()
        os.fsync(file.fileno())
    if PHASE == "kill" and number == 2:
        # What the program has written of the calls has come by now.
        await asyncio.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"content": [{"type": "text", "text": f"charged {number}"}]}


class Model(BaseHTTPRequestHandler):
    """Answers as the Messages API does."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer one request."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "count_tokens" in self.path or not self.path.startswith("/v1/messages"):
            return self._send(b'{"input_tokens": 1}', "application/json")
        blocks = [{"type": "text", "text": "ok"}]
        if any(each.get("name") == NAME for each in asked.get("tools", ())):
            REQUESTS.append(asked)
            blocks = answer(asked)
        return self._send(b"".join(events(blocks)), "text/event-stream")

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def answer(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Ask for the two calls unless one of them has a result."""
    if any("charged" in text for text in results(asked)):
        return [{"type": "text", "text": "done"}]
    start = f"toolu_{PHASE}{len(REQUESTS)}"
    return [
        {"type": "tool_use", "id": f"{start}_{n}", "name": NAME, "input": {"number": n}}
        for n in (1, 2)
    ]


def results(asked: dict[str, Any]) -> list[str]:
    """Return what a request says of the calls."""
    blocks = [
        block
        for message in asked["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    return [
        json.dumps(block.get("content")) for block in blocks if block.get("type") == "tool_result"
    ]


def events(blocks: list[dict[str, Any]]) -> Any:
    """Yield the events of an answer."""
    usage = {"input_tokens": 5, "output_tokens": 5}
    stop = "tool_use" if blocks[0]["type"] == "tool_use" else "end_turn"
    message = {"id": f"msg_{PHASE}{len(REQUESTS)}", "type": "message", "role": "assistant"}
    message |= {"model": "claude-sonnet-4-5", "content": [], "stop_reason": None}
    yield event("message_start", message={**message, "stop_sequence": None, "usage": usage})
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            begun, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            begun = {**block, "input": {}}
            text = json.dumps(block["input"])
            delta = {"type": "input_json_delta", "partial_json": text}
        yield event("content_block_start", index=index, content_block=begun)
        yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    end = {"stop_reason": stop, "stop_sequence": None}
    yield event("message_delta", delta=end, usage={"output_tokens": 5})
    yield event("message_stop")


def event(kind: str, **fields: Any) -> bytes:
    """Return an event as it is sent."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def settings(port: int) -> dict[str, Any]:
    """Return the options that all columns share."""
    work = FOLDER / "work"
    work.mkdir(exist_ok=True)
    # With a store, nothing but the store is left of the first run.
    config = FOLDER / ("config" if COLUMN == "own" else f"config-{PHASE}")
    environment = {
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CONFIG_DIR": str(config),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "ENABLE_TOOL_SEARCH": "false",
    }
    which = {"session_id": SESSION} if PHASE == "kill" else {"resume": SESSION}
    return {
        "mcp_servers": {"till": create_sdk_mcp_server("till", tools=[charge])},
        "allowed_tools": [NAME],
        "cwd": work,
        "env": environment,
        "model": "claude-sonnet-4-5",
        "setting_sources": [],
        **which,
    }


async def main() -> None:
    """Run the program once."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    async with AsyncExitStack() as stack:
        hf, given = None, settings(server.server_port)
        if COLUMN != "own":
            hf = await stack.enter_async_context(open_holdfast(FOLDER / "home"))
        if COLUMN == "durable":
            chosen = options(hf, **given)
        elif COLUMN == "store":
            store = HoldfastSessionStore(hf)
            chosen = ClaudeAgentOptions(session_store=store, session_store_flush="eager", **given)
        else:
            chosen = ClaudeAgentOptions(**given)
        async for _ in query(prompt=f"Charge ({PHASE}).", options=chosen):
            pass
        await report(hf)
    server.shutdown()


async def report(hf: Any) -> None:
    """Print what came of it."""
    unknown = []
    if hf is not None:
        found = await hf.calls.list(hf.owner, state=CallState.UNKNOWN)
        unknown = [call.id for call in found.items]
    lines = (FOLDER / "effects").read_text().split()
    first = json.dumps(REQUESTS[0]["messages"])
    lost = sum(f"Charge ({phase})." not in first for phase in ("kill", "again"))
    found = {"effects": len(lines), "shown": results(REQUESTS[0]), "unknown": unknown}
    print(json.dumps(found | {"lost": lost}))


asyncio.run(main())
