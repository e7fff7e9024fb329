"""Repositories that want to run something: each trap leaves a file of its name where it was run.

Several traps share a repository as long as none of them hides another.
"""

from collections.abc import Callable
from pathlib import Path

from tests.tools.process_fixture import Workbench

HOOKS = (
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-rewrite",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "prepare-commit-msg",
    "reference-transaction",
)

# Settings that name a program; `{}` is the program.
PROGRAMS = {
    "alias.status": "!{}",
    "alias.st": "!{}",
    "browser.x.cmd": "{}",
    "commit.gpgSign": "true",
    "core.alternateRefsCommand": "{}",
    "core.askPass": "{}",
    "core.editor": "{}",
    "core.fsmonitor": "{}",
    "core.gitProxy": "{}",
    "core.pager": "{}",
    "core.sshCommand": "{}",
    "credential.helper": "!{}",
    "diff.external": "{}",
    "diff.guiTool": "x",
    "difftool.x.cmd": "{}",
    "format.pretty": "%G? %s",
    "gpg.program": "{}",
    "gpg.ssh.program": "{}",
    "gpg.x509.program": "{}",
    "gc.auto": "1",
    "interactive.diffFilter": "{}",
    "log.showSignature": "true",
    "man.viewer": "{}",
    "merge.x.driver": "{}",
    "mergetool.x.cmd": "{}",
    "pager.diff": "{}",
    "pager.log": "{}",
    "pager.status": "{}",
    "sendemail.toCmd": "{}",
    "sequence.editor": "{}",
    "submodule.x.update": "!{}",
    "tag.gpgSign": "true",
    "trailer.x.command": "{}",
    "uploadpack.packObjectsHook": "{}",
    "user.signingKey": "ada",
    "web.browser": "{}",
}

Trap = Callable[[Workbench], None]


def program(bench: Workbench, name: str) -> Path:
    """Make a program that leaves a file of its name beside the repository."""
    file = bench.work.parent / "traps" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\ntouch '{fallen(bench)}/{name}' 2>/dev/null\n")
    file.chmod(0o755)
    return file


def fallen(bench: Workbench) -> Path:
    """Return the folder in which traps leave their files."""
    folder = bench.work.parent / "fallen"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    return folder


def hooks(bench: Workbench) -> None:
    """Put a program behind every hook."""
    for name in HOOKS:
        (bench.work / ".git/hooks" / name).unlink(missing_ok=True)
        (bench.work / ".git/hooks" / name).symlink_to(program(bench, f"hook {name}"))


def hooks_elsewhere(bench: Workbench) -> None:
    """Bring the hooks along in the working tree."""
    (bench.work / "githooks").mkdir()
    for name in HOOKS:
        file = program(bench, f"own hook {name}")
        (bench.work / "githooks" / name).symlink_to(file)
    bench.git("config", "core.hooksPath", "githooks")


def settings(bench: Workbench) -> None:
    """Name a program wherever a setting takes one."""
    for key, value in PROGRAMS.items():
        bench.git("config", key, value.format(f"'{program(bench, f'setting {key}')}'"))


def plain_settings(bench: Workbench) -> None:
    """Name only those programs that do not keep git from doing its work."""
    for key in ("core.fsmonitor", "core.pager", "credential.helper"):
        value = PROGRAMS[key].format(f"'{program(bench, f'plain {key}')}'")
        bench.git("config", key, value)


def drivers(bench: Workbench) -> None:
    """Have attributes of every kind name programs."""
    for name in ("diff", "text", "filter", "process", "merge"):
        program(bench, f"driver {name}")
    folder = bench.work.parent / "traps"
    bench.git("config", "diff.evil.command", f"'{folder}/driver diff'")
    bench.git("config", "diff.plain.textconv", f"'{folder}/driver text'")
    bench.git("config", "filter.evil.clean", f"'{folder}/driver filter'")
    bench.git("config", "filter.evil.smudge", f"'{folder}/driver filter'")
    bench.git("config", "filter.long.process", f"'{folder}/driver process'")
    bench.git("config", "filter.long.required", "true")
    bench.git("config", "merge.evil.driver", f"'{folder}/driver merge'")
    (bench.work / ".gitattributes").write_text(
        "a.txt diff=evil\nb.txt diff=plain\nc.txt filter=evil\nd.txt filter=long merge=evil\n"
    )
    (bench.work / ".git/info/attributes").write_text("e.txt filter=evil diff=plain\n")


