"""S18: a process swaps links and directories all the time while every tool opens files."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import pytest

from holdfast.domain.tools import FsTier
from holdfast.ports.tools import CallOutcome
from holdfast.tools.files.openat import KernelSupport, probe_kernel, walk_beneath
from tests.marks import proves
from tests.tools.file_fixture import CANARY
from tests.torture.arenas import CALLS, Arena, quick_folder, run_without_threads
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew, wait_until

pytestmark = pytest.mark.slow

FILES = ("flip/file.txt", "leaf.txt", "deep/flip/file.txt", "walk/inner/../file.txt")
FILES += ("flip/../flip/file.txt", "deep/../deep/flip/sub/../file.txt")
FOLDERS = ("flip", "deep/flip", "walk/inner/..", "deep", "flip/sub", "flip/../flip")
# How often a call opens what it aims at: when it is planned, planned again, looked at and done.
OPENS = {"read_file": 2, "list_directory": 2, "find_text": 2, "write_file": 4, "edit_file": 4}


class Race(Arena):
    """An arena in which what is inside is swapped for what is outside."""

    def __init__(self, folder: Path, kernel: KernelSupport | None = None) -> None:
        super().__init__(folder, tier=FsTier.SANDBOXED, kernel=kernel)
        self.elsewhere = folder / "elsewhere"
        for path in ("flip/sub", "deep/flip/sub", "walk/inner"):
            (self.inside / path).mkdir(parents=True)
        for path in ("flip/file.txt", "deep/flip/file.txt", "walk/file.txt", "leaf.txt"):
            (self.inside / path).write_text("inside, in place\n")
        self.elsewhere.mkdir()
        (self.elsewhere / "file.txt").write_text(CANARY)
        (self.elsewhere / f"sentinel-{CANARY}").touch()

    def is_intact(self) -> bool:
        """Tell whether nothing outside was changed or made."""
        names = set(os.listdir(self.elsewhere)) - {"inner"}
        return (
            self.state() == self._before
            and names == {"file.txt", f"sentinel-{CANARY}"}
            and (self.elsewhere / "file.txt").read_text() == CANARY
        )


@contextmanager
def racing(
    folder: Path, crew: Crew, kernel: KernelSupport | None = None
) -> Iterator[tuple[Race, Callable[[], None]]]:
    """Let a process swap and move until the end, or until it is told to hold still."""
    with quick_folder(folder) as quick:
        race = Race(quick, kernel)
        ready = quick / "ready"
        given = {"inside": race.inside, "outside": race.outside, "elsewhere": race.elsewhere}
        attacker = crew.start("flips", **given, ready=ready)
        wait_until(ready.exists)
        yield race, lambda: crew.freeze(attacker)
        assert attacker.poll() is None, crew.log_of(attacker)
        attacker.kill()
        attacker.wait()


@proves("S18")
@pytest.mark.parametrize("way", ["kernel", "name by name"])
def test_nothing_that_is_swapped_under_an_open_leads_out(
    tmp_path: Path, crew: Crew, sized: Sized, tell: Tell, way: str
) -> None:
    opens = sized(quick=500, test=10_000, torture=100_000, release=1_000_000)
    kernel = probe_kernel()
    if way != "kernel":
        # The same promise without the kernel's help, at a fifth of the effort.
        opens, kernel = opens // 5, kernel._replace(open_folder=walk_beneath)

    with racing(tmp_path, crew, kernel) as (race, hold_still):
        escapes, outcomes = run_without_threads(opened(race, opens))
        # Nobody can look through a folder in which somebody moves things about.
        hold_still()
        intact, left = race.is_intact(), list(race.inside.parent.rglob(".hf-*"))

    ok = {tool: outcomes[tool, "ok"] for tool in CALLS}
    refused = sum(count for (_, word), count in outcomes.items() if word == "outside_scope")
    tell(f"{way}: {opens} opens × {len(CALLS)} tools, {len(escapes)} escapes, {refused} refused")
    assert escapes == []
    assert intact
    assert left == []
    # Both sides of the swap were met, or nothing was raced.
    assert min(ok.values()) > 0
    assert refused > 0


@proves("S18")
def test_the_race_finds_a_tool_that_looks_before_it_opens(tmp_path: Path, crew: Crew) -> None:
    with racing(tmp_path, crew) as (race, _):
        inside = os.path.realpath(race.inside)
        until = time.monotonic() + PATIENCE
        escaped = False
        while not escaped and time.monotonic() < until:
            for name in FILES:
                escaped |= CANARY in looked_at_and_opened(inside, f"{inside}/{name}")

    assert escaped


async def opened(race: Race, opens: int) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Return the calls that showed something, and how often calls came out which way."""
    escapes, outcomes = [], Counter[tuple[str, str]]()
    for tool in CALLS:
        paths = FOLDERS if tool == "list_directory" else FILES
        paths = FILES + FOLDERS if tool == "find_text" else paths
        share = opens // OPENS[tool]
        for count, path in enumerate(islice(cycle(paths), 20 * share)):
            # A few tries may all meet the same side of the swap.
            if count >= share and outcomes[tool, "ok"]:
                break
            done = await race.call(tool, path=path, **arguments(tool))
            outcomes[tool, word(done)] += 1
            shown = json.dumps(done.result)
            if CANARY in shown or "sentinel" in shown:
                escapes.append(f"{tool} {path}: {shown[:200]}")
    return escapes, outcomes


def arguments(tool: str) -> dict[str, object]:
    """Return what a tool is given besides a path; an edit changes nothing, to be tried again."""
    return {"old": "in place", "new": "in place"} if tool == "edit_file" else CALLS[tool]


def word(done: CallOutcome) -> str:
    """Return one word for how a call came out."""
    return "ok" if done.error is None else str(done.error.code)


def looked_at_and_opened(inside: str, path: str) -> str:
    """Read as a program does that compares paths first."""
    try:
        return Path(path).read_text() if os.path.realpath(path).startswith(inside) else ""
    except OSError:
        return ""
