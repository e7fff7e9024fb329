"""Detects changes in the repository that a turn made and no tool call reported."""

import posixpath
import re
import sys
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.domain.drafts import CallDetails, Draft, MessageDraft, notice_draft
from holdfast.domain.messages import NoticeCode, ToolCall, ToolResult

# Limits the notice; the repository itself shows the rest.
_SHOWN: Final = 50
# Longer texts are not paths, and not commands that contain one.
_LONGEST: Final = 4 << 10
# Memory limit for the names of one turn, in characters; further texts are ignored.
_ROOM: Final = 4 << 20
_VALUES_MOST: Final = 20_000
# Separators between the words of a command.
_BETWEEN: Final = re.compile(r"[\s'\"`;|&<>()=,:]+")

Status = Mapping[str, str]


class WorktreeWatch:
    """The Git status before a turn, and the paths that the turn's calls have named since."""

    def __init__(self, folder: str, read_status: Callable[[], Awaitable[Status | None]]) -> None:
        self._folder = f"{folder.rstrip('/')}/"
        self._read_status = read_status
        self._before: Status | None = None
        # Normalized paths, relative to the repository.
        self._named: set[str] = set()
        self._room = _ROOM

    async def begin(self) -> None:
        """Read the status before the prompt is sent, because the agent may act at once."""
        self._before = await self._read_status()

    def note(self, batch: Sequence[Draft]) -> None:
        """Collect the paths that tool calls name."""
        for draft in batch:
            if isinstance(draft, CallDetails):
                self._name(texts_in(draft.arguments, _VALUES_MOST))
            for part in draft.parts if isinstance(draft, MessageDraft) else ():
                if isinstance(part, ToolCall):
                    self._name(each.path for each in part.locations)
                    self._name(texts_in(part.arguments, _VALUES_MOST))
                elif isinstance(part, ToolResult):
                    self._name(_diff_paths(part.result))

    async def notices(self) -> tuple[MessageDraft, ...]:
        """Return a notice about changes that no call has named, if there are any."""
        before = self._before
        after = await self._read_status() if before is not None else None
        if before is None or after is None:
            return ()
        paths = sorted(before.keys() | after.keys())
        named = sorted(self._named)
        silent = [
            path
            for path in paths
            if before.get(path) != after.get(path) and not self._names(path, named)
        ]
        if not silent:
            return ()
        shown = ", ".join(silent[:_SHOWN])
        more = f" and {len(silent) - _SHOWN} more" if len(silent) > _SHOWN else ""
        text = (
            f"The repository has changed in this turn without a reported tool call: {shown}{more}."
        )
        return (notice_draft(NoticeCode.WORKTREE_CHANGED, text),)

    def _name(self, texts: Iterable[str]) -> None:
        """Collect paths from texts: the whole text, and each word of a command."""
        for text in texts:
            if len(text) > min(_LONGEST, self._room):
                continue
            self._room -= len(text)
            for each in {text, *_BETWEEN.split(text)}:
                path = posixpath.normpath(posixpath.join(self._folder, each))
                if path.startswith(self._folder):
                    self._named.add(path.removeprefix(self._folder))

    def _names(self, path: str, named: Sequence[str]) -> bool:
        """Return whether the path or one of its parents was named; `named` must be sorted."""
        bare = path.rstrip("/")
        parents = [bare[:at] for at, each in enumerate(bare) if each == "/"]
        if not self._named.isdisjoint([bare, *parents]):
            return True
        # Git reports a new folder as one entry, so any named path inside it is enough.
        at = bisect_left(named, path)
        return path.endswith("/") and at < len(named) and named[at].startswith(path)


def _diff_paths(result: Any) -> Iterator[str]:
    """Yield the paths of the diffs in a result."""
    diffs = result.get("diffs") if isinstance(result, dict) else None
    for each in diffs if isinstance(diffs, list) else ():
        if isinstance(each, dict) and isinstance(each.get("path"), str):
            yield each["path"]


def texts_in(value: Any, most: int = sys.maxsize) -> Iterator[str]:
    """Yield the texts nested in a value; visits at most `most` values.

    All fields are searched, because each agent puts paths into other fields.
    """
    waiting = [value]
    for _ in range(most):
        if not waiting:
            return
        match waiting.pop():
            case str() as text:
                yield text
            case dict() as fields:
                waiting.extend(fields.values())
            case list() | tuple() as items:
                waiting.extend(items)
            case _:
                pass
