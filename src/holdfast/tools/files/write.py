"""`write_file` and `edit_file`: planned as one change, shown as a diff, applied atomically.

A change is recorded next to the scratch folder before it is made, so that a repeated call can
recognise its own work (idempotency). The writing itself belongs to `replace.py`.
"""

import hashlib
import os
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace as replace_field

from holdfast.domain.tools import Effect, ResultCode
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.process.cancellation import run_in_thread
from holdfast.tools.files.access import LARGEST, FileAccess
from holdfast.tools.files.changes import FileChange, change_class, resolved_path
from holdfast.tools.files.errors import binary_file, not_found, too_large
from holdfast.tools.files.path_walk import PathTarget
from holdfast.tools.files.read import FilePath, is_binary
from holdfast.tools.files.replace import (
    FileBefore,
    PendingWrite,
    append,
    changed_error,
    read_before,
    remove_leftover,
    replace,
)
from holdfast.tools.files.scope import ToolScope
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure

_LARGEST: Final = 4096


class WriteAttempt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last change that a session has begun.

    `work` is a digest of the path and its new content. `before` is the handle of the old content.
    """

    call: str
    work: str
    before: str | None


def call_digest(asked: RequestedCall) -> str:
    """Return the identity of a call, equal for every repetition of it."""
    return hashlib.sha256(f"{asked.name} {asked.idempotency_key}".encode()).hexdigest()


def work_digest(resolved: str, after: bytes) -> str:
    """Return a digest of a path and its content."""
    return hashlib.sha256(resolved.encode() + b"\x00" + after).hexdigest()


def record_attempt(scratch: str, attempt: WriteAttempt) -> None:
    """Record the attempt before the write; it is synced to disk when this returns.

    Only the last attempt is stored, because the calls of a session run one after the other.
    """
    try:
        _write(_path(scratch), msgspec.json.encode(attempt))
    except OSError as error:
        raise ToolFailure(
            ResultCode.FAILED, "The planned change cannot be recorded, so it was not made."
        ) from error


def find_attempt(scratch: str, call: str) -> WriteAttempt | None:
    """Return the last recorded attempt, if it belongs to this call."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(_path(scratch), flags), "rb") as file:
            found = msgspec.json.decode(file.read(_LARGEST), type=WriteAttempt)
    except (OSError, msgspec.DecodeError):
        # Missing or incomplete: then no write was begun after it.
        return None
    return found if found.call == call else None


