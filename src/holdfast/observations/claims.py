"""Claims: validated payloads, their warnings, and the observations built from them."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.canonical_json import canonical, canonical_text, decode_exact
from holdfast.domain.ids import Owner
from holdfast.domain.text import require_text
from holdfast.domain.time import (
    Moment,
    format_iso8601,
    instant_of,
    milliseconds,
    parse_iso8601,
)
from holdfast.observations.issues import (
    Issue,
    Path,
    SchemaWarning,
    WarningCode,
    format_path,
    rejection,
)
from holdfast.observations.model import (
    DELETED,
    KEYS,
    PAYLOADS,
    SIBLINGS,
    SOURCE_LONGEST,
    EntityType,
    IdempotencyKey,
    Observation,
    ObservationKind,
    Reason,
    SessionFields,
    SessionKeyText,
    Subject,
    observation_id,
)
from holdfast.observations.validation import (
    build_issue,
    convert,
    decode_fields,
    members_of,
    value_issues,
)

BYTES_MOST: Final = 1 << 20
START_HINT: Final = (
    'To record a start, send one action such as {"type":"session_start","result":"success"}.'
)
RESULTS: Final = frozenset({"success", "failure", "warning"})
DURATION_TOLERANCE: Final = 1_000
# Null in these members means that they were not sent.
_IGNORED_AS_NULL: Final = frozenset({"checkpoints", "outcomes"})


def _payload_warnings(
    entity_type: EntityType, payload: Mapping[str, Any], typed: Mapping[str, Any]
) -> list[SchemaWarning]:
    """Return the warnings that a valid payload causes by itself; `typed` is it converted."""
    members = members_of(PAYLOADS[entity_type])
    found = []
    for name in payload:
        if name not in members:
            rule = "is not a field of this type; it is stored but not shown"
            found.append(_warning((name,), WarningCode.UNKNOWN_FIELD, rule))
        elif payload[name] is not None:
            value = typed[name]
            if type(value) is Moment and value.is_assumed:
                found.append(_assumed_utc((name,)))
        elif name in _IGNORED_AS_NULL and entity_type is EntityType.AGENT_SESSION:
            rule = "is null and was taken as not sent"
            found.append(_warning((name,), WarningCode.NULL_IGNORED, rule))
        else:
            rule = "is null, which clears it"
            found.append(_warning((name,), WarningCode.NULL_CLEARED_FIELD, rule))
    if entity_type is EntityType.AGENT_SESSION:
        for number, action in enumerate(typed.get("actions") or ()):
            if action.timestamp is not None and action.timestamp.is_assumed:
                found.append(_assumed_utc(("actions", number, "timestamp")))
            if action.result not in RESULTS:
                path = ("actions", number, "result")
                rule = "is not one of failure, success, warning"
                details = {"result": action.result}
                found.append(_warning(path, WarningCode.NONSTANDARD_RESULT, rule, details))
        checkpoints = typed.get("checkpoints") or ()
        for number, checkpoint in enumerate(checkpoints):
            if checkpoint.timestamp.is_assumed:
                found.append(_assumed_utc(("checkpoints", number, "timestamp")))
        start, end = typed.get("started_at"), typed.get("ended_at")
        times = [each.timestamp.ms for each in checkpoints]
        ms = start.ms if start else None, end.ms if end else None
        found += _contradictions(payload, ms, times)
    return found


def _contradictions(
    fields: Mapping[str, Any], times: tuple[int | None, int | None], reached: Sequence[int]
) -> list[SchemaWarning]:
    """Return contradictions between the times of a session payload or snapshot."""
    found = []
    (start, end), duration = times, fields.get("duration")
    if start is not None and end is not None:
        if end < start:
            found.append(
                SchemaWarning(
                    code=WarningCode.ENDED_BEFORE_STARTED,
                    field="ended_at",
                    message="The session ends before it starts",
                    details={"started_at": fields["started_at"], "ended_at": fields["ended_at"]},
                )
            )
        # Integer milliseconds, because a duration may be an integer too large for a float.
        if duration is not None and abs(duration * 1000 - (end - start)) > DURATION_TOLERANCE:
            rule = "is not the time between started_at and ended_at"
            details = {"duration": duration, "expected": (end - start) / 1000}
            found.append(_warning(("duration",), WarningCode.DURATION_MISMATCH, rule, details))
    for number, at in enumerate(reached):
        if (start is not None and at < start) or (end is not None and at > end):
            checkpoint = fields["checkpoints"][number]
            found.append(
                SchemaWarning(
                    code=WarningCode.CHECKPOINT_OUT_OF_RANGE,
                    field=f"checkpoints[{number}].timestamp",
                    message="The checkpoint was not reached between started_at and ended_at",
                    details={"name": checkpoint["name"], "timestamp": checkpoint["timestamp"]},
                )
            )
    return found


def session_warnings(snapshot: Mapping[str, Any]) -> tuple[SchemaWarning, ...]:
    """Return the contradictions in a merged session, also between different claims."""
    start, end = snapshot.get("started_at"), snapshot.get("ended_at")
    times = instant_of(start) if start else None, instant_of(end) if end else None
    reached = [instant_of(each["timestamp"]) for each in snapshot.get("checkpoints") or ()]
    return sort_warnings(EntityType.AGENT_SESSION, _contradictions(snapshot, times, reached))


def change_warnings(
    entity_type: EntityType, before: Mapping[str, Any], fields: Mapping[str, Any], *, now_ms: int
) -> tuple[SchemaWarning, ...]:
    """Return warnings from comparing a payload with the previous snapshot and the current time."""
    name, code, message, details = "", WarningCode.STATUS_REGRESSION, "", dict[str, Any]()
    match entity_type:
        case EntityType.FEATURE_UNIT:
            if (before.get("status"), fields.get("status")) == ("deployed", "planning"):
                name, message = "status", "The feature unit was deployed already"
                details = {"from": "deployed", "to": "planning"}
        case EntityType.RELEASE:
            ship = parse_iso8601(fields.get("target_ship_date") or "")
            if ship is not None and ship.last_ms < now_ms:
                name, code = "target_ship_date", WarningCode.DATE_IN_PAST
                message = "The date to ship is in the past"
        case EntityType.AGENT_DECISION:
            made = parse_iso8601(fields.get("timestamp") or "")
            if made is not None and made.ms > now_ms:
                name, code = "timestamp", WarningCode.DATE_IN_FUTURE
                message = "The decision is in the future"
    if not name:
        return ()
    details = details or {name: fields[name]}
    return (SchemaWarning(code=code, field=name, message=message, details=details),)


def deleted_warning() -> SchemaWarning:
    """Return the warning for a claim about deleted history."""
    return SchemaWarning(
        code=WarningCode.ENTITY_DELETED,
        field="session_id",
        message="The history was deleted; this was recorded and shows once it is restored",
    )


def sort_warnings(
    entity_type: EntityType, warnings: Sequence[SchemaWarning]
) -> tuple[SchemaWarning, ...]:
    """Return warnings sorted by member, item number and code."""
    if len(warnings) < 2:
        return tuple(warnings)
    names = list(members_of(PAYLOADS[entity_type]))

    def place(each: SchemaWarning) -> tuple[int, int, str, str]:
        name, _, rest = each.field.partition("[")
        number = rest.partition("]")[0]
        rank = names.index(name) if name in names else len(names)
        return rank, int(number) if number.isdecimal() else -1, each.code, each.field

    return tuple(sorted(warnings, key=place))


def _assumed_utc(path: Path) -> SchemaWarning:
    rule = "has no offset and was read as UTC"
    return _warning(path, WarningCode.TIMESTAMP_ASSUMED_UTC, rule)


def _warning(
    path: Path, code: WarningCode, rule: str, details: dict[str, Any] | None = None
) -> SchemaWarning:
    field = format_path(path)
    return SchemaWarning(code=code, field=field, message=f"{field} {rule}", details=details or {})


class ValidPayload(Struct, frozen=True, kw_only=True):
    """A payload ready to write; `content` is the canonical JSON of `fields`, with its hash."""

    entity_type: EntityType
    key: str
    fields: dict[str, Any]
    content: bytes
    content_hash: str
    warnings: tuple[SchemaWarning, ...] = ()

    def subject_of(self, owner: Owner) -> Subject:
        """Return the entity that an owner's payload is about."""
        return Subject(owner, self.entity_type, self.key)


