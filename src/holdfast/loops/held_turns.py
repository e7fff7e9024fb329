"""Turns that a program runs with a loop of its own, between entering and leaving a block.

The lease is that of every turn; no other process answers the message meanwhile.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.ask.answers import TurnFailed
from holdfast.domain.drafts import Outcome
from holdfast.domain.errors import Code, Conflict, HoldfastError, LimitReached
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.leases import Lease
from holdfast.domain.messages import Part
from holdfast.domain.sessions import OnBusy, StopReason, has_waiting_turn
from holdfast.domain.turns import HeldTurn, ResumePolicy
from holdfast.execution.coordinator import LocalCoordinator
from holdfast.loops.turn import LoopServices, LoopTurn
from holdfast.ports.runtime import TurnInput
from holdfast.ports.store import Store
from holdfast.ports.system import Doorbell
from holdfast.services.journal import Journal, SessionWriter, find_session_state
from holdfast.services.leases import Leases
from holdfast.services.messages import user_draft
from holdfast.services.session_lifecycle import admit
from holdfast.services.turn_inputs import TurnInputs
from holdfast.services.turns import Turns, TurnWritten

# Seconds between two looks at a session whose turn runs in another process.
_LOOK_SECONDS = 1.0


class TurnAborted(Exception):  # noqa: N818 — an outcome of the turn
    """The turn was interrupted, and is ended in the store."""


class Hold(Struct, frozen=True, kw_only=True):
    """How a program wants to hold a turn."""

    id: str | None = None
    wait: bool = False
    resume: ResumePolicy = ResumePolicy.REPLAY
    within: float | None = 600
    max_calls: int = 1_000


class HeldTurns:
    """Claims sessions for the loops of this program."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        *,
        leases: Leases,
        doorbell: Doorbell,
        turns: Turns,
        inputs: TurnInputs,
        coordinator: LocalCoordinator,
        parts: Callable[[], LoopServices],
    ) -> None:
        self._store = store
        self._journal = journal
        self._leases = leases
        self._doorbell = doorbell
        self._turns = turns
        self._inputs = inputs
        self._coordinator = coordinator
        self._parts = parts

    @asynccontextmanager
    async def hold(
        self,
        owner: Owner,
        session_id: SessionId,
        content: str | tuple[Part, ...] | None,
        wanted: Hold,
    ) -> AsyncIterator[LoopTurn]:
        """Begin a turn with a message, or enter one that waits; leaving the block ends it."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 — this is a coroutine
        lease, held = await self._claim_when_free(owner, session_id, content, wanted)
        self._coordinator.hold(lease, task)
        try:
            turn_input = await self._inputs.read(self._store, lease.key, lease=lease)
            if isinstance(turn_input, Outcome):
                await self._turns.give_up(lease, turn_input)
                text = turn_input.failure.message if turn_input.failure else "A limit was reached."
                raise LimitReached(Code.TURN_ENTRY_LIMIT, text)
            async with self._run_to_end(lease, without_pauses(turn_input), held, wanted) as turn:
                yield turn
        except asyncio.CancelledError:
            if self._coordinator.holds(lease):
                # Cancelled from outside: the turn must not stay open in a living process.
                await asyncio.shield(self._turns.give_up(lease, _ABORTED))
                raise
            # Interrupted: the cancellation was only the way to stop this task.
            if task.uncancel() > 0:
                raise
            raise await self._why_stopped(lease, held) from None
        except Conflict as error:
            if error.code is not Code.LEASE_LOST:
                raise
            # The cancellation that came with it must not reach the program.
            if task.cancelling() and not self._coordinator.holds(lease):
                task.uncancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            raise await self._why_stopped(lease, held) from None
        except (SystemExit, KeyboardInterrupt):
            # The program ends; its next run continues the turn.
            with suppress(HoldfastError):
                await self._leases.release(lease)
            raise
        finally:
            self._coordinator.drop_lease(lease)

    @asynccontextmanager
    async def _run_to_end(
        self, lease: Lease, turn_input: TurnInput, held: HeldTurn, wanted: Hold
    ) -> AsyncIterator[LoopTurn]:
        emitter = self._turns.emitter(lease)
        turn = LoopTurn(
            turn_input,
            emitter.emit,
            self._parts(),
            resume=held.resume,
            attempt=held.attempt,
            max_calls=wanted.max_calls,
        )
        try:
            await turn.check_budget()
            yield turn
        except Exception as error:
            with suppress(Conflict):
                await self._end(lease, await self._turns.give_up(lease, failure_of(error)))
            raise
        finally:
            turn.is_over = True
        end = await turn.finish()
        if turn.has_open_calls:
            # Their outcome is recorded as after an interrupt.
            await emitter.emit(end.drafts)
            await self._end(lease, await self._turns.give_up(lease, end.outcome))
        else:
            await self._end(lease, await emitter.emit(end.drafts, end.outcome))

    async def _end(self, lease: Lease, written: TurnWritten) -> None:
        """Leave what is queued behind the turn to the processes that run it."""
        if written is TurnWritten.NEXT_TURN_WAITS:
            await self._leases.release(lease)

    async def _claim_when_free(
        self, owner: Owner, session_id: SessionId, content: Any, wanted: Hold
    ) -> tuple[Lease, HeldTurn]:
        state = await self._store.read(lambda tx: find_session_state(tx, owner, session_id))
        while True:
            bell = self._doorbell.listen(state.key)
            try:
                return await self._claim_whole(state.key, owner, session_id, content, wanted)
            except Conflict as error:
                if error.code is not Code.TURN_RUNNING or not wanted.wait:
                    raise
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await bell.rung()
            except TimeoutError:
                continue

    async def _claim_whole(
        self, key: SessionKey, owner: Owner, session_id: SessionId, content: Any, wanted: Hold
    ) -> tuple[Lease, HeldTurn]:
        """Claim the session; a caller that is cancelled meanwhile leaves no turn open."""
        try:
            self._coordinator.announce_hold(key)
            claim = asyncio.ensure_future(self._claim(owner, session_id, content, wanted))
            try:
                return await asyncio.shield(claim)
            except asyncio.CancelledError:
                with suppress(HoldfastError):
                    lease, _ = await claim
                    await self._end(lease, await self._turns.give_up(lease, _ABORTED))
                raise
        finally:
            self._coordinator.clear_announcement(key)

    async def _claim(
        self, owner: Owner, session_id: SessionId, content: Any, wanted: Hold
    ) -> tuple[Lease, HeldTurn]:
        draft = None if content is None else user_draft(content, wanted.id)

        async def write(writer: SessionWriter) -> tuple[Lease | None, HeldTurn]:
            if draft is not None:
                admitted = await admit(writer, draft, OnBusy.REJECT)
                turn = admitted.made.value.turn
            else:
                turn = writer.state.settled + 1
                if not has_waiting_turn(writer.state):
                    raise Conflict(
                        Code.NOTHING_WAITS, "No message waits in the session; pass a message."
                    )
            if turn <= writer.state.settled:
                raise _ended_before(writer.state.last_stop)
            if turn > writer.state.settled + 1:
                raise Conflict(
                    Code.TURN_RUNNING, "Another turn runs before the one of the message."
                )
            before = await writer.tx.held_turns.of(writer.state.key, turn)
            held = HeldTurn(
                turn=turn,
                resume=before.resume if before else wanted.resume,
                within=wanted.within,
                attempt=before.attempt + 1 if before else 1,
            )
            return await self._leases.hold(writer, held, is_back=before is not None), held

        lease, held = await self._journal.write(owner, session_id, write)
        if lease is None:
            raise _ended_before(StopReason.INTERRUPTED)
        return lease, held

    async def _why_stopped(self, lease: Lease, held: HeldTurn) -> Exception:
        state = await self._store.read(lambda tx: tx.sessions.state_by_key(lease.key))
        if state is None or state.settled >= held.turn:
            return TurnAborted("The turn was interrupted.")
        return Conflict(Code.LEASE_LOST, "Another process holds the turn now.")


# Characters of the text that a loop chooses for its failure.
_TEXT_MOST = 4_096
_ABORTED = Outcome(stop_reason=StopReason.ABORTED)


def without_pauses(turn: TurnInput) -> TurnInput:
    """Return the inputs of a turn that is not left and entered again, as a replay would be.

    It cannot wait for a client, and it waits for approvals and children where it is.
    """
    turn = replace(turn, approver=turn.approver.waiting(math.inf))
    if turn.workspace is None:
        return turn
    return replace(turn, workspace=replace(turn.workspace, client_tools={}, may_pause=False))


def failure_of(error: Exception) -> Outcome:
    """Return how a turn ends whose loop raised; only the text of `TurnFailed` is shown."""
    if isinstance(error, HoldfastError) and error.code is Code.REPLAY_MISMATCH:
        failure = Failure(code=FailureCode.REPLAY_MISMATCH, message=error.message)
    elif isinstance(error, HoldfastError) and error.code is Code.TURN_ENTRY_LIMIT:
        failure = Failure(code=FailureCode.TURN_LIMIT, message=error.message)
        return Outcome(stop_reason=StopReason.TURN_LIMIT, failure=failure)
    elif isinstance(error, HoldfastError) and error.code is Code.BUDGET_EXCEEDED:
        failure = Failure(code=FailureCode.BUDGET_EXCEEDED, message=error.message)
        return Outcome(stop_reason=StopReason.BUDGET, failure=failure)
    elif isinstance(error, TurnFailed):
        failure = Failure(code=FailureCode.LOOP_FAILED, message=str(error)[:_TEXT_MOST])
    else:
        text = f"The loop failed with {type(error).__name__}."
        failure = Failure(code=FailureCode.LOOP_FAILED, message=text)
    return Outcome(stop_reason=StopReason.ERROR, failure=failure)


def _ended_before(stop: StopReason | None) -> Conflict:
    remedy = "settle its unknown calls, or send another message"
    if stop is StopReason.STOP:
        remedy = "hf.read returns its messages"
    return Conflict(
        Code.TURN_ENDED,
        f"The turn of this message has ended ({stop}); {remedy}.",
        {"stop_reason": stop},
    )
