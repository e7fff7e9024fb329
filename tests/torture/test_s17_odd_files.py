"""S17: links, pipes, devices, mounts and odd names, brought to every file tool."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import FsTier
from holdfast.ports.tools import CallOutcome
from tests.marks import proves, skip_row
from tests.tools.file_fixture import CANARY
from tests.torture.arenas import CALLS, Arena, quick_folder
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import ROOT
from tests.torture.oddities import oddities

pytestmark = pytest.mark.slow

SLOWEST = 1.0
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


@proves("S17")
@pytest.mark.parametrize("tier", list(FsTier))
def test_odd_files_are_refused_or_inside_and_nothing_waits_for_them(
    tmp_path: Path, sized: Sized, tell: Tell, tier: FsTier
) -> None:
    with quick_folder(tmp_path) as folder:
        arena = Arena(folder, tier=tier)
        paths = list(oddities(arena.inside, arena.forbidden[-1]))
        escapes, outcomes = asyncio.run(tried(arena, paths, sized.within(SLOWEST)))
        (arena.inside / "closed").chmod(0o700)

    tell(f"{tier}: {outcomes.total()} calls at {len(paths)} odd files, {len(escapes)} escapes")
    assert escapes == []
    assert outcomes.total() >= 300
    assert min(outcomes[status] for status in ("ok", "denied", "error")) > 0


@proves("S17")
def test_what_is_mounted_inside_is_no_way_to_the_kernel_or_to_us(
    tmp_path: Path, tell: Tell
) -> None:
    if missing_means():
        skip_row("S17", missing_means())
    told = []
    for tier in FsTier:
        given = json.dumps({"folder": str(tmp_path / tier), "tier": tier})
        (tmp_path / tier).mkdir()
        done = subprocess.run(
            [*NAMESPACE, sys.executable, "-m", "tests.torture.clients", "mounts", given],
            cwd=ROOT,
            # What a process was started with is what its file in /proc shows.
            env=os.environ | {"SECRET": CANARY},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        told.append(json.loads(done.stdout))

    tell(f"{sum(each['tried'] for each in told)} calls at mounts, 0 escapes")
    assert [each["escapes"] for each in told] == [[], [], []]
    allowed = {path for each in told for path in map(str.split, each["allowed"]) for path in path}
    assert {"memory/a.txt", "memory"} <= allowed
    assert not {path for path in allowed if path.startswith(("kernel", "ours"))}


@proves("S17")
def test_the_odd_files_find_a_tool_that_follows_links(tmp_path: Path) -> None:
    arena = Arena(tmp_path, tier=FsTier.SANDBOXED)

    found = []
    for path in oddities(arena.inside, arena.outside):
        file = arena.inside / path
        if len(path) < 200 and os.access(file, os.R_OK) and file.is_file():
            with file.open("rb") as content:
                shown = content.read(100).decode("utf-8", "replace")
            found.append(arena.escaped(CallOutcome(status=ResultStatus.OK, result=shown)))
    (arena.inside / "closed").chmod(0o700)

    assert sum(found) >= 10


async def tried(arena: Arena, paths: list[str], slowest: float) -> tuple[list[str], Counter[str]]:
    """Return the calls that escaped or took too long, and how often calls came out which way."""
    escapes, outcomes = [], Counter[str]()
    for path in paths:
        for tool in CALLS:
            try:
                async with asyncio.timeout(slowest):
                    done = await arena.attempt(tool, path)
            except TimeoutError:
                escapes.append(f"{tool} {path[:60]!r} took longer than {slowest} s")
                continue
            outcomes[done.status if done else "not run"] += 1
            if done and arena.escaped(done):
                escapes.append(f"{tool} {path[:60]!r}")
    return escapes, outcomes


def missing_means() -> str:
    """Return what this machine lacks for a mount namespace; empty when it has everything."""
    if shutil.which("unshare") is None:
        return "unshare"
    tested = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False)
    return "" if tested.returncode == 0 else "user namespaces"
