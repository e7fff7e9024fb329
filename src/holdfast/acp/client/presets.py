"""Presets: how well-known agents are started, and which of them are installed here.

No code elsewhere asks for their names.

"""

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from holdfast.domain.agents import AcpRuntime
from holdfast.process.agent_child import find_command


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


_ASK_PERMISSIONS: Final = '{"bash": "ask", "edit": "ask", "webfetch": "ask"}'
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
        environment={"OPENCODE_PERMISSION": _ASK_PERMISSIONS},
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
DEFAULT_PRESET: Final = "gemini"


def preset_fields(name: str, *, is_root: bool = False) -> dict[str, Any]:
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


VERSION_SECONDS: Final = 3.0
# A package lies at most so far above the file that its command points to.
_PARENTS_MOST: Final = 6
_HEAD_BYTES: Final = 512
_VERSION: Final = re.compile(r"\d+\.\d+[\w.+-]*")
_INTERPRETER: Final = re.compile(rb"(/[^\s\"']*python[\d.]*)")
_ASK_PYTHON: Final = (
    "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
)


class DetectedAgent(Struct, frozen=True, kw_only=True):
    """A well-known program: where it is and what version, as far as that can be told."""

    preset: str
    title: str
    command: str
    path: str | None
    version: str | None
    install: str


async def detect(environment: Mapping[str, str]) -> list[DetectedAgent]:
    """Look for every preset's program on the environment's PATH, by name."""
    return list(
        await asyncio.gather(*(_detect_preset(name, environment) for name in sorted(PRESETS)))
    )


async def _detect_preset(name: str, environment: Mapping[str, str]) -> DetectedAgent:
    preset = PRESETS[name]
    path = find_command(preset.command, environment)
    version = None if path is None else await detect_version(path, preset, environment)
    if preset.module is not None and version is None:
        # An interpreter is everywhere; what it would run is not.
        path = None
    return DetectedAgent(
        preset=name,
        title=preset.title,
        command=preset.command,
        path=path,
        version=version,
        install=preset.install,
    )


async def detect_version(path: str, preset: Preset, environment: Mapping[str, str]) -> str | None:
    """Return what version the program at a path is, if that can be told soon."""
    unpacked = await asyncio.to_thread(_npm_version, Path(path), preset.package)
    if unpacked is not None:
        return unpacked
    python = path if preset.module else await asyncio.to_thread(_script_interpreter, Path(path))
    if python is not None:
        # Isolated, so that nothing of the current folder is run.
        argv: tuple[str, ...] = (python, "-I", "-c", _ASK_PYTHON, preset.package)
    else:
        argv = (path, "--version")
    found = _VERSION.search(await _run_briefly(argv, environment))
    return found.group() if found else None


def _npm_version(path: Path, package: str) -> str | None:
    """Return the version that an npm package around the program says it has."""
    for folder in (*path.resolve().parents,)[:_PARENTS_MOST]:
        with suppress(OSError, ValueError, msgspec.DecodeError):
            package_json = msgspec.json.decode((folder / "package.json").read_bytes())
            if package_json.get("name") == package:
                return str(package_json["version"])
    return None


def _script_interpreter(path: Path) -> str | None:
    """Return the Python that a script names in its first lines; nothing if it is no such script."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    found = _INTERPRETER.search(head) if head.startswith(b"#!") else None
    return os.fsdecode(found.group(1)) if found else None


async def _run_briefly(argv: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Run a command for a moment, and return the beginning of what it says."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**environment, "NO_COLOR": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # Its own group, so that whatever it starts can be ended with it.
            start_new_session=True,
        )
    except OSError:
        return ""
    assert process.stdout is not None  # noqa: S101 — for the type checker: it was asked for
    try:
        async with asyncio.timeout(VERSION_SECONDS):
            return (await process.stdout.read(_HEAD_BYTES)).decode(errors="replace")
    except TimeoutError:
        return ""
    finally:
        # Once it is waited for, its number may be somebody else's.
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
        await process.wait()
