"""`holdfast mcp`: the store as an MCP server, over standard input and output or over HTTP."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Annotated, Any

import typer

from holdfast import __version__
from holdfast.acp.rpc.stdio import standard_streams
from holdfast.api import LocalHoldfast
from holdfast.cli.command import command
from holdfast.cli.connect import open_local
from holdfast.cli.options import flag, option
from holdfast.cli.output import Printer
from holdfast.domain.ids import TokenId
from holdfast.domain.tokens import Caller, Scope

app = typer.Typer()


@command(app, "mcp", only_here=True)
def mcp(
    printer: Printer,
    *,
    http: Annotated[bool, flag("Run the HTTP server, with MCP at /mcp.", "--http")] = False,
    host: Annotated[str, option("HOST", "With --http, the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("PORT", "With --http, the port; 0 picks a free one.")] = 8765,
) -> int | Coroutine[Any, Any, int]:
    """Run an MCP server on stdin and stdout.

    Programs start it to use Holdfast over the Model Context Protocol; logs go to stderr. It exits
    when stdin is closed. With --http it runs the server like `holdfast serve`, and prints the
    address for clients.
    """
    if http:
        from holdfast.cli.commands.serve import ServeOptions, serve_http

        serving = ServeOptions(host=host, port=port)
        return serve_http(printer, serving, is_for_mcp=True)
    return _serve_stdio(printer)


async def _serve_stdio(printer: Printer) -> int:
    # Imported here, because the SDK is large and not needed for the help and for HTTP.
    from holdfast.mcp.server import build_server
    from holdfast.mcp.stdio_transport import serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # Everything is validated before the protocol starts.
    async with open_local(printer, "own") as holdfast:
        reader, writer = await standard_streams()
        try:
            server = build_server(holdfast, __version__, _caller(holdfast))
            await serve(server, reader, writer, stop=stop)
        finally:
            with suppress(OSError):
                writer.close()
    return 0


def _caller(holdfast: LocalHoldfast) -> Caller:
    """Return the caller: it has the same rights as the command line."""
    return Caller(owner=holdfast.owner, scope=Scope.WRITE, token_id=TokenId(""))
