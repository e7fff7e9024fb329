"""Translate SQL written for both databases into Postgres SQL (decision 0022).

Only parameters and a few function names are replaced. Statements that differ by more have an
override in `sql_overrides`.
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

# Text in quotes and comments is matched to skip it, because it holds no parameters.
_TOKENS: Final = re.compile(
    r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|::|:(?P<name>[a-z_][a-z0-9_]*)", re.DOTALL
)
_COMMENTS: Final = re.compile(r"--[^\n]*")
# Tables that may have buffered rows, and views and trigger tables that depend on them.
_WAITED_FOR: Final = re.compile(
    r"\b(messages|events|sessions|news|search_\w+|session_events|agent_sessions|session_messages)\b"
)
_MOVES: Final = re.compile(r"\b(UPDATE|DELETE FROM)\s+sessions\b")
_BYTES: Final = re.compile(r"\bx'([0-9a-f]*)'")

# Names that differ in Postgres; the first migration creates the functions.
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
    # SQLite treats -1 as no limit.
    ("LIMIT :limit", "LIMIT nullif(CAST(:limit AS BIGINT), -1)"),
    ("OFFSET :limit - 1", "OFFSET CAST(:limit AS BIGINT) - 1"),
)


class Statement(Struct, frozen=True):
    """SQL with numbered parameters, and the parameter names in order."""

    sql: str
    names: tuple[str, ...]


class Form(Struct, frozen=True):
    """Properties of a statement on Postgres.

    `locking` replaces the statement on a writing connection; `first` is sent before it to take a
    lock. `rings` names the parameter with the key of the session to notify. `hits` means that the
    statement must change a row. `waits` names the parameter with the session key and the columns of
    the table, if rows may be buffered; `is_patient` means that it may be batched with statements of
    the same text. `is_keyed` means that it finds one session, `is_apart` that it uses no table with
    buffered rows, and `moves` that it changes session rows.
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
    """Return the Postgres form of a statement."""
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
        # By prefix, because some statements have one text per number of rows.
        waits=next((each for start, each in WAITING.items() if text.startswith(start)), None),
        is_patient=text in PATIENT,
        is_keyed=text in KEYED,
        is_apart=_WAITED_FOR.search(bare) is None,
        moves=_MOVES.search(bare) is not None,
        is_write=verb not in {"SELECT", "WITH"},
    )


def statement_of(sql: str) -> Statement:
    """Return a statement with numbered instead of named parameters."""
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
