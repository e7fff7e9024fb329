"""An MCP server to be started by a test: does what its book says, read anew at every request.

    mcp_program.py BOOK stdio
    mcp_program.py BOOK http | sse | https PORT [CHAIN]

Over the web it prints the port it listens on once it does; 0 leaves the choice to the system.
"""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server


def main() -> None:
    book, how, *rest = sys.argv[1:]
    Path(book).with_suffix(".pid").write_text(str(os.getpid()))
    server = made(Path(book))
    asyncio.run(over_stdio(server) if how == "stdio" else over_web(server, how, rest))


def made(book: Path) -> Server[Any]:
    """Return a server that looks everything up in its book."""

    def read() -> dict[str, Any]:
        return dict(json.loads(book.read_text("utf-8")))

    async def list_tools(_: Any, params: Any) -> types.ListToolsResult:
        given = [types.Tool.model_validate(tool) for tool in read()["tools"]]
        page = read().get("page", 1000)
        start = int(params.cursor) if params and params.cursor else 0
        more = str(start + page) if start + page < len(given) else None
        return types.ListToolsResult(tools=given[start : start + page], next_cursor=more)

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        with book.with_suffix(".calls").open("a") as calls:
            calls.write(json.dumps([params.name, params.arguments]) + "\n")
        return await answered(read().get("answers", {}).get(params.name, {}), params.arguments)

    return Server("program", on_list_tools=list_tools, on_call_tool=call_tool)


async def answered(how: dict[str, Any], arguments: Any) -> types.CallToolResult:
    """Answer as the book wants it."""
    if "exit" in how:
        os._exit(how["exit"])
    if "hang" in how:
        await asyncio.sleep(3600)
    if "content" in how:
        return types.CallToolResult.model_validate(how["content"])
    return said(how.get("text", json.dumps(arguments, sort_keys=True)))


def said(text: str) -> types.CallToolResult:
    """Answer with a text."""
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def over_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


async def over_web(server: Server[Any], how: str, rest: list[str]) -> None:
    import uvicorn

    listening = socket.create_server(("127.0.0.1", int(rest[0])))
    app = event_app(server) if how == "sse" else server.streamable_http_app(host="0.0.0.0")
    secured: dict[str, Any] = {"ssl_certfile": rest[1]} if how == "https" else {}
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, **secured)
    print(listening.getsockname()[1], flush=True)
    await uvicorn.Server(config).serve(sockets=[listening])


def event_app(server: Server[Any]) -> Any:
    """Return the app of an older kind of server."""
    from mcp.server.sse import SseServerTransport
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    events = SseServerTransport("/messages/")

    async def stream(request: Any) -> Response:
        async with events.connect_sse(request.scope, request.receive, request._send) as streams:
            await server.run(streams[0], streams[1], server.create_initialization_options())
        return Response()

    return Starlette(
        routes=[Route("/sse", stream), Mount("/messages/", app=events.handle_post_message)]
    )


if __name__ == "__main__":
    main()
