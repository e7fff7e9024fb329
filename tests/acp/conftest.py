"""What the tests of the Agent Client Protocol share."""

from pathlib import Path

import pytest


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Make a folder to work in."""
    folder = tmp_path / "desk"
    folder.mkdir()
    return folder
