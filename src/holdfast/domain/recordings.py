"""Recordings: whole turns that were played elsewhere become rows of a session; nothing runs.

Foreign records are what a framework wrote, byte for byte, in the order written. It reads back its
own bytes and never our messages, which are made of them for everything else. A removal is a record
as well, so that no row is changed or deleted.
"""

import json
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import chain
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.domain.calls import start_call
from holdfast.domain.commits import CommitBuilder, OpenTurn
from holdfast.domain.costs import CostEntry, CostSum, Usage, price
from holdfast.domain.drafts import MessageDraft, require_recordable
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.domain.events import TurnEnded, TurnStarted
from holdfast.domain.ids import CallId, MessageId, SessionId, SessionKey
from holdfast.domain.messages import (
    Message,
    ResultStatus,
    Role,
    ToolCall,
    ToolError,
    ToolResult,
    encode_parts,
    require_sendable,
)
from holdfast.domain.models import Model
from holdfast.domain.sessions import (
    StopReason,
    Verb,
    has_waiting_turn,
    title_of,
    transition,
)
from holdfast.domain.time import microseconds

RECORD_MOST: Final = 10_000
RECORD_LARGEST: Final = 64 << 20
# What becomes of a call that has no result among the messages.
OnOpenCalls = Literal["unknown", "reject"]
_TOOLS: Final = frozenset({Role.TOOL_CALL, Role.TOOL_RESULT})
_NO_RESULT: Final = ToolError(
    code="unknown", message="outcome unknown: the call was recorded without a result"
)


class RecordedDraft(MessageDraft, frozen=True, kw_only=True):
    """A message that was written elsewhere: by which model, what it used, and when."""

    model: str | None = None
    usage: Usage | None = None
    at: datetime | None = None


class Recorded(Struct, frozen=True, kw_only=True):
    """The rows of recorded messages and the turns they belong to.

    `is_new` is false if all of them were recorded before.
    """

    turns: tuple[int, ...]
    messages: tuple[Message, ...]
    is_new: bool = True


def recorded(rows: Iterable[Message], *, is_new: bool) -> Recorded:
    """Return the result of a recording."""
    found = tuple(rows)
    turns = dict.fromkeys(row.turn for row in found if row.turn)
    return Recorded(turns=tuple(turns), messages=found, is_new=is_new)


def require_recording(
    drafts: Sequence[MessageDraft], on_open_calls: OnOpenCalls, *, now: int
) -> tuple[RecordedDraft, ...]:
    """Return the messages of a recording, each result with the name of its call.

    Refuses all of them if one is invalid; `now` is in microseconds.
    """
    given = [_as_recorded(draft, number) for number, draft in enumerate(drafts)]
    if on_open_calls not in ("unknown", "reject"):
        raise Invalid(
            Code.INVALID_INPUT,
            "on_open_calls must be unknown or reject.",
            {"field": "on_open_calls"},
        )
    if not drafts:
        raise Invalid(Code.MESSAGE_EMPTY, "There is nothing to record; give some messages.")
    if len(drafts) > RECORD_MOST:
        raise Invalid(Code.TOO_LARGE, f"At most {RECORD_MOST:,} messages can be recorded at once.")
    for number, draft in enumerate(given):
        _require_draft(draft, number)
    if sum(len(encode_parts(draft.parts)) for draft in given) > RECORD_LARGEST:
        raise Invalid(Code.TOO_LARGE, "At most 64 MiB can be recorded at once.")
    ids = [draft.id for draft in given if draft.id is not None]
    if len(set(ids)) < len(ids):
        raise Conflict(Code.MESSAGE_ID_REUSED, "Two of the messages have the same id.")
    _require_times(given, now)
    named = _name_results(given)
    open_calls = _calls(named) - _results(named)
    if open_calls and on_open_calls == "reject":
        raise Invalid(
            Code.MESSAGE_INVALID,
            "These calls have no result; add them, or record the calls as unknown.",
            {"calls": sorted(open_calls)},
        )
    return named


