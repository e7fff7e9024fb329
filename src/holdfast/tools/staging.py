"""Staging: what the index of a shadow holds, and what becomes of it as a tree."""

from collections.abc import Sequence
from typing import Final

from holdfast.domain.text import visible
from holdfast.domain.tools import ResultCode
from holdfast.tools.launcher import Finished
from holdfast.tools.plumbing import Git, records, said
from holdfast.tools.repositories import Shadow
from holdfast.tools.tool import ToolTrouble

_NAMES_AT_ONCE: Final = 500


class Staging:
    """The index of a shadow; what is staged is the true repository's only if in place."""

    def __init__(self, git: Git, shadow: Shadow, *, in_place: bool) -> None:
        self._git = git
        self._shadow = shadow
        self._in_place = in_place

    async def _run(self, *words: str) -> Finished:
        objects = (self._shadow.repository.objects,) if self._in_place else ()
        return said(
            await self._git(
                *words,
                about=self._shadow.about(in_place=self._in_place),
                folder=self._shadow.repository.top,
                writable=(self._shadow.path, *objects),
            )
        )

    async def tree(self, specs: Sequence[str]) -> str:
        """Return the tree of the index, with the given paths as they are in the working tree."""
        if specs:
            await self._run("add", "--all", "--", *specs)
        return (await self._run("write-tree")).stdout.strip()

    async def changed(self, before: str, after: str) -> tuple[str, ...]:
        """Return the files that are in the second tree and not the same in the first."""
        if before == after:
            return ()
        listing = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=d")
        return tuple(records(await self._run(*listing, before, after)))

    async def stat(self, before: str, after: str) -> str:
        """Return how much changes from one to the other, file by file."""
        found = await self._run("diff-tree", "-r", "--stat=100", "--summary", before, after)
        return found.stdout

    async def require_no_filter(self, names: Sequence[str]) -> None:
        """Refuse contents that only a program of the repository could write rightly."""
        for start in range(0, len(names), _NAMES_AT_ONCE):
            some = names[start : start + _NAMES_AT_ONCE]
            found = records(await self._run("check-attr", "-z", "filter", "--", *some))
            for name, _, value in zip(*[iter(found)] * 3, strict=True):
                if value not in ("unspecified", "unset"):
                    raise ToolTrouble(
                        ResultCode.FILTER_NEEDED,
                        f"{visible(name)} needs the filter {visible(value)}, which does not run "
                        "here (it is for large or encrypted files); commit it with git itself.",
                    )
