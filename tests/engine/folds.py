"""What is on disk after a crash, as the next process is given it: a small pure fold over batches.

It does what the journal and recovery do, with a list in place of a store.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.domain import calls
from holdfast.domain.agents import Recovery
from holdfast.domain.calls import Call, is_open
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Outcome, Summary
from holdfast.domain.events import (
    Channel,
    StepDelta,
    StepEnded,
    StepFailed,
    StepStarted,
    ToolStarted,
)
from holdfast.domain.ids import CallId, MessageId, SessionId
from holdfast.domain.messages import (
    Compaction,
    Message,
    Part,
    Role,
    ToolCall,
    ToolResult,
)
from holdfast.domain.time import microseconds
from holdfast.domain.tools import Effect
from holdfast.domain.turns import OpenStep, repair_after_crash
from holdfast.ports.runtime import TurnInput
from tests.engine.builders import NOW


class Disk:
    """Rows, calls, the open step and the ledger, as the batches leave them."""

    def __init__(self, turn: TurnInput, batches: Sequence[Sequence[Draft]] = ()) -> None:
        self._turn = turn
        self.rows = list(turn.history)
        self.calls: dict[CallId, Call] = {call.id: call for call in turn.calls}
        self.costs: list[CostDraft] = []
        self.open_step: OpenStep | None = None
        self.steps = 0
        self.outcome: Outcome | None = None
        for batch in batches:
            self.write(batch)

    def write(self, drafts: Sequence[Draft]) -> None:
        """Write a batch, as one transaction."""
        for draft in drafts:
            assert self.outcome is None, "something was written after the end of the turn"
            match draft:
                case MessageDraft():
                    self._append(draft, self._turn.turn)
                case Summary():
                    part = Compaction(summary=draft.text, dropped_through=draft.dropped_through)
                    self._append(MessageDraft(role=Role.SYSTEM, parts=(part,)), 0)
                case CostDraft():
                    self.costs.append(draft)
                case Outcome():
                    self.outcome = draft
                case StepStarted():
                    assert self.open_step is None, "a step was started while another one was open"
                    self.open_step = OpenStep(started=draft)
                    self.steps += 1
                case StepDelta(channel=Channel.TEXT, text=text) if self.open_step:
                    self.open_step = replace(self.open_step, text=self.open_step.text + text)
                case StepEnded() | StepFailed():
                    assert self.open_step is not None, "a step was ended that was not open"
                    self.open_step = None
                case ToolStarted():
                    call = self.calls[draft.call_id]
                    self.calls[draft.call_id] = calls.start_call(call, at=NOW)
                case _:
                    pass

    def recovered(self, recovery: Recovery = Recovery.STOP) -> TurnInput | None:
        """Mend what a crash has left; return what the turn is played on with, if it goes on."""
        found = list(filter(is_open, self.calls.values()))
        mend = repair_after_crash(self.open_step, found, recovery)
        self.write(mend.drafts)
        if mend.outcome is not None:
            self.outcome = mend.outcome
        if self.outcome is not None:
            return None
        used = [cost.usage for cost in self.costs if cost.usage and not cost.is_aside]
        return replace(
            self._turn,
            history=tuple(self.rows),
            calls=tuple(self.calls.values()),
            step=self._turn.step + self.steps,
            ordinal=self._turn.ordinal + len(self.costs),
            spent=self._turn.spent + sum(cost.microcents for cost in self.costs),
            last_usage=used[-1] if used else self._turn.last_usage,
        )

    @property
    def transcript(self) -> list[tuple[int, Role, tuple[Part, ...]]]:
        """Return the rows, but for their ids, numbers and times."""
        return [(row.turn, row.role, row.parts) for row in self.rows]

    @property
    def usage(self) -> Usage:
        """Return what the turn has taken in all."""
        return sum((cost.usage or Usage() for cost in self.costs), Usage())

    def _append(self, draft: MessageDraft, turn: int) -> None:
        sequence = self.rows[-1].sequence + 1 if self.rows else 1
        row = Message(
            id=draft.id or MessageId(f"row-{sequence}"),
            session_id=SessionId("session"),
            sequence=sequence,
            turn=turn,
            role=draft.role,
            parts=draft.parts,
            model_id=draft.model_id,
            at=microseconds(NOW),
            chain=f"hash-{sequence}-{draft.id}".encode(),
        )
        self.rows.append(row)
        for part in draft.parts:
            if isinstance(part, ToolCall):
                assert part.id not in self.calls, f"{part.id} was intended twice"
                self.calls[part.id] = _call(part, draft, turn)
            elif isinstance(part, ToolResult):
                call = self.calls[part.call_id]
                self.calls[part.call_id] = calls.finish_call(
                    call, part.status, at=NOW, sequence=sequence
                )


def _call(part: ToolCall, draft: MessageDraft, turn: int) -> Call:
    return Call(
        id=part.id,
        session_id=SessionId("session"),
        turn=turn,
        name=part.name,
        arguments=part.arguments,
        effect=draft.effect or Effect.UNSAFE,
        idempotency_key=draft.idempotency_key or "",
    )
