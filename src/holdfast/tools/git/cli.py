"""Runs git so that it starts nothing else: no hook, filter, pager, helper or signer.

Paths are passed as literal pathspecs that are in scope and not protected.
"""

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from holdfast.domain.text import is_encodable, visible
from holdfast.domain.tools import ResultCode
from holdfast.process.cancellation import run_in_thread
from holdfast.process.child import ChildNotStarted, ChildOrder
from holdfast.process.environment import is_below
from holdfast.process.executables import Executable, executables, readable_for
from holdfast.process.launcher import CommandResult, Launcher
from holdfast.process.protected_paths import ProtectedPaths, fold_path
from holdfast.process.sandbox import Bounds, Confinement
from holdfast.tools.files.errors import outside_scope, protected_path
from holdfast.tools.files.hard_links import Places, ProtectedInodes
from holdfast.tools.files.scope import split_path
from holdfast.tools.git.repository import (
    GitHead,
    Repository,
    ShadowRepository,
    read_regular_file,
    shadow_repository,
)
from holdfast.tools.process_context import ProcessContext
from holdfast.tools.tool import ToolFailure

GitSettings = dict[str, str]
TIME_LIMIT: Final = 60.0
_PROCESSES: Final = 512
# Git's usual file modes, because other users of a shared repository must read new objects.
_UMASK: Final = 0o022
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_ASKPASS": "",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": ":",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_SSH_COMMAND": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
}
# Repeated on the command line, where they override the repository's configuration.
_SETTINGS: Final = (
    "advice.addIgnoredFile=false",
    "advice.detachedHead=false",
    "commit.gpgSign=false",
    f"core.attributesFile={os.devnull}",
    f"core.excludesFile={os.devnull}",
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "core.pager=cat",
    "core.sshCommand=false",
    "core.untrackedCache=false",
    "credential.helper=",
    "diff.ignoreSubmodules=all",
    "gc.auto=0",
    "gpg.program=false",
    "log.showSignature=false",
    "maintenance.auto=false",
    "protocol.allow=never",
    "status.submoduleSummary=false",
    "submodule.recurse=false",
)
# Settings that affect contents or names but run nothing, by the scope they may come from.
_FROM_USER: Final = frozenset(
    {
        *("core.autocrlf", "core.eol", "core.excludesfile", "core.safecrlf"),
        *("user.email", "user.name"),
    }
)
_FROM_REPOSITORY: Final = frozenset(
    {
        *("core.autocrlf", "core.eol", "core.filemode", "core.ignorecase"),
        *("core.precomposeunicode", "core.protecthfs", "core.protectntfs", "core.safecrlf"),
        *("core.sharedrepository", "core.sparsecheckout", "core.sparsecheckoutcone"),
        *("core.symlinks", "extensions.objectformat", "user.email", "user.name"),
    }
)
_HARMLESS: Final[Mapping[str, frozenset[str]]] = {
    "global": _FROM_USER,
    "local": _FROM_REPOSITORY,
    "worktree": _FROM_REPOSITORY,
}
_NOTE_LARGEST: Final = 1 << 20
_SAID_LONGEST: Final = 2_000


