"""All settings with their defaults as one frozen value, and how it is loaded.

Precedence: flags, environment, file, defaults. Each value is validated with its source.
"""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import msgspec
from msgspec import Struct, field
from msgspec.structs import fields

from holdfast.config.files import FILE_NAME, GivenValue, read_file, suggest_nearest
from holdfast.config.keys import CHAT_VARIABLES, SETTING_KEYS
from holdfast.config.models import absolute_model, default_model_for, with_provider
from holdfast.config.validation import RULES, McpServer, read_servers
from holdfast.domain.agents import ReasoningEffort
from holdfast.domain.approvals import TIGHTNESS, ApprovalMode
from holdfast.domain.errors import Code, Denied, Invalid
from holdfast.domain.models import OFFLINE, model_of
from holdfast.domain.sessions import ATTENDED_TURN_CAP, TURN_CAP, OnExceed, cap_of
from holdfast.domain.text import is_encodable
from holdfast.domain.tools import FsTier

# Folders that installers and builds must write to.
COMMAND_FOLDERS: Final = (
    *("node_modules", ".venv", "venv", "build", "dist", "target", ".tox", ".nox"),
    *("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"),
)


class Credential(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host and the name of its keychain entry; never the secret itself."""

    host: str
    secret: str


class Chat(Struct, frozen=True, kw_only=True):
    """Defaults of sessions: what agents may access, cost limits, and compaction."""

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
    """How external agent processes are started, and their timeouts.

    `agent` is the default agent of `/api`. `workspace_flag` is the option that passes the folder,
    for programs that need one. `wrap` is a command that runs the program's own command.
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
    """All settings, with their defaults."""

    home: Path
    default_model: str = OFFLINE
    approval: ApprovalMode = ApprovalMode.ASK
    chat: Chat = field(default_factory=Chat)
    acp: Acp = field(default_factory=Acp)
    approvals_expire_after: timedelta = timedelta(hours=24)
    approvals_pause_after: timedelta = timedelta(seconds=5)
    events_delta_retention: timedelta = timedelta(hours=24)
    events_retention: timedelta = timedelta()
    turn_cap: int = TURN_CAP
    attended_turn_cap: int = ATTENDED_TURN_CAP
    max_tool_rounds: int = 16
    turns_at_a_time: int = 64
    child_depth: int = 3
    children_at_a_time: int = 8
    children_per_session: int = 32
    tool_threads: int = 16
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


@cache
def setting_types() -> Mapping[str, Any]:
    """Return the type of every setting except the home; nested ones have a dotted name."""
    outer = {each.name: each.type for each in fields(Config)}
    found = {name: kind for name, kind in outer.items() if name != "home" and name not in PARTS}
    for part, kind in PARTS.items():
        found |= {f"{part}.{each.name}": each.type for each in fields(kind)}
    return found


def setting_value(config: Config, name: str) -> Any:
    """Return the value of a setting."""
    part, dot, key = name.partition(".")
    return getattr(getattr(config, part), key) if dot else getattr(config, name)


# Nested sections, by field name.
PARTS: Final[Mapping[str, type[Chat] | type[Acp]]] = {"chat": Chat, "acp": Acp}


def _require_valid(part: Config | Chat | Acp, *, prefix: str) -> None:
    for key in part.__struct_fields__:
        name = f"{prefix}{key}"
        fault = RULES[name](getattr(part, key)) if name in RULES else None
        if fault is not None:
            raise Invalid(Code.CONFIG_INVALID, f"{name} {fault}.", {"key": name})


_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhd]?)")
_UNITS: Final = {"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_TYPE_MESSAGES: Final[Mapping[Any, str]] = {
    bool: "must be true or false",
    float: "must be a number",
    int: "must be an integer",
    str: "must be a string",
    Path: "must be a path",
    timedelta: "must be seconds, or a number with s, m, h or d, such as 24h",
    tuple[str, ...]: "must be a list of strings",
    tuple[Path, ...]: "must be a list of paths",
    tuple[Credential, ...]: "must be tables [[credentials]] with host and secret",
    tuple[McpServer, ...]: "must be tables [mcp.servers.NAME]",
}


