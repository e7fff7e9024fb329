"""The journal as an observation: what our own record of a session shows without being told.

It is computed when it is asked for and never written, so it cannot contradict the record. What
calls were given and gave stays out of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.calls import Call, CallState, Settlement
from holdfast.domain.canonical import canonical, reading
from holdfast.domain.entity_types import CHECKPOINT, EntityType
from holdfast.domain.horizons import EVERYTHING, Horizon
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Message,
    Notice,
    NoticeCode,
    ResultStatus,
    ToolCall,
    ToolResult,
)
from holdfast.domain.observation_schema import faults
from holdfast.domain.observations import Subject
from holdfast.domain.sessions import OPEN, Session
from holdfast.domain.timestamps import milliseconds, spelled, truncated

CHECKPOINT_TOOL: Final = "checkpoint"
OPENED: Final = "session_opened"

RESULTS: Final[Mapping[ResultStatus, str]] = {
    ResultStatus.OK: "success",
    ResultStatus.ERROR: "failure",
    ResultStatus.UNKNOWN: "unknown",
    ResultStatus.SKIPPED: "skipped",
    ResultStatus.DENIED: "denied",
}
# What was retried is as unknown as before: how the retry came out is an action of its own.
SETTLED: Final[Mapping[Settlement, str]] = {
    Settlement.RETRIED: "unknown",
    Settlement.SKIPPED: "skipped",
    Settlement.MARKED_DONE: "success",
}


class Journal(Struct, frozen=True, kw_only=True):
    """What is read of a session: itself, its rows by number, and its calls.

    Only rows of calls, of results and of our own notices matter; others may be left out.
    """

    session: Session
    messages: Sequence[Message]
    calls: Sequence[Call] = ()

    @property
    def subject(self) -> Subject:
        """Return what it is about."""
        return Subject(self.session.owner, EntityType.AGENT_SESSION, self.session.id)


class JournalClaim(Struct, frozen=True, kw_only=True):
    """What a journal claims; `times` are those of the rows that set its scalars."""

    reference: str
    fields: dict[str, Any]
    times: dict[str, datetime]
    last_at: datetime


def claim_of(journal: Journal, horizon: Horizon = EVERYTHING) -> JournalClaim | None:
    """Return what the journal claims as far as can be seen; nothing before it was opened."""
    session = journal.session
    if not horizon.shows(session.created_at, session.created_at):
        return None
    rows = [row for row in _own(journal) if horizon.shows(row.created_at, row.created_at)]
    results = _results(rows, journal.calls)
    opened = {"type": OPENED, "result": "success", "timestamp": _at(session.created_at)}
    fields: dict[str, Any] = {
        "session_id": session.id,
        "actions": [opened, *(_action(row, part, result) for row, part, result in results)],
        "checkpoints": list(_checkpoints(rows, results)),
        "started_at": _at(session.created_at),
    }
    times = dict.fromkeys(("session_id", "started_at"), truncated(session.created_at))
    ended = _ended(session, horizon)
    if ended is not None:
        closing = {"ended_at": _at(ended)} | _duration(session.created_at, ended)
        fields |= closing
        times |= dict.fromkeys(closing, truncated(ended))
    return JournalClaim(
        reference=f"journal:{session.id}",
        fields=fields,
        times=times,
        last_at=truncated(_last_at(session, rows, horizon)),
    )


# A result's row, the result, and what an observation calls it.
_Told = tuple[Message, ToolResult, str]


def _own(journal: Journal) -> Iterator[Message]:
    """Yield the rows that a session wrote itself; what a fork inherits is its parent's history."""
    forked = journal.session.forked_from
    inherited = forked.sequence if forked else 0
    return (row for row in journal.messages if row.sequence > inherited)


def _results(rows: Iterable[Message], calls: Sequence[Call]) -> list[_Told]:
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
    """Return how a call came out, by what somebody said of it if that can be seen already."""
    call = settled.get(part.call_id)
    if call is None or call.settlement is None or part.status is not ResultStatus.UNKNOWN:
        return RESULTS[part.status]
    # The notice is the row of the settlement; without it, it was settled beyond the horizon.
    is_told = any(f"({call.id})" in text for text in notices)
    return SETTLED[call.settlement] if is_told else RESULTS[part.status]


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


def _checkpoints(rows: Iterable[Message], results: Iterable[_Told]) -> Iterator[dict[str, Any]]:
    reached = {part.call_id for _, part, result in results if result == "success"}
    for row in rows:
        for part in row.parts:
            if isinstance(part, ToolCall) and part.name == CHECKPOINT_TOOL and part.id in reached:
                claimed = {"name": part.arguments.get("name"), "timestamp": _at(row.created_at)}
                state = part.arguments.get("state")
                claimed |= {} if state is None else {"state": state}
                # Another agent's tool may have the same name and other arguments.
                if not faults(CHECKPOINT, claimed):
                    yield reading(canonical(claimed))


def _ended(session: Session, horizon: Horizon) -> datetime | None:
    ended = session.finished_at
    if session.status in OPEN or ended is None or not horizon.shows(ended, ended):
        return None
    return ended


def _last_at(session: Session, rows: Sequence[Message], horizon: Horizon) -> datetime:
    """Return when something was last written that can be seen."""
    if horizon.shows(session.updated_at, session.updated_at):
        return session.updated_at
    seen = [session.created_at, _ended(session, horizon), *(row.created_at for row in rows)]
    return max(at for at in seen if at is not None)


def _duration(start: datetime, end: datetime) -> dict[str, Any]:
    ms = milliseconds(end) - milliseconds(start)
    # Whole seconds as a whole number, as they are spelled.
    seconds = ms // 1000 if ms % 1000 == 0 else ms / 1000
    return {"duration": seconds} if ms > 0 else {}


def _at(instant: datetime) -> str:
    return spelled(milliseconds(instant))
