"""A git repository within a session's reach, read and written through a shadow repository.

Git runs programs that a repository's configuration names: hooks, monitors, filters, converters. Git
is therefore given a shadow: a private folder with the same HEAD, index and exclusions, and with
only a few harmless settings. It contains nothing that git could run.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from msgspec import Struct

from holdfast.domain.text import is_encodable
from holdfast.domain.tools import ResultCode
from holdfast.process.cancellation import run_in_thread
from holdfast.process.environment import is_below
from holdfast.process.executables import find_executable
from holdfast.process.launcher import CommandResult, Launcher
from holdfast.process.protected_paths import ProtectedPaths, fold_path
from holdfast.tools.files.errors import outside_scope, protected_path
from holdfast.tools.files.hard_links import ProtectedInodes, SearchedFolders
from holdfast.tools.files.scope import split_path
from holdfast.tools.git.cli import Git, git_output
from holdfast.tools.process_context import ProcessContext
from holdfast.tools.tool import ToolFailure

_POINTER_LARGEST: Final = 4 << 10
_EXCLUDE_LARGEST: Final = 4 << 20
_IGNORE_LARGEST: Final = 1 << 20
_INDEX_LARGEST: Final = 512 << 20
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
_RULES: Final = ProtectedPaths(())
_INODES: Final = ProtectedInodes(_RULES)


class Repository(Struct, frozen=True, kw_only=True):
    """The folders of a repository, as real paths within the session's scope."""

    top: str
    git_dir: str
    # Objects and branches; differs from `git_dir` in a linked worktree.
    common_dir: str

    @property
    def objects(self) -> str:
        """Return the object store."""
        return f"{self.common_dir}/objects"


class GitHead(NamedTuple):
    """What is checked out: a branch, a commit, or a branch without commits."""

    ref: str | None
    commit: str | None


def find_repository(context: ProcessContext) -> Repository:
    """Return the repository that contains the working folder; refused if it is out of scope."""
    folder = context.folder
    while _is_in_reach(folder, context):
        if os.path.lexists(f"{folder}/.git"):
            return _repository(folder, context)
        if folder == "/":
            break
        folder = os.path.dirname(folder)
    raise ToolFailure(
        ResultCode.NOT_FOUND,
        "There is no git repository in the file scope. If it is in a parent folder, "
        "use the tier project.",
    )


def _is_in_reach(path: str, context: ProcessContext) -> bool:
    return not context.is_jailed or any(is_below(path, root) for root in context.roots)


def _repository(top: str, context: ProcessContext) -> Repository:
    unusable = ToolFailure(ResultCode.UNAVAILABLE, "This is not a valid git repository.")
    pointer = _first_line(f"{top}/.git")
    if pointer is not None and not pointer.startswith("gitdir: "):
        raise unusable
    git_dir = os.path.realpath(
        os.path.join(top, ".git" if pointer is None else pointer.removeprefix("gitdir: "))
    )
    common_dir = os.path.realpath(os.path.join(git_dir, _first_line(f"{git_dir}/commondir") or ""))
    parts = (top, git_dir, common_dir, os.path.realpath(f"{common_dir}/objects"))
    if not all(_is_in_reach(part, context) for part in parts):
        raise ToolFailure(
            ResultCode.OUTSIDE_SCOPE,
            "Parts of this repository are outside the session's file scope.",
        )
    if not all(map(os.path.isdir, parts)):
        raise unusable
    return Repository(top=top, git_dir=git_dir, common_dir=common_dir)


def _first_line(path: str) -> str | None:
    content = read_regular_file(path, _POINTER_LARGEST)
    return None if content is None else os.fsdecode(content).strip("\n")