class Claim(Struct, frozen=True, kw_only=True):
    """A claim to write; without `observed_at` it is observed when it is written."""

    payload: ValidPayload
    kind: ObservationKind = ObservationKind.SUBMIT
    source: str = ""
    idempotency_key: str | None = None
    observed_at: datetime | None = None

    def __post_init__(self) -> None:
        if self.source:
            require_text(self.source, field="source", longest=SOURCE_LONGEST)
        if self.idempotency_key is not None:
            require_idempotency_key(self.idempotency_key)


_SESSION: Final = members_of(SessionFields)
# Fields that a correction may change: all except the key.
CORRECTABLE: Final = tuple(name for name in _SESSION if name != "session_id")


def accept_payload(entity_type: EntityType, payload: Any) -> ValidPayload:
    """Validate a payload; raises one `Invalid` that lists every violation."""
    fields, issues = decode_fields(entity_type, payload)
    if issues:
        _require_none(issues)
    typed = msgspec.structs.asdict(fields)
    warnings = _payload_warnings(entity_type, payload, typed)
    return _build_valid(entity_type, _key_of(entity_type, typed), payload, warnings)


def accept_correction(
    session_id: Any, field: Any, value: Any, *, reason: Any = None
) -> ValidPayload:
    """Validate a correction of one session field by the same rules as a submission."""
    found = _key_issues(session_id)
    if not isinstance(field, str) or field not in CORRECTABLE:
        found.append(_choice("field", field, CORRECTABLE))
    elif value is None and field in _IGNORED_AS_NULL:
        # Null cannot mean "not sent" here, because a correction has only this one field.
        found.append(build_issue(None, (field,), "required", "is required"))
    else:
        kind, is_required = _SESSION[field]
        found += value_issues(field, kind, value, is_required=is_required)
    _require_none([*found, *value_issues("reason", Reason, reason)])
    typed = {field: convert(value, _SESSION[field][0])}
    warnings = _payload_warnings(EntityType.AGENT_SESSION, {field: value}, typed)
    payload = {field: value} | _reason(reason)
    return _build_valid(EntityType.AGENT_SESSION, session_id, payload, warnings)


