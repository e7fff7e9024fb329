"""Full-text search over a million messages: how fast, and how large the index is."""

import asyncio
import random
import time
from itertools import accumulate
from pathlib import Path

import apsw

from bench.figures import Figure, at_most, below, measures, middle
from holdfast import Holdfast, RunScope, open_holdfast
from holdfast.config import load
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.ids import SessionKey
from holdfast.domain.messages import Role, Text
from holdfast.execution.system import SystemClock, SystemRandomness
from holdfast.ports.system import Bell
from holdfast.search.query import SearchQuery
from holdfast.services.journal import Journal, SessionWriter
from holdfast.services.stamping import IdFactory, Stamping

MESSAGES = 1_000_000
SESSIONS = 1_000
TOGETHER = 500
VOCABULARY = 50_000
QUERIES = 200
SHORTEST, LONGEST = 5, 60


@measures("search_p50_ms", "search_index_ratio")
def search(folder: Path) -> dict[str, Figure]:
    """Fill a store with words as frequent as those of people, and ask for some of them."""
    return asyncio.run(searched(folder, MESSAGES, SESSIONS))


async def searched(folder: Path, messages: int, sessions: int) -> dict[str, Figure]:
    """Return the figures for so many messages in so many sessions."""
    words = _Words()
    # Plain, so that the pages of the index can be counted from outside; encryption adds none.
    config = load({"home": folder / "home", "encryption": "off"})
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        size = await _fill(house, words, messages // sessions, sessions)
        while await house.store.write(lambda tx: tx.search.catch_up(TOGETHER)):
            pass
        taken = [await _asked(house, query) for query in words.queries()]
    index = _index_size(folder / "home" / "history.db")
    return {
        "search_p50_ms": below(middle(taken), "ms", 50),
        "search_index_ratio": at_most(index, "bytes", size, 1.2),
    }


class _Words:
    """Words that are as unequally frequent as those of a language."""

    def __init__(self) -> None:
        self._luck = random.Random(7)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = [
            "".join(self._luck.choices(letters, k=self._luck.randint(2, 10)))
            for _ in range(VOCABULARY)
        ]
        self._weights = list(accumulate(1 / (place + 5) for place in range(VOCABULARY)))

    def some(self, count: int) -> list[str]:
        """Return words, frequent ones often."""
        return self._luck.choices(self._words, cum_weights=self._weights, k=count)

    def text(self) -> str:
        """Return a message."""
        return " ".join(self.some(self._luck.randint(SHORTEST, LONGEST)))

    def queries(self) -> list[str]:
        """Return queries of every kind: a word, two, a phrase, a beginning, one without another."""
        found = []
        for number in range(QUERIES):
            one, two = self.some(2)
            forms = (one, f"{one} {two}", f'"{one} {two}"', f"{one[:4]}*", f"{one} -{two}")
            found.append(forms[number % len(forms)])
        return found


async def _fill(house: Holdfast, words: _Words, each: int, sessions: int) -> int:
    """Write messages many at a time; return how many bytes of text they are."""
    clock = SystemClock()
    journal = Journal(
        house.store,
        _Nobody(),
        Stamping(clock=clock, id_factory=IdFactory(clock, SystemRandomness())),
    )
    size = 0
    for _ in range(sessions):
        session = await house.open()
        for start in range(0, each, TOGETHER):
            texts = [words.text() for _ in range(min(TOGETHER, each - start))]
            size += sum(map(len, texts))

            async def write(pen: SessionWriter, texts: list[str] = texts) -> None:
                for text in texts:
                    pen.add_message(MessageDraft(role=Role.ASSISTANT, parts=(Text(text=text),)), 0)

            await journal.write(house.owner, session.id, write)
    return size


class _Nobody:
    """A bell that nobody listens to."""

    def ring(self, key: SessionKey, tell: object = None) -> None:
        """Tell nobody."""

    def listen(self, key: SessionKey) -> Bell:
        """Refuse: nobody follows here."""
        raise NotImplementedError


async def _asked(house: Holdfast, query: str) -> float:
    started = time.perf_counter()
    await house.search.find(house.owner, SearchQuery(text=query))
    return (time.perf_counter() - started) * 1000


def _index_size(store: Path) -> int:
    """Return the bytes of all pages that search has for itself."""
    sql = "SELECT sum(pgsize) FROM dbstat WHERE name GLOB 'search_*'"
    with apsw.Connection(str(store)) as connection:
        return int(connection.execute(sql).fetchall()[0][0])
