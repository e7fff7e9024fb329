"""Git on the list of commands runs nothing that a repository's configuration names.

Each vector is a real repository whose configuration names a program that leaves a marker file.
"""

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.domain.tools import FsTier
from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Means
from holdfast.tools.git import listed_command
from holdfast.tools.git.listed_command import overrides
from tests.tools.process_fixture import Workbench, codes, known_means

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Plant = Callable[[Workbench, str], None]


def setting(key: str, form: str = "{}") -> Plant:
    """Plant a setting that names the program."""

    def plant(bench: Workbench, program: str) -> None:
        bench.git("config", key, form.format(program))

    return plant


def attribute(line: str, key: str) -> Plant:
    """Plant a setting, and an attribute that puts it to use."""

    def plant(bench: Workbench, program: str) -> None:
        (bench.work / ".gitattributes").write_text(f"{line}\n")
        bench.git("config", key, program)

    return plant


def required_filter(bench: Workbench, program: str) -> None:
    attribute("a.txt filter=evil", "filter.evil.process")(bench, program)
    bench.git("config", "filter.evil.required", "true")


def hook(name: str) -> Plant:
    """Plant a hook in its usual place."""

    def plant(bench: Workbench, program: str) -> None:
        file = bench.work / ".git/hooks" / name
        file.unlink(missing_ok=True)
        file.symlink_to(program)

    return plant


def hooks_elsewhere(bench: Workbench, program: str) -> None:
    (bench.work / "hooks").mkdir()
    (bench.work / "hooks/pre-commit").symlink_to(program)
    bench.git("config", "core.hooksPath", "hooks")


def included(bench: Workbench, program: str) -> None:
    (bench.work / "more").write_text(f'[filter "evil"]\n\tclean = "{program}"\n')
    (bench.work / ".gitattributes").write_text("a.txt filter=evil\n")
    bench.git("config", "include.path", "../more")


def of_a_worktree(bench: Workbench, program: str) -> None:
    (bench.work / ".gitattributes").write_text("a.txt diff=evil\n")
    bench.git("config", "extensions.worktreeConfig", "true")
    bench.git("config", "--worktree", "diff.evil.textconv", program)


def signed(bench: Workbench, program: str) -> None:
    bench.git("config", "gpg.program", program)
    bench.git("config", "user.signingKey", "ada")
    bench.git("config", "commit.gpgSign", "true")


def submodule(bench: Workbench, program: str) -> None:
    inner = bench.work / "inner"
    inner.mkdir()
    bench.git("init", "--quiet", folder=inner)
    (inner / "x.txt").write_text("x\n")
    (inner / ".gitattributes").write_text("x.txt filter=evil\n")
    bench.git("add", ".", folder=inner)
    bench.git("commit", "--quiet", "--message=inner", folder=inner)
    (bench.work / ".gitmodules").write_text(
        '[submodule "the \\"inner\\" one"]\n\tpath = inner\n\turl = ./inner\n\tignore = none\n'
    )
    bench.git("add", ".gitmodules", "inner")
    bench.git("commit", "--quiet", "--message=with a submodule")
    bench.git("config", "filter.evil.clean", program, folder=inner)
    (inner / "x.txt").write_text("y\n")


def forgotten_submodule(bench: Workbench, program: str) -> None:
    submodule(bench, program)
    (bench.work / ".gitmodules").unlink()


def local_remote(bench: Workbench, program: str) -> None:
    bench.git("init", "--quiet", "--bare", "far.git")
    (bench.work / "far.git/hooks/pre-receive").symlink_to(program)
    bench.git("remote", "add", "origin", str(bench.work / "far.git"))


def ext_remote(bench: Workbench, program: str) -> None:
    bench.git("config", "protocol.ext.allow", "always")
    bench.git("remote", "add", "origin", f"ext::{program}")


