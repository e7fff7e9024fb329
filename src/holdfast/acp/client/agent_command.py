"""The command of an agent's program: executable, arguments, environment, limits."""

import errno
import os
import resource
import shutil
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agent_processes import (
    SESSION_WORD,
    ProgramLimits,
    ProgramOptions,
    parse_program_options,
)
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.secrets import Scrubber, Secret
from holdfast.process.child import ChildNotStarted, ChildOrder
from holdfast.process.process_table import SESSION_VARIABLE

# Variables that every agent inherits; none of them holds a secret.
_PASSED_VARIABLES: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR")

_RESOURCES: Final = {
    "address_space": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "processes": resource.RLIMIT_NPROC,
}


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


async def build_start(
    start_settings: StartSettings,
    runtime: AcpRuntime,
    folder: str,
    session: str,
    *,
    has_servers: bool = False,
) -> AgentStart:
    """Build the start parameters of an agent process for a session, with or without MCP servers."""
    options = parse_program_options(runtime)
    if has_servers:
        given = options.environment | options.with_servers
        options = replace(options, environment=given)
    return AgentStart(
        argv=(
            find_agent_program(runtime, start_settings.environment),
            *_arguments(start_settings, runtime, folder, session),
        ),
        folder=folder,
        environment=await _environment(start_settings, runtime, options, session),
        limits=options.limits,
        wrap=start_settings.wrap,
    )


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


def find_command(command: str, environment: Mapping[str, str]) -> str | None:
    """Return the file of a command; a bare name is searched in the environment's `PATH`.

    Relative paths are never used, because they would find programs inside the repository.
    """
    if os.path.dirname(command):
        is_program = os.path.isabs(command) and shutil.which(command) is not None
        return command if is_program else None
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    absolute = os.pathsep.join(each for each in folders if os.path.isabs(each))
    return shutil.which(command, path=absolute) if absolute else None


def child_order(start: AgentStart, grace: float) -> ChildOrder:
    """Return the order for the supervisor; raises `ChildNotStarted` if the program is missing.

    An agent runs with the rights of the user; its background processes end with the agent's slot.
    """
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
        confinement=None,
        limits=tuple((number, most) for number, most in limits.items() if most is not None),
        nice=start.limits.nice or 0,
        grace=grace,
        keeps_background=True,
    )