def read_regular_file(path: str, largest: int, copy: str | None = None) -> bytes | None:
    """Return the content of a regular file; `None` if missing, a symbolic link or a pipe.

    With `copy` it is also written to that path, with the same mtime.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(largest + 1)
    finally:
        os.close(descriptor)
    if len(content) > largest:
        raise ToolFailure(ResultCode.TOO_LARGE, "An internal file of the repository is too large.")
    if copy is not None:
        _write(copy, content)
        # Git compares this mtime with those of the files to detect changes.
        os.utime(copy, ns=(found.st_mtime_ns, found.st_mtime_ns))
    return content


def _write(path: str, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)


class Worktree:
    """A repository in reach of a session, and git to run in it."""

    def __init__(self, git: Git, repository: Repository) -> None:
        self.git = git
        self.repository = repository

    @classmethod
    def find(cls, context: ProcessContext, launcher: Launcher) -> "Worktree":
        """Return the worktree that contains the working folder; reads the file system."""
        program = find_executable("git", path=context.path, folder="/")
        if program is None:
            raise ToolFailure(ResultCode.UNAVAILABLE, "git is not installed.")
        return cls(Git(launcher, program, context), find_repository(context))

    async def pathspecs(self, *paths: str) -> list[str]:
        """Return literal pathspecs relative to the top; refuses paths outside the scope."""
        return await run_in_thread(lambda _: [self._pathspec(path) for path in paths])

    def _pathspec(self, path: str) -> str:
        top, context = self.repository.top, self.git.context
        if not path or "\x00" in path or not is_encodable(path):
            raise ToolFailure(
                ResultCode.INVALID_ARGUMENTS, "A path is empty, or not a valid file name."
            )
        # The last name is not resolved, because git stores a symbolic link itself.
        parent, name = os.path.split(os.path.normpath(os.path.join(context.folder, path)))
        real = os.path.join(os.path.realpath(parent), name)
        if not _is_in_reach(real, context) or not is_below(real, top):
            raise outside_scope(path)
        # The folders of Holdfast itself, unless the repository lies inside one.
        own = [each for each in context.hidden if not is_below(top, each)]
        below = os.path.relpath(real, top)
        if _is_protected(below) or any(is_below(real, each) for each in own):
            raise protected_path(path)
        return ":(top)" if below == "." else f":(top,literal){below}"

    async def find_protected(self, names: Iterable[str]) -> list[str]:
        """Return the protected files among the names, including hard links to such a file."""
        top, context = self.repository.top, self.git.context

        def find() -> list[str]:
            places = SearchedFolders(context.hidden, (top,), context.user_home)
            return [
                name for name in names if _is_protected(name) or _is_linked(f"{top}/{name}", places)
            ]

        return await run_in_thread(lambda _: find())

    @asynccontextmanager
    async def shadow(self, *, in_place: bool = True) -> AsyncIterator["Shadow"]:
        """Yield a shadow of the repository's current state; it is removed afterwards.

        New objects go to the real repository only if `in_place`.
        """
        shadow = Shadow(self, await self._head(), await self._settings(), in_place=in_place)
        try:
            await run_in_thread(lambda _: shadow.fill())
            yield shadow
        finally:
            await run_in_thread(lambda _: shutil.rmtree(shadow.path, ignore_errors=True))

    async def _head(self) -> GitHead:
        both = await self._ask("rev-parse", "HEAD", "--symbolic-full-name", "HEAD")
        if both.exit_code == 0:
            commit, ref = both.stdout.split()
            return GitHead(ref=None if ref == "HEAD" else ref, commit=commit)
        unborn = await self._ask("symbolic-ref", "-q", "HEAD")
        if unborn.exit_code:
            raise ToolFailure(ResultCode.UNAVAILABLE, "This repository has no readable HEAD.")
        return GitHead(ref=unborn.stdout.strip(), commit=None)

    async def _ask(self, *words: str) -> CommandResult:
        top = self.repository.top
        variables = {"GIT_DIR": self.repository.git_dir, "GIT_WORK_TREE": top}
        return await self.git(*words, variables=variables, folder=top)

    async def _settings(self) -> dict[str, str]:
        """Return the harmless settings; those of the repository take precedence."""
        home = self.git.context.user_home or ""
        found = await self.git.config(
            # An empty GIT_CONFIG_GLOBAL removes our override, so that git finds the user's file.
            variables={"GIT_DIR": self.repository.git_dir, "HOME": home, "GIT_CONFIG_GLOBAL": ""},
            folder=self.repository.top,
            readable=("/", home) if home else (),
        )
        return {
            key: value
            for scope, key, value in found
            if key in _HARMLESS.get(scope, ()) and value is not None and "\n" not in value
        }


def _is_protected(below: str) -> bool:
    """Return whether a file is protected from reading, by its path below the top."""
    return _RULES.hides(fold_path(split_path(below)), is_folder=False)


def _is_linked(path: str, searched: SearchedFolders) -> bool:
    try:
        return _INODES.holds(os.lstat(path), searched)
    # Not in the working tree: only its committed content is read.
    except OSError:
        return False


class Shadow:
    """A repository without executable configuration that git is given instead of the real one."""

    def __init__(
        self, worktree: Worktree, head: GitHead, settings: dict[str, str], *, in_place: bool
    ) -> None:
        self.head = head
        self.settings = settings
        self._git = worktree.git
        self._repository = worktree.repository
        scratch = self._git.context.scratch
        folder = scratch if os.path.isdir(scratch) else None
        self.path = os.path.realpath(tempfile.mkdtemp(prefix="git-", dir=folder))
        objects = self._repository.objects
        self._variables = {
            "GIT_DIR": self.path,
            "GIT_WORK_TREE": self._repository.top,
            "GIT_INDEX_FILE": f"{self.path}/index",
            "GIT_OBJECT_DIRECTORY": objects if in_place else f"{self.path}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": "" if in_place else _quote(objects),
        }

    async def run_read_only(self, *words: str) -> CommandResult:
        """Run a command that changes nothing, in the working folder."""
        return await self._git(
            *words,
            variables=self._variables,
            folder=self._git.context.folder,
            readable=(self.path, self._repository.top),
        )

    async def run_staging(
        self, *words: str, author: Mapping[str, str] | None = None
    ) -> CommandResult:
        """Run a command that may write the shadow's index, and objects; raises if it fails."""
        finished = await self._git(
            *words,
            variables=self._variables | dict(author or {}),
            folder=self._repository.top,
            writable=(self.path, self._variables["GIT_OBJECT_DIRECTORY"]),
        )
        return git_output(finished)

    def fill(self) -> None:
        """Write the shadow's files."""
        git_dir, common_dir = self._repository.git_dir, self._repository.common_dir
        for name in ("refs/heads", "objects", "info"):
            os.makedirs(f"{self.path}/{name}")
        chosen = self.settings.pop("core.excludesfile", None)
        excluded = read_regular_file(f"{common_dir}/info/exclude", _EXCLUDE_LARGEST) or b""
        _write(f"{self.path}/info/exclude", self._global_ignore(chosen) + b"\n" + excluded)
        _write(f"{self.path}/config", os.fsencode("\n".join(self._configuration())))
        ref, commit = self.head
        _write(f"{self.path}/HEAD", f"{commit if ref is None else f'ref: {ref}'}\n".encode())
        if ref is not None and commit is not None:
            os.makedirs(os.path.dirname(f"{self.path}/{ref}"), exist_ok=True)
            _write(f"{self.path}/{ref}", f"{commit}\n".encode())
        # The shared parts belong to a split index.
        parts = [name for name in os.listdir(git_dir) if name.startswith("sharedindex.")]
        copied = dict.fromkeys(("index", *parts), git_dir)
        copied |= dict.fromkeys(("info/attributes", "shallow"), common_dir)
        for name, folder in copied.items():
            read_regular_file(f"{folder}/{name}", _INDEX_LARGEST, copy=f"{self.path}/{name}")

    def _global_ignore(self, file: str | None) -> bytes:
        """Return the user's global ignore file."""
        home = self._git.context.user_home
        if home is None:
            return b""
        chosen = os.path.join(home, (file or "~/.config/git/ignore").replace("~", home, 1))
        return read_regular_file(os.path.realpath(chosen), _IGNORE_LARGEST) or b""

    def _configuration(self) -> Iterator[str]:
        version = 1 if "extensions.objectformat" in self.settings else 0
        yield f"[core]\n\trepositoryformatversion = {version}\n\tbare = false"
        for key, value in self.settings.items():
            section, _, name = key.partition(".")
            yield f"[{section}]\n\t{name} = {_quote(value)}"
        yield ""


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
