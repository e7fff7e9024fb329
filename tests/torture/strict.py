"""A provider that refuses everything any provider refuses, and the sessions it would refuse."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from holdfast import Message, RunScope, open_holdfast
from holdfast.domain.queries import SessionQuery
from holdfast.engine.projection import project
from holdfast.ports.llm import LlmMessage
from tests.torture.clients.house import settings


async def refused_projections(home: Path) -> list[str]:
    """Return every session some prefix of whose history is not a legal request."""
    refused = []
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        cursor: str | None = None
        while True:
            page = await house.sessions.list(SessionQuery(owner=house.owner), cursor=cursor)
            for session in page.items:
                history = await house.read(session.id)
                refused += [f"{session.id}: {fault}" for fault in prefix_faults(history)]
            cursor = page.next_cursor
            if cursor is None:
                return refused


def prefix_faults(history: Sequence[Message]) -> Iterator[str]:
    """Yield what is wrong with the request of each prefix of a history."""
    for end in range(1, len(history) + 1):
        prefix = history[:end]
        request = project(prefix, turn=max(row.turn for row in prefix))
        yield from (f"prefix {end}: {fault}" for fault in faults(request))


def faults(request: Sequence[LlmMessage]) -> Iterator[str]:
    """Yield why a strict provider refuses a request."""
    if not request or request[0].role != "user":
        yield "it does not begin with the user"
    if request and request[-1].role == "assistant":
        yield "it ends with the assistant"
    for before, after in pairwise(request):
        if before.role == after.role and after.role != "tool":
            yield f"two messages of the {after.role} in a row"
    waiting: list[str] = []
    for message in request:
        if message.role == "tool":
            if message.call_id not in waiting:
                yield f"a result of {message.call_id}, which was not called"
            else:
                waiting.remove(message.call_id)
            continue
        if waiting:
            yield f"no result of {', '.join(waiting)}"
        waiting = [call.id for call in message.calls]
        if not message.text and not message.calls and not message.media:
            yield f"an empty message of the {message.role}"