def load(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """Return the configuration; omitted sources are read from the process and its home."""
    return explain(flags, environment, file)[0]


def explain(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> tuple[Config, Mapping[str, str]]:
    """Return the configuration, and the source of each setting's value."""
    env = os.environ if environment is None else environment
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    home, origin = _home(given.pop("home", None), env)
    wanted = file or (Path(env["HOLDFAST_CONFIG"]) if env.get("HOLDFAST_CONFIG") else None)
    source = wanted or home / FILE_NAME
    in_file = read_file(source, required=wanted is not None)
    model, variable = default_model_for(env)
    usual = {"default_model": model}
    values = _convert_layer(in_file, strict=True, folder=source.absolute().parent)
    set_outside = _convert_layer(_in_environment(env), strict=False)
    before = _config(home, usual | values | set_outside)
    given_values = {name: GivenValue(value, name, {"key": name}) for name, value in given.items()}
    flagged = _convert_layer(given_values, strict=False)
    _require_narrower(before, flagged, source)
    origins = {"home": origin} | dict.fromkeys(SETTING_KEYS, "default")
    if variable is not None:
        origins["default_model"] = variable
    origins |= dict.fromkeys(values, f"file {source}") | dict.fromkeys(set_outside, "environment")
    return _config(home, usual | values | set_outside | flagged), origins | dict.fromkeys(
        flagged, "flag"
    )


def default_home() -> Path:
    """Return the platform's folder for user data."""
    import platformdirs

    return Path(platformdirs.user_data_dir("holdfast", appauthor=False))


def _home(flag: Any, env: Mapping[str, str]) -> tuple[Path, str]:
    origin = "flag" if flag else "environment" if env.get("HOLDFAST_HOME") else "default"
    chosen = Path(flag or env.get("HOLDFAST_HOME") or default_home())
    if not _is_text(str(chosen)):
        raise Invalid(Code.CONFIG_INVALID, "HOLDFAST_HOME must be UTF-8 text.", {"key": "home"})
    try:
        return Path(os.path.expanduser(chosen)).absolute(), origin
    except OSError:
        message = (
            "HOLDFAST_HOME must be an absolute path, because the current folder does not exist."
        )
        raise Invalid(Code.CONFIG_INVALID, message, {"key": "home"}) from None


def _in_environment(env: Mapping[str, str]) -> dict[str, GivenValue]:
    """Return the settings given by environment variables; an empty variable is ignored."""
    known = {key.variable: name for name, key in SETTING_KEYS.items() if key.variable}
    for variable in env:
        # Refused, because a mistyped security setting would silently have no effect.
        if variable.startswith(CHAT_VARIABLES) and variable not in known:
            message = (
                f"{variable} is set, but is not a known setting{suggest_nearest(variable, known)}"
            )
            raise Invalid(Code.CONFIG_INVALID, message, {"variable": variable})
    return {
        name: GivenValue(
            env[variable], variable, {"variable": variable, "key": SETTING_KEYS[name].path}
        )
        for variable, name in known.items()
        if env.get(variable)
    }


def _convert_layer(
    layer: Mapping[str, GivenValue], *, strict: bool, folder: Path | None = None
) -> dict[str, Any]:
    """Return the values of a layer converted to their types; `strict` allows no coercion."""
    types = setting_types()
    found: dict[str, Any] = {}
    for name, given in layer.items():
        if name == "mcp_servers" and strict:
            found[name] = read_servers(given)
            continue
        try:
            read = _normalize(name, given.value, strict=strict, folder=folder)
            value = _convert(read, types[name], strict=strict)
            # For this setting, zero and negative values mean the default instead of an error.
            found[name] = cap_of(value) if name == "turn_cap" else value
            fault = RULES[name](found[name]) if name in RULES else None
        except ValueError as error:
            fault = str(error)
        if fault is not None:
            raise Invalid(Code.CONFIG_INVALID, f"{given.where} {fault}.", given.details)
    return found


def _normalize(name: str, value: Any, *, strict: bool, folder: Path | None) -> Any:
    """Return a value in the form of its type, accepting the notations that users write."""
    texts = value if isinstance(value, list | tuple) else [value]
    if not all(_is_text(text) for text in texts if isinstance(text, str)):
        raise ValueError("must be UTF-8 text without NUL")
    if isinstance(value, str) and not strict and get_origin(setting_types()[name]) is tuple:
        return [entry.strip() for entry in value.split(",") if entry.strip()]
    match name:
        case "default_model" if isinstance(value, str):
            return _model(value, folder)
        case "chat.on_exceed" if value == "pause_for_approval":
            return OnExceed.PAUSE
        case _ if setting_types()[name] is timedelta:
            return duration(value)
        case _:
            return value


def _convert(value: Any, kind: Any, *, strict: bool) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict, dec_hook=_path)
    except msgspec.ValidationError:
        pass
    # Replace msgspec's message, because it would repeat the value.
    plain = next((each for each in get_args(kind) if each is not type(None)), kind)
    chosen = kind if kind in _TYPE_MESSAGES else plain
    if isinstance(chosen, type) and issubclass(chosen, Enum):
        raise ValueError(f"must be one of {', '.join(chosen)}")
    raise ValueError(_TYPE_MESSAGES[chosen])


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path) and str(value):
        return Path(os.path.expanduser(value))
    raise ValueError("expected a path")


