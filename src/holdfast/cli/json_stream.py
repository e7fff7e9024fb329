"""Reads the data that the lines of a `--json` stream repeat, and formats the events of a session.

The vocabulary itself is `wire/stream_events.py`.
"""

from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Self

from holdfast.domain.agents import LlmRuntime
from holdfast.domain.events import Event, Gap, StepStarted
from holdfast.domain.ids import ModelId
from holdfast.domain.models import model_of
from holdfast.domain.sessions import Session
from holdfast.wire.stream_events import Data, StreamVocabulary, gap_line

if TYPE_CHECKING:
    from holdfast.api import Holdfast

PAGE = 10_000


class EventLines:
    """Formats the events of one session as lines, starting at a cursor."""

    def __init__(self, holdfast: "Holdfast", session: Session) -> None:
        self._holdfast = holdfast
        self._session = session
        self._models: dict[ModelId, str] = {}
        self._vocabulary = StreamVocabulary(session.agent.slug, self._models, "")
        # A gap has no time of its own; it gets the time of the event before it.
        self._last = session.created_at.astimezone(UTC)

    @classmethod
    async def from_sequence(cls, holdfast: "Holdfast", session: Session, after: int) -> Self:
        """Return the lines after a cursor, with the data of the events before it."""
        lines = cls(holdfast, session)
        await lines._learn_models()
        default = (await holdfast.defaults()).model
        lines._vocabulary.model = first_model(session, lines._models, default)
        cursor = 0
        while cursor < after:
            page = await holdfast.events.list(
                holdfast.owner, session.id, after=cursor, limit=min(PAGE, after - cursor)
            )
            for item in page.items:
                cursor = item.to_sequence if isinstance(item, Gap) else item.sequence
                if isinstance(item, Event):
                    lines._note(item)
                    lines._vocabulary.note(item.payload)
            if page.next_cursor is None:
                break
        return lines

    async def line(self, item: Event | Gap) -> Data:
        """Return the line of an event or of a gap."""
        if isinstance(item, Gap):
            return gap_line(item, self._session.id, self._last)
        self._note(item)
        payload = item.payload
        if isinstance(payload, StepStarted) and payload.model_id not in self._models:
            await self._learn_models()
        return self._vocabulary.line(item)

    def _note(self, event: Event) -> None:
        self._last = event.at

    async def _learn_models(self) -> None:
        self._models |= await known_models(self._holdfast)


async def known_models(holdfast: "Holdfast") -> dict[ModelId, str]:
    """Return the references of all models that a session can use, by id."""
    # The default model can be used without being in the catalogue.
    default = model_of((await holdfast.defaults()).model)
    return {model.id: model.ref for model in (default, *await holdfast.models.list())}


def first_model(session: Session, models: Mapping[ModelId, str], default: str) -> str:
    """Return the reference of the model that a session uses first."""
    runtime = session.agent.runtime
    chain = runtime.models if isinstance(runtime, LlmRuntime) else ()
    wanted = session.model_id or (chain[0].model_id if chain else None)
    return default if wanted is None else models.get(wanted, wanted)
