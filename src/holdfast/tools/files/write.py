"""`write_file` and `edit_file`: planned as one change, shown as a diff, applied atomically.

A change is recorded next to the scratch folder before it is made, so that a repeated call can
recognise its own work (idempotency). The writing itself belongs to `replace.py`.
"""

import hashlib
import os
from functools import partial
from threading import Event
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace as replace_field

from holdfast.domain.tools import Effect, ResultCode
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.process.cancellation import run_in_thread
from holdfast.tools.files.access import LARGEST, FileAccess
from holdfast.tools.files.changes import FileChange, resolved_path
from holdfast.tools.files.errors import binary_file, not_found, too_large
from holdfast.tools.files.path_walk import PathTarget
from holdfast.tools.files.read import FilePath, is_binary
from holdfast.tools.files.replace import (
    FileBefore,
    append,
    changed_error,
    read_before,
    remove_leftover,
    replace,
)
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure

_LARGEST: Final = 4096


class WriteAttempt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last change that a session has begun.

    `work` is a digest of the path and its new content. `before` is the handle of the old content.
    """

    call: str
    work: str
    before: str | None


def call_digest(request: RequestedCall) -> str:
    """Return the identity of a call, equal for every repetition of it."""
    return hashlib.sha256(f"{request.name} {request.idempotency_key}".encode()).hexdigest()


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

    @property
    def is_appending(self) -> bool:
        """Return whether the content is added to the end."""
        return self.mode == "append"

    @property
    def effect(self) -> Effect:
        """Return the effect of writing twice."""
        return Effect.UNSAFE if self.is_appending else Effect.IDEMPOTENT

    def new_content(self, path_target: PathTarget, before: FileBefore | None) -> bytes:
        """Return the content to write."""
        if self.mode == "create" and before is not None:
            raise ToolFailure(ResultCode.EXISTS, f"{self.path} already exists.")
        if path_target.missing and not self.create_dirs:
            raise ToolFailure(
                ResultCode.NOT_FOUND,
                f"The directory of {self.path} does not exist; set create_dirs to create it.",
            )
        if len(path_target.missing) > _FOLDERS_MOST:
            raise ToolFailure(
                ResultCode.INVALID_ARGUMENTS,
                f"At most {_FOLDERS_MOST} directories can be created in one call.",
            )
        return self.content.encode()

    def result(self, change: FileChange) -> dict[str, Any]:
        """Return the result of the call."""
        return {
            "path": self.path,
            "bytes_written": len(change.content),
            "created": change.before is None,
        }


class EditFileArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `edit_file` takes."""

    is_appending: ClassVar[bool] = False
    effect: ClassVar[Effect] = Effect.UNSAFE
    path: FilePath
    old: Annotated[str, Meta(min_length=1)]
    new: str
    occurrences: Annotated[int, Meta(ge=1)] = 1

    def new_content(self, _: PathTarget, before: FileBefore | None) -> bytes:
        """Return the content to write."""
        if before is None:
            raise not_found(self.path)
        if is_binary(before.content):
            raise binary_file(self.path)
        old, new = self.old.encode(), self.new.encode()
        found = before.content.count(old)
        if not found:
            raise ToolFailure(ResultCode.NO_MATCH, f"{self.path} does not contain the text.")
        if found != self.occurrences:
            raise ToolFailure(
                ResultCode.AMBIGUOUS_MATCH,
                f"{self.path} contains the text {found} times, not {self.occurrences}.",
            )
        return before.content.replace(old, new)

    def result(self, _: FileChange) -> dict[str, Any]:
        """Return the result of the call."""
        return {"path": self.path, "replaced": self.occurrences}


Arguments = WriteFileArguments | EditFileArguments


def write_tools(file_access: FileAccess) -> tuple[LocalTool[Any], ...]:
    """Return the `write_file` and `edit_file` tools."""
    changes = _FileChanges(file_access)
    return (
        LocalTool(
            name="write_file",
            description=(
                "Write a text file: replace or create it (replace), create it unless it exists"
                " (create), or add to its end (append). create_dirs creates missing directories."
                " `undo` in the result is the handle of the previous content."
            ),
            arguments=WriteFileArguments,
            effect=lambda arguments: arguments.effect,
            plan=changes.plan,
            act=changes.act,
            again=changes.again,
        ),
        LocalTool(
            name="edit_file",
            description=(
                "Replace an exact piece of text in a file. It must occur exactly `occurrences`"
                " times (default 1), otherwise nothing is changed."
            ),
            arguments=EditFileArguments,
            effect=lambda arguments: arguments.effect,
            plan=changes.plan,
            act=changes.act,
        ),
    )


