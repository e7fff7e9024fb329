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
from holdfast.process.agent_child import Limits, Start, find
from holdfast.process.process_table import MARK

# All that a program gets of ours without being named; nothing of it is a secret.
_PASSED_ON: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR")


class Yard(Struct, frozen=True, kw_only=True):
    """What an installation says about starting programs.

    `secret` returns what a variable holds that an agent names, from wherever that is kept, and
    `scrubber` who finds it again in what a program says.
    """

    environment: Mapping[str, str]
    secret: Callable[[str], Awaitable[Secret | None]]
    wrap: tuple[str, ...] = ()
    workspace_flag: str | None = None
    scrubber: Callable[[], Scrubber] = Scrubber


async def start_of(
    yard: Yard, runtime: AcpRuntime, folder: str, session: str, *, has_servers: bool = False
) -> Start:
    """Return how an agent's program is started for a session, with MCP servers or without."""
    options = parse_program_options(runtime)
    if has_servers:
        given = options.environment | options.with_servers
        options = replace(options, environment=given)
    return Start(
        argv=(program_of(runtime, yard.environment), *_words(yard, runtime, folder, session)),
        folder=folder,
        environment=await _environment(yard, runtime, options, session),
        limits=_limits(options.limits),
        wrap=yard.wrap,
    )


def program_of(runtime: AcpRuntime, environment: Mapping[str, str]) -> str:
    """Return the file of an agent's program, or say that it is missing and how to get it."""
    found = find(runtime.command, environment)
    if found is None:
        told = runtime.options.get("install")
        hint = f"install it ({told})" if isinstance(told, str) and told else "install it"
        raise Unavailable(
            Code.AGENT_UNAVAILABLE,
            f"The agent's program {runtime.command} cannot be found; {hint}, or name its path.",
            {"program": runtime.command, "install": told if isinstance(told, str) else None},
        )
    return found


def _words(yard: Yard, runtime: AcpRuntime, folder: str, session: str) -> tuple[str, ...]:
    """Return the arguments, each one word whatever is put into it: no shell reads them."""
    flag = (yard.workspace_flag, folder) if yard.workspace_flag else ()
    values = {"{workspace}": folder, SESSION_WORD: session}
    return (*(_filled(word, values) for word in runtime.args), *flag)


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        # Not into what was put in: a folder may be called `{session_id}`.
        if name in word:
            before, _, after = word.partition(name)
            return f"{_filled(before, values)}{value}{_filled(after, values)}"
    return word


async def _environment(
    yard: Yard, runtime: AcpRuntime, options: ProgramOptions, session: str
) -> dict[str, str]:
    ours = yard.environment
    passed = {name: ours[name] for name in _PASSED_ON if name in ours}
    passed |= {name: value for name, value in ours.items() if name.startswith("LC_")}
    found = {"NO_COLOR": "1", **passed, **options.environment}
    for name in runtime.env_names:
        secret = await yard.secret(name)
        if secret is not None:
            found[name] = secret.reveal()
    # Last: an orphan is known by it, whatever an agent's options say.
    return found | {MARK: session}


def _limits(limits: ProgramLimits) -> Limits:
    return Limits(
        nice=limits.nice or 0,
        address_space=limits.address_space,
        cpu_seconds=limits.cpu_seconds,
        processes=limits.processes,
    )
