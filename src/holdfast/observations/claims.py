"""Observations: validated, numbered and immutable claims about entities."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Protocol

from msgspec import Struct

from holdfast.domain.canonical_json import canonical, canonical_text, decode_exact, digest
from holdfast.domain.ids import EntityId, ObservationId, Owner
from holdfast.domain.text import require_text
from holdfast.domain.time import (
    format_iso8601,
    instant_of,
    milliseconds,
    parse_iso8601,
    truncate_to_ms,
)
from holdfast.observations import model as observation_model
from holdfast.observations.issues import (
    Issue,
    Path,
    SchemaWarning,
    WarningCode,
    format_path,
    rejection,
)
from holdfast.observations.model import (
    INSTANT,
    SHAPES,
    SIBLINGS,
    EntityType,
    FieldShape,
    Kind,
    Shape,
    TextShape,
)
from holdfast.observations.validation import faults, member_faults

RESULTS: Final = frozenset({"success", "failure", "warning"})
DURATION_TOLERANCE: Final = 1_000
# Shapes that are, or may contain, a timestamp.
_TIMED: Final = (observation_model.InstantShape, observation_model.ListShape, Shape)
# A warning and the path it refers to.
Placed = tuple[Path, SchemaWarning]


def payload_warnings(entity_type: EntityType, payload: Mapping[str, Any]) -> list[Placed]:
    """Return the warnings that a valid payload causes by itself."""
    shape = SHAPES[entity_type]
    found = [*_nulls(shape, payload), *_unknown(shape, payload)]
    _assumed(shape, payload, (), found)
    if entity_type is EntityType.AGENT_SESSION:
        found += [*_results(payload), *consistency(payload)]
    return found


def in_order(entity_type: EntityType, found: list[Placed]) -> tuple[SchemaWarning, ...]:
    """Return warnings sorted by member, item number and code."""
    if not found:
        return ()
    shape = SHAPES[entity_type]

    def place(each: Placed) -> tuple[int, str, int, str, str]:
        path, warning = each
        number = path[1] if len(path) > 1 and isinstance(path[1], int) else -1
        return shape.rank(str(path[0])), str(path[0]), number, warning.code, warning.field

    return tuple(warning for _, warning in sorted(found, key=place))


def consistency(fields: Mapping[str, Any]) -> Iterator[Placed]:
    """Yield contradictions between the times of a session payload or snapshot."""
    start, end = _ms(fields.get("started_at")), _ms(fields.get("ended_at"))
    duration = fields.get("duration")
    if start is not None and end is not None:
        if end < start:
            yield _warning(
                ("ended_at",),
                WarningCode.ENDED_BEFORE_STARTED,
                "The session ends before it starts",
                {"started_at": fields["started_at"], "ended_at": fields["ended_at"]},
            )
        # Integer milliseconds, because a duration may be an integer too large for a float.
        if duration is not None and abs(duration * 1000 - (end - start)) > DURATION_TOLERANCE:
            yield _warning(
                ("duration",),
                WarningCode.DURATION_MISMATCH,
                "duration is not the time between started_at and ended_at",
                {"duration": duration, "expected": (end - start) / 1000},
            )
    for number, checkpoint in enumerate(fields.get("checkpoints") or ()):
        at = instant_of(checkpoint["timestamp"])
        if (start is not None and at < start) or (end is not None and at > end):
            yield _warning(
                ("checkpoints", number, "timestamp"),
                WarningCode.CHECKPOINT_OUT_OF_RANGE,
                "The checkpoint was not reached between started_at and ended_at",
                {"name": checkpoint["name"], "timestamp": checkpoint["timestamp"]},
            )


def session_warnings(snapshot: Mapping[str, Any]) -> tuple[SchemaWarning, ...]:
    """Return the contradictions in a merged session, for the result of a correction."""
    return in_order(EntityType.AGENT_SESSION, list(consistency(snapshot)))


def change_warnings(
    entity_type: EntityType, before: Mapping[str, Any], fields: Mapping[str, Any], *, now: datetime
) -> tuple[SchemaWarning, ...]:
    """Return warnings from comparing a payload with the previous snapshot and the current time."""
    found: list[Placed] = []
    if entity_type is EntityType.FEATURE_UNIT:
        steps = before.get("status"), fields.get("status")
        if steps == ("deployed", "planning"):
            message = "The feature unit was deployed already"
            details = {"from": steps[0], "to": steps[1]}
            found.append(_warning(("status",), WarningCode.STATUS_REGRESSION, message, details))
    ship = fields.get("target_ship_date") if entity_type is EntityType.RELEASE else None
    if ship is not None and _last_ms(ship) < milliseconds(now):
        details = {"target_ship_date": ship}
        message = "The date to ship is in the past"
        found.append(_warning(("target_ship_date",), WarningCode.DATE_IN_PAST, message, details))
    made = fields.get("timestamp") if entity_type is EntityType.AGENT_DECISION else None
    if made is not None and instant_of(made) > milliseconds(now):
        message = "The decision is in the future"
        details = {"timestamp": made}
        found.append(_warning(("timestamp",), WarningCode.DATE_IN_FUTURE, message, details))
    return in_order(entity_type, found)


def deleted_warning() -> SchemaWarning:
    """Return the warning for a claim about deleted history."""
    return SchemaWarning(
        code=WarningCode.ENTITY_DELETED,
        field="session_id",
        message="The history was deleted; this was recorded and shows once it is restored",
    )


def _nulls(shape: Shape, payload: Mapping[str, Any]) -> Iterator[Placed]:
    for member in shape.members:
        if member.name not in payload or payload[member.name] is not None:
            continue
        if member.is_ignored_as_null:
            message = f"{member.name} is null and was taken as not sent"
            yield _warning((member.name,), WarningCode.NULL_IGNORED, message)
        else:
            message = f"{member.name} is null, which clears it"
            yield _warning((member.name,), WarningCode.NULL_CLEARED_FIELD, message)


def _unknown(shape: Shape, payload: Mapping[str, Any]) -> Iterator[Placed]:
    for name in payload:
        if shape.member(name) is None:
            message = (
                f"{format_path((name,))} is not a field of this type; it is stored but not shown"
            )
            yield _warning((name,), WarningCode.UNKNOWN_FIELD, message)


def _assumed(kind: Kind, value: Any, path: Path, found: list[Placed]) -> None:
    """Collect a warning for every timestamp without a UTC offset."""
    if isinstance(kind, observation_model.InstantShape):
        moment = parse_iso8601(value)
        if moment is not None and moment.is_assumed:
            message = f"{format_path(path)} has no offset and was read as UTC"
            found.append(_warning(path, WarningCode.TIMESTAMP_ASSUMED_UTC, message))
    elif isinstance(kind, Shape):
        for member in kind.members:
            if isinstance(member.kind, _TIMED) and value.get(member.name) is not None:
                _assumed(member.kind, value[member.name], (*path, member.name), found)
    elif isinstance(kind, observation_model.ListShape):
        for number, item in enumerate(value):
            _assumed(kind.item, item, (*path, number), found)


def _results(payload: Mapping[str, Any]) -> Iterator[Placed]:
    for number, action in enumerate(payload.get("actions") or ()):
        if action["result"] not in RESULTS:
            path = ("actions", number, "result")
            message = f"{format_path(path)} is not one of failure, success, warning"
            details = {"result": action["result"]}
            yield _warning(path, WarningCode.NONSTANDARD_RESULT, message, details)


def _warning(
    path: Path, code: WarningCode, message: str, details: dict[str, Any] | None = None
) -> Placed:
    field = format_path(path)
    return path, SchemaWarning(code=code, field=field, message=message, details=details or {})


def _ms(text: str | None) -> int | None:
    return None if text is None else instant_of(text)


def _last_ms(text: str) -> int:
    found = parse_iso8601(text)
    assert found is not None  # noqa: S101 — internal invariant
    return found.last_ms


SOURCE_LONGEST: Final = 200
_ENTITY_ID: Final = re.compile(r"ent_[0-9a-f]{24}")
_IDEMPOTENCY_KEY: Final = FieldShape(
    "idempotency_key",
    TextShape(shortest=1, longest=200),
    "Idempotency key: the same key identifies the same observation.",
    is_required=True,
)


class ObservationKind(StrEnum):
    """The kind of observation."""

    SUBMIT = "submit"
    IMPORT = "import"
    CORRECTION = "correction"
    DELETION = "deletion"
    RESTORATION = "restoration"


IMPORTED: Final = 50
ORDINARY: Final = 100
CORRECTED: Final = 1_000
PRIORITIES: Final[Mapping[ObservationKind, int]] = {
    ObservationKind.SUBMIT: ORDINARY,
    ObservationKind.IMPORT: IMPORTED,
    ObservationKind.CORRECTION: CORRECTED,
    ObservationKind.DELETION: CORRECTED,
    ObservationKind.RESTORATION: CORRECTED,
}


class Subject(Struct, frozen=True, gc=False):
    """The observed entity: its owner, type and key."""

    owner: Owner
    entity_type: EntityType
    key: str

    @property
    def entity_id(self) -> EntityId:
        """Return the id, a hash of owner, type and key."""
        return _entity_id(self)


# Cached, because several steps of one write compute the same id.
@lru_cache(maxsize=4096)
def _entity_id(subject: Subject) -> EntityId:
    return EntityId(f"ent_{digest([subject.owner, subject.entity_type, subject.key])[:24]}")


class Observation(Struct, frozen=True, kw_only=True):
    """One claim; `ordinal` numbers the claims about its entity from 1.

    The wire formats call the subject's key `session_key`.
    """

    id: ObservationId
    subject: Subject
    entity_id: EntityId
    ordinal: int
    fields: dict[str, Any]
    content_hash: str
    kind: ObservationKind
    source: str = ""
    observed_at: datetime
    created_at: datetime
    idempotency_key: str | None = None

    @property
    def priority(self) -> int:
        """Return the merge priority, which depends only on the kind."""
        return PRIORITIES[self.kind]

    @property
    def place(self) -> tuple[datetime, int]:
        """Return the sort key in time order."""
        return self.observed_at, self.ordinal


class ClaimOrigin(Struct, frozen=True, kw_only=True):
    """How and by which client a claim was made."""

    kind: ObservationKind
    source: str = ""
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        require_text(self.source, field="source", longest=SOURCE_LONGEST)
        if self.idempotency_key is not None:
            require_idempotency_key(self.idempotency_key)


class LogEntry(Struct, frozen=True, kw_only=True):
    """Position and time of a claim in the log; only imports have a separate `observed_at`.

    Both times are truncated to milliseconds.
    """

    ordinal: int
    created_at: datetime
    observed_at: datetime | None = None


class ValidPayload(Struct, frozen=True, kw_only=True):
    """A payload ready to write; `content` is the canonical JSON of `fields`, with its hash."""

    entity_type: EntityType
    key: str
    fields: dict[str, Any]
    content: bytes
    content_hash: str
    warnings: tuple[SchemaWarning, ...] = ()


def build_observation(
    owner: Owner, accepted: ValidPayload, origin: ClaimOrigin, entry: LogEntry
) -> Observation:
    """Return the observation for a validated payload."""
    subject = Subject(owner, accepted.entity_type, accepted.key)
    created_at = truncate_to_ms(entry.created_at)
    return Observation(
        id=observation_id(subject, entry.ordinal, accepted.content_hash),
        subject=subject,
        entity_id=subject.entity_id,
        ordinal=entry.ordinal,
        fields=accepted.fields,
        content_hash=accepted.content_hash,
        kind=origin.kind,
        source=origin.source,
        observed_at=truncate_to_ms(entry.observed_at) if entry.observed_at else created_at,
        created_at=created_at,
        idempotency_key=origin.idempotency_key,
    )


def observation_id(subject: Subject, ordinal: int, content_hash: str) -> ObservationId:
    """Return the observation id, a hash of subject, ordinal and content."""
    named = f'{_beginning(subject)},{ordinal},"{content_hash}"]'
    return ObservationId(f"obs_{hashlib.sha256(named.encode()).hexdigest()[:32]}")


# Cached, because the claims about one entity are read together.
@lru_cache(maxsize=256)
def _beginning(subject: Subject) -> str:
    """Return the canonical JSON prefix shared by the ids of all claims about a subject."""
    return canonical_text([subject.owner, subject.entity_type, subject.key])[:-1]


class StoredClaim(Protocol):
    """The part of a claim needed to detect a repeat."""

    @property
    def kind(self) -> ObservationKind: ...
    @property
    def content_hash(self) -> str: ...


def is_repeat(accepted: ValidPayload, kind: ObservationKind, newest: StoredClaim | None) -> bool:
    """Return whether the newest claim has the same kind and content, so no write is needed."""
    return newest is not None and (accepted.content_hash, kind) == (
        newest.content_hash,
        newest.kind,
    )


def is_entity_id(text: str) -> bool:
    """Return whether a text has the format of an entity id."""
    return _ENTITY_ID.fullmatch(text) is not None


def require_idempotency_key(key: Any) -> str:
    """Return the idempotency key unchanged, or raise `Invalid` like an invalid payload."""
    issues = member_faults(_IDEMPOTENCY_KEY, key)
    if issues:
        raise rejection(issues)
    return str(key)


BYTES_MOST: Final = 1 << 20
REASON_LONGEST: Final = 512
DELETED: Final = "_deleted"
REASON: Final = "reason"
START_HINT: Final = (
    'To record a start, send one action such as {"type":"session_start","result":"success"}.'
)
_SESSION: Final = SHAPES[EntityType.AGENT_SESSION]
# Fields that a correction may change: all except the key.
CORRECTABLE: Final = tuple(
    member.name for member in _SESSION.members if member.name not in _SESSION.key
)
_REASON: Final = FieldShape(REASON, TextShape(longest=REASON_LONGEST), "The reason, for people.")


def accept_payload(entity_type: EntityType, payload: Any) -> ValidPayload:
    """Validate a payload; raises one `Invalid` that lists every violation."""
    shape = SHAPES[entity_type]
    _require_none(faults(shape, payload))
    key = _key_of(shape, payload)
    return _kept(entity_type, key, payload, payload_warnings(entity_type, payload))


def accept_correction(
    session_id: Any, field: Any, value: Any, *, reason: Any = None
) -> ValidPayload:
    """Validate a correction of one session field by the same rules as a submission."""
    found = _key_faults(session_id)
    member = _SESSION.member(field) if isinstance(field, str) else None
    if member is None or member.name not in CORRECTABLE:
        choices = ", ".join(CORRECTABLE)
        message = f"field must be one of {choices}"
        found.append(
            Issue(path=("field",), value=field, expected=f"one of: {choices}", message=message)
        )
    elif value is None and member.is_ignored_as_null:
        # Null cannot mean "not sent" here, because a correction has only this one field.
        message = f"{member.name} is required"
        found.append(Issue(path=(member.name,), expected="required", message=message))
    else:
        found += member_faults(member, value)
    _require_none([*found, *member_faults(_REASON, reason)])
    payload = {field: value} | _reason(reason)
    odd = payload_warnings(EntityType.AGENT_SESSION, {field: value})
    return _kept(EntityType.AGENT_SESSION, session_id, payload, odd)


def accept_deletion(session_id: Any, *, is_deleted: bool, reason: Any = None) -> ValidPayload:
    """Validate the deletion or restoration of a session's history."""
    _require_none([*_key_faults(session_id), *member_faults(_REASON, reason)])
    payload = {DELETED: is_deleted} | _reason(reason)
    return _kept(EntityType.AGENT_SESSION, session_id, payload, [])


