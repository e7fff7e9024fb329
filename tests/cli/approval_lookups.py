"""What tests look up with the command itself: sessions, and questions that wait."""

import json
from pathlib import Path
from typing import Any

from tests.cli.processes import beside


def session_of(home: Path) -> str:
    """Return the session that was written to last."""
    listed = json.loads(beside(home, "sessions", "list", "--json", "--limit", "1").stdout)
    return str(listed["data"][0]["id"])


def waiting(home: Path) -> list[dict[str, Any]]:
    """Return the questions that wait."""
    found = json.loads(beside(home, "approvals", "list", "--json").stdout)
    return list(found["data"])
