"""Compactions: folding what came before into a summary because somebody asks for it."""

from collections.abc import Mapping

from holdfast.domain.agents import Runtime as AgentRuntime
from holdfast.domain.drafts import Outcome, Summary
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.sessions import Head, has_waiting_turn
from holdfast.ports import Runtime, Store, TurnInput, Tx
from holdfast.services.heads import find_head
from holdfast.services.inputs import Inputs
from holdfast.services.journal import Journal, Pen


class Compactions:
    """Shortens what a model sees of a session; no row is removed or changed."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        inputs: Inputs,
        runtimes: Mapping[type[AgentRuntime], Runtime],
    ) -> None:
        self._store = store
        self._journal = journal
        self._inputs = inputs
        self._runtimes = runtimes
        self._busy: set[SessionKey] = set()

    async def compact(self, owner: Owner, session_id: SessionId) -> bool:
        """Fold everything before the last answered turn; `False` when there is nothing to fold."""

        async def read(tx: Tx) -> tuple[Head, TurnInput | Outcome]:
            head = await find_head(tx, owner, session_id)
            _require_rest(head)
            return head, await self._inputs.gather(tx, head.key)

        head, turn = await self._store.read(read)
        # Past its cap nothing is asked any more, so nothing has to be shorter.
        if isinstance(turn, Outcome):
            return False
        # Two at once would each be held against all the money that is left.
        if head.key in self._busy:
            raise Conflict(Code.TURN_RUNNING, "The session is being compacted; wait for its end.")
        self._busy.add(head.key)
        try:
            return await self._fold(head, turn)
        finally:
            self._busy.discard(head.key)

    async def _fold(self, head: Head, turn: TurnInput) -> bool:
        drafts = await self._runtimes[type(turn.agent.runtime)].compact(turn)

        async def write(pen: Pen) -> None:
            # The summary was made of what was there; what came since must not be thought of as in.
            if pen.head.messages != head.messages:
                _require_rest(pen.head)
            await pen.write(drafts, 0)

        if drafts:
            await self._journal.write_by_key(head.key, write)
        return any(isinstance(draft, Summary) for draft in drafts)


def _require_rest(head: Head) -> None:
    if has_waiting_turn(head):
        raise Conflict(Code.TURN_RUNNING, "A turn runs or waits; compact when it has ended.")
