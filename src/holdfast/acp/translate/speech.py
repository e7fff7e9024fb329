"""What somebody else's agent says in a turn, step by step, and what it takes."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from holdfast.acp.translate.plans import Steps
from holdfast.acp.translate.steps import LONGEST, Step
from holdfast.acp.translate.told import Told
from holdfast.acp.translate.usages import Source, microcents_between
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, Draft
from holdfast.domain.events import Channel, StepStarted
from holdfast.domain.ids import MessageId, ModelId
from holdfast.domain.messages import Media


class Ground(Struct, frozen=True, kw_only=True):
    """What has to be known of a turn before its prompt is sent.

    `step` is the number of its first step, `plan` the newest plan of the conversation, `taken` are
    the ids that calls of the session have already.
    """

    session: str
    turn: int
    step: int
    model_id: ModelId
    model: str = ""
    plan: Steps = ()
    taken: frozenset[str] = frozenset()


class Speech:
    """The steps of one turn: at most one is open, and their numbers have no holes."""

    def __init__(self, ground: Ground, new_id: Callable[[], str]) -> None:
        self.step: Step | None = None
        self._ground = ground
        self._new_id = new_id
        self._next = ground.step

    def say(self, channel: Channel, text: str, agents_id: str | None) -> list[Draft]:
        """Go on with text; return what has to be written because a step ended or began."""
        drafts: list[Draft] = []
        step = self._opened(channel, agents_id, drafts)
        for start in range(0, len(text), LONGEST):
            piece = text[start : start + LONGEST] if len(text) > LONGEST else text
            if step.size + len(piece) > LONGEST:
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

    def _opened(self, channel: Channel, agents_id: str | None, drafts: list[Draft]) -> Step:
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

    def _begin(self, agents_id: str | None, drafts: list[Draft]) -> Step:
        started = StepStarted(
            step=self._next,
            model_id=self._ground.model_id,
            model=self._ground.model,
            message_id=MessageId(self._new_id()),
        )
        self._next += 1
        self.step = Step(started, agents_id)
        drafts.append(started)
        return self.step


class Spending:
    """What a turn takes; whoever tells it first in the order of sources is believed."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._told: dict[Source, Usage] = {}
        self._is_priced = False

    def note(self, source: Source, usage: Usage | None) -> None:
        """Take note of what somebody tells; the newest of one source counts."""
        if usage is not None:
            self._told[source] = usage

    def note_price(self) -> None:
        """Take note that a sum of money was told in this turn."""
        self._is_priced = True

    def entry(self, told: Told) -> CostDraft:
        """Return the turn's one entry in the ledger, also if nobody has told anything."""
        usage = self._told[min(self._told)] if self._told else None
        spent = microcents_between(told.charged, told.cost, told.currency)
        return CostDraft(
            request_id=REQUEST.format(session=self._ground.session, turn=self._ground.turn),
            model_id=self._ground.model_id,
            usage=usage,
            microcents=spent,
            priced=self._is_priced and told.currency == "USD",
        )


REQUEST: Final = "acp:{session}:{turn}"
