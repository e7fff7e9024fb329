"""An event loop whose clock jumps to the next timer, so that waiting takes no time.

Everything else is asyncio's own loop. A test that waits for nothing at all is told so.
"""

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any, Final


class _JumpingSelector(selectors.DefaultSelector):
    """Looks for ready files; when there are none, the time of the next timer has come."""

    jumped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            # Something in another thread, or nothing: real time decides, but not for ever.
            ready = super().select(5)
            if not ready:
                raise RuntimeError("Every task waits and no timer is set.")
            return ready
        self.jumped += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that starts at zero and moves only when all tasks wait."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.jumped


VIRTUAL_TIME: Final[tuple[str, Mapping[str, Any]]] = (
    "asyncio",
    {"loop_factory": VirtualTimeLoop},
)
