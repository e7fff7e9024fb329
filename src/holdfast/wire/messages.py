"""JSON forms of messages: content in the format of its role, and the complete list of parts."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from holdfast.domain.drafts import MessageDraft, require_recordable
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import CallId, MessageId, ModelId, SessionId
from holdfast.domain.messages import (
    MEDIA_MOST,
    Compaction,
    Media,
    Message,
    Notice,
    Output,
    Part,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
    require_media_content,
    require_sendable,
)
from holdfast.domain.sessions import OnBusy
from holdfast.domain.time import microseconds
from holdfast.domain.tools import ResultCode
from holdfast.wire.errors import invalid_body
from holdfast.wire.scalars import (
    Cursor,
    Instant,
    Limit,
    Number,
    Uuid,
    format_microseconds,
    parse_time,
)

UNKNOWN = "outcome unknown"
_ROLES = "(user|assistant|tool_call|tool_result|system)"

Content = Annotated[
    dict[str, Any],
    Meta(
        description=(
            'By role: user, assistant and system `{"text"}`; tool_call `{"id", "name", '
            '"arguments"}`; tool_result `{"result", "error"}`.'
        )
    ),
]
Roles = Annotated[
    str, Meta(pattern=f"^{_ROLES}(,{_ROLES})*$", description="Roles, separated by commas.")
]

Parts = Annotated[
    Literal["all"], Meta(description="Include `parts` even if `content` is complete.")
]


class MessageForm(Struct, frozen=True, kw_only=True):
    """A message; the last five fields are present only if they apply."""

    id: Annotated[Uuid, Meta(description="The message's id.")]
    session_id: Annotated[Uuid, Meta(description="The session in which it was written.")]
    sequence: Annotated[int, Meta(description="Its sequence number in the session, starting at 1.")]
    role: Annotated[Role, Meta(description="The role.")]
    content: Content
    tool_call_id: Annotated[str | None, Meta(description="The call whose result this is.")]
    created_at: Annotated[Instant, Meta(description="When it was written.")]
    turn: Annotated[int, Meta(description="The turn it belongs to.")]
    model_id: Annotated[Uuid | None, Meta(description="The model that wrote it.")]
    parts: (
        Annotated[
            tuple[Part, ...],
            Meta(
                description="All stored parts; present if `content` is incomplete, or if requested."
            ),
        ]
        | UnsetType
    ) = UNSET
    output: (
        Annotated[Any, Meta(description="The value of an answer that matches `output_schema`.")]
        | UnsetType
    ) = UNSET
    result_status: (
        Annotated[
            ResultStatus, Meta(description="The outcome of the call; only for a tool result.")
        ]
        | UnsetType
    ) = UNSET
    interrupted: (
        Annotated[bool, Meta(description="Present and true if the text was cut off.")] | UnsetType
    ) = UNSET
    inherited: (
        Annotated[
            bool,
            Meta(description="Present and true for a message inherited from the parent session."),
        ]
        | UnsetType
    ) = UNSET


class MessageList(Struct, frozen=True):
    """A page of messages, by sequence number."""

    data: tuple[MessageForm, ...]
    next_cursor: str | None


class TextContent(Struct, frozen=True, forbid_unknown_fields=True):
    """Text."""

    text: str


class CallContent(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call."""

    id: Annotated[str, Meta(min_length=1, max_length=255)]
    name: Annotated[str, Meta(min_length=1, max_length=255)]
    arguments: dict[str, Any]


