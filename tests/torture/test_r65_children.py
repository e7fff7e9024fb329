"""R65: a session that starts agents is killed around every commit of its tree, and goes on.

Each call has one child whatever happens, the tree is as if it had not been killed, and it is
settled within seconds of the restart.
"""

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.config import Config
from holdfast.domain.queries import SessionQuery
from tests.marks import proves
from tests.torture.clients.families import SETTLED_WITHIN, FamilyLife, lived
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import ROOT
from tests.torture.grounds import points_of

pytestmark = pytest.mark.slow

# Of each session: by which calls it was opened, and what was said in it.
Tree = list[tuple[tuple[str, ...], list[tuple[str, str]]]]


def killed(lives: list[FamilyLife]) -> int:
    """Let lives end at their points, each in a process of its own; return how many did."""
    given = json.dumps([{k: v for k, v in asdict(life).items() if k != "marks"} for life in lives])
    run = subprocess.run(
        [sys.executable, "-m", "tests.torture.clients.families", given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return list(map(int, run.stdout.split())).count(-signal.SIGKILL)


async def tree_of(folder: str) -> Tree:
    """Return all sessions of a home."""
    config = Config(home=Path(folder) / "home")
    async with open_holdfast(config=config, scope=RunScope.NONE) as hf:
        found = (await hf.sessions.list(SessionQuery(owner=hf.owner))).items
        known = {each.id: each for each in found}
        tree: Tree = []
        for session in found:
            path: tuple[str, ...] = ()
            above = session.parent
            while above is not None:
                path = (str(above.call_id), *path)
                above = known[above.session_id].parent
            rows = await hf.read(session.id)
            tree.append((path, [(row.role.value, row.text) for row in rows if row.text]))
            assert (await hf.sessions.verify(hf.owner, session.id)).faults == ()
            assert session.settled == session.turn
    return sorted(tree)


@proves("R65")
def test_each_call_has_one_child_wherever_its_process_is_killed(
    tmp_path: Path, sized: Sized, tell: Tell
) -> None:
    whole = FamilyLife(folder=str(tmp_path / "whole"))
    (tmp_path / "whole").mkdir()
    asyncio.run(lived(whole))
    expected = asyncio.run(tree_of(whole.folder))
    points = list(points_of(whole.marks))[:: sized(quick=12, test=4, torture=1)]
    lives = [FamilyLife(folder=str(tmp_path / str(at)), point=at) for at in points]
    for life in lives:
        Path(life.folder).mkdir()
    # Two sessions of a tree may write in another order, so the last points may not be reached.
    assert killed(lives) >= 0.8 * len(lives)

    longest = 0.0
    for life in lives:
        took = asyncio.run(lived(FamilyLife(folder=life.folder)))
        assert asyncio.run(tree_of(life.folder)) == expected, life.point
        assert took <= SETTLED_WITHIN, life.point
        longest = max(longest, took)
    tell(f"{len(lives)} kills, each call with one child; settled {longest:.1f} s after a restart")
    assert len(expected) == 5


def test_control_a_call_that_opens_another_child_after_a_kill_is_seen(tmp_path: Path) -> None:
    whole = FamilyLife(folder=str(tmp_path / "whole"))
    (tmp_path / "whole").mkdir()
    asyncio.run(lived(whole))
    expected = asyncio.run(tree_of(whole.folder))
    points = list(points_of(whole.marks))
    folders = []
    for at in (len(points) // 3, len(points) // 2):
        folder = tmp_path / str(at)
        folder.mkdir()
        folders.append(str(folder))
        killed([FamilyLife(folder=str(folder), point=points[at], forgets=True)])
        killed([FamilyLife(folder=str(folder), forgets=True)])

    assert any(asyncio.run(tree_of(folder)) != expected for folder in folders)
