"""The command of an agent's program: executable, arguments, environment, limits, sandbox."""

import asyncio
import errno
import os
import resource
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.acp.client.presets import PRESETS, find_command
from holdfast.domain.agent_processes import (
    SESSION_WORD,
    ProgramLimits,
    ProgramOptions,
    parse_program_options,
)
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.secrets import Scrubber, Secret
from holdfast.ports.tools import ClientMcpServer
from holdfast.process.child import ChildNotStarted, ChildOrder
from holdfast.process.environment import is_below
from holdfast.process.executables import find_executable, readable_for
from holdfast.process.launcher import Launcher
from holdfast.process.process_table import SESSION_VARIABLE
from holdfast.process.sandbox import SHARED, Bounds, Confinement, Guard, Means

# Variables that every agent inherits; none of them holds a secret.
_PASSED_VARIABLES: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR")

# Folders of toolchains and package caches, and git's settings. Credentials among them are covered.
_TOOLS_IN_HOME: Final = (
    *("~/.gitconfig", "~/.config/git", "~/.gitignore", "~/.gitignore_global"),
    *("~/.nvm", "~/.volta", "~/.fnm", "~/.npm/_cacache", "~/.npm/_npx", "~/.bun", "~/.deno"),
    *("~/.local/share/pnpm", "~/.local/share/fnm", "~/.cache/node", "~/.cache/pnpm"),
    *("~/.pyenv", "~/.conda", "~/miniconda3", "~/anaconda3", "~/miniforge3", "~/.local/pipx"),
    *("~/.local/share/pipx", "~/.local/share/uv", "~/.cache/uv", "~/.cache/pip"),
    *("~/.rustup", "~/.cargo/bin", "~/.cargo/registry", "~/.cargo/git", "~/.cargo/env"),
    *("~/go/bin", "~/go/pkg", "~/sdk", "~/.cache/go-build", "~/.m2/repository", "~/.m2/wrapper"),
    *("~/.gradle/caches", "~/.gradle/wrapper", "~/.sdkman", "~/.jenv", "~/.rbenv", "~/.rvm"),
    *("~/.gem", "~/.bundle/cache", "~/.asdf", "~/.local/share/mise", "~/.nix-profile", "~/.dotnet"),
    *("~/.nuget/packages", "~/.composer/vendor", "~/.cache/ms-playwright", "~/.swiftly"),
)
_CERTIFICATES: Final = (
    "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
)

_RESOURCES: Final = {
    "address_space": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "processes": resource.RLIMIT_NPROC,
}


class SandboxSettings(Struct, frozen=True, kw_only=True):
    """Installation-wide settings of the sandbox of agents and their terminals.

    `hidden` are folders of Holdfast itself, `open_names` as in `Guard`. `allows_unprotected`: the
    commands of terminals need no extra approval where protected paths cannot be covered.
    """

    launcher: Launcher
    hidden: tuple[str, ...] = ()
    open_names: tuple[str, ...] = ()
    bounds: Bounds = Bounds()
    allows_unprotected: bool = False


class AgentSandbox(Struct, frozen=True, kw_only=True):
    """What one agent process and the commands of its terminals may access, and its description."""

    means: Means = Means()
    program: Confinement | None = None
    terminal: Confinement | None = None
    # Whether protected paths hold for the commands of terminals, or need not to.
    covers_terminals: bool = True
    description: str = "not confined"


class AgentStart(Struct, frozen=True, kw_only=True):
    """What to start, in which folder, and with which complete environment.

    The environment must contain `HOLDFAST_SESSION_ID`, which identifies orphans. `wrap` is a
    command that runs the other one, such as a sandbox with its options. `is_pinned` as in
    `ChildOrder`.
    """

    argv: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    limits: ProgramLimits = ProgramLimits()
    wrap: tuple[str, ...] = ()
    is_pinned: bool = False
    sandbox: AgentSandbox = AgentSandbox()
    # Whether descendants may continue when the program has ended, until its slot is ended.
    keeps_background: bool = True


class StartSettings(Struct, frozen=True, kw_only=True):
    """Installation-wide settings for starting agents.

    `secret` returns the value of a variable that an agent names; `scrubber` finds these values in
    the agent's output.
    """

    environment: Mapping[str, str]
    secret: Callable[[str], Awaitable[Secret | None]]
    wrap: tuple[str, ...] = ()
    workspace_flag: str | None = None
    scrubber: Callable[[], Scrubber] = Scrubber
    sandbox: SandboxSettings | None = None


