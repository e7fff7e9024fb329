"""Repository files for an ACP agent, read and written under the same rules as the tools."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from threading import Event
from typing import Final, TypeVar

from holdfast.domain.text import visible
from holdfast.domain.tools import FsTier, ResultCode, ToolClass
from holdfast.ports.tools import FileProblem, PlannedWrite, Trouble
from holdfast.process.cancellation import run_in_thread
from holdfast.process.protected_paths import fold_path
from holdfast.tools.files.access import LARGEST, FileAccess, read_whole
from holdfast.tools.files.changes import FileChange, change_class, diff, diff_of_new, resolved_path
from holdfast.tools.files.errors import outside_scope
from holdfast.tools.files.openat import real_path
from holdfast.tools.files.path_walk import PathTarget
from holdfast.tools.files.replace import FileBefore, read_before, replace
from holdfast.tools.files.scope import ScopeRoot, ToolScope, split_path
from holdfast.tools.git.status import GitStatus
from holdfast.tools.tool import ToolFailure

T = TypeVar("T")

STATUS_SECONDS: Final = 5.0
STATUS_MOST: Final = 10_000
_FOLDERS_MOST: Final = 64
_KINDS: Final[Mapping[ResultCode, Trouble]] = {
    ResultCode.OUTSIDE_SCOPE: "outside",
    ResultCode.PROTECTED_PATH: "outside",
    ResultCode.NOT_FOUND: "missing",
    ResultCode.NOT_A_FILE: "not_a_file",
    ResultCode.TOO_LARGE: "too_large",
    ResultCode.INVALID_ARGUMENTS: "outside",
}


class LocalRepositoryFiles:
    """Implements the `RepositoryFiles` port."""

    def __init__(self, file_access: FileAccess, status: GitStatus) -> None:
        self._file_access = file_access
        self._status = status

    async def read(self, folder: str, path: str) -> str:
        """Return the text of a file."""

        def work(_: Event) -> str:
            scope = _scope(folder, path)
            with (
                self._file_access.resolve_path(scope, path) as path_target,
                self._file_access.file(scope, _require_below(scope, path_target)) as descriptor,
            ):
                content = read_whole(descriptor, path)
            try:
                return content.decode()
            except UnicodeDecodeError:
                raise FileProblem("not_text", f"{path} is not UTF-8 text.") from None

        return await _run_translated(work)

    async def plan(self, folder: str, path: str, content: str) -> PlannedWrite:
        """Check a write without changing anything."""
        after = content.encode(errors="replace")

        def work(_: Event) -> PlannedWrite:
            scope = _scope(folder, path)
            with self._file_access.resolve_for_change(scope, path) as path_target:
                before = self._before(scope, _require_below(scope, path_target), after)
                aim = FileChange.of(path_target, before, after).aim(path)
            return PlannedWrite(
                path=path,
                tool_class=aim.tool_class,
                before=_digest(before.content) if before is not None else None,
                after=_digest(after),
                question=aim.question,
                memory=aim.memory,
            )

        return await _run_translated(work)

    async def write(self, folder: str, planned: PlannedWrite, content: str) -> None:
        """Replace a file atomically, if it is unchanged since `plan`."""
        after = content.encode(errors="replace")

        def work(stop: Event) -> None:
            scope = _scope(folder, planned.path)
            with self._file_access.resolve_for_change(scope, planned.path) as path_target:
                before = self._before(scope, _require_below(scope, path_target), after)
                found = _digest(before.content) if before is not None else None
                if found != planned.before:
                    raise FileProblem("failed", f"{planned.path} has changed; read it again.")
                # Derived from the path, so that a later write finds the leftovers of an interrupted
                # one.
                call = _digest(resolved_path(path_target).encode())
                replace(self._file_access, path_target, before, after, call=call, stop=stop)

        await _run_translated(work)

    async def change(self, path: str, before: str | None, after: str) -> str:
        """Return a line diff; without a previous text the whole file is new."""

        def work(_: Event) -> str:
            named, new = visible(path).replace("\n", "\\u000a"), after.encode(errors="replace")
            if before is None:
                return f"{named} (new file)\n{diff_of_new(new)}"
            return f"{named} (change)\n{diff(before.encode(errors='replace'), new)}"

        return await _run_translated(work)

    async def folder(self, folder: str, path: str) -> str:
        """Return the real path of a folder inside the repository."""

        def work(_: Event) -> str:
            scope = _scope(folder, path)
            with (
                self._file_access.resolve_path(scope, path) as path_target,
                self._file_access.folder(_require_below(scope, path_target)) as descriptor,
            ):
                real = self._file_access.real_names(path_target, descriptor)
                return "/" + "/".join(real if real is not None else path_target.full_names())

        return await _run_translated(work)

    async def class_of(self, folder: str, paths: tuple[str, ...]) -> ToolClass:
        """Return the tool class of changing these files; the most sensitive one decides."""

        def work(_: Event) -> ToolClass:
            for path in paths:
                try:
                    scope = _scope(folder, path)
                    with self._file_access.resolve_for_change(scope, path) as path_target:
                        if change_class(_require_below(scope, path_target)) is not ToolClass.WRITE:
                            return ToolClass.SENSITIVE_WRITE
                except ToolFailure:
                    # Outside the scope or protected: such a change must never be approved
                    # automatically.
                    return ToolClass.SENSITIVE_WRITE
            return ToolClass.WRITE

        return await _run_translated(work)

    async def status(self, folder: str) -> Mapping[str, str] | None:
        """Return uncommitted changes; `None` if git does not answer within the timeout."""
        try:
            async with asyncio.timeout(STATUS_SECONDS):
                await run_in_thread(lambda _: _scope(folder, folder))
                found = await self._status.entries(folder)
        except (TimeoutError, ToolFailure, OSError):
            return None
        return found if len(found) <= STATUS_MOST else None

    def _before(self, scope: ToolScope, path_target: PathTarget, after: bytes) -> FileBefore | None:
        if len(path_target.missing) > _FOLDERS_MOST:
            raise FileProblem(
                "failed", f"At most {_FOLDERS_MOST} directories can be created in one call."
            )
        if len(after) > LARGEST:
            raise FileProblem("too_large", f"{path_target.path} would be larger than 8 MiB.")
        return read_before(self._file_access, scope, path_target)


def _scope(folder: str, path: str) -> ToolScope:
    """Return the scope of a path: the repository, by the real path it was started with."""
    # The path was resolved at the start; if it resolves differently now, the folder was replaced.
    if os.path.realpath(folder) != folder:
        raise outside_scope(path)
    names = split_path(folder)
    return ToolScope(tier=FsTier.SANDBOXED, base=names, roots=(ScopeRoot(names=names),), aliases=())


def _require_below(scope: ToolScope, path_target: PathTarget) -> PathTarget:
    """Require that the walk began in the repository, checked by the open descriptor (TOCTOU)."""
    real = real_path(path_target.root_fd)
    # Folded, because a case-insensitive file system may report a different case.
    if real is not None and fold_path(split_path(real)) != fold_path(scope.base):
        raise outside_scope(path_target.path)
    return path_target


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def _run_translated(work: Callable[[Event], T]) -> T:
    """Run work in a thread; translate tool failures into the port's error type."""
    try:
        return await run_in_thread(work)
    except ToolFailure as trouble:
        raise FileProblem(_KINDS.get(trouble.code, "failed"), trouble.message) from None
