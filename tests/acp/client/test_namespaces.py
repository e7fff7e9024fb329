"""A program in a namespace of its own, by `acp.wrap`: the kernel leaves nobody behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.acp.client.agent_command import AgentStart
from holdfast.acp.client.agent_process import AgentProcess, StopTimeouts
from holdfast.process.process_table import find_process, has_mark

pytestmark = pytest.mark.anyio

WRAP = ("unshare", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
HASTY = StopTimeouts(
    closing_messages=0.2, closing=0.3, terminating=0.4, killing=5.0, drain_seconds=0.3
)
# Starts somebody who leaves its session, says who it is itself, and stays.
LEAVING = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"], start_new_session=True)
print(os.getpid(), os.getuid(), flush=True)
time.sleep(600)
"""


def can_be_had() -> bool:
    """Tell whether this system gives a user namespaces."""
    return subprocess.run([*WRAP, "true"], capture_output=True, check=False).returncode == 0


def marked(mark: str) -> set[int]:
    """Return who lives of those who were started with a mark."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return {pid for pid in numbers if has_mark(pid, mark) and find_process(pid) is not None}


async def until(mark: str, count: int) -> None:
    """Wait until so many live."""
    for _ in range(3000):
        if len(marked(mark)) == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(marked(mark))


async def until_said(lines: list[bytes]) -> None:
    """Wait until something was said."""
    for _ in range(3000):
        if lines:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was said")


def parent_of(pid: int) -> int:
    """Return who has started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("how", ["ended", "keeper killed"])
async def test_in_a_namespace_nobody_survives_even_if_the_keeper_is_killed(
    tmp_path: Path, how: str
) -> None:
    mark = f"namespace-{tmp_path.name}"
    said: list[bytes] = []
    start = AgentStart(
        argv=(sys.executable, "-I", "-S", "-c", LEAVING),
        folder=str(tmp_path),
        environment={"PATH": os.environ["PATH"], "HOLDFAST_SESSION_ID": mark},
        wrap=WRAP,
    )
    program = await AgentProcess.spawn(start, timeouts=HASTY, on_line=said.append)
    # Where there are none the program does not run: it is refused, and never run without.
    is_there = await asyncio.to_thread(can_be_had)
    if is_there:
        await until(mark, 3)
        await until_said(said)
    if is_there and how == "keeper killed":
        os.kill(parent_of(program.birth.pid), signal.SIGKILL)
        await until(mark, 0)
    await program.end()

    told = [b"1", str(os.getuid()).encode()]
    assert [line.split() for line in said] == ([told] if is_there else [])
    assert marked(mark) == set()
