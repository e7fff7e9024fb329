"""Routes of messages and of the media that they refer to."""

import re
from collections.abc import AsyncGenerator
from typing import Final

from holdfast.domain.errors import Code
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Message, Role
from holdfast.domain.queries import MESSAGES_MOST, MessageQuery
from holdfast.domain.sessions import Created
from holdfast.domain.tokens import Scope
from holdfast.http.bodies import PAGE_BYTES, in_pieces, joined, members
from holdfast.http.responses import Answer, Stream, encoded
from holdfast.http.routing import Asked, NoQuery, Route, of_session, session_of
from holdfast.http.v1.idempotency import TELLS, chosen_id, made
from holdfast.services.batches import MessageBatch
from holdfast.wire.errors import query_judged
from holdfast.wire.messages import (
    MessageForm,
    MessageList,
    MessagePost,
    MessagesQuery,
    MessageWish,
    UserPost,
    draft_of,
    message_form,
    parts_of,
    with_parts,
)
from holdfast.wire.scalars import after_of, comma_list, cursor_after


async def create_message(asked: Asked[NoQuery, MessagePost]) -> Answer:
    """Store a message; a user's starts a turn, or waits for the one that runs."""
    session_id = await session_of(asked)
    id_ = chosen_id(asked)
    if isinstance(asked.body, UserPost):
        new = await _sent(asked, session_id, asked.body, id_)
    else:
        draft = draft_of(asked.body, id_)
        new = await asked.house.messages.record(asked.owner, session_id, draft)
    form = message_form(new.thing, session_id)
    location = f"/v1/sessions/{session_id}/messages/{form.id}"
    return made(form, is_new=new.is_new, location=location)


async def _sent(
    asked: Asked[NoQuery, MessagePost], session_id: SessionId, body: UserPost, id_: str | None
) -> Created[Message]:
    """Send a user's message; one to a closed session opens it again."""
    send, parts = asked.house.messages.make_resuming, parts_of(body)
    return await send(asked.owner, session_id, parts, id=id_, on_busy=body.on_busy)


async def list_messages(asked: Asked[MessagesQuery, None]) -> Answer | Stream:
    """List messages: all of them, or a page that is bounded in number and size."""
    session_id = await session_of(asked)
    query, owner = asked.query, asked.owner
    stretch = (query.after, query.before)
    filters = ("messages", owner, session_id, *stretch, query.role, query.turn)
    with query_judged():
        wanted = MessageQuery(
            after=max(query.after, after_of(query.cursor, *filters)),
            before=query.before,
            roles=tuple(map(Role, comma_list(query.role))),
            turn=query.turn,
            limit=query.limit or MESSAGES_MOST,
        )
        scan = await asked.house.messages.scan(owner, session_id, wanted)
    # Without a limit, and before a number, the answer is complete whatever its size.
    is_bounded = query.limit is not None and query.before is None
    cut: str | None = None

    async def batches() -> AsyncGenerator[bytes, None]:
        nonlocal cut
        size = last = 0
        async for batch in scan.batches():
            if is_bounded and size > PAGE_BYTES:
                cut = str(last)
                return
            forms = [_form(row, session_id, batch, query.parts) for row in batch.rows]
            piece = await members(asked.room, forms)
            size, last = size + len(piece), batch.rows[-1].sequence
            yield piece

    def end() -> bytes:
        return b'],"next_cursor":%b}' % encoded(cursor_after(cut or scan.next_cursor, *filters))

    return await in_pieces(asked, joined(batches(), start=b'{"data":[', end=end))


def _form(
    row: Message, session_id: SessionId, batch: MessageBatch, parts: str | None
) -> MessageForm:
    form = message_form(row, session_id, is_interrupted=row.id in batch.interrupted)
    return with_parts(form, row, parts)


