"""The agent's output in a turn: text and reasoning in steps, its plan, and its usage."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from holdfast.acp.client.agent_state import AgentState
from holdfast.acp.client.lenient_json import read_list, read_object, read_word
from holdfast.acp.client.usage import UsageSource, microcents_between
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft
from holdfast.domain.events import Channel, StepDelta, StepEnded, StepStarted
from holdfast.domain.ids import MessageId, ModelId
from holdfast.domain.messages import Media, Message, Part, Plan, PlanStep, Reasoning, Role, Text
from holdfast.domain.text import storable

# Limits the size of a plan, because it is stored and displayed as one row.
STEPS_MOST: Final = 500
_TEXT_LONGEST: Final = 4_096
_PRIORITIES: Final = frozenset({"high", "medium", "low"})
_STATUSES: Final = frozenset({"pending", "in_progress", "completed"})
PlanSteps = tuple[PlanStep, ...]


def read_plan_steps(update: Mapping[str, Any]) -> PlanSteps | None:
    """Return the steps of a plan without empty ones; `None` if `entries` is not a list."""
    entries = update.get("entries")
    if not isinstance(entries, list):
        return None
    return tuple(
        step
        for entry in read_list(entries)[:STEPS_MOST]
        if (step := _plan_step(read_object(entry)))
    )


def last_plan(history: Iterable[Message]) -> PlanSteps:
    """Return the latest plan of a history; empty if there is none."""
    newest: PlanSteps = ()
    for row in history:
        for part in row.parts:
            if isinstance(part, Plan):
                newest = part.steps
    return newest


def _plan_step(entry: Mapping[str, Any]) -> PlanStep | None:
    said = read_word(entry.get("content"), longest=_TEXT_LONGEST)
    if said is None:
        return None
    return PlanStep(
        text=said,
        priority=_one_of(_PRIORITIES, entry.get("priority"), "medium"),
        status=_one_of(_STATUSES, entry.get("status"), "pending"),
    )


def _one_of(words: frozenset[str], value: object, otherwise: str) -> str:
    # The type is checked first, because an unhashable value would raise in the set lookup.
    return value if isinstance(value, str) and value in words else otherwise


# Size limit of a row, so that it can be read and displayed; more text starts a new step.
TEXT_LARGEST: Final = 4 << 20


class OutputStep:
    """One step of output; reasoning always comes before text."""

    def __init__(self, started: StepStarted, agents_id: str | None) -> None:
        self.started = started
        # The agent's id of the message, if it sends one.
        self.agents_id = agents_id
        self.size = 0
        self.has_words = False
        self.held = 0
        self._channel = Channel.REASONING
        self._pieces: list[str] = []
        self._ready: list[StepDelta] = []
        self._offsets = {Channel.REASONING: 0, Channel.TEXT: 0}
        self._thoughts: list[str] = []
        self._words: list[str] = []
        self._parts: list[Part] = []

    def say(self, channel: Channel, text: str) -> None:
        """Append text to a channel."""
        if channel is not self._channel:
            self._cut_piece()
            self._channel = channel
        self._pieces.append(text)
        size = len(text)
        self.size += size
        self.held += size
        if channel is Channel.TEXT:
            self.has_words = True

    def show(self, media: Media) -> None:
        """Append a medium between the text before and after it."""
        self._cut_piece()
        self._channel = Channel.TEXT
        self.has_words = True
        self._close_words()
        self._parts.append(media)

    def deltas(self) -> list[StepDelta]:
        """Return the buffered text as deltas and clear the buffer."""
        self._cut_piece(is_last=False)
        ready, self._ready = self._ready, []
        return ready

    def end(self) -> tuple[Draft, ...]:
        """Return the drafts that end the step; a step without content has no row."""
        self._cut_piece()
        self._close_words()
        end = StepEnded(step=self.started.step, message_id=self.started.message_id)
        thoughts = (Reasoning(text="".join(self._thoughts)),) if self._thoughts else ()
        parts: tuple[Part, ...] = (*thoughts, *self._parts)
        if not parts:
            return (*self._ready, end)
        row = MessageDraft(
            id=self.started.message_id,
            role=Role.ASSISTANT,
            parts=parts,
            model_id=self.started.model_id,
        )
        # The end comes before the row, so that a reader of the row knows the step is complete.
        return (*self._ready, end, row)

    def _cut_piece(self, *, is_last: bool = True) -> None:
        """Turn the text buffered for the channel into a delta."""
        if not self._pieces:
            return
        text = "".join(self._pieces)
        self._pieces = []
        # An unpaired high surrogate waits for the next chunk, because agents split anywhere.
        if not is_last and "\ud800" <= text[-1] <= "\udbff":
            self._pieces.append(text[-1])
            text = text[:-1]
        # The surrogate sets no deadline, because the end of the step writes it in any case.
        self.held = 0
        text = storable(text)
        if not text:
            return
        channel = self._channel
        (self._words if channel is Channel.TEXT else self._thoughts).append(text)
        self._ready.append(
            StepDelta(
                step=self.started.step,
                message_id=self.started.message_id,
                channel=channel,
                offset=self._offsets[channel],
                text=text,
            )
        )
        self._offsets[channel] += len(text)

    def _close_words(self) -> None:
        if self._words:
            self._parts.append(Text(text="".join(self._words)))
            self._words = []


class TurnFacts(Struct, frozen=True, kw_only=True):
    """Facts about a turn that are known before its prompt is sent.

    `step` is the number of its first step, `plan` the latest plan of the session, `taken` the call
    ids already used in the session.
    """

    session: str
    turn: int
    step: int
    model_id: ModelId
    model: str = ""
    plan: PlanSteps = ()
    taken: frozenset[str] = frozenset()


class AgentOutput:
    """The steps of one turn: at most one is open, and their numbers have no gaps."""

    def __init__(self, facts: TurnFacts, new_id: Callable[[], str]) -> None:
        self.step: OutputStep | None = None
        self._facts = facts
        self._new_id = new_id
        self._next = facts.step

    def say(self, channel: Channel, text: str, agents_id: str | None) -> list[Draft]:
        """Append text; return the drafts of steps that ended or began."""
        drafts: list[Draft] = []
        step = self._open_step(channel, agents_id, drafts)
        for start in range(0, len(text), TEXT_LARGEST):
            piece = text[start : start + TEXT_LARGEST] if len(text) > TEXT_LARGEST else text
            if step.size + len(piece) > TEXT_LARGEST:
                drafts += self.end()
                step = self._begin(agents_id, drafts)
            step.say(channel, piece)
        return drafts

    def show(self, media: Media, agents_id: str | None) -> list[Draft]:
        """Append a medium; return the drafts of steps that ended or began."""
        drafts: list[Draft] = []
        self._open_step(Channel.TEXT, agents_id, drafts).show(media)
        return drafts

    def end(self) -> tuple[Draft, ...]:
        """End the open step, if there is one, and return its drafts."""
        step, self.step = self.step, None
        return step.end() if step is not None else ()

    def end_with_a_call(self) -> tuple[Draft, ...]:
        """End the step that a call belongs to; a step with only calls has no text."""
        drafts: list[Draft] = []
        if self.step is None:
            self._begin(None, drafts)
        return (*drafts, *self.end())

    def deltas(self) -> list[Draft]:
        """Return the buffered text of the open step as deltas."""
        return [*self.step.deltas()] if self.step is not None else []

    def _open_step(
        self, channel: Channel, agents_id: str | None, drafts: list[Draft]
    ) -> OutputStep:
        step = self.step
        if step is None:
            return self._begin(agents_id, drafts)
        is_other = agents_id is not None and step.agents_id not in {None, agents_id}
        if is_other or (channel is Channel.REASONING and step.has_words):
            drafts += self.end()
            return self._begin(agents_id, drafts)
        if step.agents_id is None:
            step.agents_id = agents_id
        return step

    def _begin(self, agents_id: str | None, drafts: list[Draft]) -> OutputStep:
        started = StepStarted(
            step=self._next,
            model_id=self._facts.model_id,
            model=self._facts.model,
            message_id=MessageId(self._new_id()),
        )
        self._next += 1
        self.step = OutputStep(started, agents_id)
        drafts.append(started)
        return self.step


class TurnUsage:
    """The usage of a turn; of several sources the one with the lowest number counts."""

    def __init__(self, facts: TurnFacts) -> None:
        self._facts = facts
        self._reported: dict[UsageSource, Usage] = {}
        # Whether the agent reported a cost in this turn.
        self.is_priced = False

    def note(self, source: UsageSource, usage: Usage | None) -> None:
        """Record the usage from a source; a later value replaces an earlier one."""
        if usage is not None:
            self._reported[source] = usage

    def entry(self, agent_state: AgentState) -> CostDraft:
        """Return the one ledger entry of the turn, even when no usage was reported."""
        usage = self._reported[min(self._reported)] if self._reported else None
        spent = microcents_between(agent_state.charged, agent_state.cost, agent_state.currency)
        return CostDraft(
            request_id=REQUEST_ID.format(session=self._facts.session, turn=self._facts.turn),
            model_id=self._facts.model_id,
            usage=usage,
            microcents=spent,
            priced=self.is_priced and agent_state.currency == "USD",
        )


REQUEST_ID: Final = "acp:{session}:{turn}"
