"""What sessions say of themselves: the seed's payloads, and what they come to."""

from typing import Any, Final

MINIMAL: Final[dict[str, Any]] = {
    "session_id": "abc123",
    "actions": [{"type": "create_feature_unit", "result": "success"}],
    "started_at": "2025-12-31T11:00:00Z",
}
COMPLETE: Final[dict[str, Any]] = {
    "session_id": "abc123",
    "actions": [
        {"type": "create_feature_unit", "result": "success", "details": {"id": "FU-061"}},
        {"type": "run_tests", "result": "success", "details": {"count": 42}},
    ],
    "checkpoints": [
        {
            "name": "spec_complete",
            "timestamp": "2025-12-31T11:15:00Z",
            "state": {"spec": "done", "files": ["a.py"]},
        }
    ],
    "outcomes": [{"type": "feature_unit", "id": "FU-061"}],
    "duration": 3600,
    "started_at": "2025-12-31T11:00:00Z",
    "ended_at": "2025-12-31T12:00:00Z",
}
UNIT: Final[dict[str, Any]] = {
    "id": "FU-061",
    "description": "Sessions that outlive agents",
    "status": "planning",
    "created_at": "2025-12-31T10:00:00Z",
    "updated_at": "2025-12-31T10:00:00Z",
}
ABC: Final = "ent_31ed4722e1f7ffa6ea9a9ed8"
