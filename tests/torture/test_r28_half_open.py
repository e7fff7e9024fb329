"""R28: peers whose packets are lost are forgotten: the connection, its file and its task."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.marks import proves, skip_row
from tests.torture.attempts import read_lines
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew

pytestmark = pytest.mark.slow

NAMESPACE = ("unshare", "--user", "--map-root-user", "--net")
# At the level `test` the server is told to look ten times as often, and has a tenth of the time.
GONE_MOST = 30.0
SOON_MOST = 3.0


@proves("R28")
def test_a_peer_that_is_cut_off_is_forgotten(
    tmp_path: Path, crew: Crew, sized: Sized, level: str, tell: Tell
) -> None:
    require_means()
    peers = sized(quick=2, test=5, torture=50, release=500)
    fault, most = ("watchful", SOON_MOST) if level == "test" else ("", GONE_MOST)

    told = vanish(tmp_path, crew, peers=peers, limit=sized.within(most), fault=fault)

    tell(f"{peers} half-open peers forgotten in {told['took'] or 0:.1f} s")
    assert (told["opened"], told["left"], told["streams"]) == (peers, 0, 0)
    assert told["took"] is not None


@proves("R28")
def test_a_server_that_waits_for_the_kernel_is_found(tmp_path: Path, crew: Crew) -> None:
    require_means()

    told = vanish(tmp_path, crew, peers=2, limit=2 * SOON_MOST, fault="oblivious")

    assert (told["took"], told["left"]) == (None, 2)


def require_means() -> None:
    """Leave the row unproven where no namespace can be had."""
    for program in ("unshare", "ip"):
        if shutil.which(program) is None:
            skip_row("R28", program)
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0:
        skip_row("R28", "user namespaces")


def vanish(folder: Path, crew: Crew, **options: Any) -> dict[str, Any]:
    """Run the readers in a network of their own and return what became of them."""
    inside = folder / "inside"
    inside.mkdir()
    given = {"home": str(folder / "home"), "record": str(inside / "gone.jsonl"), **options}
    program = [sys.executable, "-m", "tests.torture.clients", "vanishing", json.dumps(given)]
    process = crew.launch("vanishing", [*NAMESPACE, *program], os.environ)
    assert process.wait(timeout=PATIENCE) == 0, crew.log_of(process)
    (told,) = read_lines([inside / "gone.jsonl"])
    return told
