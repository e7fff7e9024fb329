"""Payloads that were accepted: judged, keyed, and in the one form in which they are kept.

Whoever keeps one gives it an owner and a number (`observations`).
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.canonical import canonical, canonical_text, reading
from holdfast.domain.entity_types import SHAPES, SIBLINGS, EntityType
from holdfast.domain.observation_issues import Issue, SchemaWarning, rejection
from holdfast.domain.observation_schema import faults, member_faults
from holdfast.domain.observation_warnings import Placed, in_order, payload_warnings
from holdfast.domain.shapes import INSTANT, Member, Shape, Text
from holdfast.domain.timestamps import instant_of, spelled

BYTES_MOST: Final = 1 << 20
REASON_LONGEST: Final = 512
DELETED: Final = "_deleted"
REASON: Final = "reason"
START_HINT: Final = (
    'To record a start, send one action such as {"type":"session_start","result":"success"}.'
)
_SESSION: Final = SHAPES[EntityType.AGENT_SESSION]
# What a correction may be about: everything but what the entity is known by.
CORRECTABLE: Final = tuple(
    member.name for member in _SESSION.members if member.name not in _SESSION.key
)
_REASON: Final = Member(REASON, Text(longest=REASON_LONGEST), "Why; for people.")


class Accepted(Struct, frozen=True, kw_only=True):
    """What may be written: `content` is the canonical form of `fields`, and its hash."""

    entity_type: EntityType
    key: str
    fields: dict[str, Any]
    content: bytes
    content_hash: str
    warnings: tuple[SchemaWarning, ...] = ()


def accepted(entity_type: EntityType, payload: Any) -> Accepted:
    """Return a payload as it will be kept, or refuse it whole, with every rule it violates."""
    shape = SHAPES[entity_type]
    _require_none(faults(shape, payload))
    key = _key_of(shape, payload)
    return _kept(entity_type, key, payload, payload_warnings(entity_type, payload))


def accepted_correction(session_id: Any, field: Any, value: Any, *, reason: Any = None) -> Accepted:
    """Return a correction of one field of a session, judged as a submission of it would be."""
    found = _key_faults(session_id)
    member = _SESSION.member(field) if isinstance(field, str) else None
    if member is None or member.name not in CORRECTABLE:
        told = ", ".join(CORRECTABLE)
        message = f"field must be one of {told}"
        found.append(
            Issue(path=("field",), value=field, expected=f"one of: {told}", message=message)
        )
    elif value is None and member.is_ignored_as_null:
        # Here it cannot mean "not sent": this is all that is sent.
        message = f"{member.name} is required"
        found.append(Issue(path=(member.name,), expected="required", message=message))
    else:
        found += member_faults(member, value)
    _require_none([*found, *member_faults(_REASON, reason)])
    payload = {field: value} | _reason(reason)
    odd = payload_warnings(EntityType.AGENT_SESSION, {field: value})
    return _kept(EntityType.AGENT_SESSION, session_id, payload, odd)


def accepted_deletion(session_id: Any, *, is_deleted: bool, reason: Any = None) -> Accepted:
    """Return that a session's history is deleted, or restored."""
    _require_none([*_key_faults(session_id), *member_faults(_REASON, reason)])
    payload = {DELETED: is_deleted} | _reason(reason)
    return _kept(EntityType.AGENT_SESSION, session_id, payload, [])


def require_session_key(session_id: Any) -> str:
    """Return a session's id as it can be known by, or refuse it."""
    _require_none(_key_faults(session_id))
    return str(session_id)


def require_sibling(entity_type: Any) -> EntityType:
    """Return the type of an entity that is no session, or refuse it."""
    if entity_type not in SIBLINGS:
        told = ", ".join(SIBLINGS)
        message = f"entity_type must be one of {told}"
        issue = Issue(
            path=("entity_type",), value=entity_type, expected=f"one of: {told}", message=message
        )
        raise rejection((issue,))
    return EntityType(entity_type)


def _require_none(issues: Sequence[Issue]) -> None:
    if issues:
        empty = issues[0].field == "actions" and issues[0].expected == "min_length: 1"
        raise rejection(issues, hint=START_HINT if empty else "")


def _key_faults(session_id: Any) -> list[Issue]:
    return member_faults(_SESSION.members[0], session_id)


def _key_of(shape: Shape, payload: dict[str, Any]) -> str:
    """Return what the entity is known by: one member as it is, or the canonical list of several."""
    if len(shape.key) == 1:
        return str(payload[shape.key[0]])
    parts = []
    for name in shape.key:
        value = payload.get(name) or ""
        member = shape.member(name)
        is_instant = member is not None and member.kind == INSTANT
        parts.append(spelled(instant_of(value)) if is_instant else value)
    return canonical_text(parts)


def _reason(reason: str | None) -> dict[str, Any]:
    return {} if reason is None else {REASON: reason}


def _kept(
    entity_type: EntityType, key: str, payload: dict[str, Any], odd: list[Placed]
) -> Accepted:
    content = canonical(payload)
    if len(content) > BYTES_MOST:
        message = f"The payload has more than {BYTES_MOST} bytes"
        issue = Issue(path=(), value=payload, expected=f"max_bytes: {BYTES_MOST}", message=message)
        raise rejection((issue,))
    return Accepted(
        entity_type=entity_type,
        key=key,
        # As it will be read again, so that what is computed from it now has the same bytes later.
        fields=reading(content),
        content=content,
        content_hash=hashlib.sha256(content).hexdigest(),
        warnings=in_order(entity_type, odd),
    )
