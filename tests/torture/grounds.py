"""Where lives are lived that end in the middle: a folder with a home, copied for each of them."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.domain.calls import CallState
from tests.torture.audit import audit
from tests.torture.clients.rounds import EFFECTS, Life, lived, script
from tests.torture.crew import ROOT
from tests.torture.notebooks import read_books

Point = tuple[str, int, str]
Transcript = list[tuple[int, str, list[Any]]]
# The second act has happened, and nobody was told.
CUT_OFF: Point = ("run", 2, "after")


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


def laid_out(folder: Path) -> Ground:
    """Return a place with a desk and a model, before anybody was there."""
    (folder / "desk").mkdir(parents=True)
    script(folder)
    (folder / "desk" / "a.txt").write_text("hello\n")
    os.utime(folder / "desk" / "a.txt", (1_700_000_000, 1_700_000_000))
    return Ground(folder)


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


def number_of(marks: Sequence[str], what: str, name: str, nth: int) -> int:
    """Return the number of the nth point of that name."""
    found = [mark.split(" ", 2) for mark in marks]
    return [int(number) for kind, number, of in found if (kind, of) == (what, name)][nth - 1]


def acts_in_flight(marks: Sequence[str]) -> dict[Point, int]:
    """Return where nobody can know whether the unsafe act has happened, and how often it has."""
    return {
        ("commit", number_of(marks, "commit", "start", 1), "after"): 0,
        ("run", 2, "before"): 0,
        CUT_OFF: 1,
        ("commit", number_of(marks, "commit", "result", 2), "before"): 1,
    }
