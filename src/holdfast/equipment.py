"""Equipment: what the configuration gives agents to work with, and how far it lets them go.

A part of `bootstrap`: it only turns settings into plain arguments.
"""

from collections.abc import Mapping
from typing import Final

from holdfast.config import Config
from holdfast.domain.sessions import Budget
from holdfast.domain.tools import Grant
from holdfast.ports import Clock, Limits
from holdfast.services.secrets import Secrets
from holdfast.tools.checkpoints import checkpoint_tool
from holdfast.tools.files import FileSettings, file_tools
from holdfast.tools.shelves import output_tool
from holdfast.tools.toolbox import LocalToolbox

# Where other programs look for a provider's key; ours come first.
KEY_VARIABLES: Final[Mapping[str, str]] = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "google": "GEMINI_API_KEY",
}


def toolbox(config: Config, secrets: Secrets, clock: Clock) -> LocalToolbox:
    """Return the tools of this installation."""
    files = FileSettings(
        protected=(str(config.home),),
        extra_roots=tuple(map(str, config.chat.extra_roots)),
        linked_dirs=config.chat.linked_dirs,
    )
    return LocalToolbox((*file_tools(files), output_tool(), checkpoint_tool(clock.now)))


def ceiling_of(config: Config) -> Grant:
    """Return the most that any session may reach."""
    return Grant(
        fs=config.chat.fs_scope,
        commands=config.chat.allowed_commands,
        command_globs=config.chat.allowed_command_globs,
        domains=config.chat.allowed_domains,
    )


def limits_of(config: Config) -> Limits:
    """Return how far a turn may go."""
    return Limits(
        tool_rounds=config.max_tool_rounds,
        max_messages=config.chat.max_messages,
        compact_threshold=config.chat.compact_threshold if config.chat.auto_compact else None,
        allow_unpriced=config.chat.allow_unpriced,
    )


def budget_of(config: Config) -> Budget | None:
    """Return what a session may cost unless it says so itself; nothing means no limit."""
    most = config.chat.max_cost_microcents
    return Budget(microcents=most, on_exceed=config.chat.on_exceed) if most else None
