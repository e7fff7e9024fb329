"""The observation that a hosted session makes about itself, derived from its rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.calls import Call, CallState, Settlement
from holdfast.domain.canonical_json import canonical, decode_exact
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Message,
    Notice,
    NoticeCode,
    ResultStatus,
    ToolCall,
    ToolResult,
)
from holdfast.domain.sessions import OPEN, Session
from holdfast.domain.time import format_iso8601, milliseconds, truncate_to_ms
from holdfast.observations.as_of import EVERYTHING, AsOf
from holdfast.observations.model import CheckpointFields, EntityType, Subject
from holdfast.observations.validation import find_issues, members_of

CHECKPOINT_TOOL: Final = "checkpoint"
OPENED: Final = "session_opened"
RESULTS: Final[Mapping[ResultStatus, str]] = {
    ResultStatus.OK: "success",
    ResultStatus.ERROR: "failure",
    ResultStatus.UNKNOWN: "unknown",
    ResultStatus.SKIPPED: "skipped",
    ResultStatus.DENIED: "denied",
}
# A retried call stays unknown, because the retry is recorded as its own action.
SETTLED: Final[Mapping[Settlement, str]] = {
    Settlement.RETRIED: "unknown",
    Settlement.SKIPPED: "skipped",
    Settlement.MARKED_DONE: "success",
}


class HostedSessionView(Struct, frozen=True, kw_only=True):
    """The part of a hosted session needed to resolve it: session, messages and calls.

    Only messages with calls, results and notices matter; others may be omitted.
    """

    session: Session
    messages: Sequence[Message]
    calls: Sequence[Call] = ()

    @property
    def subject(self) -> Subject:
        """Return the entity that the session corresponds to."""
        return Subject(self.session.owner, EntityType.AGENT_SESSION, self.session.id)


class HostedObservation(Struct, frozen=True, kw_only=True):
    """The observation of a hosted session; `times` holds the row times of its scalar fields."""

    reference: str
    fields: dict[str, Any]
    times: dict[str, datetime]
    last_at: datetime


def claim_of(hosted: HostedSessionView, horizon: AsOf = EVERYTHING) -> HostedObservation | None:
    """Return the session's own observation; None if the horizon is before its creation."""
    session = hosted.session
    if not horizon.shows(session.created_at, session.created_at):
        return None
    rows = [row for row in _own_rows(hosted) if horizon.shows(row.created_at, row.created_at)]
    results = _results(rows, hosted.calls)
    opened = {"type": OPENED, "result": "success", "timestamp": _at(session.created_at)}
    fields: dict[str, Any] = {
        "session_id": session.id,
        "actions": [opened, *(_action(row, part, result) for row, part, result in results)],
        "checkpoints": list(_checkpoints(rows, results)),
        "started_at": _at(session.created_at),
    }
    times = dict.fromkeys(("session_id", "started_at"), truncate_to_ms(session.created_at))
    ended = _ended_at(session, horizon)
    if ended is not None:
        closing = {"ended_at": _at(ended)} | _duration(session.created_at, ended)
        fields |= closing
        times |= dict.fromkeys(closing, truncate_to_ms(ended))
    return HostedObservation(
        reference=f"journal:{session.id}",
        fields=fields,
        times=times,
        last_at=truncate_to_ms(_last_at(session, rows, horizon)),
    )


# A result's row, the result, and its name in observations.
_CallResult = tuple[Message, ToolResult, str]


def _own_rows(hosted: HostedSessionView) -> Iterator[Message]:
    """Yield the rows that the session wrote itself, without those a fork inherited."""
    forked = hosted.session.forked_from
    inherited = forked.sequence if forked else 0
    return (row for row in hosted.messages if row.sequence > inherited)


def _results(rows: Iterable[Message], calls: Sequence[Call]) -> list[_CallResult]:
    settled = {call.id: call for call in calls if call.state is CallState.SETTLED}
    notices = [
        part.text
        for row in rows
        for part in row.parts
        if isinstance(part, Notice) and part.code is NoticeCode.CALL_SETTLED
    ]
    return [
        (row, part, _outcome(part, settled, notices))
        for row in rows
        for part in row.parts
        if isinstance(part, ToolResult)
    ]


def _outcome(part: ToolResult, settled: Mapping[CallId, Call], notices: Sequence[str]) -> str:
    """Return the outcome of a call; a settlement counts once it is within the horizon."""
    call = settled.get(part.call_id)
    if call is None or call.settlement is None or part.status is not ResultStatus.UNKNOWN:
        return RESULTS[part.status]
    # The notice is the row of the settlement; without it, the settlement is beyond the horizon.
    is_in_notice = any(f"({call.id})" in text for text in notices)
    return SETTLED[call.settlement] if is_in_notice else RESULTS[part.status]


def _action(row: Message, part: ToolResult, result: str) -> dict[str, Any]:
    details: dict[str, Any] = {"call_id": part.call_id, "turn": row.turn}
    if part.error is not None:
        details["error"] = part.error.code
    return {
        "type": part.name,
        "result": result,
        "details": details,
        "timestamp": _at(row.created_at),
    }


def _checkpoints(
    rows: Iterable[Message], results: Iterable[_CallResult]
) -> Iterator[dict[str, Any]]:
    reached = {part.call_id for _, part, result in results if result == "success"}
    for row in rows:
        for part in row.parts:
            if isinstance(part, ToolCall) and part.name == CHECKPOINT_TOOL and part.id in reached:
                claimed = {"name": part.arguments.get("name"), "timestamp": _at(row.created_at)}
                state = part.arguments.get("state")
                claimed |= {} if state is None else {"state": state}
                # Another agent may define a tool with the same name but other arguments.
                if not find_issues(members_of(CheckpointFields), claimed):
                    yield decode_exact(canonical(claimed))


def _ended_at(session: Session, horizon: AsOf) -> datetime | None:
    ended = session.finished_at
    if session.status in OPEN or ended is None or not horizon.shows(ended, ended):
        return None
    return ended


def _last_at(session: Session, rows: Sequence[Message], horizon: AsOf) -> datetime:
    """Return the time of the last write within the horizon."""
    if horizon.shows(session.updated_at, session.updated_at):
        return session.updated_at
    seen = [session.created_at, _ended_at(session, horizon), *(row.created_at for row in rows)]
    return max(at for at in seen if at is not None)


def _duration(start: datetime, end: datetime) -> dict[str, Any]:
    ms = milliseconds(end) - milliseconds(start)
    # Whole seconds as an integer, to match the canonical JSON form.
    seconds = ms // 1000 if ms % 1000 == 0 else ms / 1000
    return {"duration": seconds} if ms > 0 else {}


def _at(instant: datetime) -> str:
    return format_iso8601(milliseconds(instant))
