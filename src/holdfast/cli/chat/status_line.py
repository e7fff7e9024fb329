"""The line above the prompt: agent, model, context fill and cost."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.cli.output import price
from holdfast.domain.agents import LlmRuntime
from holdfast.domain.approvals import stricter_mode
from holdfast.domain.costs import Usage
from holdfast.domain.events import Event, Gap, StepEnded, StepStarted, TurnEnded
from holdfast.domain.ids import ModelId
from holdfast.domain.models import Model
from holdfast.domain.text import clean

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.domain.sessions import Session


# The last answer is within this many events, except in unusual sessions.
_EVENTS = 200
_SPACE = " · "


class StatusLine:
    """Tracks model, context and cost from the events of a session."""

    def __init__(self, models: Mapping[ModelId, Model], first_model: str) -> None:
        """`first_model` is shown until an event names another."""
        self._models = models
        self._model = first_model
        self._window = next(
            (each.context_window for each in models.values() if each.ref == first_model), None
        )
        self._agent = self._mode = ""
        self._has_model = True
        self._used = 0
        # In ended turns, and in the steps of the running one.
        self._spent = self._running = 0
        self._is_unknown = self._has_estimate = False

    async def recall(self, holdfast: "Holdfast", session: "Session") -> None:
        """Initialize from a session's state and last events."""
        self._agent = session.agent.slug
        self._has_model = isinstance(session.agent.runtime, LlmRuntime)
        self._mode = stricter_mode(session.approval, (await holdfast.defaults()).approval)
        page = await holdfast.events.list(
            holdfast.owner, session.id, after=max(0, session.last_event - _EVENTS), limit=_EVENTS
        )
        for item in page.items:
            self.update(item)
        self._spent = session.microcents - self._running

    def update(self, item: Event | Gap) -> None:
        """Update from an event."""
        match getattr(item, "payload", None):
            case StepStarted() as begun:
                known = self._models.get(begun.model_id)
                self._window = known.context_window if known else None
                self._model = begun.model or (known.ref if known else self._model)
            case StepEnded() as ended:
                self._running += ended.microcents
                is_estimate = not ended.priced and ended.microcents > 0
                self._has_estimate |= is_estimate
                self._is_unknown = not ended.priced and not is_estimate
                self._used = _context_tokens(ended.usage) or self._used
            case TurnEnded() as ended:
                # A turn also counts its requests that failed or were interrupted.
                self._spent += ended.microcents
                self._running = 0
                self._has_estimate |= ended.estimated
            case _:
                pass

    def line(self, columns: int) -> str:
        """Return the line; the least important parts are omitted if there is no room."""
        cost = price(
            self._spent + self._running,
            priced=not self._is_unknown and not self._has_estimate,
            estimated=not self._is_unknown,
        )
        model = _short_model_name(self._model) if self._has_model else ""
        parts = [self._agent, model, self._mode, self._context()]
        shown = [each for each in (*parts, cost) if each]
        while len(shown) > 1 and len(_SPACE.join(shown)) > columns:
            del shown[0]
        return clean(_SPACE.join(shown))[:columns]

    def _context(self) -> str:
        if not self._used:
            return ""
        if not self._window:
            return f"context {_short(self._used)} tokens"
        return f"context {100 * self._used / self._window:.0f} % of {_short(self._window)}"


def _context_tokens(usage: Usage | None) -> int:
    """Return the tokens that the next request has to include."""
    if usage is None:
        return 0
    return usage.input + usage.cache_read + usage.cache_write + usage.output


def _short_model_name(ref: str) -> str:
    """Return the display name of a model; for a script, its file name."""
    provider, _, name = ref.partition(":")
    return f"{provider}:{name.rpartition('/')[2]}"


def _short(tokens: int) -> str:
    return f"{tokens / 1000:.0f}k" if tokens >= 10_000 else str(tokens)
