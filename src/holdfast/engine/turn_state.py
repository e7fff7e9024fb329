"""State of a running turn: messages, cost, remaining limits, and drafts that await a commit.

The rows here are the drafts given to the journal; their ids and numbers are not the stored ones.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from holdfast.domain.agents import LlmRuntime
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Outcome, Summary
from holdfast.domain.ids import MessageId, ModelId, SessionId
from holdfast.domain.messages import (
    Compaction,
    Message,
    ResultStatus,
    Role,
    ToolResult,
    encode_parts,
)
from holdfast.domain.sessions import describe_editor
from holdfast.domain.time import microseconds
from holdfast.ports.llm import LlmReasoning, LlmTool
from holdfast.ports.runtime import Emit, TreeCost, TurnEnd, TurnInput
from holdfast.services.agents import OUTPUT_SCHEMA, schema_of

# Upper bound of the tokens that providers add to each message.
MESSAGE_TOKENS: Final = 64
# Bound of the reasoning that is kept for paused turns, in characters.
THOUGHTS_MOST: Final = 4 << 20
_role: Final = attrgetter("role")


async def discard(_: Sequence[Draft] = ()) -> None:
    """Write nothing; for a request whose output is not streamed into the record."""


class TurnState:
    """Mutable state of a running turn; every draft is applied to it."""

    def __init__(self, turn: TurnInput, emit: Emit = discard) -> None:
        self.turn = turn
        self._emit = emit
        # What may share the commit of the next drafts: a last result, or intents whose first call
        # may run twice.
        self.carried: list[Draft] = []
        runtime = turn.agent.runtime
        self.settings = runtime if isinstance(runtime, LlmRuntime) else LlmRuntime()
        # The schema that the answer must match, and the system prompt that names it.
        self.schema = schema_of(turn.agent, OUTPUT_SCHEMA)
        self.system = turn.agent.system_prompt or None
        if self.schema is not None:
            self.system = _with_schema(turn.agent.system_prompt, self.schema)
        # `None` until the tools were listed.
        self.offers: tuple[LlmTool, ...] | None = None
        self.rows = list(turn.history)
        self.current = _rows_of(turn.history, turn.turn)
        # Whether the turn contains a user message, which needs an answer.
        self.is_spoken_to = Role.USER in map(_role, self.current)
        self.remark = describe_editor(turn.context)
        self.step = turn.step
        self.ordinal = turn.ordinal
        self.spent = turn.spent
        # Of the tree that the session belongs to, read before each request under a budget.
        self.tree = TreeCost()
        self.cap = turn.budget.microcents if turn.budget else 0
        # A failed request reports zero usage, which says nothing about the conversation.
        self.last_usage = turn.last_usage if turn.last_usage != Usage() else None
        self.last_model: ModelId | None = turn.last_model
        # Whether `last_usage` comes from a request of this turn.
        self.has_asked = False
        # Rows up to the last request of this turn; before it, those of the history.
        self._counted = len(self.rows)
        # Whether compaction was already attempted in this turn.
        self.has_folded = False
        # Whether the last request contained media, and whether a provider refused such a request.
        self.shows_media = False
        self.hides_media = False
        self._call_ids: set[str] = set()
        self.thoughts: dict[MessageId, tuple[LlmReasoning, ...]] = {}

    def emit(self, drafts: Sequence[Draft] = ()) -> Awaitable[object]:
        """Commit the carried drafts and these in one transaction."""
        if drafts:
            self.carry(drafts)
        batch, self.carried = self.carried, []
        return self._emit(batch) if batch else discard()

    def end(self, outcome: Outcome) -> TurnEnd:
        """Return the end of the turn, which is committed with the carried drafts."""
        return TurnEnd(outcome=outcome, drafts=tuple(self.carried))

    def carry(self, drafts: Sequence[Draft]) -> None:
        """Apply drafts and commit them with the next ones, which saves a transaction.

        They are lost in a crash until then, so emit them before anything is waited for.
        """
        self.carried += drafts
        for draft in drafts:
            if isinstance(draft, MessageDraft):
                self._add(draft, self.turn.turn)
            elif isinstance(draft, CostDraft):
                self.spent += draft.microcents
                self.ordinal += 1
                if draft.usage is not None and draft.usage != Usage() and not draft.is_aside:
                    self.last_usage, self.last_model = draft.usage, draft.model_id
                    self.has_asked = True
                    self._counted = len(self.rows)
            elif isinstance(draft, Summary):
                part = Compaction(summary=draft.text, dropped_through=draft.dropped_through)
                self._add(MessageDraft(role=Role.SYSTEM, parts=(part,)), 0)
                # The remaining number of tokens is unknown until the next request reports it.
                self.last_usage = None

    def take_call_id(self, call_id: str) -> bool:
        """Reserve an id for a call; `False` when a call of this session already uses it."""
        is_free = call_id not in self._call_ids and call_id not in self.turn.call_ids
        self._call_ids.add(call_id)
        return is_free

    @property
    def uncounted(self) -> int:
        """Return the maximum number of tokens in rows added after the last request, except media.

        Computed on demand, because only a budget needs it.
        """
        rows = self.rows[self._counted :]
        if not self.has_asked:
            rows = [*_uncounted(self.turn.history, self.turn.turn), *rows]
        return sum(len(encode_parts(row.parts)) + MESSAGE_TOKENS for row in rows)

    def _add(self, draft: MessageDraft, turn: int) -> None:
        newest = self.rows[-1] if self.rows else None
        row = Message(
            id=draft.id or MessageId(""),
            session_id=SessionId(""),
            sequence=newest.sequence + 1 if newest else 1,
            turn=turn,
            role=draft.role,
            parts=draft.parts,
            at=newest.at if newest else microseconds(self.turn.agent.created_at),
        )
        self.rows.append(row)
        if turn:
            self.current.append(row)


class PausedThoughts:
    """Reasoning of paused turns; only in memory, because a signature is never stored."""

    def __init__(self) -> None:
        self._held: OrderedDict[MessageId, tuple[LlmReasoning, ...]] = OrderedDict()
        self._bytes = 0

    def keep(self, state: TurnState) -> None:
        """Keep what the turn needs to continue, and drop the oldest above the limit."""
        for row, said in state.thoughts.items():
            self._held[row] = said
            self._bytes += _size(said)
        while self._bytes > THOUGHTS_MOST:
            self._bytes -= _size(self._held.popitem(last=False)[1])

    def give_back(self, state: TurnState) -> None:
        """Return to a turn what was kept for it."""
        if not self._held:
            return
        for row in state.current:
            said = self._held.pop(row.id, None)
            if said is not None:
                self._bytes -= _size(said)
                state.thoughts[row.id] = said


def _size(said: Iterable[LlmReasoning]) -> int:
    return sum(len(each.text) + len(each.signature or "") for each in said)


def rounds_of(rows: Iterable[Message]) -> list[bool]:
    """Return one flag per tool round: whether at least one of its calls succeeded.

    Consecutive calls were requested together.
    """
    rounds: list[bool] = []
    asking = False
    for row in rows:
        if row.role is Role.TOOL_CALL and not asking:
            rounds.append(False)
        asking = row.role is Role.TOOL_CALL
        if row.role is Role.TOOL_RESULT and rounds:
            (result,) = row.parts
            if isinstance(result, ToolResult) and result.status is ResultStatus.OK:
                rounds[-1] = True
    return rounds


def _uncounted(rows: Sequence[Message], turn: int) -> list[Message]:
    """Return the rows after the model's last one; after a crash they were not counted.

    Includes earlier rows of this turn that were queued while the previous turn was running.
    """
    spoken = [place for place, row in enumerate(rows) if row.role in _OF_MODEL]
    last = spoken[-1] if spoken else -1
    is_begun = bool(spoken) and rows[last].turn == turn
    early = () if is_begun else (row for row in rows[: last + 1] if row.turn == turn)
    return [*early, *rows[last + 1 :]]


_OF_MODEL: Final = frozenset({Role.ASSISTANT, Role.TOOL_CALL})


def _rows_of(history: Sequence[Message], turn: int) -> list[Message]:
    """Return the rows of the current turn."""
    rows: list[Message] = []
    for row in reversed(history):
        if row.turn == turn:
            rows.append(row)
        # Stops here: a message is queued during the previous turn at the earliest.
        elif 0 < row.turn < turn - 1:
            break
    rows.reverse()
    return rows


def _with_schema(prompt: str, schema: dict[str, Any]) -> str:
    text = msgspec.json.encode(schema).decode()
    rule = f"Your final answer must be one JSON value and nothing else, matching: {text}"
    return f"{prompt}\n\n{rule}".strip()
