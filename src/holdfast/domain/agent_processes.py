"""External agent processes: their state, identity and options.

A process is not its session: it may exit and be restarted while the session continues.
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
    """The state of a session's agent process; `busy` is a ready one with a running turn."""

    NOT_STARTED = "not_started"
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    EXITED = "exited"


class ProcessEnding(StrEnum):
    """Why a session's agent process is ended."""

    CLOSED = "closed"
    DELETED = "deleted"
    IDLE = "idle"


class KnownProgram(Struct, frozen=True, kw_only=True):
    """A well-known agent program, its path if it is installed, and the agent made of it."""

    preset: str
    title: str
    path: str | None
    version: str | None
    install: str
    runtime: AcpRuntime


# Replaced in an argument by the id of the session that the process is started for.
SESSION_WORD: Final = "{session_id}"
ALIVE: Final = frozenset({ProcessState.STARTING, ProcessState.READY, ProcessState.BUSY})


class ProcessIdentity(Struct, frozen=True, kw_only=True):
    """Identifies a process uniquely, because the operating system reuses pids.

    `started` is its start time in ticks since boot, `boot` identifies the boot.
    """

    pid: int
    group: int
    started: int
    boot: str


class ProcessExit(Struct, frozen=True, kw_only=True):
    """How a process exited, and the reason if known; death by signal n is exit code 128 + n."""

    code: int | None = None
    signal: int | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        # Records of older versions have no code beside a signal.
        if self.code is None and self.signal is not None:
            msgspec.structs.force_setattr(self, "code", 128 + self.signal)


class ProcessRecord(Struct, frozen=True, kw_only=True):
    """The stored record of a session's agent process.

    `agent_session` is the process's own id of the conversation, `about` the data it has sent about
    itself, `holder` the Holdfast process that started it.
    """

    state: ProcessState = ProcessState.NOT_STARTED
    agent_session: str | None = None
    birth: ProcessIdentity | None = None
    exit: ProcessExit | None = None
    holder: str | None = None
    about: dict[str, Any] = {}


class ProgramLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resource limits of an agent process; `None` sets no limit."""

    nice: int | None = None
    address_space: int | None = None
    cpu_seconds: int | None = None
    processes: int | None = None


class ProgramOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `options` of an agent that runs as an external process.

    `approve` is the approval mode of sessions that set none. `mode` and `settings` are applied once
    per conversation, if the process offers them. `environment` holds plain values, because secrets
    are passed by name; `with_servers` is added to it if MCP servers are passed. `fs_missing`
    selects how reading a missing file is answered. `confined`, `readable`, `writable` and `network`
    say what the process may access; the paths are absolute or begin with `~/`.
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
    confined: bool = True
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    network: bool = True
    # Where the user can get the program if it is missing.
    install: str | None = None
    preset: str | None = None


_PATHS: Final = "a list of paths, each absolute or beginning with ~/"
_WORDS: Final[Mapping[str, str]] = {
    "approve": f"one of {', '.join(ApprovalMode)}",
    "auth_method": "a string",
    "mode": "a string",
    "settings": "a table of strings, or of true and false",
    "fs": "true or false",
    "fs_missing": "error or empty",
    "terminal": "true or false",
    "environment": "a table of strings",
    "with_servers": "a table of strings",
    "limits": "a table of integers: nice, address_space, cpu_seconds, processes",
    "confined": "true or false",
    "readable": _PATHS,
    "writable": _PATHS,
    "network": "true or false",
    "install": "a string",
    "preset": "a string",
}


def parse_program_options(runtime: AcpRuntime) -> ProgramOptions:
    """Return the parsed options, or refuse an unknown or invalid one by name."""
    unknown = sorted(set(runtime.options) - set(_WORDS))
    if unknown:
        raise _invalid(unknown[0], f"is unknown; the options are {', '.join(sorted(_WORDS))}")
    found: dict[str, Any] = {}
    for name, value in runtime.options.items():
        kind = _KINDS[name]
        try:
            found[name] = msgspec.convert(value, kind)
        except msgspec.ValidationError:
            # Replace msgspec's message, because it would repeat the value.
            raise _invalid(name, f"must be {_WORDS[name]}") from None
    options = ProgramOptions(**found)
    for table in ("environment", "with_servers"):
        for name, value in getattr(options, table).items():
            if not name or "=" in name or "\x00" in name or "\x00" in value:
                raise _invalid(table, "must have environment variable names as keys")
    for table in ("readable", "writable"):
        if not all(
            path.startswith(("/", "~/")) and "\x00" not in path for path in getattr(options, table)
        ):
            raise _invalid(table, f"must be {_PATHS}")
    return options


_KINDS: Final = {each.name: each.type for each in msgspec.structs.fields(ProgramOptions)}


def _invalid(name: str, rule: str) -> Invalid:
    return Invalid(
        Code.AGENT_INVALID,
        f"runtime.options.{name} {rule}.",
        {"fields": [f"runtime.options.{name}"]},
    )


def process_state(process_record: ProcessRecord | None, *, is_running: bool) -> ProcessState:
    """Return the displayed state of a process: busy while a turn of its session runs."""
    if process_record is None:
        return ProcessState.NOT_STARTED
    if process_record.state is ProcessState.READY and is_running:
        return ProcessState.BUSY
    return process_record.state
