"""S20: a repository runs nothing of its own when we look at it or commit to it."""

import json
import os
import random
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Means
from tests.marks import proves, skip_row
from tests.tools.process_fixture import Workbench
from tests.torture.clients.commands import outcome
from tests.torture.conftest import Sized, Tell
from tests.torture.tracing import executions, has_tracer, python
from tests.torture.traps import REPOSITORIES, fallen

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FILES = {f"{name}.txt": "one\n" for name in "abcde"}
# What a user would do; a trap may keep each of these from ending well.
PLAIN = (
    ("status",),
    ("status", "--short"),
    ("log", "-3"),
    ("log", "-1", "-p"),
    ("diff",),
    ("diff", "HEAD"),
    ("add", "--all"),
    ("commit", "--message=plain"),
    ("checkout", "--quiet", "-b", "other"),
    ("submodule", "status"),
)


@pytest.fixture(params=REPOSITORIES)
def name(request: pytest.FixtureRequest) -> str:
    """Be each of the hostile repositories."""
    return str(request.param)


@proves("S20")
async def test_looking_and_committing_springs_no_trap(
    tmp_path: Path, name: str, tell: Tell
) -> None:
    # Without the sandbox, in which a trap could not even leave its file.
    bench = hostile(tmp_path, name, Launcher(Means()))
    told = []

    for show in ("status", "log", "diff"):
        told.append(outcome(await bench.call("git_status", show=show)))
    # In the repository with filters the second file needs one.
    for file in ("a.txt", "c.txt")[: 1 + (name == "drivers")]:
        done = await bench.call("git_commit", message="ours", paths=[file])
        told.append(outcome(done))

    sprung = sorted(os.listdir(fallen(bench)))
    traps = len(os.listdir(tmp_path / "traps"))
    tell(f"{name}: {' '.join(told)}; {len(sprung)} of {traps} traps sprung")
    assert sprung == []
    # All can be looked at, but for the one that is no repository.
    assert told[:3] == (["error/not_found"] * 3 if name == "bare" else ["ok"] * 3)


@proves("S20")
async def test_git_on_the_list_of_commands_springs_no_trap(
    tmp_path: Path, name: str, tell: Tell
) -> None:
    # Without the sandbox: what holds is how git is called, and not what a trap may reach.
    bench = hostile(tmp_path, name, Launcher(Means()))
    bench.allow(*(("git", *words) for words in PLAIN))

    told = [
        outcome(await bench.call("run_command", command="git", args=list(words), timeout_s=20))
        for words in PLAIN
    ]

    sprung = sorted(os.listdir(fallen(bench)))
    tell(f"{name}: {' '.join(told)}; {len(sprung)} sprung by git on the list")
    assert sprung == []


@proves("S20")
def test_control_plain_git_springs_many(tmp_path: Path, tell: Tell) -> None:
    sprung: set[str] = set()
    for name in REPOSITORIES:
        (tmp_path / name).mkdir()
        bench = hostile(tmp_path / name, name)
        for words in PLAIN:
            # Some traps keep git waiting; what was sprung was sprung.
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    ["git", *words],
                    cwd=bench.work,
                    env={**bench.environment, "GIT_TERMINAL_PROMPT": "0"},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=2,
                    check=False,
                )
        sprung |= {f"{name}: {each}" for each in os.listdir(fallen(bench))}

    tell(f"control: plain git springs {len(sprung)}")
    assert len(sprung) >= 12, sorted(sprung)
    assert {each.partition(":")[0] for each in sprung} >= {
        *("hooks", "hooks elsewhere", "drivers", "included", "submodule", "index"),
    }


@proves("S20")
def test_nothing_but_git_is_executed(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    if not has_tracer():
        skip_row("S20", "strace")
    folders = []
    count = len(REPOSITORIES)
    for name in luck.sample(list(REPOSITORIES), sized(test=3, torture=count)):
        folder = tmp_path / name
        folder.mkdir()
        folders.append(str(hostile(folder, name).work.parent))
    options = json.dumps({"folders": folders})

    seen = executions(
        python("-m", "tests.torture.clients", "repositories", options), tmp_path / "trace"
    )

    ours = {os.path.realpath(sys.executable), os.path.realpath(shutil.which("git") or "")}
    foreign = sorted(set(seen) - ours)
    tell(f"{len(folders)} repositories, {len(seen)} executions, {len(foreign)} foreign")
    assert foreign == []
    assert set(seen) == ours


def hostile(folder: Path, name: str, launcher: Launcher | None = None) -> Workbench:
    """Make a repository, change every file in it, and set its traps."""
    bench = Workbench(folder, launcher=launcher)
    bench.repository(FILES)
    for trap in REPOSITORIES[name]:
        trap(bench)
    for file in FILES:
        (bench.work / file).write_text("two\n")
    for file in fallen(bench).iterdir():
        file.unlink()
    return bench
