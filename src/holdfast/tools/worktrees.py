"""What differs in a repository from what is committed, one entry for each path."""

from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.domain.tools import ResultCode
from holdfast.ports import Workplace
from holdfast.tools.launcher import Launcher
from holdfast.tools.plumbing import Git, records, said
from holdfast.tools.programs import Program, find_program
from holdfast.tools.repositories import Repository, find_repository
from holdfast.tools.surroundings import ProcessSettings, Surroundings, surroundings_of
from holdfast.tools.threads import in_thread
from holdfast.tools.tool import ToolTrouble

_STATUS: Final = ("status", "--porcelain=v2", "-z", "--ignore-submodules=all")
# How many blanks stand before the path, by the first letter of an entry.
_BLANKS: Final[Mapping[str, int]] = {"1": 8, "2": 9, "u": 10, "?": 1, "!": 1}


class GitStatus:
    """Asks git, which runs nothing that the repository brings along."""

    def __init__(self, settings: ProcessSettings, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher

    async def entries(self, place: Workplace) -> Mapping[str, str]:
        """Return how each path stands that is not as it was committed."""
        around, program, repository = await in_thread(lambda _: self._look(place))
        git = Git(self._launcher, program, around)
        async with git.shadow(repository) as (shadow, _head, _settings):
            finished = await git(
                *_STATUS,
                about=shadow.about(in_place=True),
                folder=around.folder,
                readable=(shadow.path, repository.top),
            )
        return dict(parsed(records(said(finished))))

    def _look(self, place: Workplace) -> tuple[Surroundings, Program, Repository]:
        around = surroundings_of(place, self._settings)
        program = find_program("git", path=around.path, folder="/")
        if program is None:
            raise ToolTrouble(ResultCode.UNAVAILABLE, "git is not installed.")
        return around, program, find_repository(around)


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
