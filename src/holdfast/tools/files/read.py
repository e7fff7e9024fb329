"""`read_file`: the text of a file or a range of lines. `read_media`: a picture or a sound."""

import mimetypes
import os
from datetime import UTC, datetime
from threading import Event
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from holdfast.domain.messages import is_media_type
from holdfast.domain.tools import Effect, ResultCode
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.process.cancellation import run_in_thread
from holdfast.tools.files.access import FileAccess, read_whole
from holdfast.tools.files.errors import binary_file
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure

FilePath = Annotated[str, Meta(min_length=1, max_length=4096)]

_BINARY_HEAD: Final = 8 << 10
_REPLACEMENT: Final = "\ufffd"


class ReadFileArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `read_file` takes; lines count from one, and the last one is included."""

    path: FilePath
    start_line: Annotated[int, Meta(ge=1)] = 1
    end_line: Annotated[int, Meta(ge=1)] | None = None


def read_file_tool(file_access: FileAccess) -> LocalTool[ReadFileArguments]:
    """Return the `read_file` tool."""

    async def plan(workspace: ToolWorkspace, arguments: ReadFileArguments) -> CallPlan:
        if arguments.end_line is not None and arguments.end_line < arguments.start_line:
            raise ToolFailure(
                ResultCode.INVALID_ARGUMENTS, "end_line must not be smaller than start_line."
            )
        return await file_access.plan_read(workspace, arguments.path, "file")

    async def act(
        workspace: ToolWorkspace, arguments: ReadFileArguments, _: RequestedCall
    ) -> dict[str, Any]:
        return await run_in_thread(lambda _: _read(file_access, workspace, arguments))

    return LocalTool(
        name="read_file",
        description=(
            "Read a text file of at most 8 MiB, or the lines from start_line to end_line of it."
            " `lossy` in the result means that bytes that are not UTF-8 were replaced."
        ),
        arguments=ReadFileArguments,
        effect=lambda _: Effect.PURE,
        plan=plan,
        act=act,
    )


class ReadMediaArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `read_media` takes."""

    path: FilePath


def read_media_tool(file_access: FileAccess) -> LocalTool[ReadMediaArguments]:
    """Return the `read_media` tool."""

    async def plan(workspace: ToolWorkspace, arguments: ReadMediaArguments) -> CallPlan:
        _media_type(arguments.path)
        return await file_access.plan_read(workspace, arguments.path, "file")

    async def act(
        workspace: ToolWorkspace, arguments: ReadMediaArguments, _: RequestedCall
    ) -> dict[str, Any]:
        def read(_: Event) -> bytes:
            with file_access.open_file(workspace, arguments.path) as descriptor:
                return read_whole(descriptor, arguments.path)

        mime_type = _media_type(arguments.path)
        content = await run_in_thread(read)
        # The handle and the type in the result make the engine attach the content.
        ref = await workspace.shelf.keep(content, mime_type=mime_type)
        return {"mime_type": mime_type, "ref": ref, "byte_length": len(content)}

    return LocalTool(
        name="read_media",
        description=(
            "Look at a picture or a PDF, or listen to a sound, of at most 8 MiB. A model that does"
            " not accept the type gets its name and size only."
        ),
        arguments=ReadMediaArguments,
        effect=lambda _: Effect.PURE,
        plan=plan,
        act=act,
    )


def _media_type(path: str) -> str:
    found = mimetypes.guess_type(path)[0] or ""
    if not is_media_type(found) or found == "text/plain":
        raise ToolFailure(
            ResultCode.INVALID_ARGUMENTS,
            f"The name {path} is not that of a picture, a PDF, a sound or a video; use read_file"
            " for text.",
        )
    return found


def is_binary(content: bytes) -> bool:
    """Return whether the content is binary: a NUL byte near the beginning."""
    return b"\0" in content[:_BINARY_HEAD]


def modified_at(status: os.stat_result) -> str | None:
    """Return the modification time; `None` if the file system reports an invalid one."""
    try:
        return format_instant(datetime.fromtimestamp(status.st_mtime_ns // 1_000_000 / 1000, UTC))
    except (OverflowError, ValueError, OSError):
        return None


def format_instant(at: datetime) -> str:
    """Return an instant in the format of tool results."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read(
    file_access: FileAccess, workspace: ToolWorkspace, arguments: ReadFileArguments
) -> dict[str, Any]:
    with file_access.open_file(workspace, arguments.path) as descriptor:
        content = read_whole(descriptor, arguments.path)
        found = os.fstat(descriptor)
    if is_binary(content):
        raise binary_file(arguments.path)
    text = content.decode("utf-8", "replace").replace("\0", _REPLACEMENT)
    result = _lines(text, arguments)
    result |= {"size_bytes": len(content), "modified_at": modified_at(found)}
    return result if text.encode() == content else result | {"lossy": True}


def _lines(text: str, arguments: ReadFileArguments) -> dict[str, Any]:
    *whole, rest = text.split("\n")
    lines = [f"{line}\n" for line in whole] + ([rest] if rest else [])
    end = min(arguments.end_line or len(lines), len(lines))
    return {
        "content": "".join(lines[arguments.start_line - 1 : end]),
        "start_line": arguments.start_line,
        "end_line": end,
        "total_lines": len(lines),
    }
