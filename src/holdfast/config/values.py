"""What can be set, with its default: one frozen value, with parts for chats and programs."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import fields

from holdfast.config.rules import RULES
from holdfast.config.servers import McpServer
from holdfast.domain.agents import ReasoningEffort
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.models import OFFLINE
from holdfast.domain.sessions import TURN_CAP, OnExceed
from holdfast.domain.tools import FsTier

# What installers and builds fill, and would not get by without.
COMMAND_FOLDERS: Final = (
    *("node_modules", ".venv", "venv", "build", "dist", "target", ".tox", ".nox"),
    *("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"),
)


class Credential(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host, and the name of the keychain's entry that opens it; never the secret itself."""

    host: str
    secret: str


class Chat(Struct, frozen=True, kw_only=True):
    """The defaults of conversations: what agents may reach, what it may cost, how much is kept."""

    fs_scope: FsTier = FsTier.SANDBOXED
    extra_roots: tuple[Path, ...] = ()
    linked_dirs: tuple[str, ...] = ("node_modules", ".venv")
    allowed_commands: tuple[str, ...] = ()
    allowed_command_globs: tuple[str, ...] = ()
    command_env: tuple[str, ...] = ()
    command_writes: tuple[str, ...] = COMMAND_FOLDERS
    command_memory_mb: int = 4_096
    command_processes: int = 4_096
    command_cpu_seconds: int = 3_600
    allow_unprotected_commands: bool = False
    allowed_domains: tuple[str, ...] = ()
    max_messages: int | None = None
    max_cost_microcents: int = 0
    on_exceed: OnExceed = OnExceed.PAUSE
    allow_unpriced: bool = True
    auto_compact: bool = True
    compact_threshold: float = 0.8
    reasoning_effort: ReasoningEffort | None = None

    def __post_init__(self) -> None:
        _require_valid(self, prefix="chat.")


class Acp(Struct, frozen=True, kw_only=True):
    """How programs that are agents are started, spoken to and waited for.

    `agent` answers where `/api` names none. `workspace_flag` is put before the folder, for
    programs that want to be told it. `wrap` is a command that runs the program's own.
    """

    agent: str | None = None
    workspace_flag: str | None = None
    wrap: tuple[str, ...] = ()
    line_limit: int = 32 << 20
    raw_log: bool = True
    start_timeout: timedelta = timedelta(seconds=30)
    session_timeout: timedelta = timedelta(seconds=60)
    option_timeout: timedelta = timedelta(seconds=10)
    silence_timeout: timedelta = timedelta(seconds=60)
    cancel_timeout: timedelta = timedelta(seconds=5)
    write_timeout: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        _require_valid(self, prefix="acp.")


class Config(Struct, frozen=True, kw_only=True):
    """Everything that can be set, with its default."""

    home: Path
    default_model: str = OFFLINE
    approval: ApprovalMode = ApprovalMode.ASK
    chat: Chat = field(default_factory=Chat)
    acp: Acp = field(default_factory=Acp)
    approvals_expire_after: timedelta = timedelta(hours=24)
    events_delta_retention: timedelta = timedelta(hours=24)
    events_retention: timedelta = timedelta()
    turn_cap: int = TURN_CAP
    max_tool_rounds: int = 16
    turns_at_a_time: int = 64
    idle_timeout_minutes: float = 30
    max_concurrent_sessions: int = 5
    observations_per_minute: int = 600
    credentials: tuple[Credential, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()
    block_zones: Path | None = None
    workspace_root: Path | None = None
    encryption: str = "auto"
    database_url: str | None = None
    log_level: str = "warning"

    def __post_init__(self) -> None:
        _require_valid(self, prefix="")


def kinds() -> Mapping[str, Any]:
    """Return the type of every setting but the home; those of the nested part have a dot."""
    outer = {each.name: each.type for each in fields(Config)}
    found = {name: kind for name, kind in outer.items() if name != "home" and name not in PARTS}
    for part, kind in PARTS.items():
        found |= {f"{part}.{each.name}": each.type for each in fields(kind)}
    return found


def value_of(config: Config, name: str) -> Any:
    """Return the value of a setting."""
    part, dot, key = name.partition(".")
    return getattr(getattr(config, part), key) if dot else getattr(config, name)


# What is nested, by the name of its field.
PARTS: Final[Mapping[str, type[Chat] | type[Acp]]] = {"chat": Chat, "acp": Acp}


def _require_valid(part: Config | Chat | Acp, *, prefix: str) -> None:
    for key in part.__struct_fields__:
        name = f"{prefix}{key}"
        fault = RULES[name](getattr(part, key)) if name in RULES else None
        if fault is not None:
            raise Invalid(Code.CONFIG_INVALID, f"{name} {fault}.", {"key": name})