async def build_start(
    start_settings: StartSettings,
    runtime: AcpRuntime,
    folder: str,
    session: str,
    *,
    scratch: str | None = None,
    servers: tuple[ClientMcpServer, ...] = (),
) -> AgentStart:
    """Build the start parameters of an agent process for a session.

    `scratch` is its private temporary folder, `servers` are the MCP servers passed to it.
    """
    options = parse_program_options(runtime)
    if servers:
        given = options.environment | options.with_servers
        options = replace(options, environment=given)
    start = AgentStart(
        argv=(
            find_agent_program(runtime, start_settings.environment),
            *_arguments(start_settings, runtime, folder, session),
        ),
        folder=folder,
        environment=await _environment(start_settings, runtime, options, session),
        limits=options.limits,
        wrap=start_settings.wrap,
    )
    if start_settings.sandbox is None:
        return start
    means = await start_settings.sandbox.launcher.means()
    commands = tuple((each.command, *each.args) for each in servers if each.command)
    settings = start_settings.sandbox
    builder = _SandboxBuilder(start, options, settings, means, scratch, commands=commands)
    sandbox = await asyncio.to_thread(builder.build)
    environment = dict(start.environment)
    if sandbox.program is not None and scratch is not None and "TMPDIR" not in options.environment:
        environment["TMPDIR"] = scratch
    return replace(start, environment=environment, sandbox=sandbox)


def find_agent_program(runtime: AcpRuntime, environment: Mapping[str, str]) -> str:
    """Return the path of the agent's program; raises `Unavailable` with an install hint."""
    found = find_command(runtime.command, environment)
    if found is None:
        install = runtime.options.get("install")
        hint = f"install it ({install})" if isinstance(install, str) and install else "install it"
        raise Unavailable(
            Code.AGENT_UNAVAILABLE,
            f"The agent's program {runtime.command} cannot be found; {hint}, or name its path.",
            {"program": runtime.command, "install": install if isinstance(install, str) else None},
        )
    return found


def _arguments(
    start_settings: StartSettings, runtime: AcpRuntime, folder: str, session: str
) -> tuple[str, ...]:
    """Return the arguments; each stays one argument, because no shell parses them."""
    flag = (start_settings.workspace_flag, folder) if start_settings.workspace_flag else ()
    values = {"{workspace}": folder, SESSION_WORD: session}
    return (*(_fill(word, values) for word in runtime.args), *flag)


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        # Substituted values are not expanded again: a folder may be named `{session_id}`.
        if name in word:
            before, _, after = word.partition(name)
            return f"{_fill(before, values)}{value}{_fill(after, values)}"
    return word


async def _environment(
    start_settings: StartSettings, runtime: AcpRuntime, options: ProgramOptions, session: str
) -> dict[str, str]:
    ours = start_settings.environment
    passed = {name: ours[name] for name in _PASSED_VARIABLES if name in ours}
    passed |= {name: value for name, value in ours.items() if name.startswith("LC_")}
    found = {"NO_COLOR": "1", **passed, **options.environment}
    for name in runtime.env_names:
        secret = await start_settings.secret(name)
        if secret is not None:
            found[name] = secret.reveal()
    # Last, so that options cannot override the mark by which orphaned processes are found.
    return found | {SESSION_VARIABLE: session}