def _as_recorded(draft: MessageDraft, number: int) -> RecordedDraft:
    if isinstance(draft, RecordedDraft):
        return draft
    if not isinstance(draft, MessageDraft):
        raise Invalid(
            Code.INVALID_INPUT, "A recorded message is a MessageDraft.", {"message": number}
        )
    return RecordedDraft(**asdict(draft))


def _require_draft(draft: RecordedDraft, number: int) -> None:
    if draft.role is Role.USER:
        require_sendable(draft.parts)
    else:
        require_recordable(draft)
    if draft.usage is not None and draft.model is None:
        raise Invalid(
            Code.INVALID_INPUT, "usage needs the model that it was used by.", {"message": number}
        )


def _require_times(drafts: Sequence[RecordedDraft], now: int) -> None:
    given = [draft.at for draft in drafts if draft.at is not None]
    if any(at.tzinfo is None for at in given):
        raise Invalid(Code.INVALID_INPUT, "at needs a time zone.", {"field": "at"})
    times = [microseconds(at) for at in given]
    if times != sorted(times) or (times and times[-1] > now):
        raise Invalid(
            Code.INVALID_INPUT,
            "The times of recorded messages must not fall, and must not be in the future.",
            {"field": "at"},
        )


def _name_results(drafts: Sequence[RecordedDraft]) -> tuple[RecordedDraft, ...]:
    """Return the drafts with the name of its call in each result."""
    names: dict[CallId, str] = {}
    found: list[RecordedDraft] = []
    for draft in drafts:
        match draft.parts:
            case (ToolCall() as call,):
                if call.id in names:
                    raise Conflict(Code.ID_REUSED, f"Two of the calls have the id {call.id}.")
                names[call.id] = call.name
                found.append(draft)
            case (ToolResult() as result,):
                if result.call_id not in names:
                    raise Conflict(
                        Code.CALL_NOT_OPEN,
                        "A result must come after its call, among the same messages.",
                        {"tool_call_id": result.call_id},
                    )
                named = replace(result, name=names[result.call_id])
                found.append(replace(draft, parts=(named,)))
            case _:
                found.append(draft)
    return tuple(found)


def _calls(drafts: Iterable[MessageDraft]) -> set[CallId]:
    return {part.id for draft in drafts for part in draft.parts if isinstance(part, ToolCall)}


def _results(drafts: Iterable[MessageDraft]) -> set[CallId]:
    return {
        part.call_id for draft in drafts for part in draft.parts if isinstance(part, ToolResult)
    }


def add_recording(
    writer: CommitBuilder,
    drafts: Sequence[RecordedDraft],
    models: Mapping[str, Model],
    *,
    turn: int = 0,
) -> list[Message]:
    """Add recorded messages; those before the first user message belong to `turn`.

    `models` has the model of every draft that names one.
    """
    transition(writer.state.status, Verb.ADMIT)
    if has_waiting_turn(writer.state):
        raise Conflict(
            Code.SESSION_RUNNING, "A turn is running or waiting; record when it has ended."
        )
    writer.turn = writer.turn or OpenTurn()
    begin = partial(_RecordedTurn, writer, models, _results(drafts))
    rows: list[Message] = []
    current = begin(turn)
    for draft in drafts:
        if draft.role is Role.USER:
            current.close()
            current = begin(writer.state.settled + 1)
        rows.append(current.add(draft))
    current.close()
    return rows


