"""Row mapping of sessions: the row that every write changes, and the data frozen at creation."""

from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import Agent
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.costs import Usage
from holdfast.domain.ids import AgentId, ModelId, Owner, RepoId
from holdfast.domain.sessions import (
    Budget,
    ForkPoint,
    ParentLink,
    Session,
    SessionContext,
    SessionState,
    Status,
    StopReason,
)
from holdfast.domain.time import instant, microseconds
from holdfast.domain.tools import Grant, ToolSpec
from holdfast.store.agent_processes import record_of
from holdfast.store.database import Row, checksum, corrupt, encode, require_sound


class Opening(Struct, frozen=True, kw_only=True):
    """Session data beside the session row; frozen except for fields the owner may change."""

    agent: Agent
    tags: tuple[str, ...]
    model_id: ModelId | None
    context: SessionContext
    grant: Grant
    tools: tuple[ToolSpec, ...]
    approval: ApprovalMode
    turn_cap: int
    budget: Budget | None
    metadata: dict[str, Any]


_decoder = msgspec.json.Decoder(Opening)
_links = msgspec.json.Decoder(ParentLink)
STATE_COLUMNS: Final = 26


# In column order, between the session's ids and its fork position.
_CHANGING: Final = (
    "title",
    "status",
    "last_stop",
    "reason",
    "turn",
    "settled",
    "messages",
    "events",
    "began",
    "chain",
    "holder",
    "until",
    "epoch",
    "tokens_in",
    "tokens_out",
    "microcents",
    "requests",
    "updated_at",
    "started_at",
    "finished_at",
)
_UNTIL: Final = _CHANGING.index("until")
_NAMES: Final = ("key", *_CHANGING, "checksum")


def columns_of(state: SessionState, *, checks: bool) -> dict[str, Any]:
    """Return the columns of a session state row."""
    return dict(zip(_NAMES, (state.key, *state_values(state, checks=checks)), strict=True))


def state_values(state: SessionState, *, checks: bool) -> Row:
    """Return the values of the columns that a write may change, and their checksum."""
    values = (
        state.title,
        # `_value_` is the value without the call of a property.
        state.status._value_,
        state.last_stop._value_ if state.last_stop else None,
        state.reason,
        state.turn,
        state.settled,
        state.messages,
        state.events,
        state.began,
        state.chain,
        state.holder,
        state.until,
        state.epoch,
        state.tokens_in,
        state.tokens_out,
        state.microcents,
        state.requests,
        state.updated_at,
        state.started_at,
        state.finished_at,
    )
    if not checks:
        return *values, 0
    # The checksum excludes the key, unknown on insert, and `until`, which EXTEND changes alone.
    names = (state.session_id, state.owner, state.agent_id)
    return *values, _sum(names + values[:_UNTIL] + values[_UNTIL + 1 :])


def _sum(values: Row) -> int:
    return checksum(encode(values))


_STATUS: Final = {status.value: status for status in Status}
_STOP: Final = {stop.value: stop for stop in StopReason}


def state_of(row: Row, *, checks: bool) -> SessionState:
    """Return the state of a session; raise for a damaged row."""
    if checks and _sum(row[1:15] + row[16:24]) != row[25]:
        raise corrupt(f"session {row[1]}")
    return SessionState(
        key=row[0],
        session_id=row[1],
        owner=Owner(row[2]),
        agent_id=AgentId(row[3]),
        title=row[4],
        status=_STATUS[row[5]],
        last_stop=_STOP[row[6]] if row[6] else None,
        reason=row[7],
        turn=row[8],
        settled=row[9],
        messages=row[10],
        events=row[11],
        began=row[12],
        chain=row[13],
        holder=row[14],
        until=row[15],
        epoch=row[16],
        tokens_in=row[17],
        tokens_out=row[18],
        microcents=row[19],
        requests=row[20],
        updated_at=row[21],
        started_at=row[22],
        finished_at=row[23],
        inherited=row[24] or 0,
    )


def opening_of(session: Session) -> dict[str, Any]:
    """Return the columns of the session data stored outside the session row."""
    body = encode(
        Opening(
            agent=session.agent,
            tags=session.tags,
            model_id=session.model_id,
            context=session.context,
            grant=session.grant,
            tools=session.tools,
            approval=session.approval,
            turn_cap=session.turn_cap,
            budget=session.budget,
            metadata=session.metadata,
        )
    )
    # Includes the creation time, which the checksum of the session row does not cover.
    return {"body": body, "checksum": checksum(microseconds(session.created_at), body)}


@lru_cache(maxsize=1_024)
def _decode_settings(body: bytes) -> Opening:
    # Cached by content: the same data is decoded several times per turn.
    return _decoder.decode(body)


def session_of(row: Row, *, checks: bool) -> tuple[Session, SessionState]:
    """Return a session and its state from a joined row."""
    state = state_of(row[:STATE_COLUMNS], checks=checks)
    repo_id, forked_id, created_at, body, stored, program, sum_of_it, *family = row[STATE_COLUMNS:]
    require_sound(stored, created_at, body, what=f"session {state.session_id}")
    try:
        opening = _decode_settings(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise corrupt(f"session {state.session_id}") from error
    parent = ForkPoint(session_id=forked_id, sequence=state.inherited) if forked_id else None
    session = _build_session(
        state, opening, RepoId(repo_id) if repo_id else None, parent, created_at
    )
    # Ignore a damaged process record: the session stays readable, and `doctor` reports it.
    is_sound = program is not None and checksum(program) == sum_of_it
    process_record = record_of(program, sum_of_it) if is_sound else None
    if process_record is not None:
        session = replace(session, program=process_record)
    return _with_family(session, *family), state


def _with_family(session: Session, link: bytes | None, stored: int, children: int) -> Session:
    """Return a session with its parent and the number of its children."""
    if link is None and not children:
        return session
    if link is None:
        return replace(session, children=children)
    require_sound(stored, link, what=f"the parent of session {session.id}")
    return replace(session, parent=_links.decode(link), children=children)


def _build_session(
    state: SessionState,
    opening: Opening,
    repo_id: RepoId | None,
    parent: ForkPoint | None,
    created_at: int,
) -> Session:
    frozen = {name: getattr(opening, name) for name in Opening.__struct_fields__}
    return Session(
        id=state.session_id,
        owner=state.owner,
        agent_id=state.agent_id,
        repo_id=repo_id,
        title=state.title,
        status=state.status,
        last_stop=state.last_stop,
        reason=state.reason,
        turn=state.turn,
        settled=state.settled,
        forked_from=parent,
        usage=Usage(input=state.tokens_in, output=state.tokens_out),
        microcents=state.microcents,
        message_count=state.messages,
        last_event=state.events,
        created_at=instant(created_at),
        updated_at=instant(state.updated_at),
        started_at=instant(state.started_at) if state.started_at is not None else None,
        finished_at=instant(state.finished_at) if state.finished_at is not None else None,
        **frozen,
    )
