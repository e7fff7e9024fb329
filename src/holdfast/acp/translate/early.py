"""Updates that come before their conversation has a name for us: kept a while, within limits.

Some programs speak before they have answered the request that opens the conversation.
"""

from collections import deque
from typing import Any, Final

from holdfast.acp.translate.readings import fields

UPDATES_MOST: Final = 1_000
LARGEST: Final = 8 << 20
PATIENCE: Final = 30.0


class EarlyUpdates:
    """What one program said of conversations that nobody knows yet, in its order.

    Times are seconds of any steady clock. `dropped` counts what there was no room for.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._kept: deque[tuple[Any, int]] = deque()
        self._size = 0
        self._until: float | None = None

    def add(self, params: object, *, size: int, now: float) -> None:
        """Keep an update of so many bytes; the oldest give way to it."""
        if self.pass_to(now):
            return
        self._kept.append((params, size))
        self._size += size
        while len(self._kept) > UPDATES_MOST or self._size > LARGEST:
            self._size -= self._kept.popleft()[1]
            self.dropped += 1

    def claim(self, session_id: str, *, now: float) -> list[Any]:
        """Return what was said of a conversation that has its name now; the rest waits on."""
        self.pass_to(now)
        self._until = now + PATIENCE
        waiting, self._kept = self._kept, deque()
        claimed = []
        for params, size in waiting:
            if fields(params).get("sessionId") == session_id:
                claimed.append(params)
                self._size -= size
            else:
                self._kept.append((params, size))
        return claimed

    def pass_to(self, now: float) -> bool:
        """Forget everything once the time for it is over; tell whether it is."""
        is_over = self._until is not None and now > self._until
        if is_over:
            self._kept.clear()
            self._size = 0
        return is_over