class _RecordedTurn:
    """The rows of one turn; turn 0, and a turn that is continued, have no events of their own."""

    def __init__(
        self,
        writer: CommitBuilder,
        models: Mapping[str, Model],
        answered: set[CallId],
        number: int,
    ) -> None:
        """`answered` are the calls whose results are among the messages."""
        self._writer = writer
        self._models = models
        self._answered = answered
        self._number = number
        self._is_new = number > writer.state.settled
        self._unanswered: list[ToolCall] = []
        self._spent = CostSum(key="")

    def add(self, draft: RecordedDraft) -> Message:
        """Add a row; the first one begins the turn."""
        writer = self._writer
        model = None if draft.model is None else self._models[draft.model]
        if model is not None:
            draft = replace(draft, model_id=model.id)
        if draft.role not in _TOOLS:
            self._answer()
        at = None if draft.at is None else microseconds(draft.at)
        message = writer.add_message(draft, self._number, at)
        match message.parts:
            case (ToolCall() as call,):
                self._start(call, message)
            case _:
                pass
        if draft.usage is not None and model is not None:
            self._charge(message, draft.usage, model)
        if draft.role is Role.USER:
            self._begin(message)
        return message

    def close(self) -> None:
        """End the turn."""
        self._answer()
        if self._is_new:
            self._end()

    def _answer(self) -> None:
        """Add the results of calls that have none: their outcome is unknown."""
        for call in self._unanswered:
            result = ToolResult(
                call_id=call.id, name=call.name, status=ResultStatus.UNKNOWN, error=_NO_RESULT
            )
            draft = MessageDraft(role=Role.TOOL_RESULT, parts=(result,))
            self._writer.add_message(draft, self._number)
        self._unanswered.clear()

    def _start(self, call: ToolCall, message: Message) -> None:
        """Mark a call as started: it did run, elsewhere."""
        if call.id not in self._answered:
            self._unanswered.append(call)
        self._writer.advance_call(call.id, partial(start_call, at=message.created_at))

    def _charge(self, message: Message, usage: Usage, model: Model) -> None:
        prices = model.prices
        entry = CostEntry(
            request_id=message.id,
            session_id=message.session_id,
            turn=self._number,
            model_id=model.id,
            usage=usage,
            microcents=0 if prices is None else price(usage, prices),
            priced=prices is not None,
            at=message.created_at,
        )
        self._writer.add_cost(entry)
        self._spent += entry

    def _begin(self, message: Message) -> None:
        writer = self._writer
        if writer.state.title is None:
            writer.update(title=title_of(message.text))
        at = writer.add_event(TurnStarted(), self._number)
        writer.update(
            status=transition(writer.state.status, Verb.BEGIN),
            turn=self._number,
            began=writer.state.events,
            started_at=writer.state.started_at or at,
        )

    def _end(self) -> None:
        writer, spent = self._writer, self._spent
        at = writer.add_event(
            TurnEnded(
                stop_reason=StopReason.STOP,
                usage=spent.usage,
                microcents=spent.microcents,
                priced=not spent.unpriced_requests,
                recorded=True,
            ),
            self._number,
        )
        writer.update(
            status=transition(writer.state.status, Verb.END),
            settled=self._number,
            last_stop=StopReason.STOP,
            finished_at=at,
        )


class Disposition(StrEnum):
    """How a record relates to the messages of its session and to the framework's own history."""

    # Messages were made of it.
    MAPPED = "mapped"
    # It is kept only as it is.
    RAW = "raw"
    # Written before the framework saved it itself; dropped when it does.
    AHEAD = "ahead"
    # Made by Holdfast, so that the history can be continued.
    SYNTHETIC = "synthetic"


class ForeignRecord(Struct, frozen=True, kw_only=True, gc=False):
    """One record of a stream; ordinals are dense from 1."""

    ordinal: int
    key: str
    kind: str
    raw: bytes
    disposition: Disposition
    message_id: MessageId | None = None


class ForeignSession(Struct, frozen=True, kw_only=True):
    """A session by the id that its framework gives it, and what the framework keeps about it."""

    native_id: str
    id: SessionId
    state: bytes | None = None


class NotJsonError(Invalid, TypeError):
    """A value that JSON cannot say; also a `TypeError`, as frameworks raise it."""


