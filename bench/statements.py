"""Counting what a store is asked to do: statements and commits, as SQLite itself sees them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw


class Counts:
    """What was run on the connections that were opened while this was being looked at."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._fired = 0

    @property
    def statements(self) -> int:
        """Return how many statements were run, those that begin and end transactions included."""
        return self._seen.total()

    @property
    def commits(self) -> int:
        """Return how many transactions were written."""
        return self._seen["BEGIN IMMEDIATE"]

    @property
    def triggers(self) -> int:
        """Return how often a statement set a trigger off, which is told and not counted above."""
        return self._fired

    @property
    def by_name(self) -> dict[str, int]:
        """Return how often each statement was run, the most frequent first."""
        return dict(self._seen.most_common())

    def clear(self) -> None:
        """Begin anew."""
        self._seen.clear()
        self._fired = 0

    def watch(self, connection: apsw.Connection) -> None:
        """Count what is run on a connection from now on."""
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._count)

    def _count(self, event: dict[str, Any]) -> None:
        if event["trigger"]:
            self._fired += 1
            return
        # Ours begin with a sentence that says what they are for.
        self._seen[event["sql"].strip().splitlines()[0]] += 1


@contextmanager
def counting() -> Iterator[Counts]:
    """Count on every connection that is opened inside the block, for as long as it lives."""
    counts = Counts()
    apsw.connection_hooks.append(counts.watch)
    try:
        yield counts
    finally:
        apsw.connection_hooks.remove(counts.watch)
