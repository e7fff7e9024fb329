"""Search queries and results: words are ANDed, `"…"` is a phrase, `word*` a prefix, `-word` an
exclusion.
"""

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import AgentId, MessageId, Owner, RepoId, SessionId
from holdfast.domain.messages import Message, Role
from holdfast.domain.queries import require_limit
from holdfast.domain.text import is_encodable
from holdfast.search.tokenizer import words_of

# Shorter prefixes match so many words that the lookup would take too long.
BEGINNING_SHORTEST: Final = 2
_ITEM: Final = re.compile(r'(?P<without>-(?=[\w"]))?(?:"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+))')


# Documents and bytes per transaction, limited so that other writers can run in between.
BATCH_MOST: Final = 512
_BATCH_BYTES: Final = 1 << 20


class Term(Struct, frozen=True):
    """Consecutive words; the last one may be a prefix."""

    words: tuple[str, ...]
    is_beginning: bool = False


class Terms(Struct, frozen=True):
    """Terms that a text must all contain, and terms that it must not contain."""

    wanted: tuple[Term, ...]
    unwanted: tuple[Term, ...] = ()


def parse_terms(query: str) -> Terms:
    """Return the terms of a query; a query without words matches no document."""
    if query.count('"') % 2:
        return _plain(query)
    wanted: list[Term] = []
    unwanted: list[Term] = []
    for item in _ITEM.finditer(query):
        term = _term(item["phrase"] or item["word"] or "", query[item.end() :])
        if term is not None:
            (unwanted if item["without"] else wanted).append(term)
    # A query with only exclusions is searched as plain words.
    return Terms(_distinct(wanted), _distinct(unwanted)) if wanted else _plain(query)


def holds(terms: Terms, words: Sequence[str]) -> bool:
    """Return whether a text with these words matches the terms."""
    known = frozenset(words)
    return (
        bool(terms.wanted)
        and all(_stands_in(term, words, known) for term in terms.wanted)
        and not any(_stands_in(term, words, known) for term in terms.unwanted)
    )


def stands_at(term: Term, words: Sequence[str], position: int) -> bool:
    """Return whether a term matches at an index in the words."""
    *exact, last = term.words
    end = position + len(exact)
    if end >= len(words) or list(words[position:end]) != exact:
        return False
    return words[end].startswith(last) if term.is_beginning else words[end] == last


def _stands_in(term: Term, words: Sequence[str], known: Collection[str]) -> bool:
    if len(term.words) == 1:
        word = term.words[0]
        return any(each.startswith(word) for each in known) if term.is_beginning else word in known
    return any(stands_at(term, words, position) for position in range(len(words)))


def _term(text: str, following: str) -> Term | None:
    words = tuple(words_of(text))
    if not words:
        return None
    # For a phrase the asterisk follows the closing quote.
    is_beginning = text.endswith("*") or following.startswith("*")
    return Term(words, is_beginning and len(words[-1]) >= BEGINNING_SHORTEST)


def _plain(query: str) -> Terms:
    return Terms(_distinct([Term((word,)) for word in words_of(query)]))


def _distinct(terms: list[Term]) -> tuple[Term, ...]:
    return tuple(dict.fromkeys(terms))


TEXT_LONGEST: Final = 400
LIMIT_USUAL: Final = 20
LIMIT_MOST: Final = 100


class SearchQuery(Struct, frozen=True, kw_only=True):
    """Search text and filters; filters combine with AND.

    An agent is named by id or slug, a tool by its exact name. `since` is inclusive, `until` is not.
    """

    text: str
    agent: str | None = None
    repo_id: RepoId | None = None
    session_id: SessionId | None = None
    role: Role | None = None
    tool: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = LIMIT_USUAL


class Hit(Struct, frozen=True, kw_only=True):
    """A matching message, title or observation; fields that do not apply are `None`.

    The score is the share of the snippet's words that match.
    """

    session_id: SessionId | None = None
    agent_id: AgentId | None = None
    message_id: MessageId | None = None
    message_sequence: int | None = None
    turn: int | None = None
    role: Role | None = None
    snippet: str
    score: float
    created_at: datetime
    observation_id: str | None = None


class SearchRebuild(Struct, frozen=True, kw_only=True):
    """Number of indexed documents, and the differences between the old index and the texts."""

    documents: int
    differences: tuple[str, ...] = ()


def require_query(query: SearchQuery) -> SearchQuery:
    """Return the query unchanged; raises `Invalid` if it cannot be searched."""
    if not 1 <= len(query.text) <= TEXT_LONGEST:
        raise _invalid(f"A query must have 1 to {TEXT_LONGEST} characters, not {len(query.text)}.")
    for field in ("text", "agent", "tool", "repo_id", "session_id"):
        value = getattr(query, field)
        if value is not None and ("\x00" in value or not is_encodable(value)):
            raise _invalid("A query must not contain a NUL character or a lone surrogate.", field)
    for field in ("since", "until"):
        at = getattr(query, field)
        if at is not None and at.tzinfo is None:
            raise Invalid(Code.INVALID_FILTER, f"{field} must have a time zone.", {"field": field})
    require_limit(query.limit, most=LIMIT_MOST)
    return query


def _invalid(message: str, field: str = "text") -> Invalid:
    return Invalid(Code.INVALID_QUERY, message, {"field": field})


class SearchRequest(SearchQuery, frozen=True, kw_only=True):
    """A query in an owner's documents; `before` is the position of the last result shown."""

    owner: Owner
    terms: Terms
    agent_id: AgentId | None = None
    before: int | None = None


class FoundDocument(Struct, frozen=True, kw_only=True):
    """A matching document, verified, and its position in the listing."""

    position: int
    text: str
    created_at: datetime
    session_id: SessionId | None = None
    agent_id: AgentId | None = None
    message: Message | None = None
    observation_id: str | None = None


class SearchBatch(Struct, frozen=True, kw_only=True):
    """Matching documents, highest position first, and the position after which to continue."""

    found: tuple[FoundDocument, ...]
    behind: int | None = None


class Backlog(Struct, frozen=True):
    """Documents that are not indexed yet and must be scanned by each search."""

    documents: int
    size: int

    @property
    def together(self) -> int:
        """Return how many of them fit in one transaction, so that other writers do not starve."""
        fitting = self.documents * _BATCH_BYTES // max(self.size, 1)
        return max(1, min(BATCH_MOST, fitting))