def encode_plain(value: Any, what: str) -> bytes:
    """Return the bytes of a value, which are read back as the same value."""
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJsonError(Code.NOT_JSON, f"{what} must be plain JSON: {error}.") from None


# A record of this kind withdraws others: its content is a JSON array of their ordinals.
WITHDRAWAL = "holdfast:withdrawal"


def is_removal(record: ForeignRecord) -> bool:
    """Return whether a record removes others and is no content itself."""
    return record.kind == WITHDRAWAL


# Bound of all live views of a process together, in bytes of their records.
_VIEWS_MOST: Final = 32 << 20
# Overhead of a record in memory, beside its bytes.
_OF_A_RECORD: Final = 300
_ordinals: Final = msgspec.json.Decoder(tuple[int, ...]).decode


class LiveView:
    """The records of a stream that are left, in order."""

    def __init__(self, base: "LiveView | None" = None) -> None:
        """With a `base` it begins as a view of the same records, without a copy of them."""
        self._base = base
        self._first: int = base.last if base else 0
        self._added: dict[int, ForeignRecord] = {}
        self._ahead: dict[int, ForeignRecord] = {}
        self._removed: set[int] = set()
        self.last: int = self._first
        self.weight = 0
        # The version of the store at which it was read; `None` if the store has to be read.
        self.version: tuple[int, int] | None = None

    def apply(self, record: ForeignRecord) -> None:
        """Include the next record of the stream; one that is included already changes nothing."""
        if record.ordinal != self.last + 1:
            return
        self.last = record.ordinal
        self.weight += len(record.raw) + _OF_A_RECORD
        if is_removal(record):
            for ordinal in _ordinals(record.raw):
                self._ahead.pop(ordinal, None)
                if self._added.pop(ordinal, None) is None:
                    self._removed.add(ordinal)
            return
        self._added[record.ordinal] = record
        if record.disposition is Disposition.AHEAD:
            self._ahead[record.ordinal] = record

    def __iter__(self) -> Iterator[ForeignRecord]:
        return chain(self._inherited("_added"), list(self._added.values()))

    def newest(self) -> ForeignRecord | None:
        """Return the last record."""
        if self._added:
            return next(reversed(self._added.values()))
        return next(reversed(list(self._inherited("_added"))), None)

    def ahead(self) -> list[ForeignRecord]:
        """Return the records that were written ahead, and not by the framework yet."""
        return [*self._inherited("_ahead"), *self._ahead.values()]

    def _inherited(self, name: str) -> Iterator[ForeignRecord]:
        # A copy, because the base may grow while it is read.
        records = list(getattr(self._base, name).values()) if self._base else []
        return filter(self._is_inherited, records)

    def _is_inherited(self, record: ForeignRecord) -> bool:
        return record.ordinal <= self._first and record.ordinal not in self._removed


class LiveViews:
    """Live views in memory, the least recently used of them dropped above a bound."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[SessionKey, str], LiveView] = OrderedDict()
        self._weight = 0

    def get(self, key: SessionKey, stream: str) -> LiveView | None:
        found = self._known.get((key, stream))
        if found is not None:
            self._known.move_to_end((key, stream))
        return found

    def extend(self, key: SessionKey, stream: str, records: Iterable[ForeignRecord]) -> LiveView:
        """Include stored records, and return the view."""
        view = self._known.setdefault((key, stream), LiveView())
        before = view.weight
        for record in records:
            if record.ordinal > view.last + 1:
                # The one before it is not included yet, so the store has to be read.
                view.version = None
            view.apply(record)
        self._weight += view.weight - before
        while self._weight > _VIEWS_MOST and len(self._known) > 1:
            self._weight -= self._known.popitem(last=False)[1].weight
        return view

    def expire(self, keys: Container[SessionKey]) -> None:
        """Note that the views of sessions may lack something that was stored."""
        for (key, _), view in self._known.items():
            if key in keys:
                view.version = None
