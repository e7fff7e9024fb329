"""Which rows of work, that is of calls and of questions, a listing asks for."""

from enum import StrEnum
from itertools import chain
from typing import Any, Final

from holdfast.domain.approvals import ApprovalState
from holdfast.domain.calls import CallState
from holdfast.domain.queries import WorkQuery

# Written out, because an index of one state is used only for what is known beforehand.
_STATES: Final = {
    state.value: f"w.state = '{state.value}'" for state in chain[StrEnum](ApprovalState, CallState)
}
# What is rare and has an index of its own, over all sessions.
_RARE: Final = frozenset({CallState.UNKNOWN.value, ApprovalState.WAITING.value})


def work_conditions(query: WorkQuery) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions on a table `w` that is joined with its sessions, and what they bind."""
    is_rare = bool(query.states) and _RARE.issuperset(query.states)
    # The sign keeps SQLite from going through all sessions of the owner to find the few.
    conditions = ["+s.owner = :owner" if is_rare else "s.owner = :owner"]
    parameters: dict[str, Any] = {"owner": query.owner}
    if query.key is not None:
        conditions.append("w.session_key = :session_key")
        parameters["session_key"] = query.key
    if query.id is not None:
        conditions.append("w.id = :id")
        parameters["id"] = query.id
    if query.states:
        conditions.append(f"({' OR '.join(_STATES[each] for each in query.states)})")
    return conditions, parameters