class ResultContent(Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a call: a result or an error."""

    result: Any = None
    error: str | None = None


class TextPart(Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    """A text part."""

    text: str


# Documented here only; the service decides which media types it accepts.
MediaType = Annotated[
    str,
    Meta(
        max_length=255,
        extra_json_schema={
            "pattern": "^(?:(?:image|audio|video)/[a-z0-9][a-z0-9.+-]*|application/pdf|text/plain)$"
        },
    ),
]


class MediaPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="media"):
    """A media part: a reference to content that the session stores, or the content itself."""

    mime_type: MediaType
    ref: Annotated[str, Meta(pattern="^media://sha256-[0-9a-f]{64}$")] | UnsetType = UNSET
    data: Annotated[bytes, Meta(description="The content in base64.")] | UnsetType = UNSET
    name: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    byte_length: Number | None = None


class MediaUpload(Struct, frozen=True, kw_only=True):
    """Stored content, to be referred to in messages of its session."""

    ref: Annotated[str, Meta(description="The handle, for a media part.")]
    mime_type: Annotated[str, Meta(description="The type it was stored with.")]
    byte_length: Annotated[int, Meta(description="Its size in bytes.")]


# Stores content of a type for the session and returns its handle.
StoreMedia = Callable[[bytes, str], Awaitable[str]]


class UserPost(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="user"
):
    """A user's message, which starts a turn: `content` or `parts`, not both."""

    id: Uuid | None = None
    content: TextContent | UnsetType = UNSET
    parts: Annotated[tuple[TextPart | MediaPart, ...], Meta(min_length=1)] | UnsetType = UNSET
    on_busy: OnBusy = OnBusy.QUEUE
    resume: Annotated[
        bool, Meta(description="Reopen a closed session; otherwise it answers `session_closed`.")
    ] = True


class AssistantPost(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="assistant"
):
    """An assistant's message that was written outside Holdfast."""

    id: Uuid | None = None
    content: TextContent


class SystemPost(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="system"
):
    """A system message."""

    id: Uuid | None = None
    content: TextContent


class CallPost(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role", tag="tool_call"
):
    """A tool call that was made outside Holdfast."""

    id: Uuid | None = None
    content: CallContent


class ResultPost(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="role",
    tag="tool_result",
):
    """The result of a tool call that was made outside Holdfast."""

    id: Uuid | None = None
    tool_call_id: Annotated[str, Meta(min_length=1, max_length=255)]
    content: ResultContent


RecordedPost = AssistantPost | SystemPost | CallPost | ResultPost
MessagePost = UserPost | RecordedPost


class MessagesQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Filters of a list of messages; without a limit all are returned, up to 10,000."""

    after: Number = 0
    before: Annotated[int, Meta(ge=1)] | None = None
    limit: Limit | None = None
    cursor: Cursor | None = None
    role: Roles | None = None
    turn: Number | None = None
    parts: Parts | None = None


class MessagePartsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a single message."""

    parts: Parts | None = None


def message_form(
    message: Message,
    session_id: SessionId,
    *,
    is_interrupted: bool = False,
    parts_wanted: str | None = None,
) -> MessageForm:
    """Return the form of a message, which may be inherited; with all its parts if requested."""
    parts, is_complete = message.parts, True
    output: Any = UNSET
    result: ToolResult | None = None
    match parts:
        case (Text(text=text),):
            content: dict[str, Any] = {"text": text}
        case (ToolCall() as call,):
            content = {"id": call.id, "name": call.name, "arguments": call.arguments}
        case (ToolResult() as result,):
            content = {"result": result.result, "error": error_text(result.status, result.error)}
        case _:
            content = {"text": "".join(map(_text_of, parts))}
            is_complete = all(isinstance(part, Text) for part in parts)
            output = next((part.value for part in parts if isinstance(part, Output)), UNSET)
    return MessageForm(
        id=message.id,
        session_id=message.session_id,
        sequence=message.sequence,
        role=message.role,
        content=content,
        output=output,
        tool_call_id=None if result is None else result.call_id,
        created_at=format_microseconds(message.at),
        turn=message.turn,
        model_id=message.model_id,
        parts=UNSET if is_complete and parts_wanted is None else parts,
        result_status=UNSET if result is None else result.status,
        interrupted=is_interrupted or UNSET,
        inherited=message.session_id != session_id or UNSET,
    )


def message_forms(
    rows: Sequence[Message],
    session_id: SessionId,
    interrupted: Collection[str] = (),
    parts_wanted: str | None = None,
) -> tuple[MessageForm, ...]:
    """Return the forms of messages; `interrupted` are the ids of those that were cut off."""
    return tuple(
        message_form(
            row, session_id, is_interrupted=row.id in interrupted, parts_wanted=parts_wanted
        )
        for row in rows
    )


def export_line(session_id: SessionId) -> Callable[[Message, bool], MessageForm]:
    """Return a function that formats a session's message as one line of an export."""
    return lambda row, is_cut: message_form(row, session_id, is_interrupted=is_cut)


def error_text(status: ResultStatus, error: ToolError | None) -> str | None:
    """Return the error text of a call; for an unknown outcome it always says so."""
    reason = error.message if error else None
    if status is ResultStatus.UNKNOWN and not (reason or "").startswith(UNKNOWN):
        return f"{UNKNOWN}: {reason}" if reason else UNKNOWN
    return reason


def _text_of(part: Part) -> str:
    """Return the visible text of a part; reasoning is not included."""
    match part:
        case Text(text=text) | Notice(text=text) | Compaction(summary=text):
            return text
        case _:
            return ""


async def parts_of(body: UserPost, store: StoreMedia) -> tuple[Part, ...]:
    """Return the parts of a user's message; content in the message is stored first."""
    if isinstance(body.content, UnsetType) == isinstance(body.parts, UnsetType):
        raise invalid_body("content", "send content or parts, not both")
    if not isinstance(body.content, UnsetType):
        return (Text(text=body.content.text),)
    given = body.parts or ()
    media = [part for part in given if isinstance(part, MediaPart)]
    # Everything is checked before anything is stored.
    if len(media) > MEDIA_MOST:
        raise Invalid(Code.MESSAGE_TOO_LARGE, f"A message may have at most {MEDIA_MOST} media.")
    for part in media:
        _require_content(part)
    return tuple([await _part_of(part, store) for part in given])


def _require_content(part: MediaPart) -> None:
    if isinstance(part.ref, UnsetType) == isinstance(part.data, UnsetType):
        raise invalid_body("parts", "a media part has ref or data, not both")
    if not isinstance(part.data, UnsetType):
        require_media_content(part.data, part.mime_type)


def draft_of(body: RecordedPost, id_: str | None) -> MessageDraft:
    """Return the draft of a recorded message."""
    role, part = _parse_recorded(body)
    return MessageDraft(role=role, parts=(part,), id=None if id_ is None else MessageId(id_))


def _parse_recorded(body: RecordedPost) -> tuple[Role, Part]:
    match body:
        case AssistantPost(content=said):
            return Role.ASSISTANT, Text(text=said.text)
        case SystemPost(content=said):
            return Role.SYSTEM, Text(text=said.text)
        case CallPost(content=call):
            part = ToolCall(id=CallId(call.id), name=call.name, arguments=call.arguments)
            return Role.TOOL_CALL, part
        case ResultPost():
            return Role.TOOL_RESULT, _result_of(body)


def _result_of(body: ResultPost) -> ToolResult:
    came = body.content
    if came.result is not None and came.error is not None:
        raise invalid_body("content", "send a result or an error, not both")
    failed = came.error is not None
    return ToolResult(
        call_id=CallId(body.tool_call_id),
        # The service finds the tool's name by the call id.
        name="",
        status=ResultStatus.ERROR if failed else ResultStatus.OK,
        result=came.result,
        error=ToolError(code=ResultCode.FAILED, message=came.error or "") if failed else None,
    )


async def _part_of(part: TextPart | MediaPart, store: StoreMedia) -> Part:
    if isinstance(part, TextPart):
        return Text(text=part.text)
    if isinstance(part.data, UnsetType):
        ref, size = part.ref or "", part.byte_length
    else:
        ref, size = await store(part.data, part.mime_type), len(part.data)
    return Media(mime_type=part.mime_type, ref=ref, name=part.name, byte_length=size)


def message_of(form: MessageForm) -> Message:
    """Return the message of a form that was requested with all parts, or that has only text.

    The hash is empty, because only the server can verify the hash chain.
    """
    parts = form.parts
    return Message(
        id=MessageId(form.id),
        session_id=SessionId(form.session_id),
        sequence=form.sequence,
        turn=form.turn,
        role=form.role,
        parts=(Text(text=form.content["text"]),) if isinstance(parts, UnsetType) else parts,
        model_id=None if form.model_id is None else ModelId(form.model_id),
        at=microseconds(parse_time(form.created_at)),
    )


def user_post(content: str | tuple[Part, ...], *, id: str, on_busy: OnBusy) -> UserPost:
    """Return the body of a user's message; refuses parts other than text and media."""
    if isinstance(content, str):
        require_sendable((Text(text=content),))
        words = TextContent(text=content)
        return UserPost(id=id, content=words, on_busy=on_busy, resume=False)
    parts = tuple(map(_part_form, require_sendable(content)))
    return UserPost(id=id, parts=parts, on_busy=on_busy, resume=False)


def _part_form(part: Part) -> TextPart | MediaPart:
    if isinstance(part, Media):
        return MediaPart(**asdict(part))
    return TextPart(text=part.text if isinstance(part, Text) else "")


def recorded_post(draft: MessageDraft, *, id: str) -> RecordedPost:
    """Return the body of a message that was written outside Holdfast."""
    require_recordable(draft)
    match draft.role, draft.parts:
        case Role.ASSISTANT, (Text(text=text),):
            return AssistantPost(id=id, content=TextContent(text=text))
        case Role.SYSTEM, (Text(text=text),):
            return SystemPost(id=id, content=TextContent(text=text))
        case Role.TOOL_CALL, (ToolCall() as call,):
            content = CallContent(id=call.id, name=call.name, arguments=call.arguments)
            return CallPost(id=id, content=content)
        case Role.TOOL_RESULT, (ToolResult() as result,):
            error = result.error.message if result.error else None
            came = ResultContent(result=result.result, error=error)
            return ResultPost(id=id, tool_call_id=result.call_id, content=came)
    raise Invalid(
        Code.INVALID_INPUT,
        "Over HTTP a recorded message has one part: a text, a call or a result; record each "
        "part as a separate message.",
        {"field": "parts"},
    )
