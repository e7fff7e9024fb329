"""Folders as another program keeps its memories in, made for tests."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

SESSION: dict[str, Any] = {
    "session_id": "abc123",
    "actions": [{"type": "create_feature_unit", "result": "success"}],
    "checkpoints": [{"name": "spec_complete", "timestamp": "2025-12-31T11:15:00Z"}],
    "outcomes": [{"type": "feature_unit", "id": "FU-061"}],
    "started_at": "2025-12-31T11:00:00Z",
    "ended_at": "2025-12-31T12:00:00Z",
}
UNIT: dict[str, Any] = {
    "id": "FU-061",
    "overview": "Sessions are written down",
    "status": "planning",
    "risk": "low",
    "created": "2025-12-30",
    "updated": "2025-12-31T09:00:00Z",
}
RELEASE: dict[str, Any] = {
    "release_id": "v0.2.3",
    "version": "0.2.3",
    "fus": ["FU-061"],
    "status": "planning",
    "acceptance_criteria": ["It holds."],
    "created_at": "2025-12-30T00:00:00Z",
    "updated_at": "2025-12-31T00:00:00Z",
}
DECISION: dict[str, Any] = {
    "decision": "Use SQLite by default",
    "rationale": "Nothing has to be installed.",
}
VALIDATION: dict[str, Any] = {"status": "passed", "timestamp": "2025-12-31T11:30:00Z"}
MODIFIED = 1_767_225_600


def a_memory(root: Path, path: str, content: Any) -> Path:
    """Write one file, as JSON unless it is bytes already."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    os.utime(file, (MODIFIED, MODIFIED))
    return file


def memories(root: Path) -> Path:
    """Make a folder with one memory of each kind."""
    a_memory(root, "sessions/session-abc123.json", SESSION)
    a_memory(root, "feature_units/FU-061.json", UNIT)
    a_memory(root, "releases/v0.2.3.json", RELEASE)
    a_memory(root, "decisions/20251231-sqlite.json", DECISION)
    a_memory(root, "validations/FU-061-lint.json", VALIDATION)
    return root


def bytes_below(root: Path) -> dict[str, tuple[str, int]]:
    """Return the hash and the time of every file in a folder."""
    return {
        str(each.relative_to(root)): (
            hashlib.sha256(each.read_bytes()).hexdigest(),
            each.stat().st_mtime_ns,
        )
        for each in sorted(root.rglob("*"))
        if each.is_file()
    }
