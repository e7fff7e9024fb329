"""Session overviews: sessions as their owner sees them, with their costs, from one snapshot."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import Agent
from holdfast.domain.costs import CostSum
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.queries import (
    Page,
    SessionOrder,
    SessionQuery,
    decode_cursor,
    encode_cursor,
    require_limit,
)
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import Session, SessionState, Status, is_paused
from holdfast.domain.text import require_text
from holdfast.ports.store import Brief, Store, Tx
from holdfast.services.batches import READ_AT_ONCE, encode
from holdfast.services.journal import session_not_found
from holdfast.services.leases import Leases
from holdfast.services.messages import (
    MessageExcerpt,
    UnfinishedAnswer,
    excerpt,
    excerpts,
    find_unfinished,
)
from holdfast.services.repos import find_repo

Found = tuple[Session, SessionState]
S = TypeVar("S", Session, SessionState)


class SessionOverview(Struct, frozen=True, kw_only=True):
    """A session, and the sum of its ledger entries."""

    session: Session
    spent: CostSum


class SessionTranscript(Struct, frozen=True, kw_only=True):
    """A session with its repository, all its rows, and the text that is being streamed.

    `chain` is the hash of the last row; it changes with any row.
    """

    session: Session
    repo: Repo | None
    chain: str
    excerpts: AsyncGenerator[MessageExcerpt, None]
    unfinished: UnfinishedAnswer | None


class OverviewPage(Struct, frozen=True, kw_only=True):
    """A page of a listing, the cursor of the next page, and the total count."""

    items: tuple[SessionOverview, ...]
    next_cursor: str | None = None
    total: int | None = None


class SessionViews:
    """Sessions of an owner with their costs; read-only."""

    def __init__(self, store: Store, leases: Leases) -> None:
        self._store = store
        self._leases = leases

    async def get(self, owner: Owner, session_id: SessionId) -> SessionOverview:
        """Return the current session."""

        async def read(tx: Tx) -> SessionOverview:
            found = await tx.sessions.get(owner, session_id)
            if found is None:
                raise session_not_found()
            return (await _with_costs(tx, [found], self._leases))[0]

        return await self._store.read(Brief(read))

    async def whole(self, owner: Owner, session_id: SessionId) -> SessionTranscript:
        """Return the current session with its repository and all rows."""

        async def read(tx: Tx) -> SessionTranscript:
            found = await tx.sessions.get(owner, session_id)
            if found is None:
                raise session_not_found()
            session, state = found
            return SessionTranscript(
                session=session_view(session, state, self._leases),
                repo=await find_repo(tx, owner, session.repo_id) if session.repo_id else None,
                chain=state.chain.hex(),
                excerpts=excerpts(self._store, state, await excerpt(tx, state, 0)),
                unfinished=await find_unfinished(tx, state),
            )

        return await self._store.read(read)

    async def list(
        self,
        query: SessionQuery,
        *,
        cursor: str | None = None,
        behind: SessionId | None = None,
        is_counted: bool = False,
    ) -> OverviewPage:
        """Return the owner's sessions that match, newest first.

        A page continues at a cursor, or after a session of the previous page.
        """
        if behind is not None and (cursor is not None or query.offset):
            raise Invalid(
                Code.INVALID_CURSOR, "Use only one of session, cursor and offset for paging."
            )

        async def read(tx: Tx) -> OverviewPage:
            known = await with_abandoned(tx, query, self._leases)
            wanted = known if behind is None else await _next_cursor(tx, known, behind)
            page = await found_page(tx, wanted, cursor)
            # From the same snapshot, so that the count matches the pages.
            total = await tx.sessions.count(known) if is_counted else None
            items = await _with_costs(tx, page.items, self._leases)
            return OverviewPage(items=items, next_cursor=page.next_cursor, total=total)

        return await self._store.read(read)


async def _with_costs(
    tx: Tx, found: Sequence[Found], leases: Leases
) -> tuple[SessionOverview, ...]:
    sums = await tx.costs.totals([state.key for _, state in found])
    return tuple(
        SessionOverview(
            session=session_view(session, state, leases),
            spent=replace(sums.get(state.key, CostSum(key="")), key=session.id),
        )
        for session, state in found
    )


async def found_page(tx: Tx, query: SessionQuery, cursor: str | None) -> Page[Found]:
    """Return a page of stored sessions of the query's owner."""
    require_limit(query.limit)
    if query.text is not None:
        require_text(query.text, field="text", longest=1_000)
    filters = ("sessions", replace(query, abandoned=(), before=None, limit=1, offset=0))
    if cursor is not None:
        query = replace(query, before=decode_cursor(cursor, filters))
    # Reading one more than the limit shows whether there is a next page, without a count.
    found = await _read_sharing(tx, query, query.limit + 1)
    items = tuple(found[: query.limit])
    more = len(found) > query.limit
    last = (_time(items[-1][0], query.order), items[-1][0].id) if more else None
    return Page(items=items, next_cursor=encode_cursor(last, filters))


async def _read_sharing(tx: Tx, query: SessionQuery, limit: int) -> list[Found]:
    """Return up to `limit` sessions; those with equal agents share one object in memory."""
    found: list[Found] = []
    agents: dict[bytes, Agent] = {}
    while len(found) < limit:
        wanted = min(limit - len(found), READ_AT_ONCE)
        place, offset = query.before, query.offset
        if found:
            place, offset = (_time(found[-1][0], query.order), str(found[-1][0].id)), 0
        rows = await tx.sessions.page(replace(query, before=place, offset=offset, limit=wanted))
        for session, state in rows:
            # A prompt may be long, and hundreds of sessions may share it.
            digest = hashlib.sha256(encode(session.agent)).digest()
            agent = agents.setdefault(digest, session.agent)
            found.append((replace(session, agent=agent), state))
        if len(rows) < wanted:
            break
    return found


async def with_abandoned(tx: Tx, query: SessionQuery, leases: Leases) -> SessionQuery:
    """Return the query with the sessions that a status filter has to take for idle."""
    if not query.statuses and not query.status_filters:
        return query
    heads = await tx.sessions.running(query.owner)
    return replace(
        query, abandoned=tuple(state.key for state in heads if not leases.is_live(state))
    )


def session_view(session: S, state: SessionState, leases: Leases) -> S:
    """Return the session as clients see it: running while its lease is live or its turn waits."""
    is_active = is_paused(state) or leases.is_live(state)
    if session.status is Status.RUNNING and not is_active:
        return replace(session, status=Status.IDLE)
    return session


async def _next_cursor(tx: Tx, query: SessionQuery, session_id: SessionId) -> SessionQuery:
    found = await tx.sessions.get(query.owner, session_id)
    if found is None:
        raise Invalid(
            Code.INVALID_CURSOR,
            "There is no such session to continue after; start with the first page.",
        )
    return replace(query, before=(_time(found[0], query.order), session_id))


def _time(session: Session, order: SessionOrder) -> datetime:
    return session.created_at if order is SessionOrder.CREATED_AT else session.updated_at
