"""A repository with secrets, and the commands that attack it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.config.settings import COMMAND_FOLDERS
from holdfast.domain.tools import FsTier
from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Means, Namespaces
from tests.tools.process_fixture import Workbench, known_means

SECRET = "canary-4711"


@pytest.fixture(params=["all means", pytest.param("users' namespaces", marks=pytest.mark.torture)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Workbench:
    """Be a repository with secrets, hooks and build files, and a user who owns it."""
    means = known_means()
    if request.param == "users' namespaces" and means.namespaces is Namespaces.ROOT:
        means = Means(
            namespaces=Namespaces.USER,
            mounts=True,
            network=True,
            landlock=means.landlock,
            seccomp=means.seccomp,
        )
    bench = Workbench(tmp_path, launcher=Launcher(means))
    bench.means = means
    bench.command_writes = COMMAND_FOLDERS
    bench.repository({"a.txt": "one\n", "Makefile": "all:\n", ".vscode/tasks.json": "{}\n"})
    bench.git("config", "remote.origin.url", f"https://ada:{SECRET}@example.com/a.git")
    for name in (".env", ".ssh/id_ed25519", "deploy.pem"):
        (bench.work / name).parent.mkdir(exist_ok=True)
        (bench.work / name).write_text(f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n")
    return bench


async def sh(bench: Workbench, script: str, **options: Any) -> dict[str, Any]:
    """Run a script as the command `sh t.sh`."""
    (bench.work / "t.sh").write_text(script)
    bench.allow("sh t.sh", tier=options.pop("tier", FsTier.SANDBOXED))
    return await bench.run("sh", "t.sh", **options)


def run_plainly(bench: Workbench, *words: str) -> None:
    """Run a program in the workspace as its user would."""
    subprocess.run(words, cwd=bench.work, env=bench.environment, capture_output=True, check=False)


def is_held(bench: Workbench) -> bool:
    """Tell whether this system can hold any of it; what it cannot is not claimed."""
    return bench.means.mounts
