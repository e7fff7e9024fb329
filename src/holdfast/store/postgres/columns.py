"""Columns and types of the tables that every journal write changes, in binding order."""

from typing import Final

MESSAGES: Final = {
    "session_key": "BIGINT",
    "sequence": "BIGINT",
    "id": "BYTEA",
    "turn": "BIGINT",
    "role": "TEXT",
    "parts": "BYTEA",
    "model_id": "VARCHAR",
    "created_at": "BIGINT",
    "hash": "BYTEA",
    "event": "BIGINT",
    "told": "BIGINT",
}
EVENTS: Final = {
    "session_key": "BIGINT",
    "stays": "BIGINT",
    "sequence": "BIGINT",
    "turn": "BIGINT",
    "at": "BIGINT",
    "name": "TEXT",
    "ids": "BYTEA",
    "payload": "BYTEA",
    "checksum": "BIGINT",
}
SESSIONS: Final = {
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
    "key": "BIGINT",
}
# Columns that every session write changes, and the checksum of the others.
KNOWN: Final = {
    "key": "BIGINT",
    "events": "BIGINT",
    "until": "BIGINT",
    "epoch": "BIGINT",
    "updated_at": "BIGINT",
    "forked_at": "BIGINT",
    "checksum": "BIGINT",
}
