"""Agent frameworks on Holdfast: their own cases, ours, and what a kill in a tool leaves of each.

Each framework has an environment of its own, made from the extra of this checkout; the sources that
its cases come from are fetched beside it. Nothing of either is in the repository.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

from msgspec import Struct

from tests.interop.cases import Result
from tests.interop.installing import ROOT, SECONDS, Missing, cache, ran

EXAMPLES: Final = ROOT / "examples" / "frameworks"
CASES: Final = ROOT / "tests" / "interop" / "frameworks"
COLUMNS: Final = ("own", "store", "durable")
KILL_SECONDS: Final = 120.0
SUITE_SECONDS: Final = 900.0


class AgentFramework(Struct, frozen=True):
    """A framework: its package and version, and the files of its own source that we run.

    `printed` is what its example prints.
    """

    extra: str
    version: str
    short: str
    printed: str
    beside: tuple[str, ...] = ()
    own_cases: tuple[str, ...] = ()
    # Where it is not named like the extra.
    package: str = ""
    # Cases of its runner, whose doubles of a session are replaced as well.
    runner_cases: tuple[str, ...] = ()


FRAMEWORKS: Final = (
    AgentFramework(
        extra="openai-agents",
        version="0.24.0",
        short="openai",
        printed="refund {'order': '17', 'cents': 500} finished",
        beside=("hatchling", "editables", "pytest", "pytest-asyncio", "inline-snapshot", "httpx"),
        own_cases=(
            "tests/memory/test_session.py",
            "tests/memory/test_session_limit.py",
            "tests/memory/test_session_context_wrapper.py",
            "tests/test_hitl_session_scenario.py",
        ),
        runner_cases=(
            "tests/test_agent_runner.py",
            "tests/test_agent_runner_streamed.py",
            "tests/test_cancel_streaming.py",
            "tests/test_error_logging_redaction.py",
            "tests/test_handoff_history_duplication.py",
            "tests/test_hitl_session_scenario.py",
            "tests/test_invalid_final_output_handler.py",
            "tests/test_max_turns.py",
            "tests/test_prompt_cache_key.py",
            "tests/test_run_impl_resume_paths.py",
            "tests/test_run_state_pending_input.py",
            "tests/test_runner_guardrail_resume.py",
            "tests/test_runner_tracing_disabled.py",
            "tests/test_runtime_symmetry_contract.py",
            "tests/deferred_session_writes",
            "tests/memory/test_compaction_model_visibility.py",
            "tests/memory/test_openai_responses_compaction_session.py",
            "tests/models/test_openai_chatcompletions_stream.py",
            "tests/sandbox/test_runtime.py",
        ),
    ),
    AgentFramework(
        extra="claude-agent-sdk",
        version="0.2.182",
        short="claude",
        printed="Bash {'command': 'ls'} started",
        beside=("hatchling", "editables", "pytest", "pytest-asyncio", "trio"),
        own_cases=("tests/test_session_helpers_store.py", "tests/test_session_store_anyio.py"),
    ),
    AgentFramework(
        extra="langgraph",
        version="1.2.20",
        short="langgraph",
        printed="refund {'order': '17', 'cents': 500} finished",
        beside=(
            "hatchling",
            "editables",
            "pytest",
            "pytest-asyncio",
            "langgraph-checkpoint-conformance==0.0.2",
            "langgraph-checkpoint-sqlite>=3.1,<4",
        ),
    ),
    AgentFramework(
        extra="pydantic-ai",
        package="pydantic-ai-slim",
        version="2.66.0",
        short="pydantic",
        printed="refund {'order': '17', 'cents': 500} finished",
        beside=("hatchling", "editables", "pytest", "pytest-asyncio"),
    ),
)
Heard = Callable[[Result], None]


def prepare() -> None:
    """Make the environments and fetch the sources while there is a network; raises `Missing`."""
    for framework in FRAMEWORKS:
        folder = _folder(framework)
        if (folder / ".done").exists():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        ran([sys.executable, "-m", "venv", str(folder)], SECONDS)
        pip = [str(_python(framework)), "-m", "pip", "--quiet"]
        pinned = f"{framework.package or framework.extra}=={framework.version}"
        ran([*pip, "install", *framework.beside], SECONDS)
        own = f"{ROOT}[{framework.extra}]"
        ran([*pip, "install", "--no-build-isolation", "-e", own, pinned], SECONDS)
        if framework.own_cases:
            where = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", str(folder)]
            ran([*pip, "download", *where, pinned], SECONDS)
            (archive,) = folder.glob("*.tar.gz")
            with tarfile.open(archive) as opened:
                opened.extractall(folder / "source", filter="data")
        (folder / ".done").touch()


async def play(place: Path, heard: Heard) -> None:
    """Run everything for every framework."""
    for framework in FRAMEWORKS:
        await _suite(framework, place / framework.short, heard)
        await _example(framework, place / f"{framework.short}-example", heard)
        if framework.own_cases:
            await _own_suite(framework, place / f"{framework.short}-own", heard)
        if framework.runner_cases:
            await _runner_suite(framework, place / f"{framework.short}-runner", heard)
        await _table(framework, place / f"{framework.short}-killed", heard)


async def _suite(framework: AgentFramework, place: Path, heard: Heard) -> None:
    """Run our cases that need the framework."""
    file = CASES / f"{framework.short}_cases.py"
    command = [*_pytest(framework), "-c", os.devnull, "--noconftest", "--rootdir", str(place)]
    await _counted(f"{framework.short} cases", [*command, str(file)], place, heard)


async def _example(framework: AgentFramework, place: Path, heard: Heard) -> None:
    """Run the example of the framework's page."""
    started = monotonic()
    script = EXAMPLES / f"{framework.short}_session.py"
    code, said = await _run([str(_python(framework)), str(script)], place, KILL_SECONDS)
    state = "passed" if code == 0 and framework.printed in said else "failed"
    text = framework.printed if state == "passed" else said[-300:]
    heard(Result(f"{framework.short} example", state, text, monotonic() - started))


