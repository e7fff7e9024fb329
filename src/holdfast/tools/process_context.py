"""The context of a tool's process: working folder, scope, scratch folder, PATH, environment."""

import hashlib
import os
import stat
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from holdfast.domain.tools import Grant, ResultCode
from holdfast.ports.tools import ToolWorkspace
from holdfast.process.environment import child_environment, is_below, restricted_path
from holdfast.process.executables import Executable, readable_for
from holdfast.process.sandbox import Bounds, Confinement, Guard
from holdfast.tools.files.scope import build_scope
from holdfast.tools.tool import ToolFailure


class ProcessSettings(Struct, frozen=True, kw_only=True):
    """Settings of all tools that start processes."""

    # The complete environment; variables are passed on by an allowlist of names.
    environment: Mapping[str, str]
    command_env: tuple[str, ...] = ()
    extra_roots: tuple[str, ...] = ()
    # Folders of Holdfast itself, inaccessible to every process it starts.
    hidden: tuple[str, ...] = ()
    # Names of folders that commands may fill and of files they may write: `Guard.open_names`.
    command_writes: tuple[str, ...] = ()
    bounds: Bounds = Bounds()
    # Whether commands need no extra approval where protected paths cannot be covered.
    allows_unprotected: bool = False


class ProcessContext(Struct, frozen=True, kw_only=True):
    """A workspace as its processes see it; every path is a real path."""

    folder: str
    folder_identity: tuple[int, int]
    roots: tuple[str, ...]
    scratch: str
    is_jailed: bool
    has_network: bool
    path: tuple[str, ...]
    environment: Mapping[str, str]
    hidden: tuple[str, ...]
    # The user's real home; HOME of a jailed process points to the scratch folder instead.
    user_home: str | None
    command_writes: tuple[str, ...]
    bounds: Bounds

    def confinement(self, program: Executable) -> Confinement:
        """Return what the program may access."""
        return Confinement(
            is_jailed=self.is_jailed,
            readable=readable_for(program, path=self.path, roots=self.roots),
            writable=self.roots,
            hidden=self.hidden,
            has_network=self.has_network,
            guard=Guard(
                roots=tuple(root for root in self.roots if root != self.scratch),
                outside=(self.scratch,),
                open_names=self.command_writes,
                home=None if self.user_home is None else os.path.realpath(self.user_home),
                writes_git=self._is_git(program),
            ),
            bounds=self.bounds,
        )

    def _is_git(self, program: Executable) -> bool:
        """Return whether this is the system's git, which alone may write a `.git` folder."""
        is_ours = any(is_below(program.real, root) for root in self.roots)
        return os.path.basename(program.real) == "git" and not is_ours

    def environment_hash(self) -> str:
        """Return a hash of the environment; the location of the scratch folder is ignored."""
        variables = {
            name: value for name, value in self.environment.items() if value != self.scratch
        }
        return hashlib.sha256(msgspec.json.encode(variables, order="sorted")).hexdigest()


def process_context_of(workspace: ToolWorkspace, settings: ProcessSettings) -> ProcessContext:
    """Return the context that a process would get now; reads the file system."""
    return process_context(
        workspace.working_dir, workspace.scratch, workspace.grants, settings=settings
    )


def process_context(
    working_dir: str, scratch: str, grants: tuple[Grant, ...], *, settings: ProcessSettings
) -> ProcessContext:
    """Return the context of a process with these grants; reads the file system."""
    scope = build_scope(working_dir, scratch, grants, settings.extra_roots)
    folder = os.path.realpath(working_dir)
    identity = _identity(folder)
    scratch = os.path.realpath(scratch)
    roots = tuple(dict.fromkeys(root.path() for root in scope.roots))
    # With `/` as a root, a jail would restrict nothing.
    is_jailed = scope.is_jailed and "/" not in roots
    known = roots if is_jailed else (folder, scratch)
    path = restricted_path(settings.environment.get("PATH"), without=known)
    return ProcessContext(
        folder=folder,
        folder_identity=identity,
        roots=known,
        scratch=scratch,
        is_jailed=is_jailed,
        has_network=bool(grants) and all(grant.domains for grant in grants),
        path=path,
        environment=child_environment(
            settings.environment,
            path=path,
            scratch=scratch,
            home=scratch if is_jailed else None,
            more=settings.command_env,
        ),
        hidden=tuple(os.path.realpath(each) for each in settings.hidden),
        user_home=settings.environment.get("HOME"),
        command_writes=settings.command_writes,
        bounds=settings.bounds,
    )


def _identity(folder: str) -> tuple[int, int]:
    try:
        found = os.stat(folder)
    except OSError:
        found = None
    if found is None or not stat.S_ISDIR(found.st_mode):
        raise ToolFailure(
            ResultCode.UNAVAILABLE, "The working directory of this session does not exist."
        )
    return found.st_dev, found.st_ino
