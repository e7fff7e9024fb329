"""What each setting may be, beyond its type: a fault in words, or nothing.

A fault names the entry of a list by its number and never its text, which may be a secret that was
put into the wrong place.
"""

import ipaddress
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from holdfast.store.database_url import url_fault

Rule = Callable[[Any], str | None]

MILLION: Final = 1_000_000
# What a store can count without running over.
MICROCENTS_MOST: Final = 10**18
DAY: Final = timedelta(days=1)
YEAR: Final = timedelta(days=365)
LEVELS: Final = ("debug", "info", "warning", "error")

_HOST: Final = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9-]{1,63}(?<!-))*\.?", re.I)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENTRY: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

# Names that decide which code a program loads, or which settings it obeys.
_STEERING: Final = re.compile(
    r"LD_.*|DYLD_.*|PYTHON.*|GIT_.*|NODE_OPTIONS|NODE_PATH|NPM_CONFIG_.*|BASH_ENV|BASH_FUNC_.*|ENV"
    r"|IFS|SHELLOPTS|BASHOPTS|PS4|PROMPT_COMMAND|PERL5.*|PERLLIB|RUBY.*|GEM_.*|BUNDLE_.*|LUA_.*"
    r"|PHPRC|PHP_INI_SCAN_DIR|CLASSPATH|_?JAVA_(?:TOOL_)?OPTIONS|JDK_JAVA_OPTIONS|MAVEN_OPTS"
    r"|GRADLE_OPTS|CARGO_.*|RUSTC.*|RUSTFLAGS|GO(?:FLAGS|PATH|ROOT|ENV|PROXY)|PIP_.*|UV_.*"
    r"|MAKEFLAGS|GCONV_PATH|LOCPATH|GLIBC_TUNABLES|XDG_(?:CONFIG|DATA)_.*|EDITOR|VISUAL|PAGER"
    r"|BROWSER|SSH_ASKPASS|SUDO_ASKPASS|DOCKER_.*|KUBECONFIG|HOLDFAST_.*",
    re.IGNORECASE,
)
# Names whose values open something; `PWD` alone is a folder.
_CREDENTIAL: Final = re.compile(
    r".*(?:SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|COOKIE).*"
    r"|(?:.*_)?(?:KEYS?|PASS|AUTH|PAT|DSN|CERT)(?:_.*)?|.+_PWD|DATABASE_URL|.*CONNECTION_STRING",
    re.IGNORECASE,
)
# How the large providers begin the secrets they give out.
_SECRET: Final = re.compile(
    r"(?:sk|rk|pk)[-_]|gh[pousr]_|github_pat_|glpat-|xox[abpr]-|AKIA|ASIA|AIza|ya29\.|eyJ|hf_|npm_"
)


def _among(*words: str) -> Rule:
    return lambda value: None if value in words else f"must be one of {', '.join(words)}"


def _between(least: float, most: float, *, but: str = "") -> Rule:
    # Written so that what is not a number fails it, too.
    told = f"must be {least:,} to {most:,}{but}"
    return lambda value: None if value is None or least <= value <= most else told


def _share(value: float) -> str | None:
    return None if 0 < value <= 1 else "must be above 0 and at most 1"


def _expiry(value: timedelta) -> str | None:
    return None if timedelta() < value <= YEAR else "must be above 0 and at most 365 days"


def _retention(least: timedelta, *, but: str = "") -> Rule:
    most = 100 * YEAR
    told = f"must be {least // timedelta(minutes=1)} minutes to {most.days:,} days{but}"
    return lambda value: None if least <= value <= most or (but and not value) else told


def _each(rule: Rule) -> Rule:
    """Return the rule for a list: its first fault, with the entry's number."""

    def first_fault(entries: Sequence[Any]) -> str | None:
        faults = ((number, rule(entry)) for number, entry in enumerate(entries, start=1))
        return next((f"entry {number} {fault}" for number, fault in faults if fault), None)

    return first_fault


def _root(path: Path) -> str | None:
    return None if path.is_absolute() else "must be an absolute folder"


def _folder_name(name: str) -> str | None:
    is_name = bool(name.strip()) and not set(name) & set("/\\\x00") and name not in {".", ".."}
    return None if is_name else "must be the name of a folder, without a slash"


def _entry_name(name: str) -> str | None:
    fault = "must be the name of a file or folder, without a slash"
    return fault if _folder_name(name) else None


def _memory(value: int) -> str | None:
    is_fit = value == 0 or 64 <= value <= 1 << 24
    return None if is_fit else f"must be 64 to {1 << 24:,}, and 0 is no limit"


def _command(entry: str) -> str | None:
    return None if _words(entry) else "must be a command with its arguments, quoted as in a shell"


def _glob(entry: str) -> str | None:
    words = _words(entry)
    if not words:
        return "must be a command with its arguments, quoted as in a shell"
    if set(words[0]) & set("*?"):
        return "must begin with the name of a command; only its arguments may hold * and ?"
    return "may have ** as its last word only" if "**" in words[1:-1] else None