def included(bench: Workbench) -> None:
    """Hide a monitor behind an included file, and one behind the settings of a working tree."""
    (bench.work / "more.config").write_text(
        f"[core]\n\tfsmonitor = \"'{program(bench, 'included monitor')}'\"\n"
    )
    bench.git("config", "include.path", "../more.config")
    bench.git("config", "includeIf.gitdir:**.path", "../more.config")
    bench.git("config", "extensions.worktreeConfig", "true")
    monitor = program(bench, "worktree monitor")
    bench.git("config", "--worktree", "core.fsmonitor", f"'{monitor}'")


def submodule(bench: Workbench) -> None:
    """Bring along a repository inside of the repository, with traps of its own."""
    inner = bench.work / "inner"
    inner.mkdir()
    bench.git("init", "--quiet", folder=inner)
    (inner / "x.txt").write_text("x\n")
    bench.git("add", "x.txt", folder=inner)
    bench.git("commit", "--quiet", "--message=inner", folder=inner)
    (bench.work / ".gitmodules").write_text(
        '[submodule "inner"]\n\tpath = inner\n\turl = ./inner\n\tupdate = !touch canary\n'
    )
    bench.git("add", ".gitmodules", "inner")
    bench.git("commit", "--quiet", "--message=with a submodule")
    monitor = program(bench, "submodule monitor")
    bench.git("config", "core.fsmonitor", f"'{monitor}'", folder=inner)
    (inner / "x.txt").write_text("changed\n")


def promised(bench: Workbench) -> None:
    """Promise objects that a program would have to fetch."""
    fetch = program(bench, "fetch")
    bench.git("config", "core.repositoryFormatVersion", "1")
    bench.git("config", "extensions.partialClone", "origin")
    bench.git("config", "remote.origin.promisor", "true")
    bench.git("config", "remote.origin.url", f"ext::{str(fetch).replace(' ', '% ')}")
    bench.git("config", "remote.origin.uploadpack", f"'{fetch}'")
    bench.git("config", "protocol.ext.allow", "always")
    blob = bench.git("rev-parse", "HEAD:a.txt").strip()
    (bench.work / ".git/objects" / blob[:2] / blob[2:]).unlink()


def bare(bench: Workbench) -> None:
    """Make the folder itself look like a repository that has no working tree."""
    (bench.work / ".git").rename(bench.work / "x")
    for each in (bench.work / "x").iterdir():
        each.rename(bench.work / each.name)
    (bench.work / "x").rmdir()
    bench.git("config", "core.bare", "false")
    bench.git("config", "core.worktree", ".")
    bench.git("config", "core.fsmonitor", f"'{program(bench, 'bare monitor')}'")


def strange_index(bench: Workbench) -> None:
    """Mark files in the index as watched, and give the index a monitor's extension."""
    bench.git("config", "core.fsmonitor", f"'{program(bench, 'index monitor')}'")
    bench.git("update-index", "--fsmonitor")
    bench.git("config", "core.untrackedCache", "true")
    bench.git("update-index", "--untracked-cache")
    for file in fallen(bench).iterdir():
        file.unlink()


REPOSITORIES: dict[str, tuple[Trap, ...]] = {
    "hooks": (hooks, plain_settings),
    "hooks elsewhere": (hooks_elsewhere,),
    "settings": (settings,),
    "drivers": (drivers,),
    "included": (included,),
    "submodule": (submodule,),
    "promised": (promised,),
    "bare": (bare,),
    "index": (strange_index,),
}
