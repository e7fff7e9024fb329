"""Routes of messages and of the media that they refer to."""

import re
from collections.abc import AsyncGenerator
from typing import Final

from holdfast.domain.errors import Code
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Message, Role
from holdfast.domain.queries import MESSAGES_MOST, MessageQuery
from holdfast.domain.sessions import Created
from holdfast.http.bodies import PAGE_BYTES, encode_members, respond_in_pieces, stream_json_array
from holdfast.http.responses import Response, StreamResponse, encode_json
from holdfast.http.routing import (
    NoQuery,
    RouteRequest,
    Routes,
    cacheable,
    requested_session,
)
from holdfast.http.v1.idempotency import chosen_id, created_response, creates
from holdfast.wire.errors import as_query_errors
from holdfast.wire.messages import (
    MediaUpload,
    MessageForm,
    MessageList,
    MessagePartsQuery,
    MessagePost,
    MessagesQuery,
    UserPost,
    draft_of,
    message_form,
    message_forms,
    parts_of,
)
from holdfast.wire.recordings import RecordedForm, RecordPost, drafts_of, recorded_form
from holdfast.wire.scalars import decode_cursor, encode_cursor, split_commas

routes: Final = Routes()
media_routes: Final = Routes()
_WRITE_ERRORS: Final = (
    Code.CALL_NOT_OPEN,
    Code.ID_REUSED,
    Code.MEDIA_NOT_FOUND,
    Code.MESSAGE_EMPTY,
    Code.MESSAGE_ID_REUSED,
    Code.MESSAGE_INVALID,
    Code.MESSAGE_TOO_LARGE,
    Code.SESSION_CLOSED,
    Code.SESSION_FAILED,
    Code.SESSION_RUNNING,
)


@routes.post(
    "{session}/messages",
    "messages.create",
    **creates(MessageForm),
    errors=(
        *_WRITE_ERRORS,
        Code.SESSION_LIMIT,
        Code.TURN_RUNNING,
        Code.WORKSPACE_MISSING,
    ),
    example={"role": "user", "content": {"text": "How much is 2+2?"}},
)
async def create_message(request: RouteRequest[NoQuery, MessagePost]) -> Response:
    """Store a message; a user's message starts a turn.

    The response is sent after the message is on disk and before a model is called. Messages of
    other roles are recorded and start no turn.
    """
    session_id = await requested_session(request)
    id_ = chosen_id(request)
    if isinstance(request.body, UserPost):
        new = await _send(request, session_id, request.body, id_)
    else:
        draft = draft_of(request.body, id_)
        new = await request.holdfast.messages.record_idempotent(request.owner, session_id, draft)
    form = message_form(new.value, session_id)
    location = f"/v1/sessions/{session_id}/messages/{form.id}"
    return created_response(form, is_new=new.is_new, location=location)


async def _send(
    request: RouteRequest[NoQuery, MessagePost],
    session_id: SessionId,
    body: UserPost,
    id_: str | None,
) -> Created[Message]:
    """Send a user's message; a closed session is reopened unless the body says otherwise."""
    owner, messages = request.owner, request.holdfast.messages
    send = messages.send_resuming if body.resume else messages.send_idempotent

    async def store(content: bytes, mime_type: str) -> str:
        return await request.holdfast.media.keep(owner, session_id, content, mime_type=mime_type)

    parts = await parts_of(body, store)
    return await send(owner, session_id, parts, id=id_, on_busy=body.on_busy)


@routes.post(
    "{session}/record",
    "messages.record",
    {201: RecordedForm, 200: RecordedForm},
    response_headers={200: ("idempotency-replayed",)},
    errors=(*_WRITE_ERRORS, Code.INVALID_INPUT, Code.MODEL_NOT_FOUND, Code.TOO_LARGE),
    example={
        "messages": [
            {"role": "user", "parts": [{"type": "text", "text": "How much is 2+2?"}]},
            {"role": "assistant", "parts": [{"type": "text", "text": "4"}]},
        ]
    },
)
async def record_turns(request: RouteRequest[NoQuery, RecordPost]) -> Response:
    """Store whole turns that were played elsewhere; nothing runs.

    One commit; a user's message begins a turn. With ids it may be repeated, also with further
    messages at the end.
    """
    session_id = await requested_session(request)
    made = await request.holdfast.messages.record_turns(
        request.owner,
        session_id,
        drafts_of(request.body),
        on_open_calls=request.body.on_open_calls,
    )
    return Response(
        status=201 if made.is_new else 200,
        content=recorded_form(made, session_id),
        headers={} if made.is_new else {"idempotency-replayed": "true"},
    )


