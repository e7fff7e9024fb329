"""Messages: sent or recorded, listed and read; never changed."""

from typing import Final

from holdfast.domain.errors import Code
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Message, Role
from holdfast.domain.queries import MESSAGES_MOST, MessageQuery
from holdfast.domain.repeats import Made
from holdfast.domain.tokens import Scope
from holdfast.http.answers import Answer
from holdfast.http.table import Asked, NoQuery, Route
from holdfast.http.v1.listings import after_of, comma_list, cursor_after
from holdfast.http.v1.messages_forms import (
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
from holdfast.http.v1.paths import of_session, session_of
from holdfast.http.v1.refusals import query_judged
from holdfast.http.v1.repeats import TELLS, chosen_id, made


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
) -> Made[Message]:
    """Send a user's message; one to a closed session opens it again."""
    send, parts = asked.house.messages.make_resuming, parts_of(body)
    return await send(asked.owner, session_id, parts, id=id_, on_busy=body.on_busy)


async def list_messages(asked: Asked[MessagesQuery, None]) -> Answer:
    """List messages."""
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
        page = await asked.house.messages.page(owner, session_id, wanted)
    cut = await asked.house.messages.interrupted(owner, session_id, page.items)
    forms = (
        with_parts(message_form(row, session_id, is_interrupted=row.id in cut), row, query.parts)
        for row in page.items
    )
    return Answer(content=MessageList(tuple(forms), cursor_after(page.next_cursor, *filters)))


async def read_message(asked: Asked[MessageWish, None]) -> Answer:
    """Return a message."""
    session_id = await session_of(asked)
    messages, owner = asked.house.messages, asked.owner
    found = await messages.get(owner, session_id, asked.path["message_id"])
    cut = await messages.interrupted(owner, session_id, (found,))
    form = message_form(found, session_id, is_interrupted=found.id in cut)
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
