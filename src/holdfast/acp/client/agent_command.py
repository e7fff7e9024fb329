"""The command of an agent's program: executable, arguments, environment, limits."""

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
from holdfast.process.agent_child import AgentLimits, AgentStart, find_command
from holdfast.process.process_table import SESSION_VARIABLE

# All that a program gets of ours without being named; nothing of it is a secret.
_PASSED_VARIABLES: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR")


class StartSettings(Struct, frozen=True, kw_only=True):
    """What an installation says about starting programs.

    `secret` returns what a variable holds that an agent names, from wherever that is kept, and
    `scrubber` who finds it again in what a program says.
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
    """Return how an agent's program is started for a session, with MCP servers or without."""
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
        limits=_limits(options.limits),
        wrap=start_settings.wrap,
    )


def find_agent_program(runtime: AcpRuntime, environment: Mapping[str, str]) -> str:
    """Return the file of an agent's program, or say that it is missing and how to get it."""
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
    """Return the arguments, each one word whatever is put into it: no shell reads them."""
    flag = (start_settings.workspace_flag, folder) if start_settings.workspace_flag else ()
    values = {"{workspace}": folder, SESSION_WORD: session}
    return (*(_fill(word, values) for word in runtime.args), *flag)


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        # Not into what was put in: a folder may be called `{session_id}`.
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
    # Last: an orphan is known by it, whatever an agent's options say.
    return found | {SESSION_VARIABLE: session}


def _limits(limits: ProgramLimits) -> AgentLimits:
    return AgentLimits(
        nice=limits.nice or 0,
        address_space=limits.address_space,
        cpu_seconds=limits.cpu_seconds,
        processes=limits.processes,
    )
