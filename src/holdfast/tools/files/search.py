"""`find_text`: the lines below a directory that match a pattern, within fixed limits."""

import stat
import time
from collections.abc import Iterator
from threading import Event
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Effect, ResultCode
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.process.cancellation import run_in_thread
from holdfast.tools.files.access import FileAccess, read_whole
from holdfast.tools.files.listing import DirectoryTree, Glob, TreeEntry, display_path
from holdfast.tools.files.patterns import LinePattern, glob_matcher
from holdfast.tools.files.read import FilePath, is_binary
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure

_FILES_MOST: Final = 20_000
_BYTES_MOST: Final = 256 << 20
_SECONDS_MOST: Final = 20.0
# Matching cannot be interrupted, so blocks are small; the worst patterns take half a second.
_BLOCK: Final = 64 << 10
_DEEPEST: Final = 64
_TEXT_LONGEST: Final = 300


class FindTextArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `find_text` takes."""

    pattern: Annotated[str, Meta(min_length=1, max_length=1000)]
    path: FilePath = "."
    glob: Glob | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


def find_text_tool(file_access: FileAccess) -> LocalTool[FindTextArguments]:
    """Return the `find_text` tool."""

    async def plan(workspace: ToolWorkspace, arguments: FindTextArguments) -> CallPlan:
        glob_matcher(arguments.glob)
        LinePattern(arguments.pattern)
        return await file_access.plan_read(workspace, arguments.path, "either")

    async def act(
        workspace: ToolWorkspace, arguments: FindTextArguments, _: RequestedCall
    ) -> dict[str, Any]:
        return await run_in_thread(lambda stop: _find(file_access, workspace, arguments, stop))

    return LocalTool(
        name="find_text",
        description=(
            "Find the lines that match a regular expression (RE2 syntax) in a file or below a"
            " directory. Binary files, files above 8 MiB, links and .git are not searched;"
            " `withheld` counts protected files that were not searched."
        ),
        arguments=FindTextArguments,
        effect=lambda _: Effect.PURE,
        plan=plan,
        act=act,
    )


def _find(
    file_access: FileAccess, workspace: ToolWorkspace, arguments: FindTextArguments, stop: Event
) -> dict[str, Any]:
    scope = file_access.scope(workspace)
    search = _Search(arguments, stop)
    with file_access.resolve_path(scope, arguments.path) as path_target:
        if not path_target.is_folder():
            with file_access.file(scope, path_target) as descriptor:
                search.scan(arguments.path, read_whole(descriptor, arguments.path))
            return search.result(withheld=0)
        with file_access.folder(path_target) as top:
            tree = DirectoryTree(file_access, scope, path_target, stop)
            for entry in tree.entries(top, depth=_DEEPEST, passing=".git"):
                if search.must_stop():
                    break
                if not search.wants(entry):
                    continue
                if search.is_spent():
                    break
                try:
                    content = tree.read(entry)
                except ToolFailure as trouble:
                    tree.withheld += trouble.status is ResultStatus.DENIED
                    search.skip(trouble)
                # Removed, or unreadable by system permissions.
                except OSError:
                    continue
                else:
                    search.scan(display_path(arguments.path, entry.names), content)
    search.is_truncated |= tree.is_truncated
    return search.result(withheld=tree.withheld)


class _Search:
    """The matches so far, and the remaining limits."""

    def __init__(self, arguments: FindTextArguments, stop: Event) -> None:
        self._pattern = LinePattern(arguments.pattern)
        self._fits = glob_matcher(arguments.glob)
        self._limit = arguments.limit
        self._stop = stop
        self._until = time.monotonic() + _SECONDS_MOST
        self._files = 0
        self._bytes = 0
        self._is_full = False
        self._matches: list[dict[str, Any]] = []
        self.is_truncated = False

    def wants(self, entry: TreeEntry) -> bool:
        """Return whether a file is to be searched."""
        return stat.S_ISREG(entry.found.st_mode) and self._fits("/".join(entry.names))

    def must_stop(self) -> bool:
        """Return whether time or space is used up; if so, mark the result as truncated."""
        stops = self._is_full or time.monotonic() > self._until or self._stop.is_set()
        self.is_truncated |= stops
        return stops

    def is_spent(self) -> bool:
        """Return whether the file or byte limit is reached; if so, mark the result as truncated."""
        spent = self._files >= _FILES_MOST or self._bytes >= _BYTES_MOST
        self.is_truncated |= spent
        return spent

    def skip(self, trouble: ToolFailure) -> None:
        """Count a skipped file; one that is too large marks the result as truncated."""
        self._files += 1
        self.is_truncated |= trouble.code is ResultCode.TOO_LARGE

    def scan(self, path: str, content: bytes) -> None:
        """Search one file."""
        self._files += 1
        self._bytes += len(content)
        if is_binary(content):
            return
        number = 1
        for block, is_cut in _blocks(content.replace(b"\r\n", b"\n")):
            if self.must_stop():
                return
            self.is_truncated |= is_cut
            lines = block.removesuffix(b"\n").split(b"\n")
            if self._pattern.may_match(block):
                self._keep(path, number, lines)
            number += len(lines)

    def result(self, *, withheld: int) -> dict[str, Any]:
        """Return the result of the call."""
        return {
            "matches": self._matches,
            "truncated": self.is_truncated,
            "withheld": withheld,
        }

    def _keep(self, path: str, first: int, lines: list[bytes]) -> None:
        for number, line in enumerate(lines, first):
            if not self._pattern.matches(line):
                continue
            if len(self._matches) == self._limit:
                self._is_full = self.is_truncated = True
                return
            text = line.decode("utf-8", "replace").replace("\0", "\ufffd")[:_TEXT_LONGEST]
            self._matches.append({"path": path, "line": number, "text": text})


def _blocks(content: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield blocks of whole lines; a line longer than a block is truncated."""
    at = 0
    while at < len(content):
        end = len(content)
        if end - at > _BLOCK:
            end = content.rfind(b"\n", at, at + _BLOCK) + 1
        if end > 0:
            yield content[at:end], False
        else:
            end = content.find(b"\n", at) + 1 or len(content)
            yield content[at : at + _BLOCK], True
        at = end
