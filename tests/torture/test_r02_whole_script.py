"""R02, a whole story: two turns, two rounds of tools, a second model, a compaction, and a kill.

Killed in any phase and told again, it comes to the same record and the same workflow. Where an act
was in flight that cannot be repeated, its outcome and the end of its turn are all that differs.
"""

import asyncio
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.domain.agents import LlmRuntime, ModelChoice
from holdfast.domain.calls import CallState
from holdfast.domain.costs import CostSum
from holdfast.domain.ids import SessionId
from holdfast.domain.models import ModelRequest, Prices
from holdfast.parsing.yaml import read_yaml
from holdfast.workflows.session_export import ExportFormat
from tests.houses import raw
from tests.marks import proves
from tests.tooled import ledger
from tests.torture.clients.rounds import CALL, ELSEWHERE, SESSION, STEPS, Life, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.grounds import CUT_OFF, Ground, acts_in_flight, laid_out, points_of, struck
from tests.torture.notebooks import read_books

pytestmark = pytest.mark.slow

# By what was said and not by their number: a request may have to be made again.
FIRST = {
    "steps": STEPS,
    "match": [
        {"contains": "The conversation, as data", "step": {"text": "They looked and wrote."}},
        {"contains": ELSEWHERE, "step": {"error": "unavailable"}},
    ],
}
SECOND = {"match": [{"contains": ELSEWHERE, "step": {"text": "Another one answers."}}]}
PRICES = Prices(input=3_000_000, output=5_000_000)
# Where the result of the unsafe call stands, and the answer that came of it.
DOUBTFUL = [5, 6]
PASSING = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|20\d\d-\d\d-\d\dT[\d:.]+Z")


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Have a home whose agent asks a second model when the first one fails."""
    made = laid_out(tmp_path / "template")
    asyncio.run(staffed(made))
    return made


async def staffed(place: Ground) -> None:
    """Make the agent, and its models with what they cost."""
    async with open_holdfast(config=settings(place.home), scope=RunScope.NONE) as house:
        chain = []
        for number, steps in enumerate((FIRST, SECOND)):
            file = place.folder / f"model-{number}.json"
            file.write_text(json.dumps(steps))
            wish = ModelRequest(provider="scripted", name=str(file), prices=PRICES)
            model = await house.models.add(wish)
            chain.append(ModelChoice(model_id=model.id, max_attempts=1))
        tools = [{"name": name, "description": name} for name in ("read_file", "write_file")]
        runtime = LlmRuntime(models=tuple(chain))
        fields = {"name": "Worker", "tools": tools, "grant": None, "runtime": runtime}
        await house.agents.create(house.owner, fields)


def told(place: Ground, **more: Any) -> Life:
    """Return the life that tells the whole story there."""
    return place.life(agent="worker", is_whole=True, **more)


def tell_again(place: Ground) -> list[str]:
    """Tell the whole story to its end; return the points it went through."""
    return place.live(agent="worker", is_whole=True).marks


async def workflow(place: Ground) -> Any:
    """Return the workflow of the session without ids and times."""
    async with open_holdfast(config=settings(place.home), scope=RunScope.NONE) as house:
        session = SessionId(SESSION)
        file = await house.exports.export(house.owner, session, ExportFormat.WORKFLOW)
    return read_yaml(PASSING.sub("", file.content.decode()))["workflow"]


async def is_summed_up(place: Ground) -> bool:
    """Tell whether what the session says it cost is what its requests cost."""
    async with open_holdfast(config=settings(place.home), scope=RunScope.NONE) as house:
        seen = await house.session_views.get(house.owner, SessionId(SESSION))
        entries = await ledger(house, seen.session)
    total = sum(entries, start=CostSum(key=SESSION))
    own = (seen.session.usage, seen.session.microcents)
    return seen.spent == total and own == (total.usage, total.microcents)


def unlike(rows: list[Any], others: list[Any]) -> list[int]:
    """Return which rows are not the same."""
    pairs = zip(rows, others, strict=True)
    return [number for number, (row, other) in enumerate(pairs) if row != other]


def faults(place: Ground, whole: Ground, *, is_cut_off: bool = False) -> list[str]:
    """Return what is wrong with a story that was killed and told again."""
    (book,) = read_books(place.home).notebooks.values()
    expected = DOUBTFUL if is_cut_off else []
    flow, other = asyncio.run(workflow(place)), asyncio.run(workflow(whole))
    said, meant = (each["metadata"]["relaviumExport"].pop("messages") for each in (flow, other))
    judged = {
        "record": unlike(place.transcript(), whole.transcript()) == expected,
        "workflow": unlike(said, meant) == expected and (is_cut_off or flow == other),
        "numbers": [news.sequence for news in book.news] == list(range(1, book.events + 1)),
        "totals": asyncio.run(is_summed_up(place)),
        "acts": len(place.lines) == 1 or (is_cut_off and not place.lines),
    }
    return [name for name, is_right in judged.items() if not is_right]


@proves("R02")
def test_a_story_killed_in_any_phase_is_told_to_the_same_end(
    ground: Ground, sized: Sized, luck: random.Random, tell: Tell
) -> None:
    whole = ground.copy("whole")
    marks = tell_again(whole)
    every = list(points_of(marks))
    # One of each sort at least: where nothing was in flight, and where something was.
    some = [CUT_OFF, *luck.sample([point for point in every if point != CUT_OFF], 8)]
    points = sized(test=0, torture=3, release=10) * every or some
    grounds = [ground.copy(number) for number in range(len(points))]
    struck(*(told(place, point=point) for place, point in zip(grounds, points, strict=True)))

    in_flight = {}
    for place, point in zip(grounds, points, strict=True):
        is_cut_off = place.calls.get(CALL) is CallState.STARTED
        if is_cut_off:
            in_flight[point] = len(place.lines)
        tell_again(place)
        assert faults(place, whole, is_cut_off=is_cut_off) == [], point
        if is_cut_off:
            assert_only_the_act_is_unknown(place, whole)
        place.assert_sound()

    tell(f"{len(points)} kills at {len(set(points))} points, {len(in_flight)} of them in an act")
    known = acts_in_flight(marks)
    assert in_flight == {point: known[point] for point in known if point in points}


def assert_only_the_act_is_unknown(place: Ground, whole: Ground) -> None:
    """Hold what stands in place of the result and the answer, and that its turn makes no node."""
    (_, _, (result,)), (_, _, (notice,)) = (place.transcript()[number] for number in DOUBTFUL)
    assert (result["call_id"], result["status"]) == (CALL, "unknown")
    assert (notice["type"], notice["code"]) == ("notice", "interrupted")
    begin, _, second, end = asyncio.run(workflow(whole))["nodes"]
    assert asyncio.run(workflow(place))["nodes"] == [begin, {**second, "id": "turn-1"}, end]


@proves("R02")
def test_the_story_finds_an_act_that_was_repeated(ground: Ground) -> None:
    whole, place = ground.copy("whole"), ground.copy("forgetful")
    tell_again(whole)
    struck(replace(told(place, point=CUT_OFF), lying="start"))

    tell_again(place)

    # Whoever writes a second time does not create the file, and says so.
    assert faults(place, whole) == ["record", "workflow", "acts"]


@proves("R02")
@pytest.mark.parametrize(
    ("fault", "damage"),
    [
        ("totals", "DELETE FROM costs WHERE turn = 2"),
        ("numbers", "DELETE FROM events WHERE name = 'turn.started'"),
    ],
)
def test_the_story_finds_a_store_that_miscounts(ground: Ground, fault: str, damage: str) -> None:
    place = ground.copy("damaged")
    tell_again(place)
    assert faults(place, place) == []

    with raw(place.home) as connection:
        connection.execute(damage)

    assert faults(place, place) == [fault]
