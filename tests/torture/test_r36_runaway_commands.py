"""R36: a command that runs away is cut short, ended at its time, and leaves nobody behind."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.process.launcher import CommandResult, Launcher
from holdfast.process.sandbox import Bounds, Confinement
from tests.marks import proves, skip_row
from tests.tools.process_fixture import known_means, marked, python
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE

pytestmark = pytest.mark.slow

# Enough for a program to become deaf, however slowly it starts; and for one that should end.
TIME_LIMIT, PLENTY = 5.0, 120.0
# What this one does has to be removed again.
SHORT = 1.5
KEPT = 4 << 20
MEMORY = 64 << 20

FLOOD = "import os\nblock = b'x' * 65536\nfor _ in range({blocks}): os.write({stream}, block)"
RUNAWAYS = {
    "flood": FLOOD.format(blocks="{blocks}", stream=1),
    "flood of complaints": FLOOD.format(blocks="{blocks}", stream=2),
    "fork bomb": (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n"
        "    try: os.fork()\n"
        "    except OSError: pass"
    ),
    "deaf": (
        "import signal, time\n"
        "for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "while True: time.sleep(60)"
    ),
    "waits for input": "import sys; print(repr(sys.stdin.read()), flush=True); input()",
    "daemon": (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        for stream in range(3): os.close(stream)\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "time.sleep(0.2)"
    ),
    "many files": (
        "import os\n"
        "number = 0\n"
        "while True:\n"
        "    os.close(os.open(f'file-{{number}}', os.O_CREAT)); number += 1"
    ),
    "endless file": "import os; os.truncate(os.open('large', os.O_CREAT | os.O_RDWR), 5 << 30)",
}
# What each comes to: its code, and whether its time was over.
ENDS = {
    "flood": (0, False),
    "flood of complaints": (0, False),
    "fork bomb": (128 + signal.SIGKILL, True),
    "deaf": (128 + signal.SIGKILL, True),
    "waits for input": (1, False),
    "daemon": (0, False),
    "many files": (128 + signal.SIGTERM, True),
    "endless file": (1, False),
}


@proves("R36")
@pytest.mark.parametrize("kind", RUNAWAYS)
def test_a_runaway_is_caught(tmp_path: Path, sized: Sized, tell: Tell, kind: str) -> None:
    if known_means().namespaces == "none":
        skip_row("R36", "user namespaces")
    blocks = sized(test=4_000, torture=16_000, release=160_000)
    for turn in range(sized(test=1, torture=5, release=20)):
        mark = f"runaway-{os.getpid()}-{turn}-{kind}"
        before = peak()
        finished = run(kind, RUNAWAYS[kind].format(blocks=blocks), mark, tmp_path)
        grown = peak() - before
        survivors = marked(mark)

        tell(
            f"{kind}: code {finished.exit_code} after {finished.duration_ms} ms, "
            f"{finished.output.dropped + finished.errors.dropped} bytes left out, "
            f"{grown >> 20} MiB more, {len(survivors)} survivors"
        )
        assert survivors == []
        assert (finished.exit_code, finished.timed_out) == ENDS[kind], finished.stderr[-500:]
        assert finished.duration_ms < sized.within(60_000 if "flood" in kind else 12_000)
        assert grown < MEMORY
        if "flood" in kind:
            total = finished.output.dropped + finished.errors.dropped
            assert total == blocks * 65_536 - KEPT
            assert f"[… {total} bytes left out …]" in finished.stdout + finished.stderr
        if kind == "endless file":
            assert "File too large" in finished.stderr
        if kind == "waits for input":
            assert finished.stdout == "''\n"


@proves("R36")
def test_control_a_plain_program_leaves_a_daemon(tmp_path: Path, tell: Tell) -> None:
    mark = f"runaway-{os.getpid()}-control"
    source = f"mark = {mark!r}\n{RUNAWAYS['daemon']}"
    plain = subprocess.Popen([sys.executable, "-c", source], cwd=tmp_path, start_new_session=True)
    plain.wait(timeout=PATIENCE)
    survivors = marked(mark)
    for pid in survivors:
        os.kill(pid, signal.SIGKILL)

    tell(f"control: {len(survivors)} survivors")
    assert len(survivors) == 1


def run(kind: str, source: str, mark: str, folder: Path) -> CommandResult:
    """Run a piece of Python that carries a mark, in few processes and little time."""
    confinement = Confinement(
        readable=(sys.prefix, sys.base_prefix),
        writable=(str(folder),),
        bounds=Bounds(processes=400),
    )
    order = python(f"mark = {mark!r}\n{source}", folder, confinement=confinement)
    is_cut_off = ENDS[kind][1]
    limit = (SHORT if kind == "many files" else TIME_LIMIT) if is_cut_off else PLENTY
    return asyncio.run(Launcher(known_means()).run(order, time_limit=limit))


def peak() -> int:
    """Return the most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
