"""Reads a git repository without its own configuration, through a shadow repository.

Git runs programs that a repository's configuration names: hooks, monitors, filters, converters. Git
is therefore given a shadow: a private folder with the same HEAD, index and exclusions, and with
only a few harmless settings. It contains nothing that git could run.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct

from holdfast.domain.tools import ResultCode
from holdfast.process.cancellation import run_in_thread
from holdfast.process.environment import is_below
from holdfast.tools.process_context import ProcessContext
from holdfast.tools.tool import ToolFailure

_POINTER_LARGEST: Final = 4 << 10
_NOTE_LARGEST: Final = 4 << 20
_INDEX_LARGEST: Final = 512 << 20
_IN_PROGRESS: Final = (
    *("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply"),
)


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

    def unfinished(self) -> str | None:
        """Return the marker of an unfinished merge, rebase or similar, if any."""
        names = (name for name in _IN_PROGRESS if os.path.lexists(f"{self.git_dir}/{name}"))
        return next(names, None)


class GitHead(Struct, frozen=True, kw_only=True):
    """What is checked out: a branch, a commit, or a branch without commits."""

    ref: str | None
    commit: str | None


def find_repository(context: ProcessContext) -> Repository:
    """Return the repository that contains the working folder; refused if it is out of scope."""
    for folder in _parents(context):
        if os.path.lexists(f"{folder}/.git"):
            return _repository(folder, context)
    raise ToolFailure(
        ResultCode.NOT_FOUND,
        "There is no git repository in reach. Where it lies further up, the tier project reaches"
        " it.",
    )


def _parents(context: ProcessContext) -> Iterator[str]:
    folder = context.folder
    while not context.is_jailed or any(is_below(folder, root) for root in context.roots):
        yield folder
        if folder == "/":
            return
        folder = os.path.dirname(folder)


def _repository(top: str, context: ProcessContext) -> Repository:
    pointer = _first_line(f"{top}/.git")
    if pointer is None:
        git_dir = f"{top}/.git"
    elif pointer.startswith("gitdir: "):
        git_dir = os.path.join(top, pointer.removeprefix("gitdir: "))
    else:
        raise _unusable()
    git_dir = os.path.realpath(git_dir)
    common = _first_line(f"{git_dir}/commondir")
    common_dir = os.path.realpath(os.path.join(git_dir, common)) if common else git_dir
    parts = (top, git_dir, common_dir, os.path.realpath(f"{common_dir}/objects"))
    if context.is_jailed:
        for part in parts:
            if not any(is_below(part, root) for root in context.roots):
                raise ToolFailure(
                    ResultCode.OUTSIDE_SCOPE,
                    "Parts of this repository lie outside of what this session reaches.",
                )
    if not all(map(os.path.isdir, parts)):
        raise _unusable()
    return Repository(top=top, git_dir=git_dir, common_dir=common_dir)


def _first_line(path: str) -> str | None:
    content = read_regular_file(path, _POINTER_LARGEST)
    return None if content is None else os.fsdecode(content).strip("\n")


def _unusable() -> ToolFailure:
    return ToolFailure(ResultCode.UNAVAILABLE, "What looks like a git repository here is none.")


def read_regular_file(path: str, largest: int) -> bytes | None:
    """Return the content of a regular file; `None` if missing, a symbolic link or a pipe."""
    found = _read(path, largest)
    return None if found is None else found[0]


def _read(path: str, largest: int) -> tuple[bytes, int] | None:
    """Return the content of a regular file and its mtime."""
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
        raise ToolFailure(ResultCode.TOO_LARGE, "A file of the repository itself is too large.")
    return content, found.st_mtime_ns


class ShadowRepository(Struct, frozen=True, kw_only=True):
    """A repository without executable configuration that git is given instead of the real one."""

    repository: Repository
    path: str

    @property
    def index(self) -> str:
        """Return the path of the shadow's copy of the index."""
        return f"{self.path}/index"

    def about(self, *, in_place: bool) -> dict[str, str]:
        """Return git's variables; new objects go to the real repository only if `in_place`."""
        true = self.repository.objects
        variables = {
            "GIT_DIR": self.path,
            "GIT_WORK_TREE": self.repository.top,
            "GIT_INDEX_FILE": self.index,
        }
        if in_place:
            return variables | {"GIT_OBJECT_DIRECTORY": true}
        escaped = true.replace("\\", "\\\\").replace('"', '\\"')
        return variables | {
            "GIT_OBJECT_DIRECTORY": f"{self.path}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{escaped}"',
        }


@asynccontextmanager
async def shadow_repository(
    repository: Repository,
    head: GitHead,
    settings: Mapping[str, str],
    *,
    scratch: str,
    ignored: bytes,
) -> AsyncIterator[ShadowRepository]:
    """Yield a shadow of the repository; it is removed afterwards.

    `ignored` is the user's global ignore file.
    """
    shadow = ShadowRepository(repository=repository, path=_new_folder(scratch))
    try:
        await run_in_thread(lambda _: _fill(shadow, head, settings, ignored))
        yield shadow
    finally:
        await run_in_thread(lambda _: shutil.rmtree(shadow.path, ignore_errors=True))


def _new_folder(scratch: str) -> str:
    folder = scratch if os.path.isdir(scratch) else None
    return os.path.realpath(tempfile.mkdtemp(prefix="git-", dir=folder))


def _fill(
    shadow: ShadowRepository, head: GitHead, settings: Mapping[str, str], ignored: bytes
) -> None:
    path, repository = shadow.path, shadow.repository
    for name in ("refs/heads", "objects", "info"):
        os.makedirs(f"{path}/{name}")
    _write(f"{path}/config", _configuration(settings))
    _write_head(path, head)
    excluded = read_regular_file(f"{repository.common_dir}/info/exclude", _NOTE_LARGEST) or b""
    _write(f"{path}/info/exclude", ignored + b"\n" + excluded)
    for source, name in _files_to_copy(repository):
        found = _read(source, _INDEX_LARGEST)
        if found is not None:
            content, written = found
            _write(f"{path}/{name}", content)
            # Preserve the mtime, because git compares it with file times to detect changes.
            os.utime(f"{path}/{name}", ns=(written, written))


def _files_to_copy(repository: Repository) -> Iterator[tuple[str, str]]:
    yield f"{repository.git_dir}/index", "index"
    yield f"{repository.common_dir}/info/attributes", "info/attributes"
    yield f"{repository.common_dir}/shallow", "shallow"
    for name in os.listdir(repository.git_dir):
        # The shared part of a split index.
        if name.startswith("sharedindex."):
            yield f"{repository.git_dir}/{name}", name


def _write_head(shadow: str, head: GitHead) -> None:
    if head.ref is None:
        _write(f"{shadow}/HEAD", f"{head.commit}\n".encode())
        return
    _write(f"{shadow}/HEAD", f"ref: {head.ref}\n".encode())
    if head.commit is not None:
        os.makedirs(os.path.dirname(f"{shadow}/{head.ref}"), exist_ok=True)
        _write(f"{shadow}/{head.ref}", f"{head.commit}\n".encode())


def _configuration(settings: Mapping[str, str]) -> bytes:
    version = 1 if "extensions.objectformat" in settings else 0
    lines = ["[core]", f"\trepositoryformatversion = {version}", "\tbare = false"]
    for key, value in settings.items():
        section, _, name = key.partition(".")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        lines += [f"[{section}]", f'\t{name} = "{escaped}"']
    return "\n".join(lines).encode(errors="surrogateescape") + b"\n"


def _write(path: str, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