# The call that would run the program, and how the program is named to it.
VECTORS: dict[str, tuple[str, Plant]] = {
    "fsmonitor": ("git status", setting("core.fsmonitor")),
    "fsmonitor of a diff": ("git diff", setting("core.fsmonitor")),
    "clean filter": ("git status", attribute("a.txt filter=evil", "filter.evil.clean")),
    "clean filter of a diff": ("git diff", attribute("a.txt filter=e", "filter.e.clean")),
    "smudge filter": ("git checkout .", attribute("a.txt filter=evil", "filter.evil.smudge")),
    "process filter": ("git diff", required_filter),
    "odd filter": ("git diff", attribute("a.txt filter=A.b", "filter.A.b.clean")),
    "textconv of a diff": ("git diff", attribute("a.txt diff=evil", "diff.evil.textconv")),
    "textconv of a log": ("git log -p", attribute("a.txt diff=evil", "diff.evil.textconv")),
    "textconv of show": ("git show", attribute("a.txt diff=evil", "diff.evil.textconv")),
    "textconv of blame": ("git blame a.txt", attribute("a.txt diff=e", "diff.e.textconv")),
    "diff driver": ("git diff", attribute("a.txt diff=evil", "diff.evil.command")),
    "external diff": ("git diff", setting("diff.external")),
    "external diff asked for": ("git log -p --ext-diff", setting("diff.external")),
    "textconv asked for": (
        "git show --textconv HEAD:a.txt",
        attribute("a.txt diff=evil", "diff.evil.textconv"),
    ),
    "included filter": ("git status", included),
    "setting of a worktree": ("git diff", of_a_worktree),
    "alias": ("git st", setting("alias.st", "!{}")),
    "pre-commit": ("git commit -am x", hook("pre-commit")),
    "commit-msg": ("git commit -am x", hook("commit-msg")),
    "post-checkout": ("git checkout -b third", hook("post-checkout")),
    "reference-transaction": ("git tag x", hook("reference-transaction")),
    "post-index-change": ("git add a.txt", hook("post-index-change")),
    "hooks elsewhere": ("git commit -am x", hooks_elsewhere),
    "pager": ("git -p log", setting("core.pager")),
    "pager of a command": ("git -p log", setting("pager.log")),
    "editor": ("git commit -a", setting("core.editor")),
    "sequence editor": ("git rebase -i --root", setting("sequence.editor")),
    "signature": ("git commit -am x", signed),
    "merge driver": ("git merge other", attribute("a.txt merge=evil", "merge.evil.driver")),
    "archive": ("git archive --format=evil HEAD", setting("tar.evil.command")),
    "submodule": ("git status", submodule),
    "submodule in a diff": ("git diff", submodule),
    "submodule without its file": ("git status", forgotten_submodule),
    "local remote": ("git push origin main", local_remote),
    "ext remote": ("git fetch origin", ext_remote),
    "ssh": ("git fetch ssh://127.0.0.1:1/x", setting("core.sshCommand")),
    "credential helper": ("git credential fill", setting("credential.helper", "!{}")),
    "upload-pack": ("git fetch origin", setting("remote.origin.uploadpack")),
    "trailer": ("git commit -a --trailer=x:y -m x", setting("trailer.x.cmd")),
    "through another program": ("env git status", setting("core.fsmonitor")),
    "in another folder": ("git -C . status", setting("core.fsmonitor")),
    "with options": ("git -c a.b=c --git-dir=.git diff", setting("diff.external")),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "sandbox",
    [
        "confined",
        pytest.param("without a sandbox", marks=pytest.mark.torture),
        pytest.param("full reach", marks=pytest.mark.torture),
    ],
)
@pytest.mark.parametrize("vector", VECTORS)
async def test_nothing_that_a_repository_names_is_run(
    tmp_path: Path, vector: str, sandbox: str
) -> None:
    has_sandbox = sandbox == "confined"
    bench = Workbench(tmp_path, launcher=Launcher(known_means() if has_sandbox else Means()))
    call, marker = VECTORS[vector][0], planted(bench, vector)
    tier = FsTier.FULL if sandbox == "full reach" else FsTier.SANDBOXED
    bench.allow(call, tier=tier, domains=("example.com",))

    done = await bench.call("run_command", command=call.split()[0], args=call.split()[1:])

    assert codes(done)[0] in {"ok", "error"}, done
    assert not marker.exists(), done


RUN_BY_PLAIN_GIT = frozenset(VECTORS) - {
    # Newer versions of git than some that are in use, or a program of its own, would run these.
    *("upload-pack", "ssh", "credential helper", "pager", "pager of a command"),
}


@pytest.mark.torture
@pytest.mark.parametrize("vector", sorted(RUN_BY_PLAIN_GIT))
def test_control_plain_git_runs_it(tmp_path: Path, vector: str) -> None:
    bench = Workbench(tmp_path)
    marker = planted(bench, vector)

    words = VECTORS[vector][0].removeprefix("env ").split()
    # Some programs keep git from ending well; what matters is whether they were run.
    with suppress(subprocess.CalledProcessError):
        bench.git(*words[1:])

    assert marker.exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("vector", ["fsmonitor", "clean filter", "pre-commit", "diff driver"])
