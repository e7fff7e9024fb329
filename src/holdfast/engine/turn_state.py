"""One turn in progress: what was said so far, what it has cost, and how far it may still go.

The rows here are what the journal was given, not what it stored: ids and numbers are not theirs.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.domain.agents import LlmRuntime
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Summary
from holdfast.domain.ids import MessageId, ModelId, SessionId
from holdfast.domain.messages import (
    Compaction,
    Message,
    Part,
    ResultStatus,
    Role,
    ToolCall,
    ToolResult,
    encode_parts,
)
from holdfast.ports import LlmReasoning, LlmTool, TurnInput

# What providers put around a message, at most.
MESSAGE_TOKENS: Final = 64


class TurnState:
    """A turn while it is played; every draft that is yielded is noted here, too."""

    def __init__(self, turn: TurnInput) -> None:
        self.turn = turn
        # None until somebody has looked which tools there are.
        self.offers: tuple[LlmTool, ...] | None = None
        self.rows = list(turn.history)
        self.current = _rows_of(turn.history, turn.turn)
        self.step = turn.step
        self.ordinal = turn.ordinal
        self.spent = turn.spent
        self.cap = turn.budget.microcents if turn.budget else 0
        # A request that failed has counted nothing; it says nothing about the conversation.
        self.last_usage = turn.last_usage if turn.last_usage != Usage() else None
        self.last_model: ModelId | None = turn.last_model
        # Whether a request of this turn is the newest one that was counted.
        self.has_asked = False
        # The most tokens of rows that came after the newest request.
        self.uncounted = sum(weight(row.parts) for row in _uncounted(self.rows, turn.turn))
        # Whether the past was folded in this turn already, or could not be.
        self.has_folded = False
        # Whether the newest request held media, and whether a provider has refused such a one.
        self.shows_media = False
        self.hides_media = False
        self._call_ids: set[str] | None = None
        self.thoughts: dict[MessageId, tuple[LlmReasoning, ...]] = {}

    @property
    def settings(self) -> LlmRuntime:
        """Return how the agent wants its model to be asked."""
        runtime = self.turn.agent.runtime
        return runtime if isinstance(runtime, LlmRuntime) else LlmRuntime()

    def note(self, drafts: Sequence[Draft]) -> None:
        """Take note of what is about to be written down."""
        for draft in drafts:
            match draft:
                case MessageDraft():
                    self._add(draft, self.turn.turn)
                case Summary():
                    part = Compaction(summary=draft.text, dropped_through=draft.dropped_through)
                    self._add(MessageDraft(role=Role.SYSTEM, parts=(part,)), 0)
                    # Nobody knows yet how many tokens are left; the next request will tell.
                    self.last_usage = None
                case CostDraft():
                    self._charge(draft)
                case _:
                    pass

    def take_call_id(self, call_id: str) -> bool:
        """Take an id for a call; `False` when a call of this session has it already."""
        if self._call_ids is None:
            asking = [row.parts for row in self.rows if row.role is Role.TOOL_CALL]
            self._call_ids = {
                part.id for parts in asking for part in parts if isinstance(part, ToolCall)
            }
        is_free = call_id not in self._call_ids
        self._call_ids.add(call_id)
        return is_free

    def rounds(self) -> list[bool]:
        """Return the rounds of tools so far, each as whether one of its calls went well."""
        return rounds_of(self.current)

    @property
    def is_spoken_to(self) -> bool:
        """Tell whether somebody said something in this turn that wants an answer."""
        return any(row.role is Role.USER for row in self.current)

    def _charge(self, cost: CostDraft) -> None:
        self.spent += cost.microcents
        self.ordinal += 1
        if cost.usage is not None and cost.usage != Usage() and not cost.is_aside:
            self.last_usage, self.last_model = cost.usage, cost.model_id
            self.has_asked = True
            self.uncounted = 0

    def _add(self, draft: MessageDraft, turn: int) -> None:
        newest = self.rows[-1] if self.rows else None
        row = Message(
            id=draft.id or MessageId(""),
            session_id=SessionId(""),
            sequence=newest.sequence + 1 if newest else 1,
            turn=turn,
            role=draft.role,
            parts=draft.parts,
            created_at=newest.created_at if newest else self.turn.agent.created_at,
            hash="",
        )
        self.rows.append(row)
        self.uncounted += weight(draft.parts)
        if turn:
            self.current.append(row)


def weight(parts: Sequence[Part]) -> int:
    """Return the most tokens that a row is counted as, without the media that it names."""
    return len(encode_parts(tuple(parts))) + MESSAGE_TOKENS


def rounds_of(rows: Iterable[Message]) -> list[bool]:
    """Group a turn's calls into rounds: calls that follow one another were asked for together."""
    rounds: list[bool] = []
    asking = False
    for row in rows:
        if row.role is Role.TOOL_CALL and not asking:
            rounds.append(False)
        asking = row.role is Role.TOOL_CALL
        if row.role is Role.TOOL_RESULT and rounds and _is_good(row):
            rounds[-1] = True
    return rounds


def _uncounted(rows: Sequence[Message], turn: int) -> list[Message]:
    """Return the rows after the last one that came from a model: a crash may lie before them.

    Before it there may be what was written for this turn while the one before it ran.
    """
    spoken = [place for place, row in enumerate(rows) if row.role in _OF_MODEL]
    last = spoken[-1] if spoken else -1
    is_begun = bool(spoken) and rows[last].turn == turn
    early = () if is_begun else (row for row in rows[: last + 1] if row.turn == turn)
    return [*early, *rows[last + 1 :]]


_OF_MODEL: Final = frozenset({Role.ASSISTANT, Role.TOOL_CALL})


def _is_good(row: Message) -> bool:
    return any(
        isinstance(part, ToolResult) and part.status is ResultStatus.OK for part in row.parts
    )


def _rows_of(history: Sequence[Message], turn: int) -> list[Message]:
    """Return the rows of the turn that is being played."""
    first = len(history)
    # Not further back: what waits for a turn is written while the one before it runs, never sooner.
    while first and (history[first - 1].turn >= turn - 1 or not history[first - 1].turn):
        first -= 1
    return [row for row in history[first:] if row.turn == turn]
