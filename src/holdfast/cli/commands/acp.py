"""`holdfast acp`: Holdfast as an ACP agent of an editor, over stdin and stdout."""

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast import __version__
from holdfast.acp.rpc.connection import AcpConnection, ConnectionLimits
from holdfast.acp.rpc.stdio import standard_streams
from holdfast.acp.server.agent import AcpServeOptions, ClientInput, serve
from holdfast.acp.server.session_folders import SessionFolders
from holdfast.api import Holdfast
from holdfast.cli.command import command
from holdfast.cli.connect import connect_server, open_local
from holdfast.cli.options import option
from holdfast.cli.output import Printer
from holdfast.cli.workspace import absolute_path, git_ref
from holdfast.client.requests import new_id
from holdfast.domain.agents import AgentStatus
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.services.agents import BUILT_IN

app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class AcpOptions:
    """With whom the editor talks, and where."""

    agent: Annotated[
        str | None, option("AGENT", "The agent's slug or id; default: the configured agent.")
    ] = None
    root: Annotated[
        Path | None,
        option(
            "DIR",
            "The folder that contains all work; default: AGENT_WORKSPACE_ROOT, else the "
            "current folder.",
        ),
    ] = None


@command(app, "acp")
async def acp(printer: Printer, options: AcpOptions) -> int:
    """Run an ACP server on stdin and stdout.

    Editors and other programs start it to use Holdfast as an agent over the Agent Client Protocol;
    logs go to stderr. Its sessions are visible to every other command. It exits when stdin is
    closed and stops the running turns; with --server they continue on the server.
    """
    async with AsyncExitStack() as stack:
        # Everything is validated before the protocol starts.
        holdfast, terms = await _open_local(stack, printer, options)
        reader, writer = await standard_streams()
        said = ClientInput(reader)
        _stop_on_signals(said)
        bounds = ConnectionLimits(line=printer.settings.load().acp.line_limit)
        await serve(holdfast, AcpConnection(said, writer, bounds=bounds), terms, said.ended)
    return 0


async def _open_local(
    stack: AsyncExitStack, printer: Printer, options: AcpOptions
) -> tuple[Holdfast, AcpServeOptions]:
    from holdfast.cli.chat.session import widest_tier

    agent = options.agent or BUILT_IN
    server = printer.settings.server
    if server is not None:
        return await _connect(stack, printer, server, options)
    flags = {"workspace_root": str(_root(printer, options.root))}
    holdfast = await stack.enter_async_context(open_local(printer, "own", flags=flags))
    await _require_agent(holdfast, agent)
    folders = SessionFolders(
        agent=agent,
        tier=await widest_tier(holdfast, agent, holdfast.config.chat.fs_scope),
        git_ref=git_ref,
    )
    return holdfast, AcpServeOptions(version=__version__, folders=folders, new_id=new_id)


async def _connect(
    stack: AsyncExitStack, printer: Printer, server: str, options: AcpOptions
) -> tuple[Holdfast, AcpServeOptions]:
    if options.root is not None:
        raise Invalid(
            Code.INVALID_INPUT,
            "--root names a folder of this machine; with --server the server uses its "
            "own. Leave out --root.",
        )
    agent = options.agent or BUILT_IN
    holdfast = await stack.enter_async_context(connect_server(printer, server))
    await _require_agent(holdfast, agent)
    return holdfast, AcpServeOptions(
        version=__version__,
        folders=SessionFolders(agent=agent),
        new_id=new_id,
        goes_on=True,
    )


async def _require_agent(holdfast: Holdfast, ref: str) -> None:
    """Refuse an agent that cannot open a session, before an editor waits for one."""
    # The built-in agent is created on first use.
    if ref == BUILT_IN:
        return
    agent = await holdfast.agents.get(holdfast.owner, ref)
    if agent.status is AgentStatus.ARCHIVED:
        raise Conflict(
            Code.AGENT_ARCHIVED,
            f"Agent {agent.slug} is archived; run `holdfast agents edit {agent.slug} "
            "--status active` to restore it.",
        )


def _root(printer: Printer, options: Path | None) -> Path:
    configured = printer.settings.load().workspace_root
    return absolute_path(options) if options is not None else configured or Path.cwd()


def _stop_on_signals(reader: ClientInput) -> None:
    """Treat a signal as the end of the client's input: turns are stopped and recorded."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, reader.ended.set)
