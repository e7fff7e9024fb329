"""R20 on Postgres: a holder that overslept finds its lease gone, and neither writes nor acts."""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.marks import proves
from tests.postgres import Databases
from tests.torture.audit import audit
from tests.torture.clients.serve import EFFECTS
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew
from tests.torture.machine import DATABASE
from tests.torture.notebooks import read_books
from tests.torture.test_r20_pauses import finds_late_voices, late_voices, pausing_spree

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def database(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the rows of every process kept in one database, with nothing in it."""
    url = databases.empty()
    monkeypatch.setenv(DATABASE, url)
    return url


@proves("R20")
def test_a_holder_paused_on_postgres_neither_writes_nor_acts_after_it_lost_its_lease(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    pauses = sized(test=1, torture=34, release=100)
    home = tmp_path / "home"

    fenced = pausing_spree(tmp_path, crew, luck, pauses=pauses, tools=True)
    result = audit(home, records=tmp_path.glob("*.jsonl"), mark=crew.mark)
    runs, starts = runs_of_tools(home), starts_of_tools(home)

    tell(f"{fenced} leases lost in {pauses} pauses, 0 writes after fencing, {runs} runs of tools")
    assert result.is_clean, result
    assert fenced >= pauses
    assert late_voices(home) == []
    assert 0 < runs <= starts


@proves("R20")
def test_the_pause_finds_a_holder_on_postgres_without_a_fence(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    assert finds_late_voices(tmp_path, crew, luck)


def runs_of_tools(home: Path) -> int:
    """Return how often tools have run, by what they left."""
    return sum(len(file.read_text().split()) for file in home.rglob(EFFECTS))


def starts_of_tools(home: Path) -> int:
    """Return how often the record says that one was started; each call once."""
    started = Counter(
        (book.id, news.body["call_id"])
        for book in read_books(home).notebooks.values()
        for news in book.news
        if news.name == "tool.started"
    )
    assert max(started.values(), default=1) == 1, started
    return started.total()
