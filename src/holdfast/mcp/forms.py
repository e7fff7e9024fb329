"""JSON of MCP tool results: the forms of `wire/` in the envelopes of the tools, and their text."""

import json
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from holdfast.domain.calls import Call, CallState, Settlement
from holdfast.domain.text import is_encodable, storable
from holdfast.wire.calls import CallForm, call_form
from holdfast.wire.costs import CostTotalForm
from holdfast.wire.messages import MessageForm
from holdfast.wire.observations import NextCursor
from holdfast.wire.scalars import format_time_or_none
from holdfast.wire.search import HitForm
from holdfast.wire.sessions import SessionForm


def to_plain(form: Struct) -> dict[str, Any]:
    """Return a form as JSON-compatible values."""
    value: dict[str, Any] = msgspec.to_builtins(form)
    return value if is_encodable(text_of(value)) else _replace_surrogates(value)


def text_of(value: Any) -> str:
    """Encode JSON-compatible values on one line."""
    # Not msgspec's encoder, because observations may contain integers beyond 64 bits.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _replace_surrogates(value: Any) -> Any:
    """Replace lone surrogates in all strings, because they cannot be encoded as UTF-8."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {
            _replace_surrogates(name): _replace_surrogates(each) for name, each in value.items()
        }
    return (
        [_replace_surrogates(each) for each in value] if isinstance(value, list | tuple) else value
    )


class OpenCallForm(CallForm, frozen=True, kw_only=True):
    """A call; its fields have the names that `settle_call` uses."""

    call_id: Annotated[str, Meta(description="The call's id, for settle_call.")]
    since: Annotated[str | None, Meta(description="When it entered this state.")]


class CallsForm(Struct, frozen=True, kw_only=True):
    """A page of calls with an unknown outcome."""

    calls: Annotated[tuple[OpenCallForm, ...], Meta(description="The calls, grouped by session.")]
    next_cursor: NextCursor


class SettledForm(Struct, frozen=True, kw_only=True):
    """The settlement of a call with an unknown outcome."""

    call_id: Annotated[str, Meta(description="The call's id.")]
    state: Annotated[CallState, Meta(description="Its state after the settlement.")]
    settled: Annotated[Settlement | None, Meta(description="How it was settled.")]
    by: Annotated[str, Meta(description="The surface through which it was settled.")]
    session_id: Annotated[str, Meta(description="Its session.")]


class TranscriptForm(Struct, frozen=True, kw_only=True):
    """A session, a page of its messages, its open calls, and its cost."""

    session: Annotated[SessionForm, Meta(description="The session.")]
    messages: Annotated[
        tuple[MessageForm, ...], Meta(description="The messages, by sequence number.")
    ]
    next_after: Annotated[
        int | None,
        Meta(description="The value of `after` for the next page; null on the last page."),
    ]
    open_calls: Annotated[
        tuple[OpenCallForm, ...],
        Meta(description="Calls that are running, waiting, or have an unknown outcome."),
    ]
    costs: Annotated[CostTotalForm, Meta(description="The cost so far.")]


class HitsForm(Struct, frozen=True, kw_only=True):
    """A page of search results."""

    hits: Annotated[tuple[HitForm, ...], Meta(description="The matches, newest first.")]
    next_cursor: NextCursor


def open_call_form(call: Call) -> OpenCallForm:
    """Return the form of a call."""
    since = format_time_or_none(call.ended_at or call.started_at)
    return OpenCallForm(**asdict(call_form(call)), call_id=call.id, since=since)