def require_session_key(session_id: Any) -> str:
    """Return a valid session id, or raise `Invalid`."""
    _require_none(_key_faults(session_id))
    return str(session_id)


def require_sibling(entity_type: Any) -> EntityType:
    """Return an entity type other than session, or raise `Invalid`."""
    if entity_type not in SIBLINGS:
        choices = ", ".join(SIBLINGS)
        message = f"entity_type must be one of {choices}"
        issue = Issue(
            path=("entity_type",), value=entity_type, expected=f"one of: {choices}", message=message
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
    """Return the entity key: the single key member, or a canonical JSON list of several."""
    if len(shape.key) == 1:
        return str(payload[shape.key[0]])
    parts = []
    for name in shape.key:
        value = payload.get(name) or ""
        member = shape.member(name)
        is_instant = member is not None and member.kind == INSTANT
        parts.append(format_iso8601(instant_of(value)) if is_instant else value)
    return canonical_text(parts)


def _reason(reason: str | None) -> dict[str, Any]:
    return {} if reason is None else {REASON: reason}


def _kept(
    entity_type: EntityType, key: str, payload: dict[str, Any], odd: list[Placed]
) -> ValidPayload:
    content = canonical(payload)
    if len(content) > BYTES_MOST:
        message = f"The payload has more than {BYTES_MOST} bytes"
        issue = Issue(path=(), value=payload, expected=f"max_bytes: {BYTES_MOST}", message=message)
        raise rejection((issue,))
    return ValidPayload(
        entity_type=entity_type,
        key=key,
        # Decoded from the stored bytes, so that a later recomputation gives identical results.
        fields=decode_exact(content),
        content=content,
        content_hash=hashlib.sha256(content).hexdigest(),
        warnings=in_order(entity_type, odd),
    )
