"""Examples of what is told about observed history, as it goes over the wire."""

from collections.abc import Mapping
from typing import Any, Final

_ENTITY: Final = "ent_31ed4722e1f7ffa6ea9a9ed8"
_OBSERVATION: Final = "obs_4f6122a30d2ef3d0db94b0a3c8b1430a"
_STARTED: Final = "2025-12-31T11:00:00Z"
_AT: Final = "2026-01-02T03:04:05.678Z"
_FIELDS: Final[dict[str, Any]] = {
    "session_id": "abc123",
    "actions": [{"type": "create_feature_unit", "result": "success"}],
    "started_at": _STARTED,
}
_CLAIM: Final[dict[str, Any]] = {
    "id": _OBSERVATION,
    "owner": "local",
    "entity_type": "agent_session",
    "entity_id": _ENTITY,
    "session_key": "abc123",
    "ordinal": 1,
    "fields": _FIELDS,
    "content_hash": "6b3ae90e760788a70594e7cba07bd2fec49c123c75d89d662f68a50cf3657750",
    "kind": "submit",
    "priority": 100,
    "source": "curl/8.5.0",
    "observed_at": _AT,
    "created_at": _AT,
    "idempotency_key": None,
}
_SNAPSHOT: Final[dict[str, Any]] = {
    **_FIELDS,
    "checkpoints": [
        {"name": "spec_complete", "timestamp": "2025-12-31T11:15:00Z", "state": {"spec": "ready"}}
    ],
    "outcomes": [],
}
_FROM: Final = [_OBSERVATION]
_KNOWN: Final[dict[str, Any]] = {
    "entity_id": _ENTITY,
    "entity_type": "agent_session",
    "schema_version": "v1",
    "snapshot": _SNAPSHOT,
    "provenance": {
        "session_id": _FROM,
        "actions": _FROM,
        "checkpoints": _FROM,
        "outcomes": [],
        "started_at": _FROM,
    },
    "provenance_items": {"actions": [_FROM], "checkpoints": [_FROM], "outcomes": []},
    "observation_count": 1,
    "last_observation_at": _AT,
    "hosted": False,
    "warnings": [],
}
_DECISION: Final[dict[str, Any]] = {
    **_KNOWN,
    "entity_id": "ent_f40e96b591389422f2855c55",
    "entity_type": "agent_decision",
    "snapshot": {
        "decision": "Use SQLite by default",
        "rationale": "Nothing has to be installed.",
        "timestamp": "2025-12-31T11:20:00Z",
    },
    "provenance": {"decision": _FROM, "rationale": _FROM, "timestamp": _FROM},
    "provenance_items": {},
}
_EVENT: Final[dict[str, Any]] = {
    "id": "tle_9b54bdb56286bef34e866588",
    "timestamp": "2025-12-31T11:15:00.000Z",
    "event_type": "CheckpointReached",
    "description": "Checkpoint: spec_complete",
    "entity_id": _ENTITY,
    "entity_type": "agent_session",
    "session_id": "abc123",
    "source_field": "checkpoints",
    "provenance": _FROM,
    "details": {"name": "spec_complete", "has_state": True},
}
_PAGE: Final[dict[str, Any]] = {"total": 1, "next_cursor": None}

HISTORY_EXAMPLES: Final[Mapping[str, Any]] = {
    "CheckpointState": {
        "session_id": "abc123",
        "name": "spec_complete",
        "timestamp": "2025-12-31T11:15:00Z",
        "state": {"spec": "ready"},
        "has_state": True,
        "provenance": _FROM,
    },
    "EntityList": {"entities": [_DECISION], **_PAGE},
    "HistoryForm": {**_KNOWN, "observations": [_CLAIM], "observations_total": 1},
    "HistoryList": {"data": [_KNOWN], **_PAGE},
    "ObservationList": {"observations": [_CLAIM], **_PAGE},
    "RemovalForm": {"entity_id": _ENTITY, "observation_id": _OBSERVATION, "deleted": True},
    "Submitted": {
        "entity_id": _ENTITY,
        "observation_id": _OBSERVATION,
        "observation_count": 1,
        "action": "created",
        "deduplicated": False,
        "warnings": [],
    },
    "TimelineForm": {"events": [_EVENT], **_PAGE},
}
