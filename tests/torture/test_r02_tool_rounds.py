"""R02, with tools: a process kills itself around every commit and every act of two tool rounds.

What was not in flight goes on by itself, to the same record. What was, and cannot be repeated, is
unknown to everybody, is put right by somebody, and has not run twice behind anybody's back.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Scope, open_holdfast
from holdfast.domain.approvals import Answer, ApprovalState
from holdfast.domain.calls import CallState
from holdfast.domain.ids import SessionId
from holdfast.services.calls import How
from tests.marks import proves
from tests.torture.audit import audit
from tests.torture.clients.rounds import CALL, EFFECTS, SESSION, Life, lived, script, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import ROOT
from tests.torture.notebooks import read_books

pytestmark = pytest.mark.slow

Point = tuple[str, int, str]
# The second act has happened, and nobody was told.
CUT_OFF: Point = ("run", 2, "after")
Transcript = list[tuple[int, str, list[Any]]]


@dataclass(frozen=True)
class Ground:
    """A folder with a home, a desk and a model; every life gets a copy of its own."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def lines(self) -> list[str]:
        """Return what the unsafe effect has left: one line each time."""
        file = self.folder / "desk" / EFFECTS
        return file.read_text().splitlines() if file.exists() else []

    @property
    def calls(self) -> dict[str, CallState]:
        """Return how far each call has come, as the file says."""
        books = read_books(self.home)
        return {
            call: CallState(state)
            for book in books.notebooks.values()
            for call, state, _ in book.calls
        }

    def copy(self, name: object) -> "Ground":
        """Return the same place once more, as long as no session knows where it is."""
        folder = self.folder.parent / str(name)
        shutil.copytree(self.folder, folder)
        script(folder)
        return Ground(folder)

    def life(self, **more: Any) -> Life:
        return Life(home=str(self.home), **more)

    def live(self, **more: Any) -> Life:
        """Live a whole life here, in this process."""
        life = self.life(**more)
        asyncio.run(lived(life))
        return life

    def transcript(self) -> Transcript:
        """Return the record without ids and times."""
        (book,) = read_books(self.home).notebooks.values()
        return [(row.turn, row.role, _plain(row.content)) for row in book.rows]

    def assert_sound(self) -> None:
        """Hold what was told against what is there."""
        result = audit(self.home, records=[self.folder / "life.jsonl"])
        assert result.is_clean, f"{self.folder.name}: {result}"


def _plain(parts: list[Any]) -> list[Any]:
    """Return parts without the ids that are made anew each time."""
    return list(json.loads(re.sub(r"retry_[0-9a-f-]{36}", "retry", json.dumps(parts))))


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Have a home with an agent and nothing else."""
    made = Ground(tmp_path / "template")
    (made.folder / "desk").mkdir(parents=True)
    script(made.folder)
    (made.folder / "desk" / "a.txt").write_text("hello\n")
    os.utime(made.folder / "desk" / "a.txt", (1_700_000_000, 1_700_000_000))

    async def prepare() -> None:
        async with open_holdfast(config=settings(made.home), scope=Scope.NONE) as house:
            await house.agents.built_in(house.owner)

    asyncio.run(prepare())
    return made


def points_of(marks: Sequence[str]) -> Iterator[Point]:
    """Yield each point twice: right before, right after."""
    for mark in marks:
        what, number, _ = mark.split(" ", 2)
        yield from ((what, int(number), "before"), (what, int(number), "after"))


def struck(*lives: Life) -> None:
    """Let lives end at their points, each in a process of its own."""
    given = json.dumps([{k: v for k, v in asdict(life).items() if k != "marks"} for life in lives])
    run = subprocess.run(
        [sys.executable, "-m", "tests.torture.clients.rounds", given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    statuses = list(map(int, run.stdout.split()))
    wrong = [
        (life.point, status)
        for life, status in zip(lives, statuses, strict=True)
        if status != -signal.SIGKILL
    ]
    assert wrong == [], run.stderr[-4000:]


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
    doubts = [(point, how, ground.copy(f"{point} {how}")) for point in in_flight for how in How]
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
    assert in_flight == {
        ("commit", _number(marks, "commit", "start", 1), "after"): 0,
        ("run", 2, "before"): 0,
        ("run", 2, "after"): 1,
        ("commit", _number(marks, "commit", "result", 2), "before"): 1,
    }


def _number(marks: Sequence[str], what: str, name: str, nth: int) -> int:
    """Return the number of the nth point of that name."""
    found = [mark.split(" ", 2) for mark in marks]
    return [int(number) for kind, number, of in found if (kind, of) == (what, name)][nth - 1]


def assert_put_right(place: Ground, how: How, whole: Transcript) -> None:
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
    assert len(place.lines) == ran + (how is How.RETRY)
    after = place.transcript()
    assert after[: len(cut_off)] == cut_off
    assert after[-1][2] == [{"type": "text", "text": "It is done."}]
    place.assert_sound()


async def unknown(place: Ground) -> list[str]:
    """Return the calls whose outcome nobody knows."""
    async with open_holdfast(config=settings(place.home), scope=Scope.NONE) as house:
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
    marks = whole.live(settles=How.RETRY).marks
    points = list(points_of(marks))
    grounds = [ground.copy(number) for number in range(len(points))]
    struck(*(each.life(point=CUT_OFF) for each in grounds))
    for place in grounds:
        place.live()
    struck(
        *(
            each.life(point=point, settles=How.RETRY)
            for each, point in zip(grounds, points, strict=True)
        )
    )

    again = 0
    for place, point in zip(grounds, points, strict=True):
        before = place.calls
        acts = 1 + sum(call != CALL and state != "intended" for call, state in before.items())
        assert len(place.lines) <= acts, point
        place.live(settles=How.RETRY)
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
    around = [_number(marks, "commit", name, 1) for name in ("question", "answer")]
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
    async with open_holdfast(config=settings(place.home), scope=Scope.NONE) as house:
        for asked in (await house.approvals.list(house.owner, state=ApprovalState.WAITING)).items:
            yes = Answer(state=ApprovalState.ALLOWED, by="elsewhere")
            await house.approvals.answer(house.owner, SessionId(SESSION), asked.id, yes)


@proves("R02")
def test_the_lines_find_a_store_that_forgets_that_a_call_was_started(ground: Ground) -> None:
    place = ground.copy("forgetful")
    struck(replace(place.life(point=CUT_OFF), lying="start"))

    place.live()

    assert place.lines == ["one line", "one line"]
