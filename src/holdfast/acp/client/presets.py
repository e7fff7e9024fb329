"""Presets: how well-known agents are started, and which of them are installed.

No other module depends on the name of an agent.

"""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from holdfast.domain.agents import AcpRuntime


class Preset(Struct, frozen=True, kw_only=True):
    """The default settings of one well-known agent.

    `env_names` are the variables that hold its API keys. `package` is the name of its package,
    `install` the install command, `module` the Python module if the command is an interpreter.
    `as_root` and `with_servers` are variables that it needs when it runs as root or receives MCP
    servers. `writable` are the folders and files below the home in which it keeps its own data.
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
    writable: tuple[str, ...] = ()


_ASK_PERMISSIONS: Final = '{"bash": "ask", "edit": "ask", "webfetch": "ask"}'
PRESETS: Final[Mapping[str, Preset]] = {
    "claude": Preset(
        title="Claude Code",
        command="claude-agent-acp",
        env_names=("ANTHROPIC_API_KEY",),
        package="@agentclientprotocol/claude-agent-acp",
        install="npm install -g @agentclientprotocol/claude-agent-acp",
        # Its child process refuses to run as root without this declaration of a sandbox.
        as_root={"IS_SANDBOX": "1"},
        writable=(
            *("~/.claude", "~/.claude.json", "~/.cache/claude-cli-nodejs"),
            *("~/.local/share/claude", "~/.local/state/claude"),
        ),
    ),
    "codex": Preset(
        title="Codex",
        command="codex-acp",
        env_names=("OPENAI_API_KEY", "CODEX_API_KEY"),
        package="@agentclientprotocol/codex-acp",
        install="npm install -g @agentclientprotocol/codex-acp",
        # In its default mode it assesses risky commands itself and does not ask for permission.
        mode="workspace-write",
        writable=("~/.codex",),
    ),
    "deepagents": Preset(
        title="Deep Agents",
        command="python3",
        args=("-m", "deepagents_acp"),
        env_names=("OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
        package="deepagents-acp",
        module="deepagents_acp",
        install="pip install deepagents-acp langchain-openai",
        writable=("~/.deepagents",),
    ),
    "gemini": Preset(
        title="Gemini CLI",
        command="gemini",
        args=("--acp",),
        env_names=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        package="@google/gemini-cli",
        install="npm install -g @google/gemini-cli",
        # It reads each file before it writes it, and aborts on any error.
        fs_missing="empty",
        with_servers={"GEMINI_CLI_TRUST_WORKSPACE": "true"},
        writable=("~/.gemini",),
    ),
    "goose": Preset(
        title="goose",
        command="goose",
        args=("acp",),
        env_names=("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"),
        package="goose",
        install="brew install block-goose-cli",
        # In its default mode it runs everything without asking for permission.
        mode="approve",
        writable=("~/.config/goose", "~/.local/share/goose", "~/.local/state/goose"),
    ),
    "hermes": Preset(
        title="Hermes",
        command="hermes-acp",
        env_names=("OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
        package="hermes-agent",
        install="pip install 'hermes-agent[acp]'",
        writable=("~/.hermes",),
    ),
    "opencode": Preset(
        title="opencode",
        command="opencode",
        args=("acp",),
        env_names=("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"),
        package="opencode-ai",
        install="npm install -g opencode-ai",
        # Without this it runs everything without asking for permission.
        environment={"OPENCODE_PERMISSION": _ASK_PERMISSIONS},
        writable=(
            *("~/.config/opencode", "~/.local/share/opencode", "~/.local/state/opencode"),
            "~/.cache/opencode",
        ),
    ),
    "qwen": Preset(
        title="Qwen Code",
        command="qwen",
        args=("--acp",),
        env_names=("OPENAI_API_KEY",),
        package="@qwen-code/qwen-code",
        install="npm install -g @qwen-code/qwen-code",
        writable=("~/.qwen",),
    ),
    "vibe": Preset(
        title="Mistral Vibe",
        command="vibe-acp",
        env_names=("MISTRAL_API_KEY",),
        package="mistral-vibe",
        install="pip install mistral-vibe",
        # In its default mode it edits files without asking for permission.
        mode="ask",
        writable=("~/.vibe",),
    ),
}
# Exists without being created: the default agent of sessions of `/api`.
DEFAULT_PRESET: Final = "gemini"


def preset_fields(name: str, *, is_root: bool = False) -> dict[str, Any]:
    """Return the fields of an agent that is created from a preset."""
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
            # Defaults are left out, so that the agent stores only explicit settings.
            options={key: value for key, value in said.items() if value is not None},
        ),
        # The configuration decides on the grant when a session is created.
        "grant": None,
    }


VERSION_SECONDS: Final = 3.0
# How many parents of a command's file are searched for its package.
_PARENTS_MOST: Final = 6
_HEAD_BYTES: Final = 512
_VERSION: Final = re.compile(r"\d+\.\d+[\w.+-]*")
_INTERPRETER: Final = re.compile(rb"(/[^\s\"']*python[\d.]*)")
_ASK_PYTHON: Final = (
    "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
)


class DetectedAgent(Struct, frozen=True, kw_only=True):
    """A well-known agent; path and version as far as they were found."""

    preset: str
    title: str
    command: str
    path: str | None
    version: str | None
    install: str


def find_command(command: str, environment: Mapping[str, str]) -> str | None:
    """Return the file of a command; a bare name is searched in the environment's `PATH`.

    Relative paths are never used, because they would find programs inside the repository.
    """
    if os.path.dirname(command):
        is_program = os.path.isabs(command) and shutil.which(command) is not None
        return command if is_program else None
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    absolute = os.pathsep.join(each for each in folders if os.path.isabs(each))
    return shutil.which(command, path=absolute) if absolute else None


async def detect(environment: Mapping[str, str]) -> list[DetectedAgent]:
    """Search the environment's `PATH` for the program of every preset."""
    return list(
        await asyncio.gather(*(_detect_preset(name, environment) for name in sorted(PRESETS)))
    )


