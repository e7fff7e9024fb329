"""Agent frameworks: turns a second with our store beside the framework's own durable store.

Each is measured in the environment that `make interop ONLY=frameworks` has made; without it the
figure says so and is not met.
"""

import json
import os
import subprocess
from pathlib import Path

from msgspec.structs import replace

from bench.figures import Figure, at_least, measures

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(__file__).parent / "peers"
ENVIRONMENTS = {
    "openai": "framework-openai-agents-0.24.0",
    "claude": "framework-claude-agent-sdk-0.2.182",
    "langgraph": "framework-langgraph-1.2.20",
    "pydantic": "framework-pydantic-ai-2.66.0",
}


@measures("openai_agents_turns")
def openai_agents(folder: Path) -> dict[str, Figure]:
    """Run an agent that answers at once, with a session in a file of SQLite and with ours."""
    return {"openai_agents_turns": _measured("openai", folder)}


@measures("claude_agent_sdk_appends")
def claude_agent_sdk(folder: Path) -> dict[str, Figure]:
    """Append batches of a turn to our store, and write them to a file as the program does."""
    # A line of a file has no turns, calls, costs or search beside it.
    note = "beside a file of lines that is synced after each batch; the program's own is not"
    found = _measured("claude", folder)
    return {"claude_agent_sdk_appends": replace(found, note=found.note or note)}


@measures("langgraph_turns")
def langgraph(folder: Path) -> dict[str, Figure]:
    """Run a graph that answers at once, with a saver on a file of SQLite and with ours."""
    return {"langgraph_turns": _measured("langgraph", folder)}


@measures("pydantic_ai_turns")
def pydantic_ai(folder: Path) -> dict[str, Figure]:
    """Run an agent that answers at once, with its messages in a file and in our store."""
    return {"pydantic_ai_turns": _measured("pydantic", folder)}


def _measured(name: str, folder: Path) -> Figure:
    cache = Path(os.environ.get("INTEROP_CACHE", ROOT / ".interop"))
    python = cache / ENVIRONMENTS[name] / "bin" / "python"
    if not python.exists():
        note = "no environment; make interop ONLY=frameworks makes it"
        return Figure(value=0, unit="turns/s", goal="≥ 1×", met=False, note=note)
    program = PROGRAMS / f"{name}_turns.py"
    run = subprocess.run(
        [str(python), str(program), str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    ours, own = json.loads(run.stdout.splitlines()[-1])
    return at_least(ours, "turns/s", own, 1)
