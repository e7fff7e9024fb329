"""Slots: how many agents may run as programs of their own, whoever owns their sessions.

A session has its slot from its opening to its end, whether or not its program lives right now, so
that a program can be started again at any time.
"""

import logging
from typing import Final

from holdfast.domain.agents import AcpRuntime, Agent
from holdfast.domain.errors import Code, LimitReached
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Session
from holdfast.ports import Store, Tx

log = logging.getLogger(__name__)

LIMIT: Final = 5
RETRY_AFTER: Final = 60


class Slots:
    """So many programs at a time, and a line in the log whenever their number changes."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit

    async def require(self, tx: Tx, agent: Agent) -> None:
        """Refuse another session with the agent when all slots are taken.

        In the transaction that opens it: two who see the last free slot cannot both have it.
        """
        if not isinstance(agent.runtime, AcpRuntime):
            return
        active = await tx.sessions.slots()
        if active >= self._limit:
            raise LimitReached(
                Code.SESSION_LIMIT,
                f"{active} of {self._limit} agent sessions are open. Wait for one to finish, or "
                "end one.",
                {"limit": self._limit, "active": active, "retry_after": RETRY_AFTER},
            )

    async def tell_of(self, store: Store, session: Session, *, delta: int, cause: str) -> None:
        """Tell the same of any session: one whose agent is no program has no slot."""
        if isinstance(session.agent.runtime, AcpRuntime):
            await self.tell(store, session.id, delta=delta, cause=cause)

    async def tell(self, store: Store, session_id: SessionId, *, delta: int, cause: str) -> None:
        """Tell that a session took its slot or gave it up; to be said when that is on disk."""
        fields = {
            "active": await store.read(lambda tx: tx.sessions.slots()),
            "limit": self._limit,
            "delta": delta,
            "session_id": session_id,
            "cause": cause,
        }
        log.info("sessions.active_changed", extra={"fields": fields})