async def _detect_preset(name: str, environment: Mapping[str, str]) -> DetectedAgent:
    preset = PRESETS[name]
    path = find_command(preset.command, environment)
    version = None if path is None else await detect_version(path, preset, environment)
    if preset.module is not None and version is None:
        # The interpreter is installed, but the module it would run is not.
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
    """Return the version of the program at a path; `None` if it cannot be found quickly."""
    unpacked = await asyncio.to_thread(_npm_version, Path(path), preset.package)
    if unpacked is not None:
        return unpacked
    python = path if preset.module else await asyncio.to_thread(_script_interpreter, Path(path))
    if python is not None:
        # `-I` (isolated mode), so that no code from the current folder is imported.
        argv: tuple[str, ...] = (python, "-I", "-c", _ASK_PYTHON, preset.package)
    else:
        argv = (path, "--version")
    found = _VERSION.search(await _run_briefly(argv, environment))
    return found.group() if found else None


def _npm_version(path: Path, package: str) -> str | None:
    """Return the version from the `package.json` of the npm package that contains the program."""
    for folder in (*path.resolve().parents,)[:_PARENTS_MOST]:
        with suppress(OSError, ValueError, msgspec.DecodeError):
            package_json = msgspec.json.decode((folder / "package.json").read_bytes())
            if package_json.get("name") == package:
                return str(package_json["version"])
    return None


def _script_interpreter(path: Path) -> str | None:
    """Return the Python interpreter from a script's shebang; `None` if there is none."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    found = _INTERPRETER.search(head) if head.startswith(b"#!") else None
    return os.fsdecode(found.group(1)) if found else None


async def _run_briefly(argv: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Run a command with a short timeout, and return the beginning of its output."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**environment, "NO_COLOR": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # A process group of its own, so that its children can be killed with it.
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
        # Only before it is reaped, because the process id may be reused afterwards.
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
        await process.wait()
