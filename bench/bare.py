"""The yardstick of the HTTP figures: Starlette, server-sent events and raw SQLite, nothing else.

A turn is four rows with four FULL commits and one read, told to the reader as four events. Rows
are written one by one: who wants them grouped has to write a writer, and that is our work.
"""

import asyncio
import itertools
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bench.yardsticks import PAYLOAD, raw_store

_NAMES = ("message.created", "step.started", "step.generated", "session.completed")


class Bare:
    """Sessions as queues of frames, and one table."""

    def __init__(self, cursor: apsw.Cursor) -> None:
        self._cursor = cursor
        self._queues: dict[str, asyncio.Queue[bytes]] = {}
        self._numbers = itertools.count(1)
        self._turns: set[asyncio.Task[None]] = set()

    async def create(self, _: Request) -> Response:
        """Open a session; it is not kept, which flatters the yardstick."""
        session = str(uuid.uuid4())
        self._queues[session] = asyncio.Queue()
        return JSONResponse({"id": session}, status_code=201)

    async def send(self, request: Request) -> Response:
        """Keep a message and begin its turn."""
        session = request.path_params["session"]
        await request.json()
        self._row(session, 0)
        turn = asyncio.create_task(self._turn(session))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)
        return JSONResponse({"id": session}, status_code=201)

    async def events(self, request: Request) -> Response:
        """Tell what happens."""
        queue = self._queues[request.path_params["session"]]

        async def frames() -> AsyncIterator[bytes]:
            yield b"event: connected\ndata: {}\n\n"
            frame = b""
            while b"session.completed" not in frame:
                frame = await queue.get()
                yield frame

        return StreamingResponse(frames(), media_type="text/event-stream")

    async def _turn(self, session: str) -> None:
        for row in range(1, 4):
            self._row(session, row)
            # Otherwise nobody would hear of one before the last.
            await asyncio.sleep(0)
        self._cursor.execute(
            "SELECT sequence, parts FROM messages WHERE session = ?", (session,)
        ).fetchall()

    def _row(self, session: str, row: int) -> None:
        # On the loop: a commit is short, and handing it to a thread would cost a lone caller more.
        number = next(self._numbers)
        self._cursor.execute("BEGIN IMMEDIATE")
        self._cursor.execute("INSERT INTO messages VALUES (?, ?, ?)", (session, number, PAYLOAD))
        self._cursor.execute("COMMIT")
        frame = f"id: {number}\nevent: {_NAMES[row]}\ndata: {PAYLOAD}\n\n"
        self._queues[session].put_nowait(frame.encode())


def main(path: Path) -> None:
    """Serve on a free port, which is printed, until somebody stops it."""
    bare = Bare(raw_store(path))
    sessions = "/v1/agents/{agent}/sessions"
    events = "/v1/sessions/{session}/events"
    messages = "/v1/sessions/{session}/messages"
    app = Starlette(
        routes=[
            Route(sessions, bare.create, methods=["POST"]),
            Route(messages, bare.send, methods=["POST"]),
            Route(events, bare.events),
        ]
    )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