def _words(entry: str) -> list[str]:
    try:
        words = shlex.split(entry)
    except ValueError:
        return []
    return words if words and words[0] else []


def passed_on_fault(name: str) -> str | None:
    """Return why a variable is not passed on to programs; nothing if it may be."""
    if not _VARIABLE.fullmatch(name):
        return "must be the name of a variable"
    if _STEERING.fullmatch(name):
        return "names a variable that decides what a program loads; it is never passed on"
    if is_credential(name):
        return "names a variable that looks like a credential; it is never passed on"
    return None


def is_credential(name: str) -> bool:
    """Tell whether a variable of this name holds what opens something."""
    return _CREDENTIAL.fullmatch(name) is not None


def _domain(entry: str) -> str | None:
    host, colon, port = entry.partition(":")
    fits = not colon or (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65_535)
    return None if fits and _is_host(host) else "must be host or host:port, xn--… if not ASCII"


def _is_host(text: str) -> bool:
    """Tell whether the text is a name; an address is none, in whatever spelling."""
    if len(text) > 254 or not _HOST.fullmatch(text):
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        # `127.1` and `0x7f000001` are addresses for a resolver; no top domain looks like them.
        return not re.fullmatch(r"\d+|0x[0-9a-f]*", text.rstrip(".").rpartition(".")[2], re.I)
    return False


def _credential(entry: Any) -> str | None:
    if not _is_host(entry.host):
        return "must have a host as a name, without a port"
    return entry_fault(entry.secret)


def entry_fault(name: str) -> str | None:
    """Return why a text is no name of a keychain's entry: it may be the secret itself."""
    if not _ENTRY.fullmatch(name) or _SECRET.match(name):
        return "must have the name of a keychain's entry as its secret, never the secret itself"
    return None


def _server_names(servers: Sequence[Any]) -> str | None:
    names = [server.name for server in servers]
    return None if len(set(names)) == len(names) else "must name each server once"


def _credentials(entries: Sequence[Any]) -> str | None:
    fault = _each(_credential)(entries)
    hosts = {entry.host.lower().rstrip(".") for entry in entries}
    return fault or (None if len(hosts) == len(entries) else "must name each host once")


def _patience(value: timedelta) -> str | None:
    return None if timedelta() < value <= DAY else "must be above 0 and at most a day"


def _slug(value: str | None) -> str | None:
    return None if value is None or _SLUG.fullmatch(value) else "must be the slug of an agent"


def _flag(value: str | None) -> str | None:
    is_flag = value is None or _FLAG.fullmatch(value) is not None
    return None if is_flag else "must be an option of a program, such as --workspace"


def _wrap(words: Sequence[str]) -> str | None:
    if not words:
        return None
    is_sure = bool(words[0].strip()) and ("/" not in words[0] or words[0].startswith("/"))
    return None if is_sure else "must begin with the name of a program, or an absolute path"


_SLUG: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
_FLAG: Final = re.compile(r"-{1,2}[A-Za-z0-9][A-Za-z0-9-]*")

RULES: Final[Mapping[str, Rule]] = {
    "acp.agent": _slug,
    "acp.cancel_timeout": _patience,
    "acp.line_limit": _between(1 << 10, 1 << 30),
    "acp.option_timeout": _patience,
    "acp.session_timeout": _patience,
    "acp.silence_timeout": _patience,
    "acp.start_timeout": _patience,
    "acp.workspace_flag": _flag,
    "acp.wrap": _wrap,
    "acp.write_timeout": _patience,
    "approvals_expire_after": _expiry,
    "chat.allowed_command_globs": _each(_glob),
    "chat.allowed_commands": _each(_command),
    "chat.allowed_domains": _each(_domain),
    "chat.command_env": _each(passed_on_fault),
    "chat.command_cpu_seconds": _between(0, MILLION, but=", and 0 is no limit"),
    "chat.command_memory_mb": _memory,
    # A namespace has no fewer numbers for its processes.
    "chat.command_processes": _between(400, 1 << 22),
    "chat.command_writes": _each(_entry_name),
    "chat.compact_threshold": _share,
    "chat.extra_roots": _each(_root),
    "chat.linked_dirs": _each(_folder_name),
    "chat.max_cost_microcents": _between(0, MICROCENTS_MOST, but=", and 0 is no cap"),
    "chat.max_messages": _between(1, MILLION),
    "credentials": _credentials,
    "database_url": url_fault,
    "encryption": _among("auto", "keychain", "off"),
    "events_delta_retention": _retention(timedelta()),
    "events_retention": _retention(timedelta(minutes=1), but=", and 0 is for ever"),
    "idle_timeout_minutes": _between(0, 525_600, but=", and 0 is never"),
    "log_level": _among(*LEVELS),
    "max_concurrent_sessions": _between(1, MILLION),
    "max_tool_rounds": _between(1, MILLION),
    "mcp_servers": _server_names,
    "observations_per_minute": _between(0, MILLION, but=", and 0 is no limit"),
    "turn_cap": _between(1, MILLION),
    "turns_at_a_time": _between(1, MILLION),
}
