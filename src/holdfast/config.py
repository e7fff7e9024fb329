"""Configuration: one frozen value; flags > environment > file > defaults.

Only this module reads the environment; adapters receive plain arguments, never the Config.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.models import OFFLINE

FILE_NAME: Final = "holdfast.toml"
YEAR_MINUTES: Final = 525_600


class Config(Struct, frozen=True, kw_only=True):
    """Everything that can be set, with its default."""

    home: Path
    default_model: str = OFFLINE
    approval: ApprovalMode = ApprovalMode.ASK
    encryption: str = "auto"
    turns_at_a_time: int = 64
    workspace_root: Path | None = None
    idle_timeout_minutes: float = 30
    max_concurrent_sessions: int = 5
    log_level: str = "warning"

    def __post_init__(self) -> None:
        levels = ("debug", "info", "warning", "error")
        _require(
            self.encryption in {"auto", "keychain", "off"}, "encryption", "auto, keychain, off"
        )
        _require(self.turns_at_a_time > 0, "turns_at_a_time", "above 0")
        fits = 0 <= self.idle_timeout_minutes <= YEAR_MINUTES
        _require(fits, "idle_timeout_minutes", "0 (never) to 525600")
        _require(self.max_concurrent_sessions > 0, "max_concurrent_sessions", "above 0")
        _require(self.log_level in levels, "log_level", ", ".join(levels))


# Where each field may be set: its section and key in the file, and its environment variable.
PLACES: Final[Mapping[str, tuple[str, str, str]]] = {
    "default_model": ("chat", "default_model", "HOLDFAST_MODEL"),
    "approval": ("chat", "approval", "HOLDFAST_CHAT_APPROVAL"),
    "encryption": ("store", "encryption", "HOLDFAST_ENCRYPTION"),
    "turns_at_a_time": ("limits", "turns_at_a_time", "HOLDFAST_TURNS_AT_A_TIME"),
    "workspace_root": ("workspace", "root", "AGENT_WORKSPACE_ROOT"),
    "idle_timeout_minutes": ("limits", "idle_timeout_minutes", "AGENT_SESSION_IDLE_TIMEOUT"),
    "max_concurrent_sessions": (
        "limits",
        "max_concurrent_sessions",
        "AGENT_MAX_CONCURRENT_SESSIONS",
    ),
    "log_level": ("log", "level", "HOLDFAST_LOG"),
}


def load(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """Return the configuration; what is not given is read from the process and its home."""
    return explain(flags, environment, file)[0]


def explain(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> tuple[Config, Mapping[str, str]]:
    """Return the configuration, and for each setting where its value came from."""
    env = os.environ if environment is None else environment
    # Refused and not ignored: whoever sets it believes that sessions are kept there.
    if env.get("HOLDFAST_DATABASE_URL"):
        raise Invalid(
            Code.CONFIG_INVALID,
            "HOLDFAST_DATABASE_URL is set, but this version keeps sessions in its embedded store "
            "only; unset it.",
        )
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    chosen = Path(given.pop("home", None) or env.get("HOLDFAST_HOME") or default_home())
    home = chosen.expanduser().absolute()
    wanted = file or (Path(env["HOLDFAST_CONFIG"]) if env.get("HOLDFAST_CONFIG") else None)
    source = wanted or home / FILE_NAME
    layers: list[tuple[str, Mapping[str, Any]]] = [
        (f"file {source}", _from_file(source, required=wanted is not None)),
        ("environment", {name: env[p[2]] for name, p in PLACES.items() if env.get(p[2])}),
        ("flag", given),
    ]
    values: dict[str, Any] = {"home": home}
    origins = dict.fromkeys(Config.__struct_fields__, "default")
    origins["home"] = _origin_of_home(flags, env)
    for origin, layer in layers:
        values |= layer
        origins |= dict.fromkeys(layer, origin)
    return _converted(values), origins


def _origin_of_home(flags: Mapping[str, Any] | None, env: Mapping[str, str]) -> str:
    if (flags or {}).get("home"):
        return "flag"
    return "environment" if env.get("HOLDFAST_HOME") else "default"


def default_home() -> Path:
    """Return the platform's place for the user's data."""
    import platformdirs

    return Path(platformdirs.user_data_dir("holdfast", appauthor=False))


def _converted(values: dict[str, Any]) -> Config:
    try:
        return msgspec.convert(values, Config, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise Invalid(Code.CONFIG_INVALID, f"The configuration is not valid: {error}.") from None


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path) and str(value):
        return Path(value).expanduser()
    raise ValueError("expected a path")


def _from_file(file: Path, *, required: bool) -> dict[str, Any]:
    """Return the fields that the file sets; an unknown key is an error that names the nearest."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise Invalid(Code.CONFIG_INVALID, f"There is no {file}.") from None
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise Invalid(Code.CONFIG_INVALID, f"{file} cannot be read: {error}.") from None
    known = {f"{section}.{key}": name for name, (section, key, _) in PLACES.items()}
    values = {}
    for path, value in _flattened(content):
        if path not in known:
            raise _unknown(file, path, sorted(known))
        values[known[path]] = value
    return values


def _flattened(content: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found = []
    for section, keys in content.items():
        if not isinstance(keys, Mapping):
            found.append((section, keys))
            continue
        found += [(f"{section}.{key}", value) for key, value in keys.items()]
    return found


def _unknown(file: Path, path: str, known: list[str]) -> Invalid:
    nearest = difflib.get_close_matches(path, known, n=1, cutoff=0.0)
    hint = f"; did you mean {nearest[0]}?" if nearest else "."
    return Invalid(
        Code.CONFIG_INVALID,
        f"{file} sets {path}, which Holdfast does not know{hint}",
        {"file": str(file), "key": path},
    )


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise Invalid(
            Code.CONFIG_INVALID, f"The setting {field} must be one of: {rule}.", {"key": field}
        )
