"""One step of somebody else's agent: text as it grows, and the row that is made of it.

When a step begins and ends, and when its text is passed on, is decided in `translate.py`.
"""

from typing import Final

from holdfast.domain.drafts import Draft, MessageDraft
from holdfast.domain.events import Channel, StepDelta, StepEnded, StepStarted
from holdfast.domain.messages import Media, Part, Reasoning, Role, Text
from holdfast.domain.text import storable

# A row of this size can still be read and shown; what is more goes into the next one.
LONGEST: Final = 4 << 20


class Step:
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
