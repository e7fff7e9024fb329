"""The past of a session, told as updates: every row once, in its order, and the last plan."""

from collections.abc import AsyncIterator
from typing import Final

from holdfast.acp.agent.blocks import Block, block_of
from holdfast.acp.agent.house import House
from holdfast.acp.agent.updates import (
    COMPACTED,
    Telling,
    Update,
    message_chunk,
    plan,
    thought_chunk,
)
from holdfast.domain.errors import HoldfastError
from holdfast.domain.events import Gap, StepEnded, StepFailed, StepStarted, TurnStarted
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Compaction, Media, Message, Plan, Reasoning, Role, Text
from holdfast.domain.sessions import Session, Status

PAGE: Final = 500
_LOOK: Final = 1_000


async def replayed(house: House, session: Session, telling: Telling) -> AsyncIterator[Update]:
    """Yield what was said up to the row that the session had when it was read."""
    after = 0
    last: Plan | None = None
    while after < session.message_count:
        most = min(PAGE, session.message_count - after)
        page = await house.messages.list(house.owner, session.id, after=after, limit=most)
        for row in page.items:
            last = next((part for part in row.parts if isinstance(part, Plan)), last)
            for update in await row_updates(house, session.id, row, telling):
                yield update
        after = page.items[-1].sequence if page.items else session.message_count
    if last is not None:
        yield plan(last.steps)


async def row_updates(
    house: House, session_id: SessionId, row: Message, telling: Telling
) -> list[Update]:
    """Return the updates of one row; a plan is told by whoever knows which is the last one."""
    match row.role:
        case Role.USER:
            return [
                _said("user_message_chunk", block, row)
                for block in await _blocks(house, session_id, row)
            ]
        case Role.ASSISTANT:
            return [
                *_thoughts(row),
                *(
                    _said("agent_message_chunk", block, row)
                    for block in await _blocks(house, session_id, row)
                ),
            ]
        case Role.SYSTEM:
            folded = any(isinstance(part, Compaction) for part in row.parts)
            summed = [message_chunk(COMPACTED, row.id)] if folded else []
            return summed + telling.row(row)
        case _:
            return telling.row(row)


async def cursor_of(house: House, session: Session) -> int:
    """Return behind which event the news of a replayed session begin.

    A text that is being streamed is in no row yet: then before its first piece.
    """
    if session.status is not Status.RUNNING:
        return session.last_event
    before = session.last_event
    while before > 0:
        first = max(0, before - _LOOK)
        page = await house.events.list(house.owner, session.id, after=first, limit=before - first)
        for item in reversed(page.items):
            if isinstance(item, Gap):
                return session.last_event
            if isinstance(item.payload, StepStarted):
                return item.sequence - 1
            if isinstance(item.payload, StepEnded | StepFailed | TurnStarted):
                return session.last_event
        before = first
    return session.last_event


def _thoughts(row: Message) -> list[Update]:
    return [thought_chunk(part.text, row.id) for part in row.parts if isinstance(part, Reasoning)]


def _said(kind: str, block: Block, row: Message) -> Update:
    return {"sessionUpdate": kind, "content": block, "messageId": row.id}


async def _blocks(house: House, session_id: SessionId, row: Message) -> list[Block]:
    async def read(handle: str) -> bytes | None:
        try:
            return await house.media.read(house.owner, session_id, handle)
        # Its words are worth more than a picture that is gone.
        except HoldfastError:
            return None

    return [await block_of(part, read) for part in row.parts if isinstance(part, Text | Media)]