@routes.get("{session}/messages", "messages.list", MessageList, is_large=True)
async def list_messages(request: RouteRequest[MessagesQuery, None]) -> Response | StreamResponse:
    """List messages by sequence number."""
    session_id = await requested_session(request)
    query, owner = request.query, request.owner
    bounds = (query.after, query.before)
    filters = ("messages", owner, session_id, *bounds, query.role, query.turn)
    with as_query_errors():
        wanted = MessageQuery(
            after=max(query.after, decode_cursor(query.cursor, *filters)),
            before=query.before,
            roles=tuple(map(Role, split_commas(query.role))),
            turn=query.turn,
            limit=query.limit or MESSAGES_MOST,
        )
        scan = await request.holdfast.messages.scan(owner, session_id, wanted)
    # Without a limit, or with `before`, the response is complete whatever its size.
    is_bounded = query.limit is not None and query.before is None
    cut: str | None = None

    async def batches() -> AsyncGenerator[bytes, None]:
        nonlocal cut
        size = last = 0
        async for batch in scan.batches():
            if is_bounded and size > PAGE_BYTES:
                cut = str(last)
                return
            forms = message_forms(batch.rows, session_id, batch.interrupted, query.parts)
            piece = await encode_members(request.response_budget, forms)
            size, last = size + len(piece), batch.rows[-1].sequence
            yield piece

    def end() -> bytes:
        return b'],"next_cursor":%b}' % encode_json(
            encode_cursor(cut or scan.next_cursor, *filters)
        )

    return await respond_in_pieces(
        request, stream_json_array(batches(), start=b'{"data":[', end=end)
    )


@routes.get(
    "{session}/messages/{message_id}", "messages.read", **cacheable(MessageForm), is_large=True
)
async def read_message(request: RouteRequest[MessagePartsQuery, None]) -> Response:
    """Return a message."""
    session_id = await requested_session(request)
    messages, owner = request.holdfast.messages, request.owner
    found = await messages.get(owner, session_id, request.path["message_id"])
    is_cut = await messages.is_interrupted(owner, session_id, found)
    wanted = request.query.parts
    form = message_form(found, session_id, is_interrupted=is_cut, parts_wanted=wanted)
    return Response(content=form, has_etag=True)


_HASH: Final = re.compile(r"(?:sha256-)?([0-9a-f]{64})")
# Types that a browser shows and never executes, by signature; all others are downloads.
_SAFE: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)


@media_routes.post(
    "{session}/media",
    "media.upload",
    {201: MediaUpload},
    response_headers={201: ("location",)},
    errors=(Code.INVALID_INPUT,),
)
async def upload_media(request: RouteRequest[NoQuery, bytes]) -> Response:
    """Store content for messages of the session; its `Content-Type` is the type.

    Uploading the same content again returns the same handle.
    """
    session_id = await requested_session(request)
    content, given = request.body, request.headers.get("content-type", "")
    mime_type = given.partition(";")[0].strip().lower()
    ref = await request.holdfast.media.keep(request.owner, session_id, content, mime_type=mime_type)
    location = f"/v1/sessions/{session_id}/media/{ref.removeprefix('media://')}"
    return Response(
        content=MediaUpload(ref=ref, mime_type=mime_type, byte_length=len(content)),
        status=201,
        headers={"location": location},
    )


@media_routes.get(
    "{session}/media/{hash}",
    "media.read",
    {200: bytes, 304: None},
    response_headers={
        200: ("content-disposition", "etag"),
        304: ("content-disposition", "etag"),
    },
    media_type="application/octet-stream",
    other_media_types=tuple(kind for _, kind in _SAFE),
)
async def read_media(request: RouteRequest[NoQuery, None]) -> Response:
    """Return content that a message refers to; images are displayed inline, other types are
    downloads.
    """
    session_id = await requested_session(request)
    found = _HASH.fullmatch(request.path["hash"])
    hash_ = found[1] if found else ""
    # The hash of the whole content is verified before any byte is sent, so few are read at a time.
    async with request.response_budget.reading:
        content = await request.holdfast.media.read(
            request.owner, session_id, f"media://sha256-{hash_}"
        )
    # Sniffed from the bytes: the type declared by the sender is not trusted (stored XSS).
    kind = next((kind for begins, kind in _SAFE if begins.match(content)), None)
    return Response(
        content=content,
        media_type=kind or "application/octet-stream",
        headers={
            "content-disposition": "inline" if kind else f'attachment; filename="{hash_}"',
            "x-content-type-options": "nosniff",
        },
        has_etag=True,
    )
