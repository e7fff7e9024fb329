"""`git_status` and `git_commit`; neither runs any program that the repository configures.

A commit is prepared in a shadow repository, shown, and made exactly as it was approved.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from holdfast.domain.text import is_encodable, quote, visible
from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.process.cancellation import run_in_thread, run_to_end
from holdfast.process.environment import restricted_path
from holdfast.process.executables import Executable, find_executable
from holdfast.process.launcher import CommandResult, Launcher
from holdfast.tools.files.errors import protected_path
from holdfast.tools.git.cli import (
    Git,
    GitSettings,
    filter_protected,
    git_output,
    nul_records,
    pathspec,
)
from holdfast.tools.git.repository import GitHead, Repository, ShadowRepository, find_repository
from holdfast.tools.process_context import ProcessContext, ProcessSettings, process_context_of
from holdfast.tools.tool import CallPlan, Tool, ToolFailure

_LOG_MOST: Final = 50
_LOG_FORMAT: Final = "commit %H%nAuthor: %an <%ae>%nDate:   %aI%n%n%w(0,4,4)%B"
# Disables every option that could start a program.
_DIFF: Final = (
    *("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all"),
)


class StatusArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `git_status` takes."""

    show: Literal["status", "log", "diff"] = "status"
    path: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None


def git_tools(settings: ProcessSettings, launcher: Launcher) -> tuple[Tool[Any], ...]:
    """Return the git tools."""
    tools = _GitTools(settings, launcher)
    return (
        Tool(
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
        Tool(
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


Path = Annotated[str, Meta(min_length=1, max_length=4096)]


class CommitArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `git_commit` takes."""

    message: Annotated[str, Meta(min_length=1, max_length=64 << 10)]
    paths: Annotated[tuple[Path, ...], Meta(max_length=1000)] = ()

    def __post_init__(self) -> None:
        if not self.message.strip() or "\x00" in self.message or not is_encodable(self.message):
            raise ValueError("The message is empty, or no text")
        if any(path.startswith(("-", "/")) for path in self.paths):
            raise ValueError("Paths are relative and do not begin with a dash")


class _GitTools:
    def __init__(self, settings: ProcessSettings, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher

    def has_git(self, place: ToolWorkspace) -> bool:
        """Return whether git is installed outside the workspace."""
        path = restricted_path(
            self._settings.environment.get("PATH"), without=(os.path.realpath(place.working_dir),)
        )
        return find_executable("git", path=path, folder="/") is not None

    async def plan_status(self, place: ToolWorkspace, arguments: StatusArguments) -> CallPlan:
        context, _, repository = await self._found(place)
        if (path := arguments.path) is not None:
            await run_in_thread(lambda _: pathspec(path, repository, context))
        return CallPlan(tool_class=ToolClass.READ)

    async def show(
        self, place: ToolWorkspace, arguments: StatusArguments, _: RequestedCall
    ) -> dict[str, Any]:
        context, git, repository = await self._found(place)
        spec = ":(top)"
        if (path := arguments.path) is not None:
            spec = await run_in_thread(lambda _: pathspec(path, repository, context))
        async with git.shadow(repository) as (shadow, head, _settings):
            looking = _StatusReader(git, shadow, context)
            match arguments.show:
                case "status":
                    words = ("status", "--short", "--branch", "--ignore-submodules=all")
                    return _command_form(await looking.run(*words, "--", spec))
                case "log":
                    words = ("log", "--no-show-signature", "--no-mailmap", "--no-decorate")
                    about = (f"--max-count={_LOG_MOST}", f"--format={_LOG_FORMAT}")
                    return _command_form(await looking.run(*words, *about, "--", spec))
                case "diff":
                    return await looking.diff(spec, has_commit=head.commit is not None)

    async def plan_commit(self, place: ToolWorkspace, arguments: CommitArguments) -> CallPlan:
        context, git, repository = await self._found(place)
        return await CommitBuilder(git, repository, context).plan(arguments)

    async def commit(
        self, place: ToolWorkspace, arguments: CommitArguments, _: RequestedCall
    ) -> Any:
        context, git, repository = await self._found(place)
        return await CommitBuilder(git, repository, context).act(arguments)

    async def _found(self, place: ToolWorkspace) -> tuple[ProcessContext, Git, Repository]:
        context, program, repository = await run_in_thread(lambda _: self._look(place))
        return context, Git(self._launcher, program, context), repository

    def _look(self, place: ToolWorkspace) -> tuple[ProcessContext, Executable, Repository]:
        context = process_context_of(place, self._settings)
        program = find_executable("git", path=context.path, folder="/")
        if program is None:
            raise ToolFailure(ResultCode.UNAVAILABLE, "git is not installed.")
        return context, program, find_repository(context)


class _StatusReader:
    """Reads a repository through its shadow."""

    def __init__(self, git: Git, shadow: ShadowRepository, context: ProcessContext) -> None:
        self._git = git
        self._shadow = shadow
        self._context = context

    async def run(self, *words: str) -> CommandResult:
        return await self._git(
            *words,
            about=self._shadow.about(in_place=True),
            folder=self._context.folder,
            readable=(self._shadow.path, self._shadow.repository.top),
        )

    async def diff(self, spec: str, *, has_commit: bool) -> dict[str, Any]:
        """Return the uncommitted changes, without those of protected files."""
        against = ("HEAD",) if has_commit else ("--cached",)
        listing = (*_DIFF, "--name-only", "--no-renames", "-z", *against, "--", spec)
        names = await self.run(*listing)
        if names.exit_code:
            return _command_form(names)
        listed = nul_records(names)
        closed = await run_in_thread(
            lambda _: filter_protected(listed, self._shadow.repository, self._context)
        )
        hiding = [f":(top,literal,exclude){name}" for name in closed]
        found = _command_form(await self.run(*_DIFF, *against, "--", spec, *hiding))
        if closed:
            found["stdout"] += f"\n[{len(closed)} protected files are left out]\n"
        return found


def _command_form(finished: CommandResult) -> dict[str, Any]:
    return {
        "exit_code": finished.exit_code,
        "stdout": finished.stdout,
        "stderr": finished.stderr,
    }


_EMPTY_TREES: Final[Mapping[str, str]] = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}


class PreparedCommit(Struct, frozen=True, kw_only=True):
    """A planned commit: its content and position, without the commit object."""

    head: GitHead
    tree: str
    author: tuple[str, str]
    stat: str
    # Files that the named paths stage.
    names: tuple[str, ...]


# The plan of a call, reused by its act in the same task (TOCTOU).
_planned: Final[ContextVar[tuple[CommitArguments, PreparedCommit]]] = ContextVar("planned commit")


class CommitBuilder:
    """Plans and makes commits in one repository."""

    def __init__(self, git: Git, repository: Repository, context: ProcessContext) -> None:
        self._git = git
        self._repository = repository
        self._context = context

    async def plan(self, arguments: CommitArguments) -> CallPlan:
        """Prepare the commit in a shadow repository and describe it."""
        prepared = await self._prepared(arguments)
        _planned.set((arguments, prepared))
        return CallPlan(
            tool_class=ToolClass.COMMIT,
            targets=(
                f"repository={self._repository.git_dir}",
                f"branch={prepared.head.ref}",
                f"head={prepared.head.commit}",
                f"tree={prepared.tree}",
                f"author={prepared.author}",
            ),
            question=self._question(arguments, prepared),
            preview={"path": self._repository.top},
        )

    async def act(self, arguments: CommitArguments) -> dict[str, Any]:
        """Make the commit that was planned; refused if anything has changed since."""
        planned, wanted = _planned.get((None, None))
        if wanted is None or planned != arguments:
            raise _changed_error()
        with lock_index(self._repository.git_dir) as lock:
            async with self._git.shadow(self._repository) as (shadow, head, settings):
                staging = Staging(self._git, shadow, in_place=True)
                tree = await staging.tree(await run_in_thread(lambda _: self._specs(arguments)))
                if replace(wanted, head=head, tree=tree, author=_author(settings)) != wanted:
                    raise _changed_error()
                await staging.require_no_filter(wanted.names)
                commit = await self._committed(arguments, wanted, shadow)

                async def advance() -> None:
                    await self._advanced(arguments, wanted, commit)
                    await run_in_thread(lambda _: lock.install(shadow.index))

                # Not cancellable halfway, because the branch and the index must change together.
                await run_to_end(advance())
        branch = (wanted.head.ref or "detached HEAD").removeprefix("refs/heads/")
        subject = arguments.message.strip().splitlines()[0]
        return {
            "commit": commit,
            "exit_code": 0,
            "stdout": f"[{branch} {commit[:10]}] {subject}\n{wanted.stat}",
            "stderr": "",
        }

    async def _prepared(self, arguments: CommitArguments) -> PreparedCommit:
        specs = await run_in_thread(lambda _: self._specs(arguments))
        if (unfinished := self._repository.unfinished()) is not None:
            raise ToolFailure(
                ResultCode.FAILED, f"Something was begun here and not ended: {unfinished}."
            )
        async with self._git.shadow(self._repository) as (shadow, head, settings):
            staging = Staging(self._git, shadow, in_place=False)
            before = await staging.tree(())
            tree = await staging.tree(specs) if specs else before
            names = await staging.changed(before, tree)
            closed = await run_in_thread(
                lambda _: filter_protected(names, self._repository, self._context)
            )
            if closed:
                raise protected_path(visible(closed[0]))
            await staging.require_no_filter(names)
            base = head.commit or _EMPTY_TREES[settings.get("extensions.objectformat", "sha1")]
            stat = await staging.stat(base, tree)
            if not stat.strip():
                raise ToolFailure(ResultCode.FAILED, "There is nothing to commit.")
            return PreparedCommit(
                head=head, tree=tree, author=_author(settings), stat=stat, names=names
            )

    def _specs(self, arguments: CommitArguments) -> list[str]:
        return [pathspec(path, self._repository, self._context) for path in arguments.paths]

    async def _committed(
        self, arguments: CommitArguments, prepared: PreparedCommit, shadow: ShadowRepository
    ) -> str:
        parent = ("-p", prepared.head.commit) if prepared.head.commit else ()
        made = await self._git(
            *("commit-tree", prepared.tree, *parent, "-m", arguments.message),
            about=shadow.about(in_place=True) | _signature(prepared.author),
            folder=self._repository.top,
            readable=(shadow.path,),
            writable=(self._repository.objects,),
        )
        return git_output(made).stdout.strip()

    async def _advanced(
        self, arguments: CommitArguments, prepared: PreparedCommit, commit: str
    ) -> None:
        """Move the branch, if it still points to the planned parent (compare and swap)."""
        repository = self._repository
        was = prepared.head.commit or "0" * len(commit)
        note = f"commit: {visible(arguments.message.strip().splitlines()[0])}"
        moved = await self._git(
            *("update-ref", "-m", note, "HEAD", commit, was),
            about={"GIT_DIR": repository.git_dir, **_signature(prepared.author)},
            folder=repository.top,
            writable=(repository.git_dir, repository.common_dir),
        )
        if moved.exit_code:
            raise _changed_error()

    def _question(self, arguments: CommitArguments, prepared: PreparedCommit) -> str:
        name, address = prepared.author
        paths = ", ".join(visible(path) for path in arguments.paths)
        return "\n".join(
            [
                f"Commit to {visible(prepared.head.ref or 'no branch')}"
                f" in {visible(self._repository.top)}",
                f"as {visible(name)} <{visible(address)}>",
                *([f"staging first: {paths}"] if paths else []),
                "with the message",
                quote(arguments.message),
                "which changes",
                quote(prepared.stat.rstrip("\n")),
                "Hooks, filters, fsmonitor and signing programs do not run.",
            ]
        )


def _author(settings: GitSettings) -> tuple[str, str]:
    name, address = settings.get("user.name", ""), settings.get("user.email", "")
    if not name or not address:
        raise ToolFailure(
            ResultCode.UNAVAILABLE,
            "git does not know who commits: set user.name and user.email with git config --global.",
        )
    return name, address


def _signature(author: tuple[str, str]) -> dict[str, str]:
    roles = ("AUTHOR", "COMMITTER")
    return {
        f"GIT_{role}_{part}": value
        for role in roles
        for part, value in zip(("NAME", "EMAIL"), author, strict=True)
    }


def _changed_error() -> ToolFailure:
    return ToolFailure(
        ResultCode.TARGET_CHANGED,
        "The repository has changed since the commit was allowed; ask for it again.",
    )


@contextmanager
def lock_index(git_dir: str) -> Iterator["IndexLock"]:
    """Hold git's index lock, so that no other process stages files meanwhile."""
    folder = os.open(git_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            mode = os.stat("index", dir_fd=folder, follow_symlinks=False).st_mode & 0o777
        except FileNotFoundError:
            mode = 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            descriptor = os.open("index.lock", flags, mode, dir_fd=folder)
        except FileExistsError:
            raise ToolFailure(
                ResultCode.FAILED, "Another git process is at work in this repository."
            ) from None
        # Set again, because the umask reduces the mode of a created file.
        os.fchmod(descriptor, mode)
        lock = IndexLock(folder, descriptor)
        try:
            yield lock
        finally:
            lock.release()
    finally:
        os.close(folder)


class IndexLock:
    """The lock file of an index, which is renamed to the index or removed."""

    def __init__(self, folder: int, descriptor: int) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self._is_index = False

    def install(self, index: str) -> None:
        """Install the content of a file as the new index."""
        with open(index, "rb") as file:
            content = memoryview(file.read())
            written = os.fstat(file.fileno()).st_mtime_ns
        while content:
            content = content[os.write(self._descriptor, content) :]
        # Preserve the mtime, because git compares it with file times to detect changes.
        os.utime(self._descriptor, ns=(written, written))
        os.fsync(self._descriptor)
        os.rename("index.lock", "index", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._is_index = True

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)
        if not self._is_index:
            os.unlink("index.lock", dir_fd=self._folder)


_NAMES_AT_ONCE: Final = 500


class Staging:
    """The index of a shadow repository; objects go to the real repository only if in place."""

    def __init__(self, git: Git, shadow: ShadowRepository, *, in_place: bool) -> None:
        self._git = git
        self._shadow = shadow
        self._in_place = in_place

    async def _run(self, *words: str) -> CommandResult:
        objects = (self._shadow.repository.objects,) if self._in_place else ()
        return git_output(
            await self._git(
                *words,
                about=self._shadow.about(in_place=self._in_place),
                folder=self._shadow.repository.top,
                writable=(self._shadow.path, *objects),
            )
        )

    async def tree(self, specs: Sequence[str]) -> str:
        """Return the tree of the index, after staging the given paths."""
        if specs:
            await self._run("add", "--all", "--", *specs)
        return (await self._run("write-tree")).stdout.strip()

    async def changed(self, before: str, after: str) -> tuple[str, ...]:
        """Return the files of the second tree that are new or differ from the first."""
        if before == after:
            return ()
        listing = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=d")
        return tuple(nul_records(await self._run(*listing, before, after)))

    async def stat(self, before: str, after: str) -> str:
        """Return the diffstat between two trees."""
        found = await self._run("diff-tree", "-r", "--stat=100", "--summary", before, after)
        return found.stdout

    async def require_no_filter(self, names: Sequence[str]) -> None:
        """Refuse files that need a git filter, because filter programs do not run here."""
        for start in range(0, len(names), _NAMES_AT_ONCE):
            some = names[start : start + _NAMES_AT_ONCE]
            found = nul_records(await self._run("check-attr", "-z", "filter", "--", *some))
            for name, _, value in zip(*[iter(found)] * 3, strict=True):
                if value not in ("unspecified", "unset"):
                    raise ToolFailure(
                        ResultCode.FILTER_NEEDED,
                        f"{visible(name)} needs the filter {visible(value)}, which does not run "
                        "here (it is for large or encrypted files); commit it with git itself.",
                    )