async def _own_suite(framework: AgentFramework, place: Path, heard: Heard) -> None:
    """Run the framework's own cases with our sessions in place of its own."""
    (source,) = (_folder(framework) / "source").iterdir()
    command = [*_pytest(framework), "-p", f"{framework.short}_plugin", *framework.own_cases]
    await _counted(f"{framework.short} suite", command, place, heard, inside=source)


async def _runner_suite(framework: AgentFramework, place: Path, heard: Heard) -> None:
    """Run the cases of the framework's runner with its own doubles, then with our sessions."""
    (source,) = (_folder(framework) / "source").iterdir()
    command = [*_pytest(framework), *framework.runner_cases]
    _, said = await _run(command, place / "own", SUITE_SECONDS, inside=source)
    failures = place / "own" / "failures"
    names = re.findall(r"^FAILED (\S+)", said, re.MULTILINE)
    failures.write_text("".join(f"{name}\n" for name in names))
    # What `env` sets for the plugin.
    ours = ["env", f"OWN_FAILURES={failures}", *command, "-p", f"{framework.short}_runner_plugin"]
    await _counted(f"{framework.short} runner", ours, place / "ours", heard, inside=source)


async def _counted(
    name: str, command: list[str], place: Path, heard: Heard, *, inside: Path | None = None
) -> None:
    started = monotonic()
    code, said = await _run(command, place, SUITE_SECONDS, inside=inside)
    (place / "output.txt").write_text(said)
    counts = re.findall(r"^\d+ (?:of \d+ )?(?:passed|failed).*$", said, re.MULTILINE)
    text = counts[-1] if counts else said[-300:]
    if code:
        failed = re.findall(r"^(?:FAILED|ERROR|fails: |passes or is gone: ).*$", said, re.MULTILINE)
        text = "; ".join([text, *failed[:5]])
    state = "failed" if code else "passed"
    heard(Result(name, state, text, monotonic() - started))


async def _table(framework: AgentFramework, place: Path, heard: Heard) -> None:
    """Kill a run inside its second call and start it again, in three columns."""
    script = CASES / f"{framework.short}_table.py"
    for column in COLUMNS:
        started, folder = monotonic(), place / column
        command = [str(_python(framework)), str(script), str(folder), column]
        killed, said = await _run([*command, "kill"], folder, KILL_SECONDS)
        if killed != -signal.SIGKILL:
            heard(Result(f"{framework.short} kill {column}", "failed", said[-300:]))
            continue
        code, said = await _run([*command, "again"], folder, KILL_SECONDS)
        found = json.loads(said.splitlines()[-1]) if code == 0 else {}
        state = "passed" if code == 0 and is_sound(column, found) else "failed"
        text = json.dumps(found) if found else said[-300:]
        heard(Result(f"{framework.short} kill {column}", state, text, monotonic() - started))
    await _surfaces(framework, place / COLUMNS[-1], heard)


async def _surfaces(framework: AgentFramework, place: Path, heard: Heard) -> None:
    """Try every surface on the sessions that the last column has left."""
    started = monotonic()
    command = [str(_python(framework)), str(CASES / "surfaces.py"), str(place / "home")]
    code, said = await _run(command, place, KILL_SECONDS)
    lines = [line for line in said.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if code == 0 and lines else {}
    is_whole = bool(found) and found["sessions"] > 0 and not found["failed"]
    text = json.dumps(found) if found else said[-300:]
    state = "passed" if is_whole else "failed"
    heard(Result(f"{framework.short} surfaces", state, text, monotonic() - started))


def is_sound(column: str, found: dict[str, Any]) -> bool:
    """Return whether a row holds what is promised: with durable tools, one effect for each call."""
    if column == "own":
        return True
    if column == "store":
        return found["lost"] == 0
    shown = " ".join(map(str, found["shown"]))
    is_said = "outcome is unknown" in shown
    return found["lost"] == 0 and found["effects"] <= 2 and is_said and len(found["unknown"]) == 1


def _folder(framework: AgentFramework) -> Path:
    return cache() / f"framework-{framework.extra}-{framework.version}"


def _python(framework: AgentFramework) -> Path:
    return _folder(framework) / "bin" / "python"


def _pytest(framework: AgentFramework) -> list[str]:
    options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    return [str(_python(framework)), "-m", "pytest", *options]


async def _run(
    command: list[str], place: Path, seconds: float, *, inside: Path | None = None
) -> tuple[int, str]:
    """Run a command with a home of its own; return its code and what it says."""
    scratch = place / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    names = {"HOME": str(place), "TMPDIR": str(scratch), "PYTHONPATH": str(CASES)}
    # A file and not a pipe: a program that outlives a killed run would hold the pipe open.
    output = scratch / "output"
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=inside or place,
            env=os.environ | names,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    except TimeoutError:
        code = 1
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    return code, output.read_text("utf-8", errors="replace")


__all__ = ["FRAMEWORKS", "Missing", "is_sound", "play", "prepare"]
