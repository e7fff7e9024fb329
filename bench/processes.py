"""Starting up: the import, the command, and a store that was killed."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Figure, at_most, below, measures, middle

TIMES = 15
SESSIONS = 1_000
MESSAGES = 100

VICTIM = """
import asyncio, os, signal, sys
from bench.processes import fill
asyncio.run(fill(sys.argv[1]))
"""

READY = """
import asyncio, sys, time
from bench.processes import ready
print(asyncio.run(ready(sys.argv[1])))
"""


@measures("import_ms", "cli_start_ms")
def starting(folder: Path) -> dict[str, Figure]:
    """Whole processes, in turn with a bare interpreter."""
    python = [sys.executable]
    command = str(Path(sys.executable).parent / "holdfast")
    bare, imported, started = [], [], []
    for _ in range(TIMES):
        bare.append(_ms([*python, "-c", "pass"]))
        imported.append(_ms([*python, "-c", "from holdfast import open_holdfast"]))
        started.append(_ms([command, "--version"]))
    yardstick = middle(bare)
    over = middle(imported) - yardstick
    return {
        "import_ms": Figure(
            value=middle(imported),
            unit="ms",
            yardstick=yardstick,
            ratio=middle(imported) / yardstick,
            goal="≤ 150 ms over",
            met=over <= 150,
            note=f"{over:.0f} ms over a bare interpreter, everything loaded",
        ),
        "cli_start_ms": at_most(middle(started), "ms", yardstick, 3),
    }


@measures("recover")
def recover(folder: Path) -> dict[str, Figure]:
    """Kill a process that has turns open, then time a fresh one until every turn is taken up."""
    home = folder / "home"
    victim = subprocess.run([sys.executable, "-c", VICTIM, str(home)], check=False)
    if victim.returncode != -signal.SIGKILL:
        raise AssertionError(f"the victim ended with {victim.returncode}")
    done = subprocess.run(
        [sys.executable, "-c", READY, str(home)], check=True, capture_output=True, text=True
    )
    return {"recover": below(float(done.stdout) * 1000, "ms", 3_000)}


async def fill(home: str) -> None:
    """Fill a store, begin a turn in some sessions, and die."""
    import os

    from holdfast import RunScope, SessionRequest, open_holdfast

    script = Path(home).parent / "slow.yaml"
    script.write_text("- text: never\n  delay_ms: 600000\n  repeat: 100\n")
    async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
        sessions = [await holdfast.open() for _ in range(SESSIONS - 50)]
        for _ in range(MESSAGES):
            await asyncio.gather(*(holdfast.send(session.id, "x" * 200) for session in sessions))
        for session in sessions:
            await holdfast.sessions.close(holdfast.owner, session.id)
    async with open_holdfast(home, scope=RunScope.OWN) as holdfast:
        for _ in range(50):
            slow = await holdfast.open(request=SessionRequest(model=f"scripted:{script}"))
            await holdfast.send(slow.id, "begin")
        await asyncio.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)


async def ready(home: str) -> float:
    """Return the seconds until the store is open and every turn that was cut off runs again."""
    from holdfast import Status, open_holdfast
    from holdfast.domain.queries import SessionQuery

    started = time.perf_counter()
    async with open_holdfast(home) as holdfast:
        query = SessionQuery(owner=holdfast.owner, statuses=(Status.RUNNING,))
        while True:
            page = await holdfast.sessions.list(query)
            if len(page.items) == 50 and all(s.status is Status.RUNNING for s in page.items):
                return time.perf_counter() - started
            await asyncio.sleep(0.005)


def _ms(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return (time.perf_counter() - started) * 1000
