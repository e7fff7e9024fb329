"""R60: a program that asks with a key is killed around every commit of its question, and reruns."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.domain.costs import CostQuery
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Role
from tests.marks import proves
from tests.torture.clients.house import settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.strict import refused_projections

pytestmark = pytest.mark.slow

# More commits than a question has; a run that is not killed ends the loop.
COMMITS_MOST = 60


@proves("R60")
def test_a_question_with_a_key_has_one_answer_wherever_its_program_is_killed(
    tmp_path: Path, crew: Crew, sized: Sized, tell: Tell
) -> None:
    plain = answered(crew, tmp_path / "plain")
    kills = 0
    # The quick run takes the one or the other side of every third commit.
    step = sized(quick=3, test=1, torture=1)
    for when, first in (("before", 1), ("after", 2)):
        for nth, home in struck(crew, tmp_path, when, first, step):
            kills += 1
            answer = answered(crew, home)
            assert answered(crew, home) == answer, (when, nth)
            assert meaning(answer) == meaning(plain), (when, nth)
            assert asyncio.run(spent(home, answer["session_id"])) == (1, 1, 1), (when, nth)
            assert asyncio.run(refused_projections(home)) == []

    tell(f"{kills} kills, each question stored once, answered once and paid once")
    assert kills >= 4


def struck(
    crew: Crew, folder: Path, when: str, first: int, step: int
) -> Iterator[tuple[int, Path]]:
    """Yield a home for each commit at which the program was killed."""
    for nth in range(first, COMMITS_MOST, step):
        home = folder / f"{when}-{nth}" / "home"
        home.parent.mkdir()
        out = home.parent / "killed.json"
        process = crew.start("asking", home=home, out=out, verb="ask", nth=nth, when=when)
        status = process.wait(timeout=PATIENCE)
        if status == 0:
            return
        assert status == -signal.SIGKILL, crew.log_of(process)
        assert not out.exists()
        yield nth, home


def answered(crew: Crew, home: Path) -> dict[str, Any]:
    """Run the program to its end and return its answer."""
    home.parent.mkdir(exist_ok=True)
    out = home.parent / "answer.json"
    process = crew.start("asking", home=home, out=out, verb="ask")
    assert process.wait(timeout=PATIENCE) == 0, crew.log_of(process)
    found: dict[str, Any] = json.loads(out.read_bytes())
    return found


def meaning(answer: dict[str, Any]) -> Any:
    """Return an answer without what differs from home to home."""
    rows = [(row["role"], row["parts"], row["turn"]) for row in answer["messages"]]
    kept = ("text", "session_id", "turn", "stop_reason", "usage", "cost", "waiting")
    return [answer[key] for key in kept], rows, answer["messages"][0]["id"]


async def spent(home: Path, session_id: str) -> tuple[int, int, int]:
    """Return how many questions, answers and paid requests the home has."""
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as hf:
        rows = [row.role for row in await hf.read(SessionId(session_id))]
        report = await hf.costs.report(CostQuery(owner=hf.owner))
    return rows.count(Role.USER), rows.count(Role.ASSISTANT), report.total.requests
