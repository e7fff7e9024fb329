"""Holds that protected paths hold for commands: read, written, planted, moved or linked around."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.tools import FsTier, Grant, ToolClass
from holdfast.ports.tools import PlannedCall
from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Bounds, Means, Namespaces
from holdfast.process.supervisor.path_covers import shown
from tests.tools.process_fixture import Workbench, known_means

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECRET = "canary-4711"


@pytest.fixture(params=["all means", "users' namespaces"])
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


def is_held(bench: Workbench) -> bool:
    """Tell whether this system can hold any of it; what it cannot is not claimed."""
    return bench.means.mounts


@pytest.mark.parametrize("tier", list(FsTier))
async def test_secrets_cannot_be_read(bench: Workbench, tier: FsTier) -> None:
    if not is_held(bench):
        return
    told = await sh(
        bench,
        "cat .env; cat .ssh/*; ls -A .ssh; cat deploy.pem; cat .git/config; git remote -v\n"
        "cp .env copy; ln .env link; cat copy link; grep -r canary . ; cat .git/../.env\n",
        tier=tier,
    )

    assert SECRET not in told["stdout"] + told["stderr"]
    assert "https://example.com/a.git" in told["stdout"]
    assert SECRET in (bench.work / ".env").read_text()


PLANT = "printf '#!/bin/sh\\ntouch {trace}\\n' > %s/pre-commit; chmod +x %s/pre-commit"
HOOK = PLANT.replace("%s", ".git/hooks")
MONITOR = "[core]\\nfsmonitor=touch {trace}\\n"
PLANTS = {
    "hook": HOOK,
    "hooks replaced": f"mv .git/hooks .git/h; mkdir .git/hooks; {HOOK}",
    "repository replaced": f"cp -r .git x; mv .git y; mv x .git; {HOOK}",
    "monitor": "git config core.fsmonitor 'touch {trace}; false'",
    "hooks elsewhere": f"mkdir h; {PLANT.replace('%s', 'h')}; git config core.hooksPath h",
    "settings replaced": f"cp .git/config c; printf '{MONITOR}' >> c; mv -f c .git/config",
    "common folder": (
        f"cp -r .git evil; printf '{MONITOR}' >> evil/config; echo ../evil > .git/commondir"
    ),
    "removed": "rm -rf .git; git init -q; git config core.fsmonitor 'touch {trace}'",
}


@pytest.mark.parametrize("how", PLANTS)
async def test_nothing_planted_runs_when_the_user_commits(bench: Workbench, how: str) -> None:
    if not is_held(bench):
        return
    trace = bench.user / "ran"
    head = bench.git("rev-parse", "HEAD")
    settings = (bench.work / ".git/config").read_bytes()

    await sh(bench, PLANTS[how].format(trace=trace))

    (bench.work / "a.txt").write_text("two\n")
    bench.git("status")
    bench.git("commit", "--all", "--message=second")
    assert not trace.exists()
    assert bench.git("rev-parse", "HEAD~1") == head
    assert (bench.work / ".git/config").read_bytes() == settings


def test_the_plants_would_run_without_covers(bench: Workbench) -> None:
    for how, script in PLANTS.items():
        trace = bench.user / "ran"
        work = bench.work.with_name(f"copy of {how}")
        shutil.copytree(bench.work, work)
        subprocess.run(["sh", "-c", script.format(trace=trace)], cwd=work, check=False)
        subprocess.run(["git", "commit", "-qam", "x"], cwd=work, env=bench.environment, check=False)

        assert trace.exists(), how
        trace.unlink()


@pytest.mark.parametrize("name", ["Makefile", ".vscode/tasks.json", ".env", ".git/HEAD"])
async def test_what_is_there_cannot_be_written(bench: Workbench, name: str) -> None:
    if not is_held(bench):
        return
    before = (bench.work / name).read_text()
    told = await sh(
        bench,
        f"echo x >> {name}; rm -f {name}; echo x > new; mv -f new {name}; chmod 777 {name};"
        f" truncate -s 0 {name}; ln -sf a.txt {name}; exit 1",
    )

    assert (bench.work / name).read_text() == before, told
    assert not (bench.work / name).is_symlink()
    assert any("command_writes" in each for each in told["notices"])


@pytest.mark.parametrize(
    "name",
    [".envrc", ".bashrc", ".gitlab-ci.yml", ".husky/pre-commit", "sub/.git/config", "sub/Makefile"],
)
async def test_what_is_new_is_moved_aside(bench: Workbench, name: str) -> None:
    told = await sh(bench, f"mkdir -p $(dirname {name}); echo x > {name}; chmod +x {name}")

    assert not (bench.work / name).exists()
    (notice,) = told["notices"]
    assert ".moved-aside" in notice
    aside = next(path for path in bench.work.rglob("*.moved-aside"))
    assert aside.is_dir() or not os.access(aside, os.X_OK) or aside.stat().st_mode & 0o111 == 0


async def test_what_is_new_is_moved_aside_also_when_the_command_is_killed(
    bench: Workbench,
) -> None:
    told = await sh(bench, "trap '' TERM; echo x > .envrc; while :; do sleep 1; done", timeout_s=1)

    assert told["timed_out"]
    assert not (bench.work / ".envrc").exists()


HOUSE = """
import asyncio, sys
from pathlib import Path
from tests.tools.process_fixture import Workbench
bench = Workbench(Path(sys.argv[1]))
bench.allow("sh t.sh")
asyncio.run(bench.run("sh", "t.sh"))
"""


def test_what_is_new_is_moved_aside_also_when_holdfast_is_killed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "t.sh").write_text("echo x > .envrc; echo > ready; sleep 600")
    with subprocess.Popen([sys.executable, "-c", HOUSE, str(tmp_path)]) as house:
        wait_for((work / "ready").exists)
        house.kill()

    wait_for(lambda: not (work / ".envrc").exists())
    assert (work / ".envrc.moved-aside").read_text() == "x\n"


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


async def test_no_name_that_a_command_takes_keeps_a_new_file_in_place(bench: Workbench) -> None:
    if not is_held(bench):
        return
    long = "a" * 246 + ".pth"
    script = f"mkdir .zed; echo x > .zed/tasks.json; mkdir .zed.moved-aside; echo x > {long}"
    result = await sh(bench, script)

    assert len(result["notices"]) == 2
    assert not (bench.work / ".zed").exists()
    assert not (bench.work / long).exists()


async def test_a_folder_above_that_is_replaced_takes_nothing_along(bench: Workbench) -> None:
    if not is_held(bench):
        return
    (bench.work / "sub").mkdir()
    (bench.work / "sub/package.json").write_text("mine")
    told = await sh(bench, "mv sub old; mkdir sub; echo x > sub/package.json")

    assert not (bench.work / "sub/package.json").exists()
    assert (bench.work / "old/package.json").read_text() == "mine"
    assert len(told["notices"]) == 1


async def test_other_names_of_a_protected_file_are_covered(bench: Workbench) -> None:
    if not is_held(bench):
        return
    os.link(bench.work / ".env", bench.work / "notes.txt")
    os.link(bench.work / "Makefile", bench.work / "rules.txt")
    told = await sh(bench, "cat notes.txt; echo x >> rules.txt")

    assert SECRET not in told["stdout"]
    assert (bench.work / "Makefile").read_text() == "all:\n"


async def test_a_protected_link_is_covered_where_it_leads_and_put_back(bench: Workbench) -> None:
    if not is_held(bench):
        return
    (bench.work / "env").mkdir()
    (bench.work / "env/dev").write_text(SECRET)
    (bench.work / ".env").unlink()
    (bench.work / ".env").symlink_to("env/dev")
    told = await sh(bench, "cat env/dev .env; rm .env; echo x > .env")

    assert SECRET not in told["stdout"]
    assert (bench.work / ".env").read_text() == SECRET
    assert (bench.work / ".env").is_symlink()


async def test_git_itself_adds_and_commits_and_changes_nothing_else(bench: Workbench) -> None:
    if not is_held(bench):
        return
    (bench.work / "b.txt").write_text("b\n")
    bench.git("config", "user.name", "A User")
    bench.git("config", "user.email", "user@example.com")
    settings = (bench.work / ".git/config").read_bytes()

    added = await _git(bench, "add", "b.txt")
    committed = await _git(bench, "commit", "-m", "second")
    shown = await _git(bench, "show", "--output=.git/hooks/pre-push", "HEAD")
    set_ = await _git(bench, "config", "core.fsmonitor", "touch x")
    common = await _git(bench, "show", "--output=.git/commondir", "HEAD")

    assert (added["exit_code"], committed["exit_code"]) == (0, 0), committed
    assert bench.git("log", "--format=%s") == "second\nfirst\n"
    assert shown["exit_code"] != 0
    assert set_["exit_code"] != 0
    assert len(common["notices"]) == 1
    assert (bench.work / ".git/config").read_bytes() == settings
    assert not (bench.work / ".git/hooks/pre-push").exists()
    assert not (bench.work / ".git/commondir").exists()


async def _git(bench: Workbench, *words: str) -> dict[str, Any]:
    bench.allow(globs=("git **",))
    return await bench.run("git", *words)


async def test_a_second_working_tree_is_covered(bench: Workbench) -> None:
    if not is_held(bench):
        return
    tree = bench.work / "tree"
    bench.git("worktree", "add", "--quiet", str(tree))
    await sh(
        bench,
        "echo 'gitdir: /tmp' > tree/.git; echo x > .git/worktrees/tree/config.worktree;"
        " echo ../../../evil > .git/worktrees/tree/commondir",
    )

    assert bench.git("status", "--short", folder=tree) == ""
    assert not (bench.work / ".git/worktrees/tree/config.worktree").exists()


async def test_what_the_settings_name_can_be_written(bench: Workbench) -> None:
    bench.command_writes = ("Makefile", "out")
    told = await sh(bench, "echo x > Makefile; mkdir out; echo x > out/package.json")

    assert "notices" not in told
    assert (bench.work / "Makefile").read_text() == "x\n"


async def test_in_full_reach_the_home_is_covered(bench: Workbench) -> None:
    if not is_held(bench):
        return
    for name in (".ssh/id_rsa", ".netrc", ".bashrc", ".config/fish/config.fish"):
        (bench.user / name).parent.mkdir(parents=True, exist_ok=True)
        (bench.user / name).write_text(SECRET)
    told = await sh(
        bench,
        "cd ~; cat .ssh/id_rsa .netrc; for f in .bashrc .config/fish/config.fish .ssh/id_rsa; do"
        " echo x > $f; rm -f $f; done",
        tier=FsTier.FULL,
    )

    assert SECRET not in told["stdout"]
    assert (bench.user / ".bashrc").read_text() == SECRET
    assert (bench.user / ".config/fish/config.fish").read_text() == SECRET
    assert (bench.user / ".ssh/id_rsa").read_text() == SECRET


async def test_without_mounts_a_command_is_asked_about_in_every_mode(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, launcher=Launcher(Means(landlock=known_means().landlock)))
    bench.allow("true")
    planned = await bench.plan("run_command", command="true")
    bench.allows_unprotected = True
    allowed = await bench.plan("run_command", command="true")

    assert isinstance(planned, PlannedCall)
    assert planned.tool_class is ToolClass.SENSITIVE_WRITE
    assert "no mount namespaces" in planned.question
    assert isinstance(allowed, PlannedCall)
    assert allowed.tool_class is ToolClass.PROCESS


async def test_in_full_reach_a_repository_further_up_is_covered(bench: Workbench) -> None:
    if not is_held(bench):
        return
    settings = (bench.work / ".git/config").read_bytes()
    bench.work = bench.work / "inner"
    bench.work.mkdir()
    await sh(bench, "git config core.fsmonitor x; echo x > ../.git/hooks/y", tier=FsTier.FULL)

    assert (bench.work.parent / ".git/config").read_bytes() == settings
    assert not (bench.work.parent / ".git/hooks/y").exists()


async def test_a_command_is_bounded_in_memory_and_cpu_time(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    bench.bounds = Bounds(memory=256 << 20, cpu_seconds=1)
    greedy = await bench.script("x = bytearray(400 << 20)")
    bench.grants = (Grant(),)
    busy = await bench.script("while True: pass", timeout_s=60)

    assert "MemoryError" in greedy["stderr"]
    assert (busy["exit_code"], busy["timed_out"]) == (128 + signal.SIGKILL, False)


def test_of_a_configuration_only_what_is_harmless_is_shown() -> None:
    content = b"""
[core]
\tbare = false
\tfsmonitor = evil \\
\tbare = true
\thooksPath = x ; [user] name = y
[remote "origin"] url = https://ada:pw@example.com/x
\tproxy = http://pw@proxy
[credential] helper = store
[include]
\tpath = ../x
[user] name = Ada
"""
    assert shown(content).decode().splitlines() == [
        "[core]",
        "\tbare = false",
        '[remote "origin"]',
        "\turl = https://example.com/x",
        "[credential]",
        "[include]",
        "[user]",
        "\tname = Ada",
    ]