class _SandboxBuilder:
    """Builds the sandbox of one agent process; reads the file system."""

    def __init__(
        self,
        start: AgentStart,
        options: ProgramOptions,
        settings: SandboxSettings,
        means: Means,
        scratch: str | None,
        *,
        commands: tuple[tuple[str, ...], ...],
    ) -> None:
        self._start = start
        self._options = options
        self._settings = settings
        self._means = means
        self._scratch = () if scratch is None else (os.path.realpath(scratch),)
        # The program, and the MCP servers that it starts in its own sandbox.
        self._commands = (start.argv, *commands)
        self._hidden = tuple(map(os.path.realpath, settings.hidden))
        self._home = start.environment.get("HOME")
        preset = PRESETS.get(options.preset or "")
        self._own = () if preset is None else preset.writable

    def build(self) -> AgentSandbox:
        means = self._means
        is_confined = self._options.confined and not self._start.wrap
        can_confine = means.mounts or means.landlock > 0
        program = self._confinement(is_jailed=True) if is_confined and can_confine else None
        terminal = program or self._confinement(is_jailed=False)
        guard = replace(terminal.guard or Guard(roots=()), writes_sensitive=False, keeps_new=False)
        return AgentSandbox(
            means=means,
            program=program,
            terminal=replace(terminal, guard=guard, bounds=self._settings.bounds),
            covers_terminals=means.mounts or self._settings.allows_unprotected,
            description=self._describe(),
        )

    def _describe(self) -> str:
        if self._start.wrap:
            return "not confined by Holdfast: the command of acp.wrap runs it"
        if not self._options.confined:
            return "not confined: its option confined is false"
        if self._means.mounts and self._means.landlock:
            return "confined"
        if self._means.mounts:
            return "confined, but all except secrets is readable: this system has no Landlock"
        if self._means.landlock:
            return "confined, but secrets are readable: this system has no mount namespaces"
        return "not confined: this system has neither mount namespaces nor Landlock"

    def _confinement(self, *, is_jailed: bool) -> Confinement:
        settings, options = self._settings, self._options
        folder = os.path.realpath(self._start.folder)
        roots = (folder, *_shared_git_folder(folder))
        own = tuple(self._expand((*self._own, *options.writable)))
        if is_jailed:
            for path in own:
                _create_missing(path)
        readable = tuple(self._expand(options.readable))
        return Confinement(
            is_jailed=is_jailed,
            covers_home=True,
            has_own_pids=False,
            readable=(
                *self._without_hidden(self._required_paths(roots)),
                *self._tools(),
                *readable,
            ),
            writable=(*roots, *self._scratch, *own),
            hidden=self._hidden,
            has_network=options.network or not is_jailed,
            guard=Guard(
                roots=roots,
                # What the user has opened for this program is not covered.
                outside=(*self._scratch, *own, *readable),
                open_names=settings.open_names,
                home=None if self._home is None else os.path.realpath(self._home),
                writes_git=True,
                # An agent asks before it edits, and no rule can link the answer to its write.
                writes_sensitive=True,
                keeps_new=True,
            ),
            # No memory or CPU limit: an agent runs as long as its session.
            bounds=Bounds(processes=settings.bounds.processes),
        )

    def _tools(self) -> Iterator[str]:
        """Yield what programs that an agent runs read in a home: toolchains, git's settings."""
        given = (self._start.environment.get(name, "") for name in _CERTIFICATES)
        named = (path for path in given if os.path.isabs(path))
        # What is missing cannot be mounted.
        yield from filter(os.path.exists, self._expand((*_TOOLS_IN_HOME, *named)))

    def _required_paths(self, roots: tuple[str, ...]) -> Iterator[str]:
        """Yield the paths that the program and its MCP servers must read to start."""
        path = tuple(self._start.environment.get("PATH", "").split(os.pathsep))
        for program, *words in self._commands:
            named = [word for word in words if os.path.isabs(word)]
            # An argument may be the program that the first word runs.
            for word in (program, *named):
                found = find_executable(word, path=path, folder=self._start.folder)
                if found is not None:
                    yield from readable_for(found, path=path, roots=roots)
            for place in (os.path.realpath(word) for word in named if os.path.exists(word)):
                folder = os.path.dirname(place)
                # A script needs the modules beside it, but not everything in a shared folder.
                yield folder if os.path.isfile(place) and folder not in SHARED else place

    def _expand(self, paths: tuple[str, ...]) -> Iterator[str]:
        """Yield the real paths, without those of Holdfast itself."""
        in_home = {
            path: os.path.join(self._home or "", path[2:]) for path in paths if path[0] == "~"
        }
        known = (path for path in paths if self._home is not None or path not in in_home)
        return self._without_hidden(os.path.realpath(in_home.get(path, path)) for path in known)

    def _without_hidden(self, paths: Iterable[str]) -> Iterator[str]:
        for path in paths:
            if not any(is_below(path, folder) for folder in self._hidden):
                yield path


def _create_missing(path: str) -> None:
    """Create a folder, or a JSON file, because what is missing cannot be made writable."""
    with suppress(OSError):
        if not path.endswith(".json"):
            os.makedirs(path, mode=0o700, exist_ok=True)
        elif not os.path.exists(path):
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w") as file:
                file.write("{}")


def _shared_git_folder(folder: str) -> Iterator[str]:
    """Yield the repository of a linked working tree, if both name each other."""
    git = os.path.join(folder, ".git")
    with suppress(OSError, ValueError):
        if not os.path.isfile(git):
            return
        pointer = Path(git).read_text("utf-8").removeprefix("gitdir: ").strip()
        inner = os.path.realpath(os.path.join(folder, pointer))
        named = Path(inner, "gitdir").read_text("utf-8").strip()
        # Derived from the place and not from `commondir`, which a downloaded folder could forge.
        worktrees, _ = os.path.split(inner)
        common, name = os.path.split(worktrees)
        is_named = os.path.realpath(os.path.join(inner, named)) == git
        if is_named and name == "worktrees" and os.path.isfile(os.path.join(common, "HEAD")):
            yield common


def child_order(start: AgentStart, grace: float) -> ChildOrder:
    """Return the order for the supervisor; raises `ChildNotStarted` if the program is missing."""
    argv = (*start.wrap, *start.argv)
    program = find_command(argv[0], start.environment)
    if program is None:
        raise ChildNotStarted("find", errno.ENOENT)
    limits = {number: getattr(start.limits, name) for name, number in _RESOURCES.items()}
    return ChildOrder(
        argv=argv,
        program=program,
        folder=start.folder,
        is_pinned=start.is_pinned,
        environment=start.environment,
        confinement=start.sandbox.program,
        limits=tuple((number, most) for number, most in limits.items() if most is not None),
        nice=start.limits.nice or 0,
        grace=grace,
        keeps_background=start.keeps_background,
    )
