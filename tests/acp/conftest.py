"""What the tests of the Agent Client Protocol share."""

import sys
from pathlib import Path
from types import ModuleType

import coverage
import pytest

from holdfast.process import agent_child

# Whoever uses these starts programs, and programs take their time.
STARTERS = ("tests.acp.harness", "tests.acp.editor", "tests.acp.scripted_agents")


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


# The keeper runs in a bare interpreter of its own, which nobody watches unless it does so itself.
KEPT = ("tests.acp.client.test_agent_process", "tests.acp.client.test_terminals")
WATCHED = """
import os, runpy, sys
sys.path[:0] = {paths!r}
import coverage
watch = coverage.Coverage(
    data_file={data!r}, data_suffix=True, branch=True, include=[{keeper!r}], config_file=False
)

def last(act):
    def told(*given):
        watch.stop()
        watch.save()
        try:
            act(*given)
        finally:
            watch.start()
    return told

os.execve, os._exit = last(os.execve), last(os._exit)
watch.start()
runpy.run_path({keeper!r}, run_name="__main__")
watch.stop()
watch.save()
"""


@pytest.fixture(autouse=True)
def _watched_keeper(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have the keeper watched where branches are counted."""
    watch = coverage.Coverage.current()
    if watch is None or request.module.__name__ not in KEPT:
        return
    script = tmp_path / "watched_keeper.py"
    data = str(watch.get_option("run:data_file"))
    keeper = agent_child._SUPERVISOR
    script.write_text(
        WATCHED.format(paths=sys.path, data=str(Path(data).absolute()), keeper=keeper)
    )
    monkeypatch.setattr(agent_child, "_SUPERVISOR", str(script))
