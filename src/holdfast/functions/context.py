"""What a function may know and do during its call; thread-safe."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from holdfast.domain.messages import media_handle
from holdfast.domain.text import storable

_PROGRESS_LONGEST: Final = 500

Report = Callable[[str, float | None], None]
Keep = Callable[[bytes, str], Coroutine[Any, Any, str]]


class ToolFailed(Exception):  # noqa: N818 — named by what the tool did
    """The call failed; the model reads this text."""


class OutcomeUnknown(Exception):  # noqa: N818 — named by what the caller learns
    """The function cannot say whether its effect happened; the call has to be settled."""


class Cancelled(Exception):  # noqa: N818 — named by what happened to the call
    """The call was interrupted or has timed out; raised by `ToolCallContext.check`."""


@dataclass(kw_only=True)
class CallControl:
    """The part of a call that its function and its runner share."""

    loop: asyncio.AbstractEventLoop
    report: Report
    keep: Keep
    stopped: threading.Event = field(default_factory=threading.Event)
    # Contents that must be on disk before the result is.
    stores: list[asyncio.Task[str]] = field(default_factory=list)

    def post(self, work: Callable[..., object], *arguments: Any) -> None:
        """Run work on the loop; dropped if the loop is closed, because the call is then over."""
        try:
            self.loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:
            self.stopped.set()

    def store(self, content: bytes, mime_type: str) -> None:
        """Start to store a content."""
        self.stores.append(self.loop.create_task(self.keep(content, mime_type)))


@dataclass(frozen=True, kw_only=True)
class ToolCallContext:
    """One call of a function; `idempotency_key` is equal for every attempt and retry of it."""

    call_id: str
    name: str
    session_id: str
    turn: int
    owner: str
    attempt: int
    idempotency_key: str
    deadline: datetime
    _state: CallControl

    @property
    def is_cancelled(self) -> bool:
        """Return whether the call was interrupted or has timed out."""
        return self._state.stopped.is_set()

    def check(self) -> None:
        """Raise `Cancelled` if the call was interrupted or has timed out."""
        if self.is_cancelled:
            raise Cancelled(f"The call of {self.name} is over.")

    def progress(self, text: str, fraction: float | None = None) -> None:
        """Report progress as an event, at most four a second; returns at once."""
        if not isinstance(text, str):
            raise TypeError("The text of a progress must be a str.")
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError("The fraction of a progress must be from 0 to 1.")
        shown = None if fraction is None else float(fraction)
        self._state.post(self._state.report, storable(text)[:_PROGRESS_LONGEST], shown)

    def keep(self, content: bytes, mime_type: str = "application/octet-stream") -> str:
        """Return the handle of a content, which is stored before the call's result."""
        self._state.post(self._state.store, bytes(content), mime_type)
        return media_handle(content)
