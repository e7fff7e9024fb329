"""The lines of a `--json` stream: the dialect, with the memory it needs filled from the log."""

from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Self

from holdfast.cli.wire import Data, Dialect, gap_line
from holdfast.domain.agents import LlmRuntime
from holdfast.domain.events import Event, Gap, StepStarted
from holdfast.domain.ids import ModelId
from holdfast.domain.models import model_of
from holdfast.domain.sessions import Session

if TYPE_CHECKING:
    from holdfast.cli.house import House

PAGE = 10_000


class EventLines:
    """Turns the news of one session into lines, from a cursor on."""

    def __init__(self, holdfast: "House", session: Session) -> None:
        self._holdfast = holdfast
        self._session = session
        self._models: dict[ModelId, str] = {}
        self._dialect = Dialect(session.agent.slug, self._models, "")
        # A gap has no time of its own; it is as old as what came before it.
        self._last = session.created_at.astimezone(UTC)

    @classmethod
    async def behind(cls, holdfast: "House", session: Session, after: int) -> Self:
        """Return the lines behind a cursor, knowing what the events before it said."""
        lines = cls(holdfast, session)
        await lines._learn_models()
        lines._dialect.model = first_model(session, lines._models, holdfast.config.default_model)
        cursor = 0
        while cursor < after:
            page = await holdfast.events.list(
                holdfast.owner, session.id, after=cursor, limit=min(PAGE, after - cursor)
            )
            for item in page.items:
                cursor = item.to_sequence if isinstance(item, Gap) else item.sequence
                if isinstance(item, Event):
                    lines._note(item)
                    lines._dialect.hear(item.payload)
            if page.next_cursor is None:
                break
        return lines

    async def line(self, item: Event | Gap) -> Data:
        """Return the line of an event, or of numbers that will not come."""
        if isinstance(item, Gap):
            return gap_line(item, self._session.id, self._last)
        self._note(item)
        payload = item.payload
        if isinstance(payload, StepStarted) and payload.model_id not in self._models:
            await self._learn_models()
        return self._dialect.line(item)

    def _note(self, event: Event) -> None:
        self._last = event.at

    async def _learn_models(self) -> None:
        self._models |= await known_models(self._holdfast)


async def known_models(holdfast: "House") -> dict[ModelId, str]:
    """Return how people write each model that a session can name."""
    # The default answers without being named, so the catalogue may not have it.
    default = model_of(holdfast.config.default_model)
    return {model.id: model.ref for model in (default, *await holdfast.models.list())}


def first_model(session: Session, models: Mapping[ModelId, str], default: str) -> str:
    """Return the model that a session asks first, as people write it."""
    runtime = session.agent.runtime
    chain = runtime.models if isinstance(runtime, LlmRuntime) else ()
    wanted = session.model_id or (chain[0].model_id if chain else None)
    return default if wanted is None else models.get(wanted, wanted)
