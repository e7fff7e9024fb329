"""Deltas without secrets: a secret that two pieces of an answer share is in neither of them.

The journal cleans each draft by itself; only here is known that pieces belong together.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.domain.drafts import Draft
from holdfast.domain.events import Channel, StepDelta
from holdfast.domain.scrubbing import ScrubbedStream, Scrubber


class CleanDeltas:
    """The drafts of one turn, passed on in their order."""

    def __init__(self, scrubber: Callable[[], Scrubber]) -> None:
        self._open: StepDelta | None = None
        self._stream = ScrubbedStream(scrubber)
        # How much was passed on of each channel: deltas have to add up to the row they announce.
        self._passed: dict[tuple[int, Channel], int] = {}

    def passed(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts that can be written now; perhaps none, if all of a piece has to wait.

        What waits is passed on before the next draft that is no piece of the same text.
        """
        found: list[Draft] = []
        for draft in drafts:
            if not isinstance(draft, StepDelta) or not self._goes_on(draft):
                found += self._rest()
            if isinstance(draft, StepDelta):
                self._open = draft
                found += self._piece(self._stream.feed(draft.text))
            else:
                found.append(draft)
        return found

    def _goes_on(self, delta: StepDelta) -> bool:
        before = self._open
        return before is None or (before.step, before.channel) == (delta.step, delta.channel)

    def _rest(self) -> list[StepDelta]:
        held = self._piece(self._stream.rest())
        self._open = None
        return held

    def _piece(self, text: str) -> list[StepDelta]:
        if not text or self._open is None:
            return []
        place = self._open.step, self._open.channel
        offset = self._passed.get(place, 0)
        self._passed[place] = offset + len(text)
        return [replace(self._open, offset=offset, text=text)]
