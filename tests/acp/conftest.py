"""What the tests of the Agent Client Protocol share."""

import sys
from pathlib import Path
from types import ModuleType

import coverage
import pytest

from holdfast.process import child

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


# The supervisor runs in an interpreter of its own, whose branches have to be counted there.
SUPERVISED = ("tests.acp.client.test_agent_process", "tests.acp.client.test_terminals")
MEASURED = """
import os, sys
sys.path[:0] = {paths!r}
import coverage
measuring = coverage.Coverage(
    data_file={data!r}, data_suffix=True, branch=True, include=[{include!r}], config_file=False
)

def last(act):
    def save(*given):
        measuring.stop()
        measuring.save()
        try:
            act(*given)
        finally:
            measuring.start()
    return save

os.execve, os._exit = last(os.execve), last(os._exit)
measuring.start()
{boot}
measuring.stop()
measuring.save()
"""


@pytest.fixture(autouse=True)
def _measured_supervisor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the supervisor where branches are counted."""
    measuring = coverage.Coverage.current()
    if measuring is None or request.module.__name__ not in SUPERVISED:
        return
    boot = MEASURED.format(
        paths=sys.path,
        data=str(Path(str(measuring.get_option("run:data_file"))).absolute()),
        include=str(Path(child.__file__).with_name("supervisor") / "*"),
        boot=child._BOOT,
    )
    monkeypatch.setattr(child, "_BOOT", boot)
