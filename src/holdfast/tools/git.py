"""`git_status` and `git_commit`. Neither runs anything that a repository brings along.

How git is called is `plumbing.py`, what it is shown `repositories.py`.
"""

import os
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.ports import RequestedCall, ToolWorkspace
from holdfast.tools.commits import CommitArguments, Commits
from holdfast.tools.environments import restricted_path
from holdfast.tools.launcher import Finished, Launcher
from holdfast.tools.pathspecs import pathspec, protected_among
from holdfast.tools.plumbing import Git, records
from holdfast.tools.programs import Program, find_program
from holdfast.tools.repositories import Repository, Shadow, find_repository
from holdfast.tools.surroundings import ProcessSettings, Surroundings, surroundings_of
from holdfast.tools.threads import in_thread
from holdfast.tools.tool import Aim, Tool, ToolTrouble

_LOG_MOST: Final = 50
_LOG_FORMAT: Final = "commit %H%nAuthor: %an <%ae>%nDate:   %aI%n%n%w(0,4,4)%B"
# Everything that could start a program, switched off word by word.
_DIFF: Final = (
    *("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all"),
)


class StatusArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `git_status` takes."""

    show: Literal["status", "log", "diff"] = "status"
    path: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None


def git_tools(settings: ProcessSettings, launcher: Launcher) -> tuple[Tool[Any], ...]:
    """Return the tools that work with git."""
    tools = _GitTools(settings, launcher)
    return (
        Tool(
            name="git_status",
            description=(
                "Show the status, the last commits (log) or the uncommitted changes (diff) of the"
                " git repository of the working directory, of all of it or of one path."
            ),
            arguments=StatusArguments,
            effect=lambda _: Effect.PURE,
            plan=tools.plan_status,
            act=tools.show,
            is_available=tools.has_git,
        ),
        Tool(
            name="git_commit",
            description=(
                "Commit what is staged, after staging the given paths. Somebody is asked each time."
            ),
            arguments=CommitArguments,
            effect=lambda _: Effect.UNSAFE,
            plan=tools.plan_commit,
            act=tools.commit,
            is_available=tools.has_git,
        ),
    )


class _GitTools:
    def __init__(self, settings: ProcessSettings, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher

    def has_git(self, place: ToolWorkspace) -> bool:
        """Tell whether git is installed, outside of the workspace."""
        path = restricted_path(
            self._settings.environment.get("PATH"), without=(os.path.realpath(place.working_dir),)
        )
        return find_program("git", path=path, folder="/") is not None

    async def plan_status(self, place: ToolWorkspace, arguments: StatusArguments) -> Aim:
        around, _, repository = await self._found(place)
        if (path := arguments.path) is not None:
            await in_thread(lambda _: pathspec(path, repository, around))
        return Aim(tool_class=ToolClass.READ)

    async def show(
        self, place: ToolWorkspace, arguments: StatusArguments, _: RequestedCall
    ) -> dict[str, Any]:
        around, git, repository = await self._found(place)
        spec = ":(top)"
        if (path := arguments.path) is not None:
            spec = await in_thread(lambda _: pathspec(path, repository, around))
        async with git.shadow(repository) as (shadow, head, _settings):
            looking = _Looking(git, shadow, around)
            match arguments.show:
                case "status":
                    words = ("status", "--short", "--branch", "--ignore-submodules=all")
                    return _told(await looking.run(*words, "--", spec))
                case "log":
                    words = ("log", "--no-show-signature", "--no-mailmap", "--no-decorate")
                    about = (f"--max-count={_LOG_MOST}", f"--format={_LOG_FORMAT}")
                    return _told(await looking.run(*words, *about, "--", spec))
                case "diff":
                    return await looking.diff(spec, has_commit=head.commit is not None)

    async def plan_commit(self, place: ToolWorkspace, arguments: CommitArguments) -> Aim:
        around, git, repository = await self._found(place)
        return await Commits(git, repository, around).plan(arguments)

    async def commit(
        self, place: ToolWorkspace, arguments: CommitArguments, _: RequestedCall
    ) -> Any:
        around, git, repository = await self._found(place)
        return await Commits(git, repository, around).act(arguments)

    async def _found(self, place: ToolWorkspace) -> tuple[Surroundings, Git, Repository]:
        around, program, repository = await in_thread(lambda _: self._look(place))
        return around, Git(self._launcher, program, around), repository

    def _look(self, place: ToolWorkspace) -> tuple[Surroundings, Program, Repository]:
        around = surroundings_of(place, self._settings)
        program = find_program("git", path=around.path, folder="/")
        if program is None:
            raise ToolTrouble(ResultCode.UNAVAILABLE, "git is not installed.")
        return around, program, find_repository(around)


class _Looking:
    """Reading a repository through its shadow."""

    def __init__(self, git: Git, shadow: Shadow, around: Surroundings) -> None:
        self._git = git
        self._shadow = shadow
        self._around = around

    async def run(self, *words: str) -> Finished:
        return await self._git(
            *words,
            about=self._shadow.about(in_place=True),
            folder=self._around.folder,
            readable=(self._shadow.path, self._shadow.repository.top),
        )

    async def diff(self, spec: str, *, has_commit: bool) -> dict[str, Any]:
        """Return the uncommitted changes, without those of files that nobody may read."""
        against = ("HEAD",) if has_commit else ("--cached",)
        listing = (*_DIFF, "--name-only", "--no-renames", "-z", *against, "--", spec)
        names = await self.run(*listing)
        if names.exit_code:
            return _told(names)
        listed = records(names)
        closed = await in_thread(
            lambda _: protected_among(listed, self._shadow.repository, self._around)
        )
        hiding = [f":(top,literal,exclude){name}" for name in closed]
        found = _told(await self.run(*_DIFF, *against, "--", spec, *hiding))
        if closed:
            found["stdout"] += f"\n[{len(closed)} protected files are left out]\n"
        return found


def _told(finished: Finished) -> dict[str, Any]:
    return {
        "exit_code": finished.exit_code,
        "stdout": finished.stdout,
        "stderr": finished.stderr,
    }