def _model(ref: str, folder: Path | None) -> str:
    try:
        return model_of(absolute_model(ref, folder=folder)).ref
    except Invalid:
        example = with_provider(ref) or OFFLINE
        raise ValueError(f"must have the form provider:name, for example {example}") from None


def duration(value: Any) -> timedelta:
    """Return a duration given as seconds, or as a number with a unit."""
    if isinstance(value, timedelta):
        return value
    plain = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if isinstance(plain, str) and (parts := _DURATION.fullmatch(plain.strip())):
        return timedelta(**{_UNITS[parts[2]]: float(parts[1])})
    raise ValueError(_TYPE_MESSAGES[timedelta])


def _config(home: Path, values: Mapping[str, Any]) -> Config:
    outer = {name: value for name, value in values.items() if "." not in name}
    parts: dict[str, Any] = {}
    for part, kind in PARTS.items():
        begins = f"{part}."
        given = {n[len(begins) :]: value for n, value in values.items() if n.startswith(begins)}
        parts[part] = kind(**given)
    return Config(home=home, **parts, **outer)


def _require_narrower(before: Config, flags: Mapping[str, Any], source: Path) -> None:
    """Refuse a flag that would widen what the file or the environment restricts."""
    for name, wanted in flags.items():
        allowed = setting_value(before, name)
        if name in _WIDER and _WIDER[name](wanted, allowed):
            path = SETTING_KEYS[name].path
            raise Denied(
                Code.GRANT_EXCEEDED,
                f"A flag may restrict {path}, but not widen it; edit {path} in {source}.",
                {"key": path, "file": str(source)},
            )


def _is_text(text: str) -> bool:
    return "\x00" not in text and is_encodable(text)


_TIERS: Final = {tier: width for width, tier in enumerate(FsTier)}
_WIDER: Final[Mapping[str, Any]] = {
    "approval": lambda wanted, allowed: TIGHTNESS[wanted] > TIGHTNESS[allowed],
    "chat.fs_scope": lambda wanted, allowed: _TIERS[wanted] > _TIERS[allowed],
    "chat.allowed_commands": lambda wanted, allowed: not set(wanted) <= set(allowed),
    "chat.allowed_command_globs": lambda wanted, allowed: not set(wanted) <= set(allowed),
    "chat.allowed_domains": lambda wanted, allowed: not set(wanted) <= set(allowed),
}
