"""What differs in a repository from what is committed, one entry for each path."""

import tempfile
from collections.abc import Iterator, Mapping
from threading import Event
from typing import Final

from msgspec import Struct

from holdfast.domain.tools import Grant, ResultCode
from holdfast.ports import Slice, ToolWorkspace
from holdfast.tools.imprints import imprint
from holdfast.tools.launcher import Launcher
from holdfast.tools.plumbing import Git, records, said
from holdfast.tools.programs import Program, find_program
from holdfast.tools.repositories import Repository, find_repository
from holdfast.tools.starting import NOWHERE
from holdfast.tools.surroundings import ProcessSettings, Surroundings, surroundings_of
from holdfast.tools.threads import in_thread
from holdfast.tools.tool import ToolTrouble

_STATUS: Final = ("status", "--porcelain=v2", "-z", "--ignore-submodules=all", "--ignored=matching")
# How many blanks stand before the path, by the first letter of an entry.
_BLANKS: Final[Mapping[str, int]] = {"1": 8, "2": 9, "u": 10, "?": 1, "!": 1}
_PASSED_OVER: Final = "!"
_REMEMBERED_MOST: Final = 64


class _Known(Struct, frozen=True, kw_only=True):
    """What git has said of a repository, and the imprint it had before that."""

    imprint: bytes | None
    entries: Mapping[str, str]
    ignored: frozenset[str]


class GitStatus:
    """Asks git, which runs nothing that the repository brings along, if there can be news."""

    def __init__(self, settings: ProcessSettings, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher
        self._known: dict[str, _Known] = {}

    async def entries(self, folder: str) -> Mapping[str, str]:
        """Return how each path stands that is not as it was committed."""
        known = self._known.get(folder)
        ignored = known.ignored if known is not None else frozenset()
        seen = await in_thread(lambda stop: self._imprint(folder, ignored, stop))
        if known is not None and seen is not None and known.imprint == seen:
            return known.entries
        told = dict(parsed(await self._asked(folder)))
        entries = {path: state for path, state in told.items() if state != _PASSED_OVER}
        now = frozenset(path for path in told if path not in entries and path.endswith("/"))
        self._known.pop(folder, None)
        if len(self._known) >= _REMEMBERED_MOST:
            self._known.pop(next(iter(self._known)))
        # An imprint that was taken with others left out is good for nothing from now on.
        imprint_before = seen if now == ignored else None
        self._known[folder] = _Known(imprint=imprint_before, entries=entries, ignored=now)
        return entries

    def _imprint(self, folder: str, ignored: frozenset[str], stop: Event) -> bytes | None:
        around = surroundings_of(_place(folder, NOWHERE), self._settings)
        return imprint(find_repository(around), ignored, stop)

    async def _asked(self, folder: str) -> list[str]:
        with tempfile.TemporaryDirectory(prefix="holdfast-") as scratch:
            place = _place(folder, scratch)
            around, program, repository = await in_thread(lambda _: self._look(place))
            git = Git(self._launcher, program, around)
            async with git.shadow(repository) as (shadow, _head, _settings):
                finished = await git(
                    *_STATUS,
                    about=shadow.about(in_place=True),
                    folder=around.folder,
                    readable=(shadow.path, repository.top),
                )
        return records(said(finished))

    def _look(self, place: ToolWorkspace) -> tuple[Surroundings, Program, Repository]:
        around = surroundings_of(place, self._settings)
        program = find_program("git", path=around.path, folder="/")
        if program is None:
            raise ToolTrouble(ResultCode.UNAVAILABLE, "git is not installed.")
        return around, program, find_repository(around)


class _NoShelf:
    """A shelf for those who keep nothing."""

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        raise ToolTrouble(ResultCode.UNAVAILABLE, "Nothing is kept here.")

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> Slice | None:
        return None


_NO_SHELF: Final = _NoShelf()


def _place(folder: str, scratch: str) -> ToolWorkspace:
    return ToolWorkspace(
        session="",
        working_dir=folder,
        scratch=scratch,
        grants=(Grant(),),
        tools=frozenset(),
        shelf=_NO_SHELF,
    )


def parsed(entries: list[str]) -> Iterator[tuple[str, str]]:
    """Yield path and state of each entry; a file that was moved has its old path behind it."""
    found = iter(entries)
    for entry in found:
        blanks = _BLANKS.get(entry[:1])
        if blanks is None:
            continue
        *state, path = entry.split(" ", blanks)
        if entry[0] == "2":
            state.append(next(found, ""))
        yield path, " ".join(state)