async def test_the_kernel_holds_it_too(
    tmp_path: Path, vector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed_command, "overrides", lambda *_, **__: ())
    monkeypatch.setattr(listed_command, "_PLAIN", {})
    bench = Workbench(tmp_path)
    call, marker = VECTORS[vector][0], planted(bench, vector)
    bench.allow(call)

    await bench.run(*call.split())

    # Without Landlock the overrides are the only barrier.
    assert not marker.exists() or not known_means().landlock


async def test_what_git_shows_is_what_it_would_show_without_the_programs(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    bench.repository({"a.txt": "one\n"})
    (bench.work / "a.txt").write_text("two\n")
    wanted = bench.git("diff")
    (bench.work / ".gitattributes").write_text("a.txt diff=evil filter=evil\n")
    for key in ("diff.evil.command", "filter.evil.clean", "diff.evil.textconv"):
        bench.git("config", key, "/nowhere")
    bench.git("config", "filter.evil.required", "true")

    for call in ("git diff", "git diff HEAD"):
        bench.allow(call)
        found = await bench.run(*call.split())
        assert (found["exit_code"], found["stdout"]) == (0, wanted)


async def test_nothing_is_stored_without_its_filter(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    bench.repository({"a.txt": "one\n"})
    (bench.work / "a.txt").write_text("two\n")
    (bench.work / ".gitattributes").write_text("a.txt filter=big\n")
    bench.git("config", "filter.big.clean", "cat")

    bench.allow("git add a.txt")
    found = await bench.run("git", "add", "a.txt")

    assert found["exit_code"] != 0
    assert "big" in found["stderr"]
    assert bench.git("show", ":a.txt") == "one\n"


async def test_the_options_that_were_added_are_shown(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    bench.repository()
    bench.git("config", "diff.external", "/nowhere")
    bench.allow("git diff HEAD")

    planned = await bench.plan("run_command", command="git", args=["diff", "HEAD"])

    assert '"git" "diff" "--no-ext-diff" "--no-textconv" "HEAD"' in str(planned)


async def test_a_repository_whose_settings_changed_is_asked_about_again(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    bench.repository()
    bench.allow("git status")
    planned = await bench.plan("run_command", command="git", args=["status"])

    bench.git("config", "filter.late.clean", "/nowhere")
    done = await bench.toolbox.run(bench.place, planned)  # type: ignore[arg-type]

    assert codes(done) == ("denied", "target_changed")


def test_the_users_own_programs_stay() -> None:
    entries = [
        ("global", "filter.lfs.clean", "git-lfs clean -- %f"),
        ("global", "filter.lfs.required", "true"),
        ("global", "credential.helper", "store"),
        ("global", "core.hookspath", "/home/ada/hooks"),
        ("local", "filter.lfs.clean", "/evil"),
        ("local", "credential.helper", "!/evil"),
        ("local", "core.sshcommand", "/evil"),
        ("local", "core.bare", "false"),
    ]

    found = list(overrides(entries, submodules=(), reads=False))

    assert ("filter.lfs.clean", "git-lfs clean -- %f") in found
    assert ("filter.lfs.required", "true") in found
    assert ("core.hookspath", "/home/ada/hooks") in found
    helpers = [value for key, value in found if key == "credential.helper"]
    assert helpers == ["", "store"]
    assert ("core.sshcommand", "ssh") in found
    assert "core.bare" not in dict(found)


def test_a_relative_folder_of_hooks_is_the_repositorys() -> None:
    found = dict(overrides([("global", "core.hookspath", "hooks")], submodules=(), reads=True))

    assert found["core.hookspath"] == os.devnull


def planted(bench: Workbench, vector: str) -> Path:
    """Make a repository with a change, name the program to it, and return the program's marker."""
    bench.repository({"a.txt": "one\n", "b.txt": "one\n"})
    bench.git("checkout", "--quiet", "-b", "other")
    (bench.work / "a.txt").write_text("other\n")
    bench.git("commit", "--quiet", "-am", "other")
    bench.git("checkout", "--quiet", "main")
    (bench.work / "a.txt").write_text("main\n")
    bench.git("commit", "--quiet", "-am", "main")
    # In the workspace, where also a confined program could leave it.
    marker = bench.work / "marker"
    program = bench.work.parent / "work" / "program"
    program.write_text(f"#!/bin/sh\ntouch '{marker}'\n")
    program.chmod(0o755)
    VECTORS[vector][1](bench, str(program))
    if VECTORS[vector][0] not in ("git merge other", "git rebase -i --root"):
        # As long as before: otherwise git sees the change without reading the file.
        (bench.work / "a.txt").write_text("moin\n")
    marker.unlink(missing_ok=True)
    return marker
