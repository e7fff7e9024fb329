"""S31: no child of ours is told a provider's key, or anything else that is not on the list."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.process.environment import PASSED_VARIABLES
from holdfast.process.launcher import Launcher
from tests.marks import proves
from tests.tools.process_fixture import PYTHON, Workbench, marked
from tests.torture.conftest import Tell
from tests.torture.crew import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CANARY = "sk-canary-9f8e7d6c5b4a"
SECRETS = (
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "HOLDFAST_KEY"),
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "GH_TOKEN", "NPM_TOKEN"),
    *("DATABASE_URL", "PGPASSWORD", "SSH_AUTH_SOCK", "KUBECONFIG", "VAULT_TOKEN", "HF_TOKEN"),
    *("LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "NODE_OPTIONS", "BASH_ENV", "GIT_SSH_COMMAND"),
    *("GIT_EXTERNAL_DIFF", "GIT_CONFIG_PARAMETERS", "EDITOR", "PAGER", "HTTPS_PROXY", "MY_OWN"),
)
# What we tell git about itself.
GIT_NAMES = frozenset(
    {
        *("GIT_ALLOW_PROTOCOL", "GIT_ASKPASS", "GIT_ATTR_NOSYSTEM", "GIT_CONFIG_GLOBAL"),
        *("GIT_CONFIG_NOSYSTEM", "GIT_DIR", "GIT_EDITOR", "GIT_INDEX_FILE", "GIT_NO_LAZY_FETCH"),
        *("GIT_NO_REPLACE_OBJECTS", "GIT_OBJECT_DIRECTORY", "GIT_OPTIONAL_LOCKS", "GIT_PAGER"),
        *("GIT_PROTOCOL_FROM_USER", "GIT_SSH_COMMAND", "GIT_TERMINAL_PROMPT", "GIT_WORK_TREE"),
    }
)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """Be a place whose surroundings are full of secrets, ours and the settings'."""
    for name in SECRETS:
        # Not this one: it would be loaded into every process of the test itself.
        if name != "LD_PRELOAD":
            monkeypatch.setenv(name, CANARY)
    bench = Workbench(tmp_path, launcher=Launcher())
    bench.environment = {**os.environ, **dict.fromkeys(SECRETS, CANARY), "HOME": str(bench.user)}
    return bench


@proves("S31")
async def test_a_command_is_told_the_listed_names_only(bench: Workbench, tell: Tell) -> None:
    bench.environment["PROJECT_STAGE"] = "testing"
    bench.command_env = ("PROJECT_STAGE",)

    # Python itself adds a name for its own locale.
    told = await bench.run("/usr/bin/env", "-0")

    names = {entry.partition("=")[0] for entry in told["stdout"].split("\ufffd") if entry}
    tell(f"command: {len(names)} names, {told['stdout'].count(CANARY)} secrets")
    assert names <= {*PASSED_VARIABLES, "PROJECT_STAGE"}
    assert {"PATH", "HOME", "TMPDIR", "PROJECT_STAGE"} <= names
    assert CANARY not in told["stdout"]


@proves("S31")
async def test_whoever_stands_between_is_told_nothing(bench: Workbench, tell: Tell) -> None:
    mark = f"between-{os.getpid()}"
    source = f"mark = {mark!r}; import time; time.sleep(600)"
    bench.allow((PYTHON, "-c", source))
    # A database of other tests may live as our child.
    before = offspring(os.getpid())
    task = asyncio.ensure_future(bench.call("run_command", command=PYTHON, args=["-c", source]))
    async with asyncio.timeout(PATIENCE):
        while not marked(mark):  # noqa: ASYNC110 — what other processes do rings no bell
            await asyncio.sleep(0.01)

    found = {pid: environment(pid) for pid in offspring(os.getpid()) if pid not in before}
    task.cancel()
    await asyncio.wait([task])

    tell(f"{len(found)} processes read, {sum(CANARY in each for each in found.values())} secrets")
    # The supervisor, where there are namespaces its init, and the command.
    assert len(found) >= 2
    assert [pid for pid, told in found.items() if CANARY in told] == []
    bare = [told for told in found.values() if not told]
    assert len(bare) == len(found) - 1


@proves("S31")
async def test_git_is_told_about_itself_and_no_more(bench: Workbench, tell: Tell) -> None:
    bench.environment = {name: bench.environment[name] for name in ("PATH", "HOME")}
    bench.repository()
    bench.environment |= dict.fromkeys(SECRETS, CANARY)
    programs = bench.user / "programs"
    programs.mkdir()
    (programs / "git").write_text(f'#!/bin/sh\nenv >&2\nexec "{shutil.which("git")}" "$@"\n')
    (programs / "git").chmod(0o755)
    bench.environment["PATH"] = f"{programs}:{bench.environment['PATH']}"

    done = await bench.call("git_status")

    assert done.result is not None, done
    lines = done.result["stderr"].splitlines()
    names = {line.partition("=")[0] for line in lines}
    tell(f"git: {len(names)} names, {done.result['stderr'].count(CANARY)} secrets")
    assert done.result["exit_code"] == 0
    # A shell adds where it is.
    assert names - {"PWD", "_", "SHLVL", "OLDPWD"} <= {*PASSED_VARIABLES, *GIT_NAMES}
    assert names & GIT_NAMES == GIT_NAMES
    assert CANARY not in done.result["stderr"]


@proves("S31")
@pytest.mark.usefixtures("bench")
def test_control_a_plain_child_is_told_everything(tell: Tell) -> None:
    told = subprocess.run(["/usr/bin/env"], capture_output=True, text=True, check=True).stdout

    tell(f"control: a plain child is told {told.count(CANARY)} secrets")
    assert told.count(CANARY) == len(SECRETS) - 1


def environment(pid: int) -> str:
    """Return what a process was started with."""
    return Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")


def offspring(pid: int) -> list[int]:
    """Return everybody who comes from a process."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(each) for file in children for each in file.read_text().split()]
    return [each for child in found for each in (child, *offspring(child))]