class _FileChanges:
    """Plans and makes the changes of both tools."""

    def __init__(self, file_access: FileAccess) -> None:
        self._file_access = file_access

    async def plan(self, workspace: ToolWorkspace, arguments: Arguments) -> CallPlan:
        change = await run_in_thread(partial(self._build_change, workspace, arguments))
        return change.aim(arguments.path)

    async def act(
        self, workspace: ToolWorkspace, arguments: Arguments, request: RequestedCall
    ) -> dict[str, Any]:
        change = await self._find_completed(workspace, arguments, request)
        if change is None:
            change = await run_in_thread(partial(self._build_change, workspace, arguments))
            # Store the old content before the write; `_apply` detects a change in between.
            if change.before is not None:
                undo = await workspace.shelf.keep(change.before.content)
                change = replace_field(change, undo=undo)
            call = call_digest(request)
            await run_in_thread(partial(self._apply, workspace, arguments, change, call))
        return arguments.result(change) | {"undo": change.undo}

    async def again(
        self, workspace: ToolWorkspace, arguments: Arguments, request: RequestedCall
    ) -> CallPlan | None:
        """Return the plan of an interrupted attempt, if its write has completed."""
        change = await self._find_completed(workspace, arguments, request)
        return None if change is None else change.aim(arguments.path)

    async def _find_completed(
        self, workspace: ToolWorkspace, arguments: Arguments, request: RequestedCall
    ) -> FileChange | None:
        if arguments.effect is not Effect.IDEMPOTENT:
            return None
        call = call_digest(request)
        attempt = await run_in_thread(lambda _: find_attempt(workspace.scratch, call))
        if attempt is None:
            return None
        content = None
        if attempt.before is not None:
            kept = await workspace.shelf.read(attempt.before)
            if kept is None:
                return None
            content = kept.content
        work = partial(self._match_attempt, workspace, arguments, attempt, content)
        try:
            return await run_in_thread(work)
        except ToolFailure:
            # The regular plan reports the error, as for every other call.
            return None

    def _match_attempt(
        self,
        workspace: ToolWorkspace,
        arguments: Arguments,
        attempt: WriteAttempt,
        content: bytes | None,
        _: Event,
    ) -> FileChange | None:
        """Return the change of an attempt, if the file is still as the attempt left it."""
        scope = self._file_access.scope(workspace)
        with self._file_access.resolve_for_change(scope, arguments.path) as path_target:
            # A leftover temporary hard link would make the link count check fail.
            remove_leftover(path_target, attempt.call)
            found = read_before(self._file_access, scope, path_target)
            if found is None or attempt.work != work_digest(
                resolved_path(path_target), found.content
            ):
                return None
            before = None if content is None else replace_field(found, content=content)
            change = _change_of(arguments, path_target, before)
            return replace_field(change, undo=attempt.before)

    def _build_change(self, workspace: ToolWorkspace, arguments: Arguments, _: Event) -> FileChange:
        scope = self._file_access.scope(workspace)
        with self._file_access.resolve_for_change(scope, arguments.path) as path_target:
            before = read_before(self._file_access, scope, path_target)
            return _change_of(arguments, path_target, before)

    def _apply(
        self,
        workspace: ToolWorkspace,
        arguments: Arguments,
        seen: FileChange,
        call: str,
        stop: Event,
    ) -> None:
        scope = self._file_access.scope(workspace)
        with self._file_access.resolve_for_change(scope, arguments.path) as path_target:
            before = read_before(self._file_access, scope, path_target)
            change = _change_of(arguments, path_target, before)
            if (change.resolved, change.old_digest) != (seen.resolved, seen.old_digest):
                raise changed_error(arguments.path)
            if arguments.effect is Effect.IDEMPOTENT:
                work = work_digest(change.resolved, change.content)
                attempt = WriteAttempt(call=call, work=work, before=seen.undo)
                record_attempt(workspace.scratch, attempt)
            if change.is_appending and before is not None:
                append(self._file_access, scope, path_target, before, change.content)
            else:
                replace(
                    self._file_access, path_target, before, change.content, call=call, stop=stop
                )


def _change_of(
    arguments: Arguments, path_target: PathTarget, before: FileBefore | None
) -> FileChange:
    content = arguments.new_content(path_target, before)
    if len(content) > LARGEST:
        raise too_large(path_target.path, LARGEST)
    return FileChange.of(path_target, before, content, is_appending=arguments.is_appending)
