"""Real programs that speak ACP, each with what makes it ask our own model instead of a provider.

`LLM` in a value is the address of the model server. The versions are those that passed; `--latest`
takes the newest instead.
"""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_MACHINE: Final = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_OPENCODE: Final = {
    "model": "fake/fake-model",
    "small_model": "fake/fake-model",
    "provider": {
        "fake": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "LLM/v1", "apiKey": "none"},
            "models": {"fake-model": {}},
        }
    },
    "autoupdate": False,
    "share": "disabled",
}
_CODEX: Final = """model = "fake-model"
model_provider = "fake"
[model_providers.fake]
name = "fake"
base_url = "LLM/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
"""
# Asks before a command leaves its own sandbox, which may not work inside of another one.
_OLD_CODEX: Final = f"""approval_policy = "on-request"
sandbox_mode = "read-only"
{_CODEX}"""
_VIBE: Final = """active_model = "fake"
enable_telemetry = false
enable_auto_update = false
[[providers]]
name = "fake"
api_base = "LLM/v1"
api_key_env_var = "FAKE_KEY"
api_style = "openai"
backend = "generic"
[[models]]
name = "fake-model"
provider = "fake"
alias = "fake"
"""
_HERMES: Final = """model:
  default: fake-model
  provider: custom
  base_url: LLM/v1
  api_key: none
"""


@dataclass(frozen=True)
class Package:
    """What is fetched: from `npm` or `pypi`, by name and version."""

    source: str
    name: str
    version: str
    # What is installed beside it.
    beside: tuple[str, ...] = ()
    # The command, in the folder where the installer puts commands.
    command: str = ""
    node: int = 20
    # The least Python 3 it runs with.
    python: int = 11


@dataclass(frozen=True)
class Guest:
    """A program, the preset it is started with, and what a throwaway home of it has to hold."""

    preset: str
    package: Package
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    # In its own words, where the preset's would not do without a network.
    mode: str | None = None
    # What it cannot do, and why: told, and not tried.
    cannot: Mapping[str, str] = field(default_factory=dict)


GUESTS: Final[Mapping[str, Guest]] = {
    "hermes": Guest(
        "hermes",
        Package("pypi", "hermes-agent[acp]", "0.19.0", command="hermes-acp"),
        files={".hermes/config.yaml": _HERMES},
    ),
    "gemini": Guest(
        "gemini",
        Package("npm", "@google/gemini-cli", "0.61.0", command="gemini"),
        environment={"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": "LLM"},
        cannot={"list": "it does not offer session/list"},
    ),
    "opencode": Guest(
        "opencode",
        Package("npm", "opencode-ai", "1.18.33", command="opencode"),
        environment={"OPENCODE_CONFIG_CONTENT": json.dumps(_OPENCODE)},
    ),
    "codex": Guest(
        "codex",
        Package("npm", "@agentclientprotocol/codex-acp", "2.6.0", command="codex-acp"),
        environment={"FAKE_KEY": "none", "OPENAI_API_KEY": "none"},
        files={".codex/config.toml": _CODEX},
        cannot={"file": "it writes files by patches only"},
    ),
    "claude": Guest(
        "claude",
        Package(
            "npm", "@agentclientprotocol/claude-agent-acp", "0.49.0", command="claude-agent-acp"
        ),
        environment={
            "ANTHROPIC_BASE_URL": "LLM",
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    "old-codex": Guest(
        "codex",
        Package("npm", "@zed-industries/codex-acp", "0.16.0", command="codex-acp"),
        environment={"FAKE_KEY": "none", "OPENAI_API_KEY": "none"},
        files={".codex/config.toml": _OLD_CODEX},
        mode="",
        cannot={"file": "it writes files by patches only"},
    ),
    "qwen": Guest(
        "qwen",
        Package("npm", "@qwen-code/qwen-code", "0.15.10", command="qwen"),
        environment={
            "OPENAI_BASE_URL": "LLM/v1",
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": "fake-model",
        },
    ),
    "goose": Guest(
        "goose",
        Package(
            "npm",
            f"@aaif/goose-binary-linux-{_MACHINE}",
            "1.52.0",
            command=f"goose-binary-linux-{_MACHINE}",
        ),
        environment={
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": "fake-model",
            "GOOSE_DISABLE_KEYRING": "1",
            "OPENAI_HOST": "LLM",
            "OPENAI_API_KEY": "none",
        },
    ),
    "vibe": Guest(
        "vibe",
        Package("pypi", "mistral-vibe", "3.0.2", command="vibe-acp", python=12),
        environment={"FAKE_KEY": "none", "MISTRAL_API_KEY": "none"},
        files={".vibe/config.toml": _VIBE},
        cannot={"error": "a key that was rejected once it does not try again"},
    ),
    "deepagents": Guest(
        "deepagents",
        Package(
            "pypi",
            "deepagents-acp",
            "0.0.13",
            beside=("langchain-openai",),
            command="python",
        ),
        environment={"OPENAI_BASE_URL": "LLM/v1", "OPENAI_API_KEY": "none"},
        cannot={
            "allowed": "it offers its model no shell",
            "refused": "it offers its model no shell",
            "file": "it keeps files in its memory only",
            "list": "it does not offer session/list",
        },
    ),
}
# What a run takes when nothing is named: one of each kind of model, and the seeded one.
USUAL: Final = ("hermes", "gemini", "opencode", "codex", "claude")

NODE: Final = Package("npm", f"node-linux-{_MACHINE}", "26.10.0", command="node")
ACPX: Final = Package("npm", "acpx", "0.19.1", command="acpx", node=22)
SDK: Final = Package("pypi", "agent-client-protocol", "0.12.1", command="python")
INSPECTOR: Final = Package(
    "npm", "@modelcontextprotocol/inspector", "2.12.0", command="mcp-inspector", node=23
)
CONFORMANCE: Final = Package(
    "npm", "@modelcontextprotocol/conformance", "0.1.16", command="conformance", node=22
)