async def read_message(asked: Asked[MessageWish, None]) -> Answer:
    """Return a message."""
    session_id = await session_of(asked)
    messages, owner = asked.house.messages, asked.owner
    found = await messages.get(owner, session_id, asked.path["message_id"])
    is_cut = await messages.is_interrupted(owner, session_id, found)
    form = message_form(found, session_id, is_interrupted=is_cut)
    return Answer(content=with_parts(form, found, asked.query.parts), has_etag=True)


ROUTES: Final[tuple[Route, ...]] = (
    *of_session(
        Route(
            method="POST",
            path="/messages",
            name="messages.create",
            summary="Store a message; a user's message starts a turn.",
            act=create_message,
            needs=Scope.WRITE,
            body=MessagePost,
            gives={201: MessageForm, 200: MessageForm},
            tells=TELLS,
            refuses=(
                Code.CALL_NOT_OPEN,
                Code.ID_REUSED,
                Code.INVALID_TEXT,
                Code.MEDIA_NOT_FOUND,
                Code.MESSAGE_EMPTY,
                Code.MESSAGE_ID_REUSED,
                Code.MESSAGE_INVALID,
                Code.MESSAGE_TOO_LARGE,
                Code.SESSION_CLOSED,
                Code.SESSION_FAILED,
                Code.SESSION_LIMIT,
                Code.SESSION_NOT_FOUND,
                Code.SESSION_RUNNING,
                Code.TURN_RUNNING,
                Code.WORKSPACE_MISSING,
            ),
            examples={"body": {"role": "user", "content": {"text": "How much is 2+2?"}}},
            description=(
                "Answered after the message is on disk and before any model is asked. Messages "
                "of the other roles are recorded, and start nothing."
            ),
        )
    ),
    *of_session(
        Route(
            method="GET",
            path="/messages",
            name="messages.list",
            summary="List messages in the order of their numbers.",
            act=list_messages,
            needs=Scope.READ,
            query=MessagesQuery,
            gives={200: MessageList},
            refuses=(Code.SESSION_NOT_FOUND,),
        )
    ),
    *of_session(
        Route(
            method="GET",
            path="/messages/{message_id}",
            name="messages.read",
            summary="Return a message.",
            act=read_message,
            needs=Scope.READ,
            query=MessageWish,
            gives={200: MessageForm, 304: None},
            tells={200: ("etag",), 304: ("etag",)},
            refuses=(Code.MESSAGE_NOT_FOUND, Code.SESSION_NOT_FOUND),
        )
    ),
)
_HASH: Final = re.compile(r"(?:sha256-)?([0-9a-f]{64})")
# What a browser can show and never runs, by how it begins; everything else is only ever saved.
_SAFE: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)


async def read_media(asked: Asked[NoQuery, None]) -> Answer:
    """Return a content."""
    session_id = await session_of(asked)
    found = _HASH.fullmatch(asked.path["hash"])
    hash_ = found[1] if found else ""
    # Checked whole before any of it is sent, so few are read at a time.
    async with asked.room.reading:
        content = await asked.house.media.read(asked.owner, session_id, f"media://sha256-{hash_}")
    # By its bytes and not by what its sender called it: a name makes nothing harmless.
    kind = next((kind for begins, kind in _SAFE if begins.match(content)), None)
    return Answer(
        content=content,
        media_type=kind or "application/octet-stream",
        headers={
            "content-disposition": "inline" if kind else f'attachment; filename="{hash_}"',
            "x-content-type-options": "nosniff",
        },
        has_etag=True,
    )


MEDIA_ROUTES: Final[tuple[Route, ...]] = of_session(
    Route(
        method="GET",
        path="/media/{hash}",
        name="media.read",
        summary="Return a content that a message names; pictures are shown, all else is saved.",
        act=read_media,
        needs=Scope.READ,
        gives={200: bytes, 304: None},
        tells={
            200: ("content-disposition", "etag"),
            304: ("content-disposition", "etag"),
        },
        media_type="application/octet-stream",
        kinds=tuple(kind for _, kind in _SAFE),
        refuses=(Code.MEDIA_NOT_FOUND, Code.SESSION_NOT_FOUND),
    )
)
