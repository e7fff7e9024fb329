"""A process that uses an MCP server until it is killed.

    python -m tests.tools.mcp_parent FOLDER MEANS

It says `ready` once the server of the book in the folder has forked.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from holdfast.domain.messages import ResultStatus
from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Means
from holdfast.tools.mcp.tools import McpTools
from tests.tools.mcp_servers import Book, Hands, a_tool, welcoming, with_servers


async def main(folder: Path, means: Means) -> None:
    book = Book(folder)
    book.write(tools=[a_tool("t")], answers={"t": {"fork": True}})
    tools = McpTools(welcoming(launcher=Launcher(means)))
    done = await Hands(tools, with_servers(folder, book.entry())).call("mcp_books_t")
    assert done.status is ResultStatus.OK, done
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Means)))
