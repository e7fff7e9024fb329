"""Where each setting can be set: its section and key in the file, and its environment variable."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class SettingKey(NamedTuple):
    """A section and key of the file, and an environment variable, if there is one."""

    section: str
    key: str
    variable: str | None

    @property
    def path(self) -> str:
        """Return the key as users write it, with its section."""
        return f"{self.section}.{self.key}" if self.section else self.key


# All variables with this prefix belong to Holdfast, so that a mistyped one is detected.
CHAT_VARIABLES: Final = "HOLDFAST_CHAT_"


def _chat(key: str) -> SettingKey:
    return SettingKey("chat", key, f"{CHAT_VARIABLES}{key.upper()}")


def _limit(key: str, variable: str) -> SettingKey:
    return SettingKey("limits", key, variable)


def _acp(key: str) -> SettingKey:
    return SettingKey("acp", key, f"HOLDFAST_ACP_{key.upper()}")


SETTING_KEYS: Final[Mapping[str, SettingKey]] = {
    "default_model": SettingKey("chat", "default_model", "HOLDFAST_MODEL"),
    "approval": _chat("approval"),
    "chat.fs_scope": _chat("fs_scope"),
    "chat.extra_roots": _chat("extra_roots"),
    "chat.linked_dirs": _chat("linked_dirs"),
    "chat.allowed_commands": _chat("allowed_commands"),
    "chat.allowed_command_globs": _chat("allowed_command_globs"),
    "chat.command_env": _chat("command_env"),
    "chat.command_writes": _chat("command_writes"),
    "chat.command_memory_mb": _chat("command_memory_mb"),
    "chat.command_processes": _chat("command_processes"),
    "chat.command_cpu_seconds": _chat("command_cpu_seconds"),
    "chat.allow_unprotected_commands": _chat("allow_unprotected_commands"),
    "chat.allowed_domains": _chat("allowed_domains"),
    "chat.max_messages": _chat("max_messages"),
    "chat.max_cost_microcents": _chat("max_cost_microcents"),
    "chat.on_exceed": _chat("on_exceed"),
    "chat.allow_unpriced": _chat("allow_unpriced"),
    "chat.auto_compact": _chat("auto_compact"),
    "chat.compact_threshold": _chat("compact_threshold"),
    "chat.reasoning_effort": _chat("reasoning_effort"),
    "acp.agent": _acp("agent"),
    "acp.workspace_flag": _acp("workspace_flag"),
    # No variable, because a command cannot be written as a comma-separated list.
    "acp.wrap": SettingKey("acp", "wrap", None),
    "acp.line_limit": _acp("line_limit"),
    "acp.raw_log": _acp("raw_log"),
    "acp.start_timeout": _acp("start_timeout"),
    "acp.session_timeout": _acp("session_timeout"),
    "acp.option_timeout": _acp("option_timeout"),
    "acp.silence_timeout": _acp("silence_timeout"),
    "acp.cancel_timeout": _acp("cancel_timeout"),
    "acp.write_timeout": _acp("write_timeout"),
    "approvals_expire_after": SettingKey(
        "approvals", "expire_after", "HOLDFAST_APPROVALS_EXPIRE_AFTER"
    ),
    "approvals_pause_after": SettingKey(
        "approvals", "pause_after", "HOLDFAST_APPROVALS_PAUSE_AFTER"
    ),
    "events_delta_retention": SettingKey(
        "events", "delta_retention", "HOLDFAST_EVENTS_DELTA_RETENTION"
    ),
    "events_retention": SettingKey("events", "retention", "HOLDFAST_EVENTS_RETENTION"),
    "turn_cap": _limit("turn_cap", "HOLDFAST_TURN_CAP"),
    "attended_turn_cap": _limit("attended_turn_cap", "HOLDFAST_ATTENDED_TURN_CAP"),
    "max_tool_rounds": _limit("max_tool_rounds", "HOLDFAST_MAX_TOOL_ROUNDS"),
    "turns_at_a_time": _limit("turns_at_a_time", "HOLDFAST_TURNS_AT_A_TIME"),
    "child_depth": _limit("child_depth", "HOLDFAST_CHILD_DEPTH"),
    "children_at_a_time": _limit("children_at_a_time", "HOLDFAST_CHILDREN_AT_A_TIME"),
    "children_per_session": _limit("children_per_session", "HOLDFAST_CHILDREN_PER_SESSION"),
    "tool_threads": SettingKey("tools", "threads", "HOLDFAST_TOOLS_THREADS"),
    "idle_timeout_minutes": _limit("idle_timeout_minutes", "AGENT_SESSION_IDLE_TIMEOUT"),
    "max_concurrent_sessions": _limit("max_concurrent_sessions", "AGENT_MAX_CONCURRENT_SESSIONS"),
    "observations_per_minute": _limit(
        "observations_per_minute", "HOLDFAST_OBSERVATIONS_PER_MINUTE"
    ),
    # No variables, because tables cannot be written as text.
    "credentials": SettingKey("", "credentials", None),
    "mcp_servers": SettingKey("mcp", "servers", None),
    "block_zones": SettingKey("importers", "block_zones", "HOLDFAST_IMPORTERS_BLOCK_ZONES"),
    "workspace_root": SettingKey("workspace", "root", "AGENT_WORKSPACE_ROOT"),
    "encryption": SettingKey("store", "encryption", "HOLDFAST_ENCRYPTION"),
    "database_url": SettingKey("store", "database_url", "HOLDFAST_DATABASE_URL"),
    "log_level": SettingKey("log", "level", "HOLDFAST_LOG"),
}
