"""Presets: how well-known programs are started, and nothing more; no code asks for their names.

A preset is a beginning. It becomes an agent of its owner, who may change all of it.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from holdfast.domain.agents import AcpRuntime


class Preset(Struct, frozen=True, kw_only=True):
    """One program as most people have it.

    `env_names` are the variables it reads its keys from. `package` is what it is published as,
    `install` how a person gets it, `module` what the command runs where that is an interpreter.
    `as_root` and `with_servers` are variables that it needs when it runs as root, or when it is
    given MCP servers.
    """

    title: str
    command: str
    args: tuple[str, ...] = ()
    env_names: tuple[str, ...] = ()
    package: str
    install: str
    module: str | None = None
    mode: str | None = None
    fs: bool = True
    fs_missing: Literal["error", "empty"] = "error"
    environment: dict[str, str] = {}
    as_root: dict[str, str] = {}
    with_servers: dict[str, str] = {}


_ASKING: Final = '{"bash": "ask", "edit": "ask", "webfetch": "ask"}'

PRESETS: Final[Mapping[str, Preset]] = {
    "claude": Preset(
        title="Claude Code",
        command="claude-agent-acp",
        env_names=("ANTHROPIC_API_KEY",),
        package="@agentclientprotocol/claude-agent-acp",
        install="npm install -g @agentclientprotocol/claude-agent-acp",
        # What it starts refuses to work as root unless it is told that it is kept in.
        as_root={"IS_SANDBOX": "1"},
    ),
    "codex": Preset(
        title="Codex",
        command="codex-acp",
        env_names=("OPENAI_API_KEY", "CODEX_API_KEY"),
        package="@agentclientprotocol/codex-acp",
        install="npm install -g @agentclientprotocol/codex-acp",
        # In its own default mode it judges risky commands itself, and nobody is asked.
        mode="workspace-write",
    ),
    "deepagents": Preset(
        title="Deep Agents",
        command="python3",
        args=("-m", "deepagents_acp"),
        env_names=("OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
        package="deepagents-acp",
        module="deepagents_acp",
        install="pip install deepagents-acp langchain-openai",
    ),
    "gemini": Preset(
        title="Gemini CLI",
        command="gemini",
        args=("--acp",),
        env_names=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        package="@google/gemini-cli",
        install="npm install -g @google/gemini-cli",
        # It reads each file before it writes it, and gives up on any error.
        fs_missing="empty",
        with_servers={"GEMINI_CLI_TRUST_WORKSPACE": "true"},
    ),
    "goose": Preset(
        title="goose",
        command="goose",
        args=("acp",),
        env_names=("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"),
        package="goose",
        install="brew install block-goose-cli",
        # In its own default mode it does everything, and nobody is asked.
        mode="approve",
    ),
    "hermes": Preset(
        title="Hermes",
        command="hermes-acp",
        env_names=("OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
        package="hermes-agent",
        install="pip install 'hermes-agent[acp]'",
    ),
    "opencode": Preset(
        title="opencode",
        command="opencode",
        args=("acp",),
        env_names=("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"),
        package="opencode-ai",
        install="npm install -g opencode-ai",
        # Without it, everything is allowed and nobody is asked.
        environment={"OPENCODE_PERMISSION": _ASKING},
    ),
    "qwen": Preset(
        title="Qwen Code",
        command="qwen",
        args=("--acp",),
        env_names=("OPENAI_API_KEY",),
        package="@qwen-code/qwen-code",
        install="npm install -g @qwen-code/qwen-code",
    ),
    "vibe": Preset(
        title="Mistral Vibe",
        command="vibe-acp",
        env_names=("MISTRAL_API_KEY",),
        package="mistral-vibe",
        install="pip install mistral-vibe",
        # In its own default mode it edits files, and nobody is asked.
        mode="ask",
    ),
}

# There without being made: the agent that sessions of `/api` get when nobody names one.
SEEDED: Final = "gemini"


def fields_of(name: str, *, is_root: bool = False) -> dict[str, Any]:
    """Return the fields of an agent that a preset makes."""
    preset = PRESETS[name]
    environment = {**preset.environment, **(preset.as_root if is_root else {})}
    said = {
        "mode": preset.mode,
        "fs": None if preset.fs else False,
        "fs_missing": None if preset.fs_missing == "error" else preset.fs_missing,
        "environment": environment or None,
        "with_servers": preset.with_servers or None,
        "install": preset.install,
        "preset": name,
    }
    return {
        "name": preset.title,
        "slug": name,
        "runtime": AcpRuntime(
            command=preset.command,
            args=preset.args,
            env_names=preset.env_names,
            # What is the program's own default is left out: the agent is what was said about it.
            options={key: value for key, value in said.items() if value is not None},
        ),
        # What it may reach is the configuration's to say, when a session opens.
        "grant": None,
    }