def _write(path: str, content: bytes) -> None:
    written = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(written, flags, 0o600), "wb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())
    os.rename(written, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _path(scratch: str) -> str:
    # Next to the scratch folder, because the agent can write inside it.
    return f"{os.path.realpath(scratch)}.attempt"


# Limited, because some programs cannot remove very deep trees.
_FOLDERS_MOST: Final = 32


class WriteFileArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `write_file` takes."""

    path: FilePath
    content: str
    mode: Literal["replace", "create", "append"] = "replace"
    create_dirs: bool = False


class EditFileArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `edit_file` takes."""

    path: FilePath
    old: Annotated[str, Meta(min_length=1)]
    new: str
    occurrences: Annotated[int, Meta(ge=1)] = 1


A = TypeVar("A", WriteFileArguments, EditFileArguments)


def write_tools(file_access: FileAccess) -> tuple[LocalTool[Any], ...]:
    """Return the `write_file` and `edit_file` tools."""
    writing = _ChangeTool(file_access, _new_content, _write_result)
    editing = _ChangeTool(file_access, _edited_content, _edit_result)
    return (
        LocalTool(
            name="write_file",
            description=(
                "Write a text file: replace it or make it (replace), make it only if it is not"
                " there (create), or add to its end (append). create_dirs makes missing"
                " directories. `undo` in the result names what was there before."
            ),
            arguments=WriteFileArguments,
            effect=_effect,
            plan=writing.plan,
            act=writing.act,
            again=writing.again,
        ),
        LocalTool(
            name="edit_file",
            description=(
                "Replace an exact piece of text in a file. It must occur exactly `occurrences`"
                " times (once, if not said), otherwise nothing is changed."
            ),
            arguments=EditFileArguments,
            effect=_effect,
            plan=editing.plan,
            act=editing.act,
        ),
    )


class _Call(NamedTuple):
    """A call with its workspace."""

    workspace: ToolWorkspace
    arguments: Any
    id: str

    @property
    def is_repeatable(self) -> bool:
        """Return whether the call may be repeated automatically."""
        return _effect(self.arguments) is Effect.IDEMPOTENT


Planner = Callable[[A, PathTarget, FileBefore | None], bytes]
ResultBuilder = Callable[[A, FileChange], dict[str, Any]]


class _ChangeTool:
    def __init__(
        self, file_access: FileAccess, plan: Planner[Any], tell: ResultBuilder[Any]
    ) -> None:
        self._file_access = file_access
        self._content = plan
        self._tell = tell

    async def plan(self, workspace: ToolWorkspace, arguments: Any) -> CallPlan:
        return await run_in_thread(partial(self._aim, workspace, arguments))

    async def act(
        self, workspace: ToolWorkspace, arguments: Any, asked: RequestedCall
    ) -> dict[str, Any]:
        call = _Call(workspace, arguments, call_digest(asked))
        change = await self._done_already(call)
        if change is None:
            change = await run_in_thread(partial(self._look, workspace, arguments))
            # The old content is stored before the write; a change in between is detected in `_do`.
            if change.before is not None:
                undo = await workspace.shelf.keep(change.before.content)
                change = replace_field(change, undo=undo)
            await run_in_thread(partial(self._do, call, change))
        return self._tell(arguments, change) | {"undo": change.undo}

    async def again(
        self, workspace: ToolWorkspace, arguments: Any, asked: RequestedCall
    ) -> CallPlan | None:
        """Return the plan of an interrupted attempt, if its write has completed."""
        change = await self._done_already(_Call(workspace, arguments, call_digest(asked)))
        return None if change is None else change.aim(arguments.path)

    async def _done_already(self, call: "_Call") -> FileChange | None:
        if not call.is_repeatable:
            return None
        attempt = await run_in_thread(lambda _: find_attempt(call.workspace.scratch, call.id))
        if attempt is None:
            return None
        content = None
        if attempt.before is not None:
            kept = await call.workspace.shelf.read(attempt.before)
            if kept is None:
                return None
            content = kept.content
        try:
            return await run_in_thread(partial(self._recognised, call, attempt, content))
        except ToolFailure:
            # The regular plan reports the error, as for every other call.
            return None

    def _recognised(
        self, call: "_Call", attempt: WriteAttempt, content: bytes | None, _: Event
    ) -> FileChange | None:
        """Return the change of an attempt, if the file is still as the attempt left it."""
        scope = self._file_access.scope(call.workspace)
        with self._file_access.resolve_for_change(scope, call.arguments.path) as path_target:
            # A leftover temporary hard link would make the link count check fail.
            remove_leftover(path_target, call.id)
            found = read_before(self._file_access, scope, path_target)
            if found is None or attempt.work != work_digest(
                resolved_path(path_target), found.content
            ):
                return None
            before = None if content is None else replace_field(found, content=content)
            change = self._changed(path_target, call.arguments, before)
            return replace_field(change, undo=attempt.before)

    def _aim(self, workspace: ToolWorkspace, arguments: Any, stop: Event) -> CallPlan:
        return self._look(workspace, arguments, stop).aim(arguments.path)

    def _look(self, workspace: ToolWorkspace, arguments: Any, _: Event) -> FileChange:
        scope = self._file_access.scope(workspace)
        with self._file_access.resolve_for_change(scope, arguments.path) as path_target:
            return self._change(scope, path_target, arguments)

    def _do(self, call: "_Call", seen: FileChange, stop: Event) -> None:
        scope = self._file_access.scope(call.workspace)
        with self._file_access.resolve_for_change(scope, call.arguments.path) as path_target:
            change = self._change(scope, path_target, call.arguments)
            if (change.resolved, change.replaced) != (seen.resolved, seen.replaced):
                raise changed_error(call.arguments.path)
            if call.is_repeatable:
                work = work_digest(change.resolved, change.content)
                record_attempt(
                    call.workspace.scratch, WriteAttempt(call=call.id, work=work, before=seen.undo)
                )
            if change.is_appending and change.before is not None:
                append(self._file_access, scope, path_target, change.before, change.content)
            else:
                draft = PendingWrite(call=call.id, before=change.before, content=change.content)
                replace(self._file_access, path_target, draft, stop)

    def _change(self, scope: ToolScope, path_target: PathTarget, arguments: Any) -> FileChange:
        return self._changed(
            path_target, arguments, read_before(self._file_access, scope, path_target)
        )

    def _changed(
        self, path_target: PathTarget, arguments: Any, before: FileBefore | None
    ) -> FileChange:
        content = self._content(arguments, path_target, before)
        if len(content) > LARGEST:
            raise too_large(path_target.path, LARGEST)
        return FileChange(
            resolved=resolved_path(path_target),
            tool_class=change_class(path_target),
            before=before,
            content=content,
            is_appending=getattr(arguments, "mode", "") == "append",
        )


def _effect(arguments: WriteFileArguments | EditFileArguments) -> Effect:
    is_whole = isinstance(arguments, WriteFileArguments) and arguments.mode != "append"
    return Effect.IDEMPOTENT if is_whole else Effect.UNSAFE


def _new_content(
    arguments: WriteFileArguments, path_target: PathTarget, before: FileBefore | None
) -> bytes:
    if arguments.mode == "create" and before is not None:
        raise ToolFailure(ResultCode.EXISTS, f"{path_target.path} already exists.")
    if path_target.missing and not arguments.create_dirs:
        raise ToolFailure(
            ResultCode.NOT_FOUND,
            f"The directory of {path_target.path} does not exist; set create_dirs to create it.",
        )
    if len(path_target.missing) > _FOLDERS_MOST:
        raise ToolFailure(
            ResultCode.INVALID_ARGUMENTS,
            f"At most {_FOLDERS_MOST} directories can be created in one call.",
        )
    return arguments.content.encode()


def _edited_content(
    arguments: EditFileArguments, path_target: PathTarget, before: FileBefore | None
) -> bytes:
    if before is None:
        raise not_found(path_target.path)
    if is_binary(before.content):
        raise binary_file(path_target.path)
    old, new = arguments.old.encode(), arguments.new.encode()
    found = before.content.count(old)
    if not found:
        raise ToolFailure(ResultCode.NO_MATCH, f"{path_target.path} does not contain the text.")
    if found != arguments.occurrences:
        raise ToolFailure(
            ResultCode.AMBIGUOUS_MATCH,
            f"{path_target.path} contains the text {found} times, not {arguments.occurrences}.",
        )
    return before.content.replace(old, new)


def _write_result(arguments: WriteFileArguments, change: FileChange) -> dict[str, Any]:
    return {
        "path": arguments.path,
        "bytes_written": len(change.content),
        "created": change.before is None,
    }


def _edit_result(arguments: EditFileArguments, _: FileChange) -> dict[str, Any]:
    return {"path": arguments.path, "replaced": arguments.occurrences}
