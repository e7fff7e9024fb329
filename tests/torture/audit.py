"""The auditor: holds what clients were told against what the store says, and counts the lies.

It reads the clients' own records, the store through plain SQL, and the recorded streams. It shares
no code with Holdfast, so that a mistake there cannot hide here.

    python -m tests.torture.audit HOME RECORD.jsonl… [--streams STREAM.jsonl…]
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.torture.attempts import Attempt, digest, meant, read_attempts, read_lines
from tests.torture.judgement import Finding, judge_notebook
from tests.torture.leavings import leavings
from tests.torture.notebooks import Books, Notebook, Row, read_books

COUNTS = (
    "LOST",
    "DUP",
    "PHANTOM",
    "GAP",
    "DISORDER",
    "DANGLING",
    "STUCK",
    "UNREADABLE",
    "LEAK",
    "ORPHAN",
)


@dataclass(frozen=True)
class Audit:
    """What was found, each with the count it belongs to."""

    findings: tuple[Finding, ...]
    acknowledged: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Return the counts by name."""
        found = Counter(count for count, _ in self.findings)
        return {name: found[name] for name in COUNTS}

    @property
    def is_clean(self) -> bool:
        """Tell whether every count is zero."""
        return not self.findings

    def __str__(self) -> str:
        told = " ".join(f"{name} {count}" for name, count in self.counts.items())
        return "\n".join([told, *(f"  {count}: {what}" for count, what in self.findings[:40])])


def audit(
    home: Path,
    *,
    records: Iterable[Path] = (),
    streams: Iterable[Path] = (),
    canaries: Sequence[bytes] = (),
    mark: str | None = None,
) -> Audit:
    """Judge a home past its recovery deadline; `mark` is what our processes carry, if any ran."""
    return judge(home, read_attempts(records), streams, canaries, mark)


def judge(
    home: Path,
    attempts: Sequence[Attempt],
    streams: Iterable[Path] = (),
    canaries: Sequence[bytes] = (),
    mark: str | None = None,
) -> Audit:
    """Judge a home by attempts that are known already."""
    books = read_books(home)
    findings = [("UNREADABLE", fault) for fault in books.faults]
    findings += [each for book in books.notebooks.values() for each in judge_notebook(books, book)]
    if attempts:
        findings += _strangers(books, attempts)
    findings += _answers(books, attempts)
    findings += _streams(books, list(read_lines(streams)), _removable(books, attempts))
    findings += leavings(home, books, canaries, mark)
    return Audit(tuple(findings), sum(attempt.acknowledged for attempt in attempts))


def _removable(books: Books, attempts: Sequence[Attempt]) -> set[str]:
    """Return the sessions that are gone and that somebody asked to delete, cascades included."""
    asked = {each.session for each in attempts if each.verb == "delete"}
    parents = {each.key: each.session for each in attempts if each.verb == "fork"}
    gone = set()
    for session in books.tombstones:
        line = session
        while line not in asked and line in parents:
            line = parents[line]
        if line in asked:
            gone.add(session)
    return gone


def _strangers(books: Books, attempts: Sequence[Attempt]) -> Iterator[Finding]:
    """Yield what is stored and was never asked for."""
    opened = {each.key for each in attempts if each.verb in {"open", "fork"}}
    sent = {(each.key, each.body) for each in attempts if each.verb == "send"}
    for book in books.notebooks.values():
        if book.id not in opened:
            yield "PHANTOM", f"session {book.id} was never opened"
        for row in book.rows:
            if row.role == "user" and (row.id, digest(row.text)) not in sent:
                yield "PHANTOM", f"message {row.id} of {book.id} was never sent"
    for session in books.tombstones - _removable(books, attempts):
        yield "PHANTOM", f"session {session} was deleted and nobody asked"


def _answers(books: Books, attempts: Sequence[Attempt]) -> Iterator[Finding]:
    """Yield every acknowledgement that the store does not keep, and every second answer."""
    found = books.by_id()
    gone = _removable(books, attempts)
    history_cache = {
        each.session: {row.id: row for row in books.history(found[each.session])}
        for each in attempts
        if each.session in found
    }
    first: dict[tuple[str, str, str], Attempt] = {}
    for each in attempts:
        if not each.acknowledged:
            continue
        earlier = first.setdefault((each.verb, each.session, each.key), each)
        if each.verb in _REPEATABLE and earlier.answer != each.answer:
            yield "DUP", f"{each.verb} {each.key} was answered in two ways"
        if each.verb == "delete":
            if each.session in found:
                yield "LOST", f"session {each.session} was deleted and is back"
            continue
        session = each.key if each.verb in {"open", "fork"} else each.session
        if session in gone:
            continue
        if session not in found:
            yield "LOST", f"session {session}: {each.verb} was acknowledged"
        elif each.verb == "send":
            yield from _kept(each, history_cache[session].get(each.key))
        elif each.verb == "close" and not _was_told(found[session], "session.closed"):
            yield "LOST", f"close of {session} was acknowledged"


_REPEATABLE = {"open", "fork", "send"}


def _kept(attempt: Attempt, row: Row | None) -> Iterator[Finding]:
    """Yield whether a message that was acknowledged is not stored as it was acknowledged."""
    if row is None:
        yield "LOST", f"message {attempt.key} of {attempt.session} was acknowledged"
        return
    # Over HTTP nobody is told the hash.
    told = (attempt.answer["sequence"], attempt.answer.get("hash", row.hash.hex()), attempt.body)
    if told != (row.sequence, row.hash.hex(), digest(row.text)):
        yield "LOST", f"message {attempt.key} of {attempt.session} is stored with other bytes"


def _was_told(book: Notebook, name: str) -> bool:
    return any(news.name == name for news in book.news)


def _streams(books: Books, lines: Sequence[dict[str, object]], gone: set[str]) -> Iterator[Finding]:
    """Yield where a stream went back, left numbers out, or showed what is not in the store."""
    found = books.by_id()
    stored = {
        book.id: {news.sequence: meant(news.payload) for news in book.news}
        for book in books.notebooks.values()
    }
    cursors: dict[tuple[object, object], int] = {}
    for line in lines:
        session, reader = str(line["session"]), (line["client"], line["reader"])
        if "after" in line:
            cursors[reader] = int(str(line["after"]))
            continue
        first, last = int(str(line["first"])), int(str(line["last"]))
        cursor = cursors[reader]
        if first <= cursor:
            yield "DISORDER", f"stream of {session} went from {cursor} back to {first}"
        elif first > cursor + 1:
            yield "GAP", f"stream of {session} went from {cursor} to {first}"
        cursors[reader] = last
        if session not in found:
            if session not in gone:
                yield "LOST", f"session {session} was streamed"
            continue
        yield from _shown(found[session], stored[session], (first, last), line.get("digest"))


def _shown(
    book: Notebook, stored: dict[int, str], numbers: tuple[int, int], told: object
) -> Iterator[Finding]:
    first, last = numbers
    if last > book.events:
        yield "LOST", f"event {last} of {book.id} was streamed"
    elif told is None and any(number in stored for number in range(first, last + 1)):
        yield "GAP", f"{first} to {last} of {book.id} were called pruned and are stored"
    elif told is not None and stored.get(first, told) != told:
        yield "LOST", f"event {first} of {book.id} was streamed with other bytes"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("records", nargs="*", type=Path)
    parser.add_argument("--streams", nargs="*", type=Path, default=[])
    given = parser.parse_args()
    result = audit(given.home, records=given.records, streams=given.streams)
    print(result)
    sys.exit(0 if result.is_clean else 1)
