"""Programs: agents that somebody else wrote, how one of them stands, and what can be said to it.

A program is not its session. It may end and be started again, and the session is what it was.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from holdfast.domain.agents import AcpRuntime
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, Invalid


class ProcessState(StrEnum):
    """How far a session's program has come; `busy` is one that is ready and has a turn to play."""

    NOT_STARTED = "not_started"
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    EXITED = "exited"


class ProcessEnding(StrEnum):
    """Why a session has no use for its program any more."""

    CLOSED = "closed"
    DELETED = "deleted"
    IDLE = "idle"


class KnownProgram(Struct, frozen=True, kw_only=True):
    """A well-known program, where it is on this machine if it is there, and the agent it makes."""

    preset: str
    title: str
    path: str | None
    version: str | None
    install: str
    runtime: AcpRuntime


# Stands in an argument for the id of the session that a program is started for.
SESSION_WORD: Final = "{session_id}"
ALIVE: Final = frozenset({ProcessState.STARTING, ProcessState.READY, ProcessState.BUSY})


class ProcessIdentity(Struct, frozen=True, kw_only=True):
    """A process that cannot be taken for another: its number alone may be somebody else's later.

    `started` are the ticks since the boot at which it began, `boot` names that boot. One that
    sessions share bears a `mark` of its own; any other bears the id of its session.
    """

    pid: int
    group: int
    started: int
    boot: str
    mark: str = ""


class ProcessExit(Struct, frozen=True, kw_only=True):
    """How a program ended: by itself with a code, or by a signal; and what we know of the why."""

    code: int | None = None
    signal: int | None = None
    reason: str = ""


class ProcessRecord(Struct, frozen=True, kw_only=True):
    """All that is kept about the program of a session.

    `agent_session` is the program's own name for the conversation, `told` what it has said about
    itself, `holder` the process of ours that has started it.
    """

    state: ProcessState = ProcessState.NOT_STARTED
    agent_session: str | None = None
    birth: ProcessIdentity | None = None
    exit: ProcessExit | None = None
    holder: str | None = None
    told: dict[str, Any] = {}


class ProgramLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the machine a program may take; nothing means no limit of ours."""

    nice: int | None = None
    address_space: int | None = None
    cpu_seconds: int | None = None
    processes: int | None = None


class ProgramOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent's `options` may say about its program.

    `approve` is the approval mode of sessions that say nothing themselves. `mode` and `settings`
    are set once in each conversation, as the program offers them. `environment` are plain values;
    secrets come by name; `with_servers` are those that it needs where it is given MCP servers.
    `fs_missing` tells what a file that is not there reads like. With `share` the sessions of one
    owner are in one program, as far as the very same would be started for each of them.
    """

    approve: ApprovalMode | None = None
    auth_method: str | None = None
    mode: str | None = None
    settings: dict[str, str | bool] = {}
    fs: bool = True
    fs_missing: Literal["error", "empty"] = "error"
    terminal: bool = True
    environment: dict[str, str] = {}
    with_servers: dict[str, str] = {}
    limits: ProgramLimits = ProgramLimits()
    share: bool = False
    # Where a person finds the program that is missing.
    install: str | None = None
    preset: str | None = None


_WORDS: Final[Mapping[str, str]] = {
    "approve": f"one of {', '.join(ApprovalMode)}",
    "auth_method": "a text",
    "mode": "a text",
    "settings": "a table of texts, or of true and false",
    "fs": "true or false",
    "fs_missing": "error or empty",
    "terminal": "true or false",
    "environment": "a table of texts",
    "with_servers": "a table of texts",
    "limits": "a table of whole numbers: nice, address_space, cpu_seconds, processes",
    "share": "true or false",
    "install": "a text",
    "preset": "a text",
}


def parse_program_options(runtime: AcpRuntime) -> ProgramOptions:
    """Return what an agent's options say, or refuse what nobody would read, naming the option."""
    unknown = sorted(set(runtime.options) - set(_WORDS))
    if unknown:
        raise _invalid(unknown[0], f"is not known; known are {', '.join(sorted(_WORDS))}")
    found: dict[str, Any] = {}
    for name, value in runtime.options.items():
        kind = _KINDS[name]
        try:
            found[name] = msgspec.convert(value, kind)
        except msgspec.ValidationError:
            # Our own words, because the library's would repeat the value.
            raise _invalid(name, f"must be {_WORDS[name]}") from None
    options = ProgramOptions(**found)
    if options.share and any(SESSION_WORD in word for word in runtime.args):
        raise _invalid(
            "share", f"cannot be had where runtime.args name one session: {SESSION_WORD}"
        )
    for table in ("environment", "with_servers"):
        for name, value in getattr(options, table).items():
            if not name or "=" in name or "\x00" in name or "\x00" in value:
                raise _invalid(table, "must have names of variables as its keys")
    return options


_KINDS: Final = {each.name: each.type for each in msgspec.structs.fields(ProgramOptions)}


def _invalid(name: str, rule: str) -> Invalid:
    return Invalid(
        Code.AGENT_INVALID,
        f"runtime.options.{name} {rule}.",
        {"fields": [f"runtime.options.{name}"]},
    )


def process_state(process_record: ProcessRecord | None, *, is_running: bool) -> ProcessState:
    """Return how a program stands as people see it: busy while a turn of its session runs."""
    if process_record is None:
        return ProcessState.NOT_STARTED
    if process_record.state is ProcessState.READY and is_running:
        return ProcessState.BUSY
    return process_record.state
