"""Write a session commit on an SQLite connection, inside a transaction."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

import apsw

from holdfast.domain.commits import SessionCommit, VersionConflictError
from holdfast.search.documents import NOTE
from holdfast.store.commit import (
    APPROVAL_CONFLICT,
    APPROVALS,
    CALL_CONFLICT,
    CALLS,
    COSTS,
    EVENTS,
    MESSAGES,
    STATE,
    approval_row,
    call_row,
    cost_row,
    event_rows,
    message_rows,
    state_row,
)
from holdfast.store.database import Row


def _insert(table: str, columns: Iterable[str], conflict: str = "", count: int = 1) -> str:
    names = list(columns)
    places = "), (".join([", ".join("?" * len(names))] * count)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places}) {conflict}"  # noqa: S608


_NUMBER: Final = {name: number for number, name in enumerate(STATE, 1)}
# A lease is extended by a statement of its own, so an unchanged epoch must not shorten it.
_UNTIL: Final = (
    f"CASE WHEN epoch = ?{_NUMBER['epoch']} AND ?{_NUMBER['holder']} IS NOT NULL"
    f" THEN max(until, ?{_NUMBER['until']}) ELSE ?{_NUMBER['until']} END"
)
_CHANGES: Final = {
    name: f"{name} = {_UNTIL if name == 'until' else f'?{number}'}"
    for name, number in _NUMBER.items()
}
_SET: Final = ", ".join(_CHANGES.values())
# Without the columns of `sessions_unsettled`: SQLite writes an index even for an equal value.
_SET_WITHIN: Final = ", ".join(
    change for name, change in _CHANGES.items() if name not in {"turn", "settled", "holder"}
)
_KEY: Final = len(STATE) + 1
# Fence and version in one: a commit on an outdated state changes no row. Includes the hash of the
# last message: after a clock was set back, two processes give their rows the same times.
_EXPECTED: Final = (
    f"key = ?{_KEY} AND epoch = ?{_KEY + 1}"
    f" AND holder IS ?{_KEY + 2} AND messages = ?{_KEY + 3} AND events = ?{_KEY + 4}"
    f" AND updated_at = ?{_KEY + 5} AND chain = ?{_KEY + 6}"
)
UPDATE: Final = f"UPDATE sessions SET {_SET} WHERE {_EXPECTED}"  # noqa: S608
UPDATE_WITHIN: Final = f"UPDATE sessions SET {_SET_WITHIN} WHERE {_EXPECTED}"  # noqa: S608
# Statements for one row, two rows and so on: one statement costs less than several.
_FEW: Final = 8
_MESSAGES: Final = [_insert("messages", MESSAGES, count=count) for count in range(1, _FEW + 1)]
_EVENTS: Final = [_insert("events", EVENTS, count=count) for count in range(1, _FEW + 1)]
_DELTAS: Final = [_insert("deltas", EVENTS, count=count) for count in range(1, _FEW + 1)]
CALL: Final = _insert("calls", CALLS, CALL_CONFLICT)
COST: Final = _insert("costs", COSTS)
APPROVAL: Final = _insert("approvals", APPROVALS, APPROVAL_CONFLICT)


def write_commit(cursor: apsw.Cursor, commit: SessionCommit, *, checks: bool) -> None:
    """Write the rows of a commit; raise if the stored session is not as it expects."""
    try:
        outdated = write_commits(cursor, (commit,), checks=checks)
    except apsw.ConstraintError as error:
        # An id in the commit is taken: its caller reads the session and decides.
        raise VersionConflictError from error
    if outdated:
        raise VersionConflictError


def write_commits(
    cursor: apsw.Cursor, commits: Iterable[SessionCommit], *, checks: bool
) -> list[int]:
    """Write the rows of commits; return the places of those that are outdated, which have none.

    Rows of a table are inserted together, whatever session they belong to.
    """
    outdated: list[int] = []
    messages: list[Row] = []
    events: list[Row] = []
    deltas: list[Row] = []
    connection = cursor.connection
    for place, commit in enumerate(commits):
        before, after = commit.before, commit.state
        is_within = (
            before.turn == after.turn
            and before.settled == after.settled
            and before.holder == after.holder
        )
        cursor.execute(UPDATE_WITHIN if is_within else UPDATE, state_row(commit, checks=checks))
        if not connection.changes():
            outdated.append(place)
            continue
        if commit.messages:
            messages += message_rows(commit)
        if commit.events:
            others, pieces = event_rows(commit, checks=checks)
            events += others
            deltas += pieces
        for call in commit.calls:
            cursor.execute(CALL, call_row(before.key, call, checks=checks))
        for entry in commit.costs:
            cursor.execute(COST, cost_row(before.key, entry, checks=checks))
        for approval in commit.approvals:
            cursor.execute(APPROVAL, approval_row(before.key, approval))
        if after.title != before.title:
            cursor.execute(NOTE, {"key": before.key, "first": 0, "last": 0})
    for statements, rows in ((_MESSAGES, messages), (_EVENTS, events), (_DELTAS, deltas)):
        _insert_all(cursor, statements, rows)
    return outdated


def _insert_all(cursor: apsw.Cursor, statements: Sequence[str], rows: Sequence[Row]) -> None:
    """Insert rows of one table with the statement for their number."""
    for start in range(0, len(rows), _FEW):
        some = rows[start : start + _FEW]
        cursor.execute(statements[len(some) - 1], tuple(chain.from_iterable(some)))
