"""R02, with tools: a process kills itself around every commit and every act of two tool rounds.

What was not in flight goes on by itself, to the same record. What was, and cannot be repeated, is
unknown to everybody, is put right by somebody, and has not run twice behind anybody's back.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.domain.approvals import ApprovalState, Decision
from holdfast.domain.calls import CallState
from holdfast.domain.ids import SessionId
from holdfast.services.calls import SettlementAction
from tests.marks import proves
from tests.torture.clients.rounds import CALL, SESSION, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.grounds import (
    CUT_OFF,
    Ground,
    Transcript,
    acts_in_flight,
    laid_out,
    number_of,
    points_of,
    struck,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Have a home with an agent and nothing else."""
    made = laid_out(tmp_path / "template")

    async def prepare() -> None:
        async with open_holdfast(config=settings(made.home), scope=RunScope.NONE) as house:
            await house.agents.get(house.owner, "holdfast")

    asyncio.run(prepare())
    return made


@proves("R02")
def test_a_turn_with_tools_goes_on_wherever_it_was_killed(
    ground: Ground, sized: Sized, tell: Tell
) -> None:
    whole = ground.copy("whole")
    marks = whole.live().marks
    points = [point for _ in range(sized(test=1, torture=5)) for point in points_of(marks)]
    grounds = [ground.copy(number) for number in range(len(points))]
    struck(*(each.life(point=point) for each, point in zip(grounds, points, strict=True)))

    in_flight = {}
    for place, point in zip(grounds, points, strict=True):
        assert len(place.lines) <= 1, point
        if place.calls.get(CALL) is CallState.STARTED:
            in_flight[point] = len(place.lines)
            continue
        place.live()
        assert place.transcript() == whole.transcript(), point
        assert place.lines == ["one line"], point
        place.assert_sound()
    # Each of them once for every way to put it right.
    doubts = [
        (point, how, ground.copy(f"{point} {how}"))
        for point in in_flight
        for how in SettlementAction
    ]
    struck(*(place.life(point=point) for point, _, place in doubts))
    for point, how, place in doubts:
        assert len(place.lines) == in_flight[point]
        assert_put_right(place, how, whole.transcript())

    kills = len(points) + len(doubts)
    alone = sum(point not in in_flight for point in points)
    tell(
        f"{kills} kills at {2 * len(marks)} points: {alone} turns went on by themselves to the "
        f"same record, {kills - alone} acts in flight are unknown, none ran again unasked"
    )
    assert in_flight == acts_in_flight(marks)


def assert_put_right(place: Ground, how: SettlementAction, whole: Transcript) -> None:
    """Hold that an act in flight is unknown, is listed, can be settled, and the session goes on."""
    ran = len(place.lines)
    place.live()
    cut_off = place.transcript()
    assert cut_off[:5] == whole[:5]
    assert [(row[2][0].get("status"), row[2][0].get("code")) for row in cut_off[5:]] == [
        ("unknown", None),
        (None, "interrupted"),
    ]
    assert asyncio.run(unknown(place)) == [CALL]

    place.live(settles=how)

    assert asyncio.run(unknown(place)) == []
    assert len(place.lines) == ran + (how is SettlementAction.RETRY)
    after = place.transcript()
    assert after[: len(cut_off)] == cut_off
    assert after[-1][2] == [{"type": "text", "text": "It is done."}]
    place.assert_sound()


async def unknown(place: Ground) -> list[str]:
    """Return the calls whose outcome nobody knows."""
    async with open_holdfast(config=settings(place.home), scope=RunScope.NONE) as house:
        return [
            call.id for call in (await house.calls.list(house.owner, state=CallState.UNKNOWN)).items
        ]


@proves("R02")
def test_a_retry_that_is_killed_anywhere_is_settled_once_and_never_runs_unseen(
    ground: Ground, tell: Tell
) -> None:
    whole = ground.copy("whole")
    struck(whole.life(point=CUT_OFF))
    whole.live()
    marks = whole.live(settles=SettlementAction.RETRY).marks
    points = list(points_of(marks))
    grounds = [ground.copy(number) for number in range(len(points))]
    struck(*(each.life(point=CUT_OFF) for each in grounds))
    for place in grounds:
        place.live()
    struck(
        *(
            each.life(point=point, settles=SettlementAction.RETRY)
            for each, point in zip(grounds, points, strict=True)
        )
    )

    again = 0
    for place, point in zip(grounds, points, strict=True):
        before = place.calls
        acts = 1 + sum(call != CALL and state != "intended" for call, state in before.items())
        assert len(place.lines) <= acts, point
        place.live(settles=SettlementAction.RETRY)
        retries = [call for call in place.calls if call.startswith("retry_")]
        # One retry was asked for, however often it was said.
        assert len(retries) == 1, point
        doubtful = place.calls[retries[0]] is CallState.SETTLED
        again += doubtful
        assert doubtful or place.transcript() == whole.transcript(), point
        assert len(place.lines) <= 2, point
        place.assert_sound()

    tell(f"{len(points)} kills around a retry, {again} of them cut it off in mid-act")
    assert again == 4


@proves("R02")
@pytest.mark.parametrize("when", ["before the restart", "after the restart", "twice"])
def test_a_question_outlives_whoever_asked_it(ground: Ground, when: str, tell: Tell) -> None:
    whole = ground.copy("whole")
    marks = whole.live(mode="ask", allows=True).marks
    around = [number_of(marks, "commit", name, 1) for name in ("question", "answer")]
    points = [("commit", number, side) for number in around for side in ("before", "after")]
    grounds = [ground.copy(number) for number in range(len(points))]
    struck(
        *(
            each.life(mode="ask", allows=True, point=point)
            for each, point in zip(grounds, points, strict=True)
        )
    )

    for place, point in zip(grounds, points, strict=True):
        assert place.lines == [], point
        if when == "before the restart":
            asyncio.run(allowed(place))
        place.live(mode="ask", allows=True)
        assert place.lines == ["one line"], point
        assert place.transcript() == whole.transcript(), point
        place.assert_sound()
        if when == "twice":
            place.live(mode="ask", allows=True)
            assert place.lines == ["one line"], point
    tell(f"{len(points)} kills around a question, answered {when}")


async def allowed(place: Ground) -> None:
    """Answer what waits, while nobody plays anything."""
    async with open_holdfast(config=settings(place.home), scope=RunScope.NONE) as house:
        for asked in (await house.approvals.list(house.owner, state=ApprovalState.WAITING)).items:
            yes = Decision(state=ApprovalState.ALLOWED, by="elsewhere")
            await house.approvals.answer(house.owner, SessionId(SESSION), asked.id, yes)


@proves("R02")
def test_the_lines_find_a_store_that_forgets_that_a_call_was_started(ground: Ground) -> None:
    place = ground.copy("forgetful")
    struck(replace(place.life(point=CUT_OFF), lying="start"))

    place.live()

    assert place.lines == ["one line", "one line"]
