"""Builders: whole values with defaults, so that a test shows only what matters to it.

Pure values only; what needs a store, a clock or a loop is built elsewhere. Every builder takes
the fields of its value as keywords, and the defaults of all builders belong together.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from holdfast.domain.agents import Agent, LlmRuntime
from holdfast.domain.approvals import Approval
from holdfast.domain.calls import Call
from holdfast.domain.costs import CostEntry, Usage
from holdfast.domain.events import Event, Payload, StepStarted, TurnStarted, event_id
from holdfast.domain.ids import (
    LOCAL_OWNER,
    AgentId,
    ApprovalId,
    CallId,
    MessageId,
    RepoId,
    SessionId,
    TokenId,
    uuid7,
)
from holdfast.domain.leases import Holder
from holdfast.domain.messages import (
    CHAIN_START,
    Message,
    Part,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolResult,
    encode_parts,
    hash_row,
)
from holdfast.domain.models import OFFLINE, Model, Prices, model_of
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import Session, SessionContext, SessionState
from holdfast.domain.time import microseconds
from holdfast.domain.tokens import Scope, Token, TokenKind
from holdfast.domain.tools import ToolSpec
from holdfast.domain.turns import OpenStep

T = TypeVar("T")

AT: Final = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)


def an_id(number: int = 1) -> str:
    """Return a UUID of version 7 that is the same in every run; greater numbers sort later."""
    return uuid7(1_767_000_000_000 + number, number << 12)


AGENT_ID: Final = AgentId(an_id(1))
SESSION_ID: Final = SessionId(an_id(2))
REPO_ID: Final = RepoId(an_id(3))
APPROVAL_ID: Final = ApprovalId(an_id(4))
CALL_ID: Final = CallId("call-1")
MODEL_ID: Final = model_of(OFFLINE).id


def a_context(**changes: Any) -> SessionContext:
    """Return a workspace, by default with nothing in it but its directory."""
    return _built(SessionContext, changes, working_dir="/desk")


def a_tool(name: str = "read_file", **changes: Any) -> ToolSpec:
    """Return a tool as an agent is granted it."""
    return ToolSpec(name=name, **changes)


def an_agent(**changes: Any) -> Agent:
    """Return an active agent with a language model and no tools."""
    return _built(
        Agent,
        changes,
        id=AGENT_ID,
        owner=LOCAL_OWNER,
        slug="helper",
        name="Helper",
        system_prompt="You are terse.",
        runtime=LlmRuntime(),
        created_at=AT,
        updated_at=AT,
    )


def a_session(**changes: Any) -> Session:
    """Return a session that was just opened; `agent` brings its id and its owner."""
    agent = changes.get("agent", an_agent())
    return _built(
        Session,
        changes,
        id=SESSION_ID,
        owner=agent.owner,
        agent_id=agent.id,
        agent=agent,
        context=a_context(),
        created_at=AT,
        updated_at=AT,
    )


def a_head(**changes: Any) -> SessionState:
    """Return where the session of `a_session()` stands: nothing is written yet."""
    return _built(
        SessionState,
        changes,
        session_id=SESSION_ID,
        owner=LOCAL_OWNER,
        agent_id=AGENT_ID,
        chain=CHAIN_START,
        updated_at=microseconds(AT),
    )


def a_tool_call(**changes: Any) -> ToolCall:
    """Return the part with which an agent asks for a tool."""
    return _built(ToolCall, changes, id=CALL_ID, name="read_file", arguments={"path": "a.txt"})


def a_tool_result(**changes: Any) -> ToolResult:
    """Return the part that answers `a_tool_call()`."""
    return _built(
        ToolResult,
        changes,
        call_id=CALL_ID,
        name="read_file",
        status=ResultStatus.OK,
        result={"content": "hello"},
    )


def a_message(text: str = "hello", *, role: Role = Role.USER, **changes: Any) -> Message:
    """Return a row of turn 1; its parts are the text, or what a tool's row must hold.

    Its id follows from its sequence; its hash is empty until `a_transcript` chains it.
    """
    tool_parts: Mapping[Role, Part] = {
        Role.TOOL_CALL: a_tool_call(),
        Role.TOOL_RESULT: a_tool_result(),
    }
    return _built(
        Message,
        changes,
        id=_row_id(changes.get("sequence", 1)),
        session_id=SESSION_ID,
        sequence=1,
        turn=1,
        role=role,
        parts=(tool_parts.get(role, Text(text=text)),),
        at=microseconds(AT),
    )


def a_transcript(
    *rows: Message, previous: bytes = CHAIN_START, first: int = 1
) -> tuple[Message, ...]:
    """Return the rows numbered in their order and chained; an id the test chose is kept."""
    chained = []
    for sequence, row in enumerate(rows, first):
        chosen = row.id if row.id != _row_id(row.sequence) else _row_id(sequence)
        numbered = msgspec.structs.replace(row, id=chosen, sequence=sequence)
        previous = hash_of(numbered, previous)
        chained.append(msgspec.structs.replace(numbered, chain=previous))
    return tuple(chained)


def hash_of(row: Message, previous: bytes = CHAIN_START) -> bytes:
    """Return the hash that the row has after a row of that hash."""
    columns = (row.id, row.sequence, row.turn, row.role.value, row.model_id, row.at)
    return hash_row(previous, columns, encode_parts(row.parts))


def an_event(payload: Payload | None = None, **changes: Any) -> Event:
    """Return a stamped event with the id the journal would give it."""
    stamp: dict[str, Any] = {"session_id": SESSION_ID, "sequence": 1, "at": AT} | changes
    own_id = event_id(stamp["session_id"], stamp["sequence"], stamp["at"])
    return _built(Event, stamp, id=own_id, payload=payload or TurnStarted())


def a_call(**changes: Any) -> Call:
    """Return a call of turn 1 that is intended, and unsafe until somebody says otherwise."""
    return _built(
        Call,
        changes,
        id=CALL_ID,
        session_id=SESSION_ID,
        turn=1,
        name="read_file",
        arguments={"path": "a.txt"},
        idempotency_key="key-1",
    )


def an_open_step(text: str = "", **changes: Any) -> OpenStep:
    """Return a step that has begun, with what it has streamed; `changes` are of its start."""
    started = _built(StepStarted, changes, step=1, model_id=MODEL_ID, message_id=_row_id(999))
    return OpenStep(started=started, text=text)


def an_approval(**changes: Any) -> Approval:
    """Return a question that waits for its answer."""
    return _built(
        Approval,
        changes,
        id=APPROVAL_ID,
        session_id=SESSION_ID,
        call_id=CALL_ID,
        question="May I?",
        digest="0" * 64,
        asked_at=AT,
    )


def a_model(ref: str = OFFLINE, **changes: Any) -> Model:
    """Return the model of that name, without prices."""
    return msgspec.structs.replace(model_of(ref), **changes)


def some_prices(**changes: Any) -> Prices:
    """Return prices: 3 dollars a million tokens in, 15 out, 0.30 and 3.75 for the cache."""
    return _built(
        Prices,
        changes,
        input=300_000_000,
        output=1_500_000_000,
        cache_read=30_000_000,
        cache_write=375_000_000,
    )


def a_cost(**changes: Any) -> CostEntry:
    """Return the ledger's entry of one priced request of turn 1."""
    return _built(
        CostEntry,
        changes,
        request_id=an_id(5),
        session_id=SESSION_ID,
        turn=1,
        model_id=MODEL_ID,
        usage=Usage(input=10, output=5),
        microcents=10_500,
        priced=True,
        at=AT,
    )


def a_repo(**changes: Any) -> Repo:
    """Return a registered work tree."""
    return _built(
        Repo,
        changes,
        id=REPO_ID,
        owner=LOCAL_OWNER,
        name="project",
        path="/desk/project",
        created_at=AT,
    )


def a_token(**changes: Any) -> Token:
    """Return a token that was made by a command and never ends."""
    return _built(
        Token,
        changes,
        id=TokenId(an_id(8)),
        owner=LOCAL_OWNER,
        name="script",
        scope=Scope.WRITE,
        kind=TokenKind.ISSUED,
        created_at=AT,
    )


def a_holder(**changes: Any) -> Holder:
    """Return a process that may hold leases."""
    process = {"boot": an_id(6), "space": "1", "pid": 4711, "started": 123_456, "nonce": "ab12"}
    return _built(Holder, changes, **process)


def _built(kind: type[T], changes: Mapping[str, Any], /, **defaults: Any) -> T:
    return kind(**(defaults | dict(changes)))


def _row_id(sequence: int) -> MessageId:
    return MessageId(an_id(1_000 + sequence))
