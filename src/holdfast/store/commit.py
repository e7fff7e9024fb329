"""Rows of a commit: one tuple per row, in the order of the columns below, for both databases."""

from functools import lru_cache
from typing import Any, Final

from holdfast.domain.approvals import Approval, ApprovalScope
from holdfast.domain.calls import Call
from holdfast.domain.commits import SessionCommit
from holdfast.domain.costs import CostEntry
from holdfast.domain.events import StepDelta, name_of
from holdfast.domain.ids import SessionKey
from holdfast.domain.time import microseconds
from holdfast.store.database import Row, checksum, encode, pack_id
from holdfast.store.events import event_sum, split_payload
from holdfast.store.messages import event_checksum
from holdfast.store.session_rows import state_values

# Columns with their Postgres types, in binding order.
STATE: Final = {
    "title": "TEXT",
    "status": "TEXT",
    "last_stop": "TEXT",
    "reason": "TEXT",
    "turn": "BIGINT",
    "settled": "BIGINT",
    "messages": "BIGINT",
    "events": "BIGINT",
    "began": "BIGINT",
    "chain": "BYTEA",
    "holder": "TEXT",
    "until": "BIGINT",
    "epoch": "BIGINT",
    "tokens_in": "BIGINT",
    "tokens_out": "BIGINT",
    "microcents": "BIGINT",
    "requests": "BIGINT",
    "updated_at": "BIGINT",
    "started_at": "BIGINT",
    "finished_at": "BIGINT",
    "checksum": "BIGINT",
}
EXPECTED: Final = {
    "key": "BIGINT",
    "was_epoch": "BIGINT",
    "was_holder": "TEXT",
    "was_messages": "BIGINT",
    "was_events": "BIGINT",
    "was_updated_at": "BIGINT",
    "was_chain": "BYTEA",
}
MESSAGES: Final = {
    "key": "BIGINT",
    "id": "BYTEA",
    "turn": "BIGINT",
    "role": "TEXT",
    "parts": "BYTEA",
    "model_id": "VARCHAR",
    "created_at": "BIGINT",
    "hash": "BYTEA",
    "event": "BIGINT",
    "event_checksum": "BIGINT",
}
# Deltas have the same columns in a table of their own.
EVENTS: Final = {
    "key": "BIGINT",
    "turn": "BIGINT",
    "at": "BIGINT",
    "name": "TEXT",
    "ids": "BYTEA",
    "payload": "BYTEA",
    "checksum": "BIGINT",
}
CALLS: Final = {
    "session_key": "BIGINT",
    "id": "TEXT",
    "turn": "BIGINT",
    "sequence": "BIGINT",
    "name": "TEXT",
    "arguments": "BYTEA",
    "state": "TEXT",
    "effect": "TEXT",
    "idempotency_key": "TEXT",
    "settlement": "TEXT",
    "result_sequence": "BIGINT",
    "started_at": "BIGINT",
    "ended_at": "BIGINT",
    "checksum": "BIGINT",
}
COSTS: Final = {
    "session_key": "BIGINT",
    "request_id": "VARCHAR",
    "turn": "BIGINT",
    "model_id": "VARCHAR",
    "input": "BIGINT",
    "output": "BIGINT",
    "cache_read": "BIGINT",
    "cache_write": "BIGINT",
    "reasoning": "BIGINT",
    "microcents": "BIGINT",
    "priced": "BIGINT",
    "at": "BIGINT",
    "checksum": "BIGINT",
}
APPROVALS: Final = {
    "session_key": "BIGINT",
    "id": "TEXT",
    "call_id": "TEXT",
    "digest": "TEXT",
    "state": "TEXT",
    "memory": "TEXT",
    "body": "BYTEA",
    "checksum": "BIGINT",
}


def _upsert(key: str, *names: str) -> str:
    changes = ", ".join(f"{name} = excluded.{name}" for name in names)
    return f"ON CONFLICT ({key}) DO UPDATE SET {changes}"


# What changes if a call or an approval is already stored.
CALL_CONFLICT: Final = _upsert(
    "session_key, id",
    "arguments",
    "state",
    "settlement",
    "result_sequence",
    "started_at",
    "ended_at",
    "checksum",
)
APPROVAL_CONFLICT: Final = _upsert("id", "state", "memory", "body", "checksum")
_DELTA: Final = name_of(StepDelta)
# Cached, because few model ids occur in many rows.
_packed: Final = lru_cache(maxsize=256)(pack_id)


def state_row(commit: SessionCommit, *, checks: bool) -> Row:
    """Return the new state of the session, then what the stored one must be."""
    before = commit.before
    return (
        *state_values(commit.state, checks=checks),
        before.key,
        before.epoch,
        before.holder,
        before.messages,
        before.events,
        before.updated_at,
        before.chain,
    )


def message_rows(commit: SessionCommit) -> list[Row]:
    """Return the rows of the messages."""
    first = commit.before.key << 32
    rows: list[Row] = []
    for row in commit.messages:
        message, at, event = row.message, row.at, row.event
        id_, turn, role, sequence = message.id, message.turn, message.role._value_, message.sequence
        model_id = message.model_id and _packed(message.model_id)
        proof = event_checksum((event, turn, at, id_, role, sequence))
        place, packed = first + sequence, bytes.fromhex(id_.replace("-", ""))
        rows.append((place, packed, turn, role, row.content, model_id, at, row.hash, event, proof))
    return rows


def event_rows(commit: SessionCommit, *, checks: bool) -> tuple[list[Row], list[Row]]:
    """Return the rows of the events without the deltas, and those of the deltas."""
    first = commit.before.key << 32
    rows: list[Row] = []
    deltas: list[Row] = []
    for event in commit.events:
        name, sequence, turn, at = event.name, event.sequence, event.turn, event.at
        ids, rest = split_payload(name, event.content)
        # The checksum covers the whole payload, including the ids stored in their own column.
        proof = event_sum((sequence, turn, at, name), event.content) if checks else 0
        row = first + sequence, turn, at, name, ids, rest, proof
        (deltas if name == _DELTA else rows).append(row)
    return rows, deltas


def call_row(key: SessionKey, call: Call, *, checks: bool) -> Row:
    """Return the row of a call."""
    columns: list[Any] = [
        call.id,
        call.turn,
        call.sequence,
        call.name,
        encode(call.arguments),
        call.state._value_,
        call.effect._value_,
        call.idempotency_key,
        call.settlement.value if call.settlement else None,
        call.result_sequence,
        microseconds(call.started_at) if call.started_at else None,
        microseconds(call.ended_at) if call.ended_at else None,
    ]
    # The session key is excluded: the checksum covers the content of a row, not its location.
    return key, *columns, checksum(encode(columns)) if checks else 0


def cost_row(key: SessionKey, entry: CostEntry, *, checks: bool) -> Row:
    """Return the row of a ledger entry."""
    usage = entry.usage
    columns: list[Any] = [
        pack_id(entry.request_id),
        entry.turn,
        _packed(entry.model_id),
        usage.input,
        usage.output,
        usage.cache_read,
        usage.cache_write,
        usage.reasoning,
        entry.microcents,
        int(entry.priced),
        microseconds(entry.at),
    ]
    return key, *columns, checksum(encode(columns)) if checks else 0


def approval_row(key: SessionKey, approval: Approval) -> Row:
    """Return the row of an approval request."""
    body, question = encode(approval), approval.question
    # Indexed only for session scope: an answer for one call must not apply to another call.
    memory = question.memory if approval.scope is ApprovalScope.SESSION else None
    names = (question.call_id, question.digest, approval.state.value, memory)
    return key, approval.id, *names, body, checksum(body)
