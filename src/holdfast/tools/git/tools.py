"""`git_status` and `git_commit`; neither runs any program that the repository configures.

A commit is prepared in a shadow repository, shown, and made exactly as it was approved.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, BinaryIO, Final, Literal

from msgspec import Meta, Struct

from holdfast.domain.text import is_encodable, quote, visible
from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.process.cancellation import run_in_thread, run_to_end
from holdfast.process.environment import restricted_path
from holdfast.process.executables import find_executable
from holdfast.process.launcher import CommandResult, Launcher
from holdfast.tools.files.errors import protected_path
from holdfast.tools.git.cli import nul_records
from holdfast.tools.git.repository import GitHead, Shadow, Worktree
from holdfast.tools.process_context import ProcessSettings, process_context_of
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure

_LOG_MOST: Final = 50
_LOG_FORMAT: Final = "commit %H%nAuthor: %an <%ae>%nDate:   %aI%n%n%w(0,4,4)%B"
_SHOW: Final[Mapping[str, tuple[str, ...]]] = {
    "status": ("status", "--short", "--branch", "--ignore-submodules=all"),
    "log": (
        *("log", "--no-show-signature", "--no-mailmap", "--no-decorate"),
        *(f"--max-count={_LOG_MOST}", f"--format={_LOG_FORMAT}"),
    ),
    # Without every option that could start a program.
    "diff": ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all"),
}
_IN_PROGRESS: Final = (
    *("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply"),
)
_EMPTY_TREES: Final[Mapping[str, str]] = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
_NAMES_AT_ONCE: Final = 500
Path = Annotated[str, Meta(min_length=1, max_length=4096)]


class StatusArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `git_status` takes."""

    show: Literal["status", "log", "diff"] = "status"
    path: Path | None = None


class CommitArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `git_commit` takes."""

    message: Annotated[str, Meta(min_length=1, max_length=64 << 10)]
    paths: Annotated[tuple[Path, ...], Meta(max_length=1000)] = ()

    def __post_init__(self) -> None:
        if not self.message.strip() or "\x00" in self.message or not is_encodable(self.message):
            raise ValueError("The message is empty, or not valid text")
        if any(path.startswith(("-", "/")) for path in self.paths):
            raise ValueError("Paths must be relative and must not begin with a dash")


def git_tools(settings: ProcessSettings, launcher: Launcher) -> tuple[LocalTool[Any], ...]:
    """Return the git tools."""
    tools = _GitTools(settings, launcher)
    return (
        LocalTool(
            name="git_status",
            description=(
                "Show the status, the last commits (log) or the uncommitted changes (diff) of the"
                " git repository of the working directory, of all of it or of one path."
            ),
            arguments=StatusArguments,
            effect=lambda _: Effect.PURE,
            plan=tools.plan_status,
            act=tools.show,
            is_available=tools.has_git,
        ),
        LocalTool(
            name="git_commit",
            description=(
                "Commit what is staged, after staging the given paths. Needs an approval each time."
            ),
            arguments=CommitArguments,
            effect=lambda _: Effect.UNSAFE,
            plan=tools.plan_commit,
            act=tools.commit,
            is_available=tools.has_git,
        ),
    )


class PlannedCommit(Struct, frozen=True, kw_only=True):
    """A planned commit: its content and position, without the commit object."""

    head: GitHead
    tree: str
    author: tuple[str, str]
    stat: str
    # Files that the named paths stage.
    names: tuple[str, ...]


# The plan of a call, reused by its act in the same task (TOCTOU).
_planned: Final[ContextVar[tuple[CommitArguments, PlannedCommit]]] = ContextVar("planned commit")


class _GitTools:
    def __init__(self, settings: ProcessSettings, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher

    def has_git(self, workspace: ToolWorkspace) -> bool:
        """Return whether git is installed outside the workspace."""
        path = restricted_path(
            self._settings.environment.get("PATH"),
            without=(os.path.realpath(workspace.working_dir),),
        )
        return find_executable("git", path=path, folder="/") is not None

    async def _worktree(self, workspace: ToolWorkspace) -> Worktree:
        return await run_in_thread(
            lambda _: Worktree.find(process_context_of(workspace, self._settings), self._launcher)
        )

    async def plan_status(self, workspace: ToolWorkspace, arguments: StatusArguments) -> CallPlan:
        worktree = await self._worktree(workspace)
        if arguments.path is not None:
            await worktree.pathspecs(arguments.path)
        return CallPlan(tool_class=ToolClass.READ)

    async def show(
        self, workspace: ToolWorkspace, arguments: StatusArguments, _: RequestedCall
    ) -> dict[str, Any]:
        worktree = await self._worktree(workspace)
        spec = ":(top)"
        if arguments.path is not None:
            [spec] = await worktree.pathspecs(arguments.path)
        words = _SHOW[arguments.show]
        async with worktree.shadow() as shadow:
            if arguments.show != "diff":
                return _command_form(await shadow.run_read_only(*words, "--", spec))
            words = (*words, "HEAD" if shadow.head.commit is not None else "--cached")
            names = await shadow.run_read_only(
                *words, "--name-only", "--no-renames", "-z", "--", spec
            )
            if names.exit_code:
                return _command_form(names)
            closed = await worktree.find_protected(nul_records(names))
            hiding = [f":(top,literal,exclude){name}" for name in closed]
            found = _command_form(await shadow.run_read_only(*words, "--", spec, *hiding))
        if closed:
            found["stdout"] += f"\n[{len(closed)} protected files are left out]\n"
        return found

    async def plan_commit(self, workspace: ToolWorkspace, arguments: CommitArguments) -> CallPlan:
        """Prepare the commit in a shadow repository and describe it."""
        worktree = await self._worktree(workspace)
        planned = await _plan(worktree, arguments)
        _planned.set((arguments, planned))
        return CallPlan(
            tool_class=ToolClass.COMMIT,
            targets=(
                f"repository={worktree.repository.git_dir}",
                f"branch={planned.head.ref}",
                f"head={planned.head.commit}",
                f"tree={planned.tree}",
                f"author={planned.author}",
            ),
            question=_question(arguments, planned, worktree.repository.top),
            preview={"path": worktree.repository.top},
        )

    async def commit(
        self, workspace: ToolWorkspace, arguments: CommitArguments, _: RequestedCall
    ) -> dict[str, Any]:
        """Make the commit that was planned; refused if anything has changed since."""
        before, planned = _planned.get((None, None))
        if planned is None or before != arguments:
            raise _changed_error()
        worktree = await self._worktree(workspace)
        with lock_index(worktree.repository.git_dir) as install:
            async with worktree.shadow() as shadow:
                tree = await _stage(shadow, await worktree.pathspecs(*arguments.paths))
                now = (shadow.head, tree, _author(shadow.settings))
                if now != (planned.head, planned.tree, planned.author):
                    raise _changed_error()
                await _require_no_filter(shadow, planned.names)
                parent = ("-p", planned.head.commit) if planned.head.commit else ()
                words = ("commit-tree", tree, *parent, "-m", arguments.message)
                author = _signature(planned.author)
                made = await shadow.run_staging(*words, author=author)
                commit = made.stdout.strip()

                async def advance() -> None:
                    await _advance(worktree, arguments, planned, commit)
                    await run_in_thread(lambda _: install(f"{shadow.path}/index"))

                # Not cancellable halfway, because the branch and the index must change together.
                await run_to_end(advance())
        branch = (planned.head.ref or "detached HEAD").removeprefix("refs/heads/")
        return {
            "commit": commit,
            "exit_code": 0,
            "stdout": f"[{branch} {commit[:10]}] {_subject(arguments)}\n{planned.stat}",
            "stderr": "",
        }


def _command_form(finished: CommandResult) -> dict[str, Any]:
    return {
        "exit_code": finished.exit_code,
        "stdout": finished.stdout,
        "stderr": finished.stderr,
    }


async def _plan(worktree: Worktree, arguments: CommitArguments) -> PlannedCommit:
    specs = await worktree.pathspecs(*arguments.paths)
    _require_nothing_begun(worktree.repository.git_dir)
    async with worktree.shadow(in_place=False) as shadow:
        before = await _stage(shadow, ())
        tree = await _stage(shadow, specs)
        listing = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=d")
        names = nul_records(await shadow.run_staging(*listing, before, tree))
        if closed := await worktree.find_protected(names):
            raise protected_path(visible(closed[0]))
        await _require_no_filter(shadow, names)
        form = shadow.settings.get("extensions.objectformat", "sha1")
        base = shadow.head.commit or _EMPTY_TREES[form]
        words = ("diff-tree", "-r", "--stat=100", "--summary", base, tree)
        stat = (await shadow.run_staging(*words)).stdout
        if not stat.strip():
            raise ToolFailure(ResultCode.FAILED, "There is nothing to commit.")
        return PlannedCommit(
            head=shadow.head,
            tree=tree,
            author=_author(shadow.settings),
            stat=stat,
            names=tuple(names),
        )


def _require_nothing_begun(git_dir: str) -> None:
    for name in _IN_PROGRESS:
        if os.path.lexists(f"{git_dir}/{name}"):
            raise ToolFailure(
                ResultCode.FAILED,
                f"An operation is in progress in this repository: {name}. Finish or abort it "
                "first.",
            )


async def _stage(shadow: Shadow, specs: Sequence[str]) -> str:
    """Return the tree of the index, after staging the given paths."""
    if specs:
        await shadow.run_staging("add", "--all", "--", *specs)
    return (await shadow.run_staging("write-tree")).stdout.strip()


async def _require_no_filter(shadow: Shadow, names: Sequence[str]) -> None:
    """Refuse files that need a git filter, because filter programs do not run here."""
    for start in range(0, len(names), _NAMES_AT_ONCE):
        words = ("check-attr", "-z", "filter", "--", *names[start : start + _NAMES_AT_ONCE])
        found = nul_records(await shadow.run_staging(*words))
        for name, _, value in zip(*[iter(found)] * 3, strict=True):
            if value not in ("unspecified", "unset"):
                raise ToolFailure(
                    ResultCode.FILTER_NEEDED,
                    f"{visible(name)} needs the filter {visible(value)}, which is not run here "
                    "(it is for large or encrypted files); commit it with git itself.",
                )


async def _advance(
    worktree: Worktree, arguments: CommitArguments, planned: PlannedCommit, commit: str
) -> None:
    """Move the branch, if it still points to the planned parent (compare and swap)."""
    repository = worktree.repository
    was = planned.head.commit or "0" * len(commit)
    note = f"commit: {visible(_subject(arguments))}"
    moved = await worktree.git(
        *("update-ref", "-m", note, "HEAD", commit, was),
        variables={"GIT_DIR": repository.git_dir, **_signature(planned.author)},
        folder=repository.top,
        writable=(repository.git_dir, repository.common_dir),
    )
    if moved.exit_code:
        raise _changed_error()


def _question(arguments: CommitArguments, planned: PlannedCommit, top: str) -> str:
    name, address = planned.author
    paths = ", ".join(visible(path) for path in arguments.paths)
    return "\n".join(
        [
            f"Commit to {visible(planned.head.ref or 'no branch')} in {visible(top)}",
            f"as {visible(name)} <{visible(address)}>",
            *([f"staging first: {paths}"] if paths else []),
            "with the message",
            quote(arguments.message),
            "which changes",
            quote(planned.stat.rstrip("\n")),
            "Hooks, filters, fsmonitor and signing programs do not run.",
        ]
    )


def _subject(arguments: CommitArguments) -> str:
    return arguments.message.strip().splitlines()[0]


def _author(settings: Mapping[str, str]) -> tuple[str, str]:
    name, address = settings.get("user.name", ""), settings.get("user.email", "")
    if not name or not address:
        raise ToolFailure(
            ResultCode.UNAVAILABLE,
            "git does not know the author: set user.name and user.email with git config --global.",
        )
    return name, address


def _signature(author: tuple[str, str]) -> dict[str, str]:
    name, address = author
    roles = ("AUTHOR", "COMMITTER")
    return {f"GIT_{role}_NAME": name for role in roles} | {
        f"GIT_{role}_EMAIL": address for role in roles
    }


def _changed_error() -> ToolFailure:
    return ToolFailure(
        ResultCode.TARGET_CHANGED,
        "The repository has changed since the commit was approved; request it again.",
    )


@contextmanager
def lock_index(git_dir: str) -> Iterator[Callable[[str], None]]:
    """Hold git's index lock; yield a function that installs a file as the new index."""
    folder = os.open(git_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    installed: list[str] = []

    def install(index: str) -> None:
        with open(index, "rb") as source:
            lock.write(source.read())
            written = os.fstat(source.fileno()).st_mtime_ns
        lock.flush()
        # Git compares this mtime with those of the files to detect changes.
        os.utime(lock.fileno(), ns=(written, written))
        os.fsync(lock.fileno())
        os.rename("index.lock", "index", src_dir_fd=folder, dst_dir_fd=folder)
        installed.append(index)

    try:
        with _open_lock(folder) as lock:
            try:
                yield install
            finally:
                if not installed:
                    os.unlink("index.lock", dir_fd=folder)
    finally:
        os.close(folder)


def _open_lock(folder: int) -> BinaryIO:
    """Create the lock file with the mode of the index."""
    try:
        mode = os.stat("index", dir_fd=folder, follow_symlinks=False).st_mode & 0o777
    except FileNotFoundError:
        mode = 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        descriptor = os.open("index.lock", flags, mode, dir_fd=folder)
    except FileExistsError:
        raise ToolFailure(
            ResultCode.FAILED, "Another git process is using this repository; try again."
        ) from None
    # Set again, because the umask reduces the mode of a created file.
    os.fchmod(descriptor, mode)
    return open(descriptor, "wb")
