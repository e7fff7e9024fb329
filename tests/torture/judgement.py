"""What must hold inside one notebook, whoever wrote it: numbers, order, chain, calls, lease."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.torture.machine import is_alive, now_ms
from tests.torture.notebooks import CHAIN_START, Books, News, Notebook, Row, linked

Finding = tuple[str, str]

PARTS_OF = {
    "user": {"text", "media"},
    "assistant": {"text", "reasoning", "media"},
    "tool_call": {"tool_call"},
    "tool_result": {"tool_result"},
    "system": {"text", "plan", "notice", "compaction"},
}
CLOSING = {"aborted", "interrupted", "turn_limit", "budget", "error"}


def judge_notebook(books: Books, book: Notebook) -> Iterator[Finding]:
    """Yield everything that is wrong with one session."""
    history = books.history(book)
    yield from _numbers(book)
    yield from _chain(book, history)
    yield from _doubles(book, history)
    yield from _news(book)
    yield from _turns(book)
    yield from _calls(book)
    yield from _life(book)


def _numbers(book: Notebook) -> Iterator[Finding]:
    first = (book.forked_at or 0) + 1
    if [row.sequence for row in book.rows] != list(range(first, book.messages + 1)):
        yield "GAP", f"messages of {book.id} are not {first} to {book.messages}"
    numbers = [news.sequence for news in book.news]
    if not numbers or numbers[0] != 1 or numbers[-1] != book.events:
        yield "GAP", f"events of {book.id} are not 1 to {book.events}"
    yield from _missing(book)


def _missing(book: Notebook) -> Iterator[Finding]:
    """Only deltas of settled turns may be missing, and those stand where a step is open."""
    step: int | None = None
    last = 0
    for news in book.news:
        if news.sequence != last + 1 and (step is None or step > book.settled):
            yield "GAP", f"events {last + 1} to {news.sequence - 1} of {book.id}"
        last = news.sequence
        if news.name == "step.started":
            step = news.turn
        elif news.name in {"step.ended", "step.failed"}:
            step = None


def _chain(book: Notebook, history: Sequence[Row]) -> Iterator[Finding]:
    previous = CHAIN_START
    for row in history:
        if linked(previous, row) != row.hash:
            yield "UNREADABLE", f"message {row.sequence} of {book.id} breaks the chain"
        previous = row.hash
    if previous != book.chain:
        yield "UNREADABLE", f"{book.id} does not end with its last message"
    for row in book.rows:
        try:
            kinds = {part["type"] for part in row.content}
        except (json.JSONDecodeError, KeyError, TypeError):
            kinds = {"nothing"}
        if not kinds or not kinds <= PARTS_OF.get(row.role, set()):
            yield "UNREADABLE", f"message {row.sequence} of {book.id} is a {row.role} of {kinds}"


def _doubles(book: Notebook, history: Sequence[Row]) -> Iterator[Finding]:
    for key, count in Counter(row.id for row in history).items():
        if count > 1:
            yield "DUP", f"message {key} stands {count} times in {book.id}"
    starts = Counter(
        news.body["call_id"]
        for news in book.news
        if news.name == "tool.started" and news.body["call_id"] in _unsafe(book)
    )
    for call, count in starts.items():
        if count > 1:
            yield "DUP", f"unsafe call {call} of {book.id} was started {count} times"


def _unsafe(book: Notebook) -> set[str]:
    return {call for call, _, effect in book.calls if effect == "unsafe"}


def _news(book: Notebook) -> Iterator[Finding]:
    """Rows are told in their order; what the agent says was announced before."""
    told = [row.event for row in book.rows if row.event]
    if told != sorted(set(told)):
        yield "DISORDER", f"rows of {book.id} are told in another order"
    reserved = {news.body["message_id"] for news in book.news if news.name == "step.started"}
    for row in book.rows:
        # A row without news was copied when a fork was made to stand alone.
        if row.role == "assistant" and row.event and row.id not in reserved:
            yield "PHANTOM", f"message {row.id} of {book.id} was said by nobody"
    times = [news.at for news in book.news]
    if times != sorted(set(times)):
        yield "DISORDER", f"times of {book.id} go back"


def _turns(book: Notebook) -> Iterator[Finding]:
    """Turns begin and end by number, one at a time; one that ended badly says so in the record."""
    running: int | None = None
    settled: list[int] = []
    for news in book.news:
        if news.name == "turn.started":
            if running is not None:
                yield "DISORDER", f"turn {news.turn} of {book.id} began inside turn {running}"
            running = news.turn
        if news.name == "turn.ended":
            if running is None or news.turn != running:
                yield "DISORDER", f"turn {news.turn} of {book.id} ended and never began"
            running = None
            settled.append(int(news.turn or 0))
            yield from _closed(book, news)
    if settled != list(range(book.settled - len(settled) + 1, book.settled + 1)):
        yield "DISORDER", f"turns {settled} of {book.id} ended, {book.settled} are settled"
    if (running is not None) != (book.status == "running"):
        yield "DISORDER", f"{book.id} is {book.status}, its news say otherwise"


def _closed(book: Notebook, ended: News) -> Iterator[Finding]:
    stop = ended.body["stop_reason"]
    notices = [
        part["code"]
        for row in book.rows
        if row.turn == ended.turn and row.role == "system"
        for part in row.content
        if part["type"] == "notice" and part["code"] in CLOSING
    ]
    if notices != ([stop] if stop in CLOSING else []):
        yield "UNREADABLE", f"turn {ended.turn} of {book.id} ended {stop} with notices {notices}"


def _calls(book: Notebook) -> Iterator[Finding]:
    asked = [row.content[0]["id"] for row in book.rows if row.role == "tool_call"]
    given = Counter(row.content[0]["call_id"] for row in book.rows if row.role == "tool_result")
    for call in asked:
        if given[call] > 1:
            yield "DUP", f"call {call} of {book.id} has {given[call]} results"
        if not given[call] and book.status != "running":
            yield "DANGLING", f"call {call} of {book.id} has no result"


def _life(book: Notebook) -> Iterator[Finding]:
    """A turn that is open or waits has somebody alive to play it."""
    if book.turn < book.settled:
        yield "DISORDER", f"{book.id} has settled more turns than it has"
    # A paused turn has a question that waits; nobody has to be there for it.
    is_paused = book.until < 0 and bool(book.waiting)
    held = book.holder is not None and book.until > now_ms() and is_alive(book.holder)
    held = held or is_paused
    if book.is_open and book.turn > book.settled and not held:
        yield "STUCK", f"turn {book.settled + 1} of {book.id} waits for nobody ({book.status})"
    if book.status == "running" and not held:
        yield "STUCK", f"{book.id} says running and nobody runs it"
    for question in book.waiting if book.status != "running" else ():
        yield "STUCK", f"question {question} of {book.id} waits, and nobody needs the answer"
