"""Programs of others that drive `holdfast acp` and `holdfast mcp`, each in its own way."""

import asyncio
import json
import os
import subprocess
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.interop.cases import Result
from tests.interop.installing import command_of, node_for
from tests.interop.mcp_judges import Place, with_conformance, with_inspector
from tests.interop.programs import ACPX, SDK

JUDGES: Final = ("acpx", "sdk", "inspector", "conformance")
HOLDFAST: Final = Path(sysconfig.get_path("scripts")) / "holdfast"
SDK_SCRIPT: Final = Path(__file__).with_name("sdk_client.py")
SECONDS: Final = 90.0
_SLOW: Final = "- {text: At last., delay_ms: 30000}\n"


async def judged(name: str, folder: Path, heard: Callable[[Result], None]) -> None:
    """Have a judge play its cases, and tell each result."""
    plays: Mapping[str, Callable[[Path, Callable[[Result], None]], None]]
    plays = {
        "acpx": _with_acpx,
        "sdk": _with_sdk,
        "inspector": lambda place, told: with_inspector(_place(place), told),
        "conformance": lambda place, told: with_conformance(_place(place), told),
    }
    work = folder / "work"
    work.mkdir()
    await asyncio.to_thread(_run, ["git", "init", "--quiet"], work, _environment(folder))
    await asyncio.to_thread(plays[name], folder, heard)


def _place(folder: Path) -> Place:
    return Place(folder / "work", HOLDFAST, _environment(folder))


def _environment(folder: Path, *paths: Path) -> dict[str, str]:
    path = os.pathsep.join([*map(str, paths), os.environ.get("PATH", os.defpath)])
    return {
        "PATH": path,
        "HOME": str(folder / "home"),
        "HOLDFAST_HOME": str(folder / "holdfast"),
        "HOLDFAST_ENCRYPTION": "off",
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
    }


def _with_acpx(folder: Path, heard: Callable[[Result], None]) -> None:
    """Ask once, have a change refused and one allowed, each in a process of its own."""
    node = node_for(ACPX)
    command = [str(node / "node"), str(command_of(ACPX).resolve())]
    environment = _environment(folder, node)
    work = folder / "work"
    cases = {
        "exec": ("--approve-all", "What is 2+3?"),
        "refused": ("--deny-all", "write made.txt: hold on"),
        "allowed": ("--approve-all", "write made.txt: hold on"),
    }
    for case, (policy, prompt) in cases.items():
        started = time.monotonic()
        agent = ["--agent", f"{HOLDFAST} acp", policy, "--format", "json"]
        done = _run([*command, *agent, "exec", prompt], work, environment)
        state, told = _judge(case, done, work)
        heard(Result(case, state, told, time.monotonic() - started))


def _judge(case: str, done: subprocess.CompletedProcess[str], work: Path) -> tuple[str, str]:
    """Return whether acpx saw what it should have seen."""
    lines = [*_json_lines(done.stdout)]
    made = (work / "made.txt").exists()
    said = "".join(_chunks(lines))
    if case == "exec":
        holds = done.returncode == 0 and "5" in said
    elif case == "refused":
        holds = not made
    else:
        holds = done.returncode == 0 and made
    told = f"{len(lines)} lines, said {said[:60]!r}"
    return ("passed", told) if holds else ("failed", f"{told}: {done.stderr[-300:]}")


def _chunks(lines: list[dict[str, Any]]) -> list[str]:
    updates = [line.get("params", {}).get("update", {}) for line in lines]
    return [
        str(each.get("content", {}).get("text", ""))
        for each in updates
        if each.get("sessionUpdate") == "agent_message_chunk"
    ]


def _with_sdk(folder: Path, heard: Callable[[Result], None]) -> None:
    """Let the Python package play its cases in its own interpreter, which tells each of them."""
    work, environment = folder / "work", _environment(folder)
    script = folder / "slow.yaml"
    script.write_text(_SLOW)
    slow = ("agents", "create", "--name", "Slow", "--model", f"scripted:{script}")
    made = _run([str(HOLDFAST), *slow], work, environment)
    python = str(command_of(SDK))
    done = _run([python, str(SDK_SCRIPT), str(HOLDFAST), str(work)], work, environment)
    results = [*_json_lines(done.stdout)]
    for each in results:
        heard(Result(each["case"], each["state"], each["told"], each["seconds"]))
    if done.returncode != 0 or not results:
        heard(Result("end", "failed", f"{made.stderr[-200:]}{done.stderr[-500:]}"))


def _json_lines(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


def _run(
    command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
        check=False,
    )
