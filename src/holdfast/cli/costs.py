"""What sessions have cost, as the ledger in the store says and never as this process remembers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.cli.forms import Form, session_form
from holdfast.domain.costs import CostQuery, CostSum
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Session

if TYPE_CHECKING:
    from holdfast.cli.house import House


async def unpriced(holdfast: "House", sessions: Sequence[Session]) -> frozenset[SessionId]:
    """Return the sessions with a request whose price nobody knows."""
    spent = await holdfast.costs.of_sessions(holdfast.owner, [each.id for each in sessions])
    return frozenset(key for key, each in spent.items() if each.unpriced_requests)


async def by_model(holdfast: "House", session_id: SessionId) -> tuple[CostSum, ...]:
    """Return what a session has cost, model by model."""
    query = CostQuery(owner=holdfast.owner, session_id=session_id)
    return (await holdfast.costs.report(query)).groups


async def form_of(holdfast: "House", session: Session) -> Form:
    """Return a session's form, with what the ledger says about its cost."""
    return session_form(session, priced=session.id not in await unpriced(holdfast, [session]))
