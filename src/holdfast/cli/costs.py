"""What sessions have cost, as the ledger in the store says and never as this process remembers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.cli.forms import Form, session_form
from holdfast.domain.costs import CostEntry
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Session
from holdfast.ports import Tx
from holdfast.services.heads import find_head

if TYPE_CHECKING:
    from holdfast.bootstrap import Holdfast


async def unpriced(holdfast: "Holdfast", sessions: Sequence[Session]) -> frozenset[SessionId]:
    """Return the sessions with a request whose price nobody knows."""

    async def read(tx: Tx) -> frozenset[SessionId]:
        found = set()
        for session in sessions:
            # It may have been deleted since it was listed.
            head = await tx.sessions.head(session.owner, session.id)
            entries = await tx.costs.of_session(head) if head is not None else []
            if not all(entry.priced for entry in entries):
                found.add(session.id)
        return frozenset(found)

    return await holdfast.store.read(read)


async def is_priced(holdfast: "Holdfast", session_id: SessionId, turn: int) -> bool:
    """Tell whether the price of every request of a turn is known."""

    async def read(tx: Tx) -> bool:
        head = await tx.sessions.head(holdfast.owner, session_id)
        entries = await tx.costs.of_turn(head, turn) if head is not None else []
        return all(entry.priced for entry in entries)

    return await holdfast.store.read(read)


async def ledger(holdfast: "Holdfast", session_id: SessionId) -> list[CostEntry]:
    """Return every request of a session."""

    async def read(tx: Tx) -> list[CostEntry]:
        return await tx.costs.of_session(await find_head(tx, holdfast.owner, session_id))

    return await holdfast.store.read(read)


async def form_of(holdfast: "Holdfast", session: Session) -> Form:
    """Return a session's form, with what the ledger says about its cost."""
    return session_form(session, priced=session.id not in await unpriced(holdfast, [session]))
