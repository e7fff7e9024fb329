"""SQL for Postgres out of the texts that are written for both databases (decision 0032).

A text is sent as it stands but for its parameters and a few words that Postgres calls otherwise.
Texts that differ by more than a word have a twin in `postgres_texts`.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct

from holdfast.store.postgres.sql_overrides import (
    FIRST,
    HITTING,
    KEYED,
    LOCKING,
    PATIENT,
    RINGING,
    TWINS,
    WAITING,
)

# What is named like a parameter inside of these is none.
_TOKENS: Final = re.compile(
    r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|::|:(?P<name>[a-z_][a-z0-9_]*)", re.DOTALL
)
_COMMENTS: Final = re.compile(r"--[^\n]*")
# What may wait in a ledger, what is seen of it through views, and what triggers make of it.
_WAITED_FOR: Final = re.compile(
    r"\b(messages|events|sessions|news|search_\w+|session_events|agent_sessions|session_messages)\b"
)
_MOVES: Final = re.compile(r"\b(UPDATE|DELETE FROM)\s+sessions\b")
_BYTES: Final = re.compile(r"\bx'([0-9a-f]*)'")

# Functions and words that Postgres calls otherwise; the functions are made by the first migration.
_WORDS: Final = (
    (
        "json_each(CAST(o.body AS TEXT), '$.tags')",
        "json_array_elements_text(read_json(o.body) -> 'tags') t (value)",
    ),
    ("json_each(:", "listed(:"),
    ("instr(", "strpos("),
    ("casefold(", "folded("),
    ("AS BLOB", "AS BYTEA"),
    ("CROSS JOIN", "JOIN"),
    ("+s.owner", "s.owner"),
    # What SQLite takes for no limit.
    ("LIMIT :limit", "LIMIT nullif(CAST(:limit AS BIGINT), -1)"),
    ("OFFSET :limit - 1", "OFFSET CAST(:limit AS BIGINT) - 1"),
)


class Statement(Struct, frozen=True):
    """A text as Postgres takes it, and the names of its parameters in their order."""

    sql: str
    names: tuple[str, ...]


class Form(Struct, frozen=True):
    """All that a text is for a connection: what is sent, and what has to be known about it.

    `locking` is sent in its place by who may write. `first` is sent before it by them, where a
    lock has to be had before anything is looked at. `rings` names the parameter with the key of
    a session that has news after it. `hits` tells that it has to change a row. `waits` names the
    parameter with the key of the one session it is about, where it may be sent with others, and the
    columns of its table; `is_patient` tells that it may be sent with others of its own kind,
    `is_keyed` that it finds one session, `is_apart` that it is about nothing that may wait, and
    `moves` that it changes where sessions stand.
    """

    plain: Statement
    locking: Statement
    first: Statement | None
    rings: str | None
    hits: bool
    waits: tuple[str, Mapping[str, str]] | None
    is_patient: bool
    is_keyed: bool
    is_apart: bool
    moves: bool
    is_write: bool


@lru_cache(maxsize=4_096)
def form_of(text: str) -> Form:
    """Return what a text is for Postgres."""
    sql = TWINS.get(text, text)
    plain = statement_of(sql)
    lock = LOCKING.get(text)
    first = FIRST.get(text)
    bare = _COMMENTS.sub("", sql)
    verb = bare.split(maxsplit=1)[0]
    return Form(
        plain=plain,
        locking=plain if lock is None else statement_of(f"{sql.rstrip()}\n{lock}"),
        first=None if first is None else statement_of(first),
        rings=RINGING.get(text),
        hits=text in HITTING,
        # Of some there is a text for each number of rows.
        waits=next((each for start, each in WAITING.items() if text.startswith(start)), None),
        is_patient=text in PATIENT,
        is_keyed=text in KEYED,
        is_apart=_WAITED_FOR.search(bare) is None,
        moves=_MOVES.search(bare) is not None,
        is_write=verb not in {"SELECT", "WITH"},
    )


def statement_of(sql: str) -> Statement:
    """Return a text with numbers in the place of its names."""
    for ours, theirs in _WORDS:
        sql = sql.replace(ours, theirs)
    sql = _BYTES.sub(r"CAST('\\x\1' AS BYTEA)", sql)
    places: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return found[0]
        return f"${places.setdefault(name, len(places) + 1)}"

    return Statement(_TOKENS.sub(numbered, sql), tuple(places))