def accept_deletion(session_id: Any, *, is_deleted: bool, reason: Any = None) -> ValidPayload:
    """Validate the deletion or restoration of a session's history."""
    _require_none([*_key_issues(session_id), *value_issues("reason", Reason, reason)])
    payload = {DELETED: is_deleted} | _reason(reason)
    return _build_valid(EntityType.AGENT_SESSION, session_id, payload, [])


def require_idempotency_key(key: Any) -> str:
    """Return the idempotency key unchanged, or raise `Invalid` like an invalid payload."""
    _require_none(value_issues("idempotency_key", IdempotencyKey, key, is_required=True))
    return str(key)


def require_sibling(entity_type: Any) -> EntityType:
    """Return an entity type other than session, or raise `Invalid`."""
    if entity_type not in SIBLINGS:
        raise rejection((_choice("entity_type", entity_type, SIBLINGS),))
    return EntityType(entity_type)


def build_observation(
    subject: Subject, claim: Claim, *, ordinal: int, created_ms: int
) -> Observation:
    """Return the observation of a claim; its times are truncated to milliseconds."""
    payload, observed_at = claim.payload, claim.observed_at
    return Observation(
        id=observation_id(subject, ordinal, payload.content_hash),
        subject=subject,
        entity_id=subject.entity_id,
        ordinal=ordinal,
        fields=payload.fields,
        content_hash=payload.content_hash,
        kind=claim.kind,
        source=claim.source,
        observed_ms=milliseconds(observed_at) if observed_at else created_ms,
        created_ms=created_ms,
        idempotency_key=claim.idempotency_key,
    )


def _require_none(issues: Sequence[Issue]) -> None:
    if issues:
        empty = issues[0].field == "actions" and issues[0].expected == "min_length: 1"
        raise rejection(issues, hint=START_HINT if empty else "")


def _key_issues(session_id: Any) -> list[Issue]:
    return value_issues("session_id", SessionKeyText, session_id, is_required=True)


def _choice(name: str, value: Any, choices: Sequence[str]) -> Issue:
    words = ", ".join(choices)
    return build_issue(value, (name,), f"one of: {words}", f"must be one of {words}")


def _key_of(entity_type: EntityType, typed: Mapping[str, Any]) -> str:
    """Return the entity key: the single key member, or a canonical JSON list of several."""
    names = KEYS[entity_type]
    if len(names) == 1:
        return str(typed[names[0]])
    values = [typed[name] for name in names]
    return canonical_text(
        [format_iso8601(each.ms) if type(each) is Moment else each or "" for each in values]
    )


def _reason(reason: str | None) -> dict[str, Any]:
    return {} if reason is None else {"reason": reason}


def _build_valid(
    entity_type: EntityType, key: str, payload: dict[str, Any], warnings: Sequence[SchemaWarning]
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
        warnings=sort_warnings(entity_type, warnings),
    )
