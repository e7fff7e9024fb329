"""What the tests of the Agent Client Protocol share."""

from pathlib import Path
from types import ModuleType

import pytest

# Whoever uses these starts programs, and programs take their time.
STARTERS = ("tests.acp.aboard", "tests.acp.editors", "tests.acp.peers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start programs: they belong to the whole run, not to the quick one."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here) and _starts_programs(getattr(item, "module", None)):
            item.add_marker(pytest.mark.slow)


def _starts_programs(module: ModuleType | None) -> bool:
    used = vars(module).values() if module is not None else ()
    return any(getattr(each, "__module__", None) in STARTERS for each in used)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Make a folder to work in."""
    folder = tmp_path / "desk"
    folder.mkdir()
    return folder
