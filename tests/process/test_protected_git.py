"""Holds that commands change nothing that git runs, follows or reads its settings from."""

import shutil
import subprocess
from typing import Any

import pytest

from holdfast.domain.tools import FsTier
from holdfast.process.supervisor.git_config import entries, harmless_settings
from tests.process.conftest import is_held, run_plainly, sh
from tests.tools.process_fixture import Workbench

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

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


@pytest.mark.sampled(2)
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


HOOKED = "printf '#!/bin/sh\\ntouch {trace}\\n' > %s/pre-commit; chmod +x %s/pre-commit"
NAMED = {
    "hooks": ("core.hooksPath", "tools/hooks", HOOKED.replace("%s", "tools/hooks")),
    "hooks without a slash": ("core.hooksPath", "hooks", HOOKED.replace("%s", "hooks")),
    "hooks of the user": ("--global core.hooksPath", "tools/h", HOOKED.replace("%s", "tools/h")),
    "included": ("include.path", "../inc", f"printf '{MONITOR}' > inc"),
    "included if": ("includeIf.gitdir:**.path", "../inc", f"printf '{MONITOR}' > inc"),
    "monitor": ("core.fsmonitor", "tools/monitor", "echo 'touch {trace}' > tools/monitor"),
    "program": ("filter.a.clean", "python3 clean.py %f", "echo '{python}' > clean.py"),
    "text": ("diff.a.textconv", "sh -c 'tools/text'", "echo 'touch {trace}' > tools/text"),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("what", NAMED)
async def test_what_the_git_configuration_names_cannot_be_written(
    bench: Workbench, what: str, is_there: bool
) -> None:
    if not is_held(bench):
        return
    key, value, script = NAMED[what]
    trace = bench.user / "ran"
    python = f'open("{trace}", "w")'
    (bench.work / "tools").mkdir()
    if is_there:
        for name in ("tools/hooks", "hooks", "tools/h"):
            (bench.work / name).mkdir()
        for name in ("inc", "tools/monitor", "clean.py", "tools/text"):
            (bench.work / name).write_text("")
            (bench.work / name).chmod(0o755)
    (bench.work / ".gitattributes").write_text("* filter=a diff=a\n")
    bench.git("config", *key.split(), value)
    plant = script.format(trace=trace, python=python)
    result = await sh(
        bench, f"mkdir -p tools/hooks tools/h hooks; {plant}; chmod +x tools/*; exit 1"
    )

    (bench.work / "a.txt").write_text("two\n")
    for words in (("status",), ("diff",), ("commit", "--all", "--message=second")):
        run_plainly(bench, "git", *words)
    assert not trace.exists(), result
    assert is_there or any(".moved-aside" in each for each in result["notices"])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("link", [".git/hooks", ".git/hooks/pre-commit", "tools"])
async def test_links_that_git_follows_are_covered(bench: Workbench, link: str) -> None:
    if not is_held(bench):
        return
    target = bench.work / "elsewhere"
    (target / "hooks").mkdir(parents=True)
    script = target / "pre-commit"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    path = bench.work / link
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
    path.symlink_to(script if link.endswith("commit") else target)
    if link == "tools":
        bench.git("config", "core.hooksPath", "tools/hooks")
    trace = bench.user / "ran"
    plants = [HOOKED.replace("%s", each) for each in ("elsewhere", "elsewhere/hooks", "evil/hooks")]
    script_text = "; ".join(plants).format(trace=trace)
    await sh(bench, f"mkdir -p evil/hooks; {script_text}; rm -f tools; ln -s evil tools; exit 1")

    (bench.work / "a.txt").write_text("two\n")
    bench.git("commit", "--all", "--message=second")
    assert not trace.exists()


async def test_the_configuration_of_a_working_tree_is_that_of_its_repository(
    bench: Workbench,
) -> None:
    if not is_held(bench):
        return
    tree = bench.work.parent / "tree"
    bench.git("worktree", "add", "--quiet", str(tree))
    bench.git("config", "core.hooksPath", "tools/hooks")
    bench.work, main = tree, bench.work
    trace = bench.user / "ran"
    script = HOOKED.replace("%s", "tools/hooks").format(trace=trace)
    await sh(bench, f"mkdir -p tools/hooks; {script}")

    bench.git("commit", "--allow-empty", "--message=second")
    assert not trace.exists()
    assert main.exists()


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


async def test_in_full_reach_a_repository_further_up_is_covered(bench: Workbench) -> None:
    if not is_held(bench):
        return
    settings = (bench.work / ".git/config").read_bytes()
    bench.work = bench.work / "inner"
    bench.work.mkdir()
    await sh(bench, "git config core.fsmonitor x; echo x > ../.git/hooks/y", tier=FsTier.FULL)

    assert (bench.work.parent / ".git/config").read_bytes() == settings
    assert not (bench.work.parent / ".git/hooks/y").exists()


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
    assert harmless_settings(content).decode().splitlines() == [
        "[core]",
        "\tbare = false",
        '[remote "origin"]',
        "\turl = https://example.com/x",
        "[credential]",
        "[include]",
        "[user]",
        "\tname = Ada",
    ]


def test_a_configuration_is_parsed_as_git_does() -> None:
    content = """\ufeff; comment
[core] bare ; [include] path = no
\thooksPath = "a;b\\"c" # comment
[filter "a]b \\" c"]\r
\tclean = one \\
two \\t
not = closed "x
[INCLUDE.some]Path=../x#y
"""
    assert list(entries(content)) == [
        ("core", "bare", "true"),
        ("core", "hookspath", 'a;b"c'),
        ("filter", "clean", "one two"),
        ("filter", "not", "closed x"),
        ("include", "path", "../x"),
    ]
