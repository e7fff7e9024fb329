"""Search over messages, tools, titles and observations of one owner."""

import asyncio
import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import AgentId, Owner, is_uuid
from holdfast.domain.queries import Page, decode_count, encode_count
from holdfast.ports.store import Store, Tx
from holdfast.search.query import (
    BATCH_MOST,
    Backlog,
    FoundDocument,
    Hit,
    SearchBatch,
    SearchQuery,
    SearchRebuild,
    SearchRequest,
    Term,
    Terms,
    parse_terms,
    require_query,
    stands_at,
)
from holdfast.search.tokenizer import Placed, locate_words
from holdfast.services.agents import find_agent

SNIPPET_LONGEST: Final = 300
# Limit of the text itself, which leaves room for brackets and ellipses.
_TEXT_LONGEST: Final = 240
_BEFORE: Final = 80
_SPACE: Final = re.compile(r"\s+")
_CHUNK: Final = 4_096
# First and last index.
Bounds = tuple[int, int]


class Snippet(Struct, frozen=True):
    """Excerpt of a text, and the share of its words that match."""

    text: str
    score: float


def snippet(text: str, terms: Terms) -> Snippet:
    """Return the excerpt around the first match; without a match, the beginning."""
    words = _words_around(text, terms)
    found = _find_matches(words, terms.wanted)
    first = words[found[0][0]][1] if found else 0
    start = _start(words, max(0, first - _BEFORE))
    end = start + _TEXT_LONGEST
    while True:
        inside = [
            position for position, word in enumerate(words) if start <= word[1] and word[2] <= end
        ]
        shown = [each for each in found if each[0] in inside and each[1] in inside]
        marked = _mark_matches(
            text, [(words[one][1], words[other][2]) for one, other in shown], (start, end)
        )
        if len(marked) <= SNIPPET_LONGEST:
            count = sum(other - one + 1 for one, other in shown)
            return Snippet(marked, round(count / max(len(inside), 1), 4))
        end -= max(1, len(marked) - SNIPPET_LONGEST)


def _words_around(text: str, terms: Terms) -> list[Placed]:
    """Return the words around the first match; stops reading a long text there."""
    longest = max((len(term.words) for term in terms.wanted), default=1)
    placed = locate_words(text)
    kept: list[Placed] = []
    while chunk := list(islice(placed, _CHUNK)):
        kept += chunk
        if _find_matches(kept, terms.wanted):
            return [*kept, *islice(placed, _TEXT_LONGEST)]
        # The words before the match are shown too, and a phrase may begin in one chunk of words and
        # end in the next.
        kept = kept[-(longest + _BEFORE) :]
    return list(islice(locate_words(text), _TEXT_LONGEST))


def _find_matches(words: Sequence[Placed], terms: Sequence[Term]) -> list[Bounds]:
    """Return the word ranges that match terms, in order and without overlap."""
    plain = [word for word, _, _ in words]
    # Indexed by first word, because a query may have 100 terms and a text a million words.
    by_word: dict[str, list[Term]] = {}
    beginnings = [term for term in terms if term.is_beginning and len(term.words) == 1]
    for term in terms:
        by_word.setdefault(term.words[0], []).append(term)
    everywhere = sorted(
        {
            (position, position + len(term.words) - 1)
            for position, word in enumerate(plain)
            for term in (*by_word.get(word, ()), *beginnings)
            if stands_at(term, plain, position)
        }
    )
    merged: list[Bounds] = []
    for first, last in everywhere:
        # Matches may overlap, and one character may expand to two words.
        if merged and (first <= merged[-1][1] or words[first][1] < words[merged[-1][1]][2]):
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def _start(words: Sequence[Placed], position: int) -> int:
    """Return the start of the first whole word at or after an offset."""
    if position == 0:
        return 0
    return next((start for _, start, _ in words if start >= position), position)


def _mark_matches(text: str, matches: Sequence[Bounds], window: Bounds) -> str:
    start, end = window
    pieces = ["…"] if start else []
    at = start
    for first, last in matches:
        pieces += [text[at:first], "[", text[first:last], "]"]
        at = last
    pieces += [text[at:end], "…" if end < len(text) else ""]
    return _SPACE.sub(" ", "".join(pieces)).strip()


