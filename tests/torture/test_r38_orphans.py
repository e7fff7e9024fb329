"""R38: when Holdfast is killed, nobody it started is there two seconds later."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.marks import proves, skip_row
from tests.tools.process_fixture import known_means, marked
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew, wait_until

pytestmark = pytest.mark.slow

AT_ONCE = 5
GONE_WITHIN = 2.0


@proves("R38")
@pytest.mark.parametrize("how", ["launcher", "open", "agent"])
def test_nobody_outlives_a_killed_holdfast(
    tmp_path: Path, crew: Crew, sized: Sized, tell: Tell, how: str
) -> None:
    if how == "launcher" and known_means().namespaces == "none":
        skip_row("R38", "user namespaces")
    wanted = sized(quick=2, test=5, torture=50, release=100)
    orphans, slowest = 0, 0.0
    for start in range(0, wanted, AT_ONCE):
        mark = f"orphan-{how}-{os.getpid()}-{start}"
        slowest = max(slowest, killed(crew, tmp_path, mark, how, within=sized.within(GONE_WITHIN)))
        orphans += len(marked(mark))

    tell(f"{how}: {wanted} kills, ORPHAN {orphans} after 2 s, the last gone after {slowest:.2f} s")
    assert orphans == 0


@proves("R38")
def test_control_a_plain_program_leaves_orphans(tmp_path: Path, crew: Crew, tell: Tell) -> None:
    mark = f"orphan-plain-{os.getpid()}"

    killed(crew, tmp_path, mark, "plain", within=GONE_WITHIN)
    orphans = marked(mark)
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)

    tell(f"control: {len(orphans)} orphans after 2 s")
    assert len(orphans) >= AT_ONCE


def killed(crew: Crew, folder: Path, mark: str, how: str, *, within: float) -> float:
    """Start a few, kill all, wait for a while, and return how long anybody lived."""
    holders = [
        crew.start("launching", folder=folder, mark=f"{mark}-{number}", how=how)
        for number in range(AT_ONCE)
    ]
    numbers = {holder.pid for holder in holders}
    # Whoever starts has the mark among its options; command and daemon have it, too.
    wait_until(lambda: len(set(marked(mark)) - numbers) >= 2 * AT_ONCE)
    for holder in holders:
        holder.kill()
    began = time.monotonic()
    for holder in holders:
        holder.wait()
    while marked(mark) and time.monotonic() - began < within:
        time.sleep(0.02)
    return time.monotonic() - began
