"""Generated values of the domain, made from the annotations, so that no field is forgotten.

Only what JSON can carry is generated where a field may hold anything.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Final, NewType, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import UNSET, Struct, UnsetType

from holdfast.domain.calls import Call, CallState
from holdfast.domain.ids import CallId, uuid7
from holdfast.domain.messages import PARTS_OF, Message, Part, Role
from holdfast.domain.sessions import Selection, SessionContext
from holdfast.domain.tools import Effect, FsTier
from holdfast.domain.turns import OpenStep
from tests.builders import a_call, a_message, an_open_step

TEXTS: Final = st.text(max_size=20)
INSTANTS: Final = st.datetimes(
    min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)
)
UUIDS: Final = st.builds(uuid7, st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 74) - 1))
JSON: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
SELECTIONS: Final = st.builds(
    lambda file, start, more: Selection(file=file, start_line=start, end_line=start + more),
    st.just("a.py"),
    st.integers(0, 1 << 31),
    st.integers(0, 1 << 31),
)
CONTEXTS: Final = st.builds(
    SessionContext,
    working_dir=st.just("/desk") | st.from_regex(r"/[a-z ]{0,8}", fullmatch=True),
    active_file=st.none() | st.just("src/ä b.py"),
    selection=st.none() | SELECTIONS,
    git_ref=st.none() | st.just("main@0123456789ab"),
    fs_scope_tier=st.sampled_from(FsTier),
    variables=st.dictionaries(
        st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True),
        TEXTS.filter(lambda text: "\x00" not in text),
        max_size=3,
    ),
)

_LEAVES: Final[dict[Any, SearchStrategy[Any]]] = {
    Any: JSON,
    type(None): st.none(),
    str: TEXTS,
    bool: st.booleans(),
    UnsetType: st.just(UNSET),
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    datetime: INSTANTS,
    SessionContext: CONTEXTS,
}


@cache
def values_of(kind: Any) -> SearchStrategy[Any]:
    """Return a strategy for any annotation the domain uses."""
    if kind in _LEAVES:
        return _LEAVES[kind]
    if isinstance(kind, NewType):
        return values_of(kind.__supertype__)
    if get_origin(kind) in (UnionType, Union):
        return st.one_of(*map(values_of, get_args(kind)))
    if get_origin(kind) is tuple:
        return st.lists(values_of(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is dict:
        return st.dictionaries(*map(values_of, get_args(kind)), max_size=3)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    assert issubclass(kind, Struct), kind
    return st.builds(kind, **{name: values_of(of) for name, of in get_type_hints(kind).items()})


def parts_of(role: Role) -> SearchStrategy[tuple[Part, ...]]:
    """Return a strategy for what a row of the role may hold."""
    alone = role in (Role.TOOL_CALL, Role.TOOL_RESULT)
    part = st.one_of(*map(values_of, PARTS_OF[role]))
    return st.lists(part, min_size=alone, max_size=1 if alone else 3).map(tuple)


@st.composite
def rows(draw: Callable[[SearchStrategy[Any]], Any]) -> Message:
    """Draw a row of any role, in one of few turns or outside all."""
    role = draw(st.sampled_from(Role))
    return a_message(
        role=role,
        parts=draw(parts_of(role)),
        turn=draw(st.integers(0, 4)),
        sequence=draw(st.integers(1, 1000)),
    )


def transcripts() -> SearchStrategy[list[Message]]:
    """Return a strategy for rows of distinct sequences, in any order."""
    return st.lists(rows(), max_size=12, unique_by=lambda row: row.sequence)


def calls() -> SearchStrategy[list[Call]]:
    """Return a strategy for the calls of a turn, each in any state and of any effect."""
    any_call = st.builds(
        lambda number, state, effect: a_call(
            id=CallId(f"call-{number}"), state=state, effect=effect, name=f"tool-{number % 3}"
        ),
        st.integers(0, 20),
        st.sampled_from(CallState),
        st.sampled_from(Effect),
    )
    return st.lists(any_call, max_size=6, unique_by=lambda call: call.id)


def open_steps() -> SearchStrategy[OpenStep | None]:
    """Return a strategy for the step that is open when a turn is cut off, if any."""
    return st.none() | st.builds(
        lambda text, step: an_open_step(text, step=step), TEXTS, st.just(3)
    )
