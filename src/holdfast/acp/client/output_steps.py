"""What the agent says in a turn: text and thoughts in steps, its plan, and what the turn cost."""

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

# More than anybody reads; a plan is a row, and a row has to be shown.
STEPS_MOST: Final = 500
_TEXT_LONGEST: Final = 4_096
_PRIORITIES: Final = frozenset({"high", "medium", "low"})
_STATUSES: Final = frozenset({"pending", "in_progress", "completed"})
PlanSteps = tuple[PlanStep, ...]


def read_plan_steps(update: Mapping[str, Any]) -> PlanSteps | None:
    """Return the steps of a plan, those that say something; nothing if it is no list."""
    entries = update.get("entries")
    if not isinstance(entries, list):
        return None
    return tuple(
        step
        for entry in read_list(entries)[:STEPS_MOST]
        if (step := _plan_step(read_object(entry)))
    )


def last_plan(history: Iterable[Message]) -> PlanSteps:
    """Return the newest plan of a conversation; an empty one if there is none."""
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
    # By type first: what came from outside may be something that no set can be asked for.
    return value if isinstance(value, str) and value in words else otherwise


# A row of this size can still be read and shown; what is more goes into the next one.
TEXT_LARGEST: Final = 4 << 20


class OutputStep:
    """One run of an agent's output; thoughts come before words, never after them."""

    def __init__(self, started: StepStarted, agents_id: str | None) -> None:
        self.started = started
        # The agent's own name for the message, where it has one.
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
        """Go on with some text."""
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
        """Go on with a medium; it stands between the words before and after it."""
        self._cut_piece()
        self._channel = Channel.TEXT
        self.has_words = True
        self._close_words()
        self._parts.append(media)

    def deltas(self) -> list[StepDelta]:
        """Return the text that has gathered, and forget it."""
        self._cut_piece(is_last=False)
        ready, self._ready = self._ready, []
        return ready

    def ended(self) -> tuple[Draft, ...]:
        """Return everything that ends the step; it has no row if nothing was said or shown."""
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
        # The step is over before its row is told, so a reader knows that this is all of it.
        return (*self._ready, end, row)

    def _cut_piece(self, *, is_last: bool = True) -> None:
        """Make a delta of what was said in the channel since the last one."""
        if not self._pieces:
            return
        text = "".join(self._pieces)
        self._pieces = []
        # Half a character waits for its other half: programs cut where it suits them.
        if not is_last and "\ud800" <= text[-1] <= "\udbff":
            self._pieces.append(text[-1])
            text = text[:-1]
        # It is not waited for: should the other half never come, the end of the step is enough.
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
    """What has to be known of a turn before its prompt is sent.

    `step` is the number of its first step, `plan` the newest plan of the conversation, `taken` are
    the ids that calls of the session have already.
    """

    session: str
    turn: int
    step: int
    model_id: ModelId
    model: str = ""
    plan: PlanSteps = ()
    taken: frozenset[str] = frozenset()


class AgentOutput:
    """The steps of one turn: at most one is open, and their numbers have no holes."""

    def __init__(self, facts: TurnFacts, new_id: Callable[[], str]) -> None:
        self.step: OutputStep | None = None
        self._facts = facts
        self._new_id = new_id
        self._next = facts.step

    def say(self, channel: Channel, text: str, agents_id: str | None) -> list[Draft]:
        """Go on with text; return what has to be written because a step ended or began."""
        drafts: list[Draft] = []
        step = self._opened(channel, agents_id, drafts)
        for start in range(0, len(text), TEXT_LARGEST):
            piece = text[start : start + TEXT_LARGEST] if len(text) > TEXT_LARGEST else text
            if step.size + len(piece) > TEXT_LARGEST:
                drafts += self.end()
                step = self._begin(agents_id, drafts)
            step.say(channel, piece)
        return drafts

    def show(self, media: Media, agents_id: str | None) -> list[Draft]:
        """Go on with a medium; return what has to be written because a step ended or began."""
        drafts: list[Draft] = []
        self._opened(Channel.TEXT, agents_id, drafts).show(media)
        return drafts

    def end(self) -> tuple[Draft, ...]:
        """Return what ends the open step; nothing if none is open."""
        step, self.step = self.step, None
        return step.ended() if step is not None else ()

    def end_with_a_call(self) -> tuple[Draft, ...]:
        """Return what ends the step that a call belongs to; one that only calls has no words."""
        drafts: list[Draft] = []
        if self.step is None:
            self._begin(None, drafts)
        return (*drafts, *self.end())

    def deltas(self) -> list[Draft]:
        """Return the text that has gathered."""
        return [*self.step.deltas()] if self.step is not None else []

    def _opened(self, channel: Channel, agents_id: str | None, drafts: list[Draft]) -> OutputStep:
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
    """What a turn takes; whoever tells it first in the order of sources is believed."""

    def __init__(self, facts: TurnFacts) -> None:
        self._facts = facts
        self._reported: dict[UsageSource, Usage] = {}
        self._is_priced = False

    def note(self, source: UsageSource, usage: Usage | None) -> None:
        """Take note of what somebody tells; the newest of one source counts."""
        if usage is not None:
            self._reported[source] = usage

    def note_price(self) -> None:
        """Take note that a sum of money was told in this turn."""
        self._is_priced = True

    def entry(self, agent_state: AgentState) -> CostDraft:
        """Return the turn's one entry in the ledger, also if nobody has told anything."""
        usage = self._reported[min(self._reported)] if self._reported else None
        spent = microcents_between(agent_state.charged, agent_state.cost, agent_state.currency)
        return CostDraft(
            request_id=REQUEST_ID.format(session=self._facts.session, turn=self._facts.turn),
            model_id=self._facts.model_id,
            usage=usage,
            microcents=spent,
            priced=self._is_priced and agent_state.currency == "USD",
        )


REQUEST_ID: Final = "acp:{session}:{turn}"
