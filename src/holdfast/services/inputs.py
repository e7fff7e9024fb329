"""Inputs: all that a runtime may know about a turn, gathered from one snapshot of the store."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.domain.agents import Agent, LlmRuntime
from holdfast.domain.drafts import Outcome
from holdfast.domain.events import Failure, FailureCode, StepStarted, name_of
from holdfast.domain.ids import SessionKey
from holdfast.domain.messages import Message, Role
from holdfast.domain.sessions import Head, Session, StopReason
from holdfast.ports import Berth, Brief, Limits, Store, TurnInput, Tx
from holdfast.services.approvals import Approvals
from holdfast.services.budgets import budget_of
from holdfast.services.heads import session_not_found
from holdfast.services.histories import Histories
from holdfast.services.models import Models
from holdfast.services.places import Places

# So many rows are read in well under a millisecond.
ROWS_BRIEF: Final = 50


class Inputs:
    """Gathers what turns are played with."""

    def __init__(
        self,
        models: Models,
        places: Places,
        approvals: Approvals,
        limits: Limits,
        berth: Callable[[Session, SessionKey], Berth | None] = lambda *_: None,
    ) -> None:
        """`berth` tells where the program of a session has its place, if its agent is one."""
        self._berth = berth
        self._models = models
        self._places = places
        self._approvals = approvals
        self._limits = limits
        self._histories = Histories()

    def forget(self, key: SessionKey) -> None:
        """Remember nothing of a session that has ended."""
        self._histories.forget(key)

    async def gathered(self, store: Store, key: SessionKey) -> TurnInput | Outcome:
        """Gather on a snapshot of its own, at once unless a long history has to be read."""

        async def gather(tx: Tx) -> TurnInput | Outcome:
            return await self.gather(tx, key)

        async def gather_if_short(tx: Tx) -> TurnInput | Outcome | None:
            head = None if self._histories.knows(key) else await tx.sessions.head_by_key(key)
            is_long = head is not None and head.messages > ROWS_BRIEF
            return None if is_long else await self.gather(tx, key)

        found = await store.read(Brief(gather_if_short))
        found = found if found is not None else await store.read(gather)
        if isinstance(found, TurnInput):
            await self._models.keep(found.models)
        return found

    async def gather(self, tx: Tx, key: SessionKey) -> TurnInput | Outcome:
        """Return what the next turn is played with, or how it ends if it may not be played."""
        found = await tx.sessions.get_by_key(key)
        if found is None:
            raise session_not_found()
        session, head = found
        if await self._is_past_the_cap(tx, session, head):
            return _past_the_cap(session)
        turn = head.settled + 1
        # One snapshot: rows and calls of two instants could contradict each other.
        history = await self._histories.read(tx, head)
        newest = await tx.costs.newest(head) if head.requests else None
        return TurnInput(
            agent=session.agent,
            models=await self._models.chain(tx, session),
            context=session.context,
            history=history,
            # Every call has a row: where there is none, the table need not be asked.
            calls=tuple(await tx.calls.of_turn(head, turn)) if _asks(history, turn) else (),
            turn=turn,
            step=await _steps(tx, head) + 1,
            ordinal=head.requests + 1,
            shelf=self._places.shelf(key),
            place=self._places.of(session, key),
            tools=session.tools,
            approver=self._approvals.of(key),
            berth=self._berth(session, key),
            limits=_limits(session.agent, self._limits),
            budget=await budget_of(tx, session, key, self._limits.budget),
            spent=head.microcents,
            last_usage=newest.usage if newest else None,
            last_model=newest.model_id if newest else None,
        )

    async def _is_past_the_cap(self, tx: Tx, session: Session, head: Head) -> bool:
        """Tell whether the session has had all its turns, this one not being among them."""
        turn = head.settled + 1
        # Counted only where it can matter: no more turns are engaged than have settled.
        if head.settled < session.turn_cap or await tx.costs.of_turn(head, turn):
            return False
        if await tx.costs.engaged(head) < session.turn_cap:
            return False
        # A call that is run again asks no model, and the cap has nothing to say to it.
        rows = await self._histories.read(tx, head)
        return any(row.turn == turn and row.role is Role.USER for row in rows)


async def _steps(tx: Tx, head: Head) -> int:
    """Return how many steps of the turn have begun; a turn that began just now has none."""
    if head.events == head.began:
        return 0
    return len(await tx.events.since(head, head.began, [name_of(StepStarted)]))


def _asks(history: Sequence[Message], turn: int) -> bool:
    """Tell whether a row of the turn asks for a call."""
    for row in reversed(history):
        # Not further back: rows of a turn are written after the one before it began.
        if 0 < row.turn < turn - 1:
            return False
        if row.turn == turn and row.role is Role.TOOL_CALL:
            return True
    return False


def _past_the_cap(session: Session) -> Outcome:
    failure = Failure(
        code=FailureCode.TURN_LIMIT,
        message=f"The session has had its {session.turn_cap} turns. Open a new one, or fork this.",
    )
    return Outcome(stop_reason=StopReason.TURN_LIMIT, failure=failure)


def _limits(agent: Agent, configured: Limits) -> Limits:
    """Return how far a turn may go, with the window that the agent itself asks for."""
    memory = agent.runtime.memory if isinstance(agent.runtime, LlmRuntime) else None
    if memory is None or memory.window_size is None:
        return configured
    return replace(configured, max_messages=memory.window_size)
