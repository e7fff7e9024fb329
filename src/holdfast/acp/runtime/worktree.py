"""What a turn changed in the repository without saying so: some agents act without reporting it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.domain.drafts import Draft, MessageDraft
from holdfast.domain.messages import Notice, NoticeCode, Role, ToolCall, ToolResult

# So many are named; who wants to know more looks at the repository.
_SHOWN: Final = 50

Status = Mapping[str, str]


class Worktree:
    """The repository before a turn, and all that the turn's calls have named since."""

    def __init__(self, look: Callable[[], Awaitable[Status | None]]) -> None:
        self._look = look
        self._before: Status | None = None
        self._named: set[str] = set()

    async def begin(self) -> None:
        """Look before anything happens: a program may act the moment it is asked."""
        self._before = await self._look()

    def note(self, batch: Sequence[Draft]) -> None:
        """Take in what calls are about."""
        for draft in batch:
            for part in draft.parts if isinstance(draft, MessageDraft) else ():
                if isinstance(part, ToolCall):
                    self._named.update(each.path for each in part.locations)
                    self._named.update(texts_in(part.arguments))
                elif isinstance(part, ToolResult):
                    self._named.update(_diffed(part.result))

    async def notices(self) -> tuple[MessageDraft, ...]:
        """Return what is to be said about changes that no call has named."""
        before = self._before
        after = await self._look() if before is not None else None
        if before is None or after is None:
            return ()
        paths = sorted(before.keys() | after.keys())
        silent = [
            path for path in paths if before.get(path) != after.get(path) and not self._names(path)
        ]
        if not silent:
            return ()
        shown = ", ".join(silent[:_SHOWN])
        more = f" and {len(silent) - _SHOWN} more" if len(silent) > _SHOWN else ""
        told = f"The repository has changed in this turn, and no call says so: {shown}{more}."
        notice = Notice(code=NoticeCode.WORKTREE_CHANGED, text=told)
        return (MessageDraft(role=Role.SYSTEM, parts=(notice,)),)

    def _names(self, path: str) -> bool:
        # A folder that is new stands for all that is in it.
        bare = path.rstrip("/")
        return any(bare in each for each in self._named)


def _diffed(result: Any) -> Iterator[str]:
    """Yield the files of the changes that a result shows."""
    diffs = result.get("diffs") if isinstance(result, dict) else None
    for each in diffs if isinstance(diffs, list) else ():
        if isinstance(each, dict) and isinstance(each.get("path"), str):
            yield each["path"]


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a value: where a path stands in it is up to the agent."""
    match value:
        case str():
            yield value
        case dict():
            for each in value.values():
                yield from texts_in(each)
        case list() | tuple():
            for each in value:
                yield from texts_in(each)
        case _:
            pass