class Git:
    """Runs git in one workspace."""

    def __init__(self, launcher: Launcher, program: Executable, context: ProcessContext) -> None:
        self._launcher = launcher
        self._program = program
        self._context = context
        self._readable = (
            *(context.roots if context.is_jailed else ("/",)),
            *readable_for(program, path=(), roots=()),
        )

    async def __call__(
        self,
        *words: str,
        about: Mapping[str, str],
        folder: str,
        readable: Sequence[str] = (),
        writable: Sequence[str] = (),
    ) -> CommandResult:
        """Run git; `about` are variables that locate the repository and the index."""
        settings = [word for each in _SETTINGS for word in ("-c", each)]
        order = ChildOrder(
            argv=("git", "--no-pager", *settings, *words),
            program=self._program.path,
            program_identity=self._program.identity,
            folder=folder,
            environment=self._environment(about),
            confinement=Confinement(
                readable=(*self._readable, *readable, folder),
                writable=tuple(writable),
                executable=executables(self._program.real),
                hidden=self._context.hidden,
                bounds=Bounds(processes=_PROCESSES),
            ),
            umask=_UMASK,
        )
        try:
            finished = await self._launcher.run(order, time_limit=TIME_LIMIT)
        except ChildNotStarted as refused:
            raise ToolFailure(ResultCode.UNAVAILABLE, f"git cannot run here: {refused}.") from None
        if finished.timed_out:
            raise ToolFailure(ResultCode.TIMEOUT, f"git took more than {TIME_LIMIT:g} seconds.")
        return finished

    async def head(self, repository: Repository) -> GitHead:
        """Return what is checked out."""
        both = await self._asked(repository, "rev-parse", "HEAD", "--symbolic-full-name", "HEAD")
        if both.exit_code == 0:
            commit, ref = both.stdout.split()
            return GitHead(ref=None if ref == "HEAD" else ref, commit=commit)
        unborn = await self._asked(repository, "symbolic-ref", "-q", "HEAD")
        if unborn.exit_code:
            raise ToolFailure(ResultCode.UNAVAILABLE, "This repository has no readable HEAD.")
        return GitHead(ref=unborn.stdout.strip(), commit=None)

    async def settings(self, repository: Repository) -> GitSettings:
        """Return the harmless settings of the user and the repository."""
        home = self._context.user_home
        found = await self(
            *("config", "--includes", "--null", "--show-scope", "--list"),
            # An empty GIT_CONFIG_GLOBAL removes our override, so that git finds the user's file.
            about={"GIT_DIR": repository.git_dir, "HOME": home or "", "GIT_CONFIG_GLOBAL": ""},
            folder=repository.top,
            readable=("/", home) if home else (),
        )
        values = nul_records(git_output(found))
        return dict(_harmless(zip(values[::2], values[1::2], strict=True)))

    async def _asked(self, repository: Repository, *words: str) -> CommandResult:
        about = {"GIT_DIR": repository.git_dir, "GIT_WORK_TREE": repository.top}
        return await self(*words, about=about, folder=repository.top)

    @asynccontextmanager
    async def shadow(
        self, repository: Repository
    ) -> AsyncIterator[tuple[ShadowRepository, GitHead, GitSettings]]:
        """Yield a shadow of the repository's current state, its HEAD, and its settings."""
        head = await self.head(repository)
        settings = await self.settings(repository)
        ignored = await run_in_thread(
            lambda _: self._ignored(settings.pop("core.excludesfile", None))
        )
        shadowed = shadow_repository(
            repository, head, settings, scratch=self._context.scratch, ignored=ignored
        )
        async with shadowed as shadow:
            yield shadow, head, settings

    def _ignored(self, file: str | None) -> bytes:
        """Return the user's global ignore file."""
        home = self._context.user_home
        if home is None:
            return b""
        chosen = (file or "~/.config/git/ignore").replace("~", home, 1)
        return read_regular_file(os.path.realpath(os.path.join(home, chosen)), _NOTE_LARGEST) or b""

    def _environment(self, about: Mapping[str, str]) -> dict[str, str]:
        context = self._context
        basis = {"HOME": context.scratch, "PATH": os.pathsep.join(context.path)}
        values = {**basis, "TMPDIR": context.scratch, **_ENVIRONMENT, **about}
        return {name: value for name, value in values.items() if value or name not in about}


def nul_records(finished: CommandResult) -> list[str]:
    """Return the NUL-terminated records of git's output."""
    listed = finished.output.whole()
    if listed is None:
        raise ToolFailure(ResultCode.TOO_LARGE, "Too many files for one call.")
    return [os.fsdecode(each) for each in listed.split(b"\0") if each]


def git_output(finished: CommandResult) -> CommandResult:
    """Return the result; raise `ToolFailure` if git failed."""
    if finished.exit_code:
        words = visible(finished.stderr.strip() or finished.stdout.strip())
        raise ToolFailure(ResultCode.FAILED, f"git refuses: {words[:_SAID_LONGEST]}")
    return finished


def _harmless(entries: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the settings that are passed on; repository settings come last and take precedence."""
    for scope, entry in entries:
        key, separator, value = entry.partition("\n")
        wanted = _HARMLESS.get(scope, frozenset())
        if separator and key in wanted and "\n" not in value:
            yield key, value


_RULES: Final = ProtectedPaths(())
_INODES: Final = ProtectedInodes(_RULES)


def pathspec(path: str, repository: Repository, context: ProcessContext) -> str:
    """Return a literal pathspec relative to the top; refuses paths outside the scope."""
    if not path or "\x00" in path or not is_encodable(path):
        raise ToolFailure(ResultCode.INVALID_ARGUMENTS, "A path is empty, or no file's name.")
    lexical = os.path.normpath(os.path.join(context.folder, path))
    # The last name is not resolved, because git stores a symbolic link itself.
    parent, name = os.path.split(lexical)
    real = os.path.join(os.path.realpath(parent), name)
    is_in_reach = not context.is_jailed or any(is_below(real, root) for root in context.roots)
    if not is_in_reach or not is_below(real, repository.top):
        raise outside_scope(path)
    below = os.path.relpath(real, repository.top)
    if is_protected(below) or any(
        is_below(real, each) for each in _own_folders(repository, context)
    ):
        raise protected_path(path)
    return ":(top)" if below == "." else f":(top,literal){below}"


def is_protected(below: str) -> bool:
    """Return whether a file is protected from reading, by its path below the top."""
    return _RULES.hides(fold_path(split_path(below)), is_folder=False)


def filter_protected(
    names: Iterable[str], repository: Repository, context: ProcessContext
) -> tuple[str, ...]:
    """Return the protected files among the names, including hard links to such a file."""
    places = Places(context.hidden, (repository.top,), context.user_home)
    return tuple(
        name
        for name in names
        if is_protected(name) or _is_linked(f"{repository.top}/{name}", places)
    )


def _is_linked(path: str, places: Places) -> bool:
    try:
        return _INODES.holds(os.lstat(path), places)
    # Not in the working tree: only its committed content is read.
    except OSError:
        return False


def _own_folders(repository: Repository, context: ProcessContext) -> Iterable[str]:
    """Return the folders of Holdfast itself, unless the repository lies inside one."""
    return (each for each in context.hidden if not is_below(repository.top, each))