# Above this backlog a search waits for the index instead of scanning the rows itself.
BACKLOG_MOST: Final = Backlog(4_096, 8 << 20)
NOTHING: Final = Backlog(0, 0)
# Snippets of longer texts are built in a thread, so that the event loop is not blocked.
LIGHT_MOST: Final = 1 << 16
# Searches that hold texts at the same time: long ones take some 50 MB each until snippets are cut.
SEARCHING_MOST: Final = 2


class Search:
    """Full-text search over messages, titles and observations."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._searching = asyncio.Semaphore(SEARCHING_MOST)

    async def find(
        self, owner: Owner, query: SearchQuery, *, cursor: str | None = None
    ) -> Page[Hit]:
        """Return the matches: the newest session first, and in it the newest message.

        Includes every committed write. A page may be shorter than the limit and still have a
        cursor, because the number and size of the documents checked per page are bounded.
        """
        require_query(query)
        terms = parse_terms(query.text)
        filters = (owner, replace(query, limit=1))
        position = decode_count(cursor, filters)
        await self._catch_up(BACKLOG_MOST)

        async def read(tx: Tx) -> SearchBatch:
            before = position[0] if position else None
            return await tx.search.find(await _build_request(tx, owner, query, terms, before))

        async with self._searching:
            batch = await self._store.read(read)
            hits = await _hits(batch.found, terms)
        behind = None if batch.behind is None else (batch.behind, "")
        return Page(items=hits, next_cursor=encode_count(behind, filters))

    async def rebuild(self) -> SearchRebuild:
        """Rebuild the index of all owners; report whether the old one matched the texts."""
        before = await self._sum()
        await self._store.write(lambda tx: tx.search.empty())
        documents = await self._catch_up(NOTHING)
        after = await self._sum()
        differences = () if before == after else (_difference(before, after),)
        return SearchRebuild(documents=documents, differences=differences)

    async def _sum(self) -> tuple[int, int] | None:
        """Return the checksum of the complete index; `None` if the index is damaged."""
        try:
            while await self._store.write(lambda tx: tx.search.remove_documents(BATCH_MOST)):
                pass
            await self._catch_up(NOTHING)
            return await self._store.read(lambda tx: tx.search.sum())
        except HoldfastError:
            return None

    async def _catch_up(self, most: Backlog) -> int:
        """Update the index if the backlog exceeds `most`; return the number of documents."""
        waiting = await self._store.read(lambda tx: tx.search.backlog())
        if waiting.documents <= most.documents and waiting.size <= most.size:
            return 0
        together, done = waiting.together, 0
        while batch := await self._store.write(lambda tx: tx.search.catch_up(together)):
            done += batch
            if batch < together:
                break
        return done


async def _build_request(
    tx: Tx, owner: Owner, query: SearchQuery, terms: Terms, before: int | None
) -> SearchRequest:
    agent = query.agent
    if agent is not None and not is_uuid(agent):
        agent = (await find_agent(tx, owner, agent)).id
    agent_id = None if agent is None else AgentId(agent)
    fields = asdict(query)
    return SearchRequest(owner=owner, terms=terms, agent_id=agent_id, before=before, **fields)


async def _hits(batch: Sequence[FoundDocument], terms: Terms) -> tuple[Hit, ...]:
    def cut() -> tuple[Hit, ...]:
        return tuple(_hit(found, terms) for found in batch)

    is_light = sum(len(found.text) for found in batch) <= LIGHT_MOST
    return cut() if is_light else await asyncio.to_thread(cut)


def _hit(document: FoundDocument, terms: Terms) -> Hit:
    shown = snippet(document.text, terms)
    message = document.message
    return Hit(
        session_id=document.session_id,
        agent_id=document.agent_id,
        message_id=None if message is None else message.id,
        message_sequence=None if message is None else message.sequence,
        turn=None if message is None else message.turn,
        role=None if message is None else message.role,
        snippet=shown.text,
        score=shown.score,
        created_at=document.created_at,
        observation_id=document.observation_id,
    )


def _difference(before: tuple[int, int] | None, after: tuple[int, int] | None) -> str:
    if before is None:
        return "The search index could not be read."
    held, wanted = before[0], after[0] if after is not None else 0
    return f"The search index had {held} words instead of {wanted}."
