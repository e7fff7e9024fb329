"""JSON forms of recordings: whole turns that were played elsewhere."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.domain.costs import Usage
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Part, Role
from holdfast.domain.recordings import (
    RECORD_MOST,
    OnOpenCalls,
    Recorded,
    RecordedDraft,
    require_recording,
)
from holdfast.domain.tools import Effect
from holdfast.wire.messages import MessageForm, message_form, message_of
from holdfast.wire.scalars import ModelRef, Uuid

Tokens = Annotated[int, Meta(ge=0, le=1 << 53)]


class RecordedUsage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens that a model used; `input` is net of the cache, `reasoning` is part of `output`."""

    input: Tokens = 0
    output: Tokens = 0
    cache_read: Tokens = 0
    cache_write: Tokens = 0
    reasoning: Tokens = 0


class RecordedMessagePost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of any role, with its parts."""

    id: Uuid | None = None
    role: Role
    parts: Annotated[tuple[Part, ...], Meta(min_length=1)]
    effect: Annotated[Effect, Meta(description="Of a tool call; unsafe if absent.")] | None = None
    usage: RecordedUsage | None = None
    model: ModelRef | None = None
    at: (
        Annotated[datetime, Meta(tz=True, description="When it was written; the default is now.")]
        | None
    ) = None


class RecordPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whole turns: a user's message begins one."""

    messages: Annotated[tuple[RecordedMessagePost, ...], Meta(min_length=1, max_length=RECORD_MOST)]
    on_open_calls: Annotated[
        OnOpenCalls, Meta(description="What becomes of a call without a result.")
    ] = "unknown"


class RecordedForm(Struct, frozen=True, kw_only=True):
    """The rows of recorded messages, and the turns they belong to."""

    turns: tuple[int, ...]
    data: tuple[MessageForm, ...]
    is_new: Annotated[bool, Meta(description="False if all of them were recorded before.")]


def record_post(
    drafts: Sequence[MessageDraft], on_open_calls: OnOpenCalls, new_id: Callable[[], str]
) -> RecordPost:
    """Return the body of a recording; each message gets an id, so that it may be repeated."""
    # The server compares times with its own clock.
    wanted = require_recording(drafts, on_open_calls, now=1 << 62)
    return RecordPost(
        messages=tuple(
            RecordedMessagePost(
                id=draft.id or new_id(),
                role=draft.role,
                parts=draft.parts,
                effect=draft.effect,
                usage=None if draft.usage is None else RecordedUsage(**_tokens(draft.usage)),
                model=draft.model or draft.model_id,
                at=draft.at,
            )
            for draft in wanted
        ),
        on_open_calls=on_open_calls,
    )


def drafts_of(body: RecordPost) -> tuple[RecordedDraft, ...]:
    """Return the messages of a body."""
    return tuple(
        RecordedDraft(
            role=each.role,
            parts=each.parts,
            id=None if each.id is None else MessageId(each.id),
            effect=each.effect,
            usage=None if each.usage is None else Usage(**_tokens(each.usage)),
            model=each.model,
            at=each.at,
        )
        for each in body.messages
    )


def _tokens(usage: Usage | RecordedUsage) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in usage.__struct_fields__}


def recorded_form(recorded: Recorded, session_id: SessionId) -> RecordedForm:
    """Return the response to a recording."""
    return RecordedForm(
        turns=recorded.turns,
        data=tuple(message_form(row, session_id, parts_wanted="all") for row in recorded.messages),
        is_new=recorded.is_new,
    )


def recorded_of(form: RecordedForm) -> Recorded:
    """Return the recording of a response."""
    return Recorded(
        turns=form.turns, messages=tuple(map(message_of, form.data)), is_new=form.is_new
    )
