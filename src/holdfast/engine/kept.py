"""Projections of settled turns, kept so that a long session does not cost more with every turn.

A row's hash names all rows up to it, so a kept projection can only be met by the very history it
was made of.
"""

from collections import OrderedDict
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from holdfast.domain.messages import Compaction, Message, ToolCall, ToolResult
from holdfast.engine.projection import Conversation, Thoughts, project, spoken
from holdfast.ports import LlmMessage

KEPT_MOST: Final = 256


class KeptProjections:
    """Projects histories like `project`, going on from what an earlier turn has projected."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Conversation] = OrderedDict()

    def project(
        self,
        history: Sequence[Message],
        *,
        turn: int,
        window: int | None = None,
        thoughts: Thoughts = MappingProxyType({}),
    ) -> tuple[LlmMessage, ...]:
        """Return the messages of a request in that turn."""
        now = _start_of(history, turn, len(history))
        # A row that is not on disk yet has no hash, and so no name for what lies before it.
        if window is not None or (now and not history[now - 1].hash):
            return project(history, turn=turn, window=window, thoughts=thoughts)
        # Another step of the same turn finds what the first one kept.
        known = self._kept.get(history[now - 1].hash) if now else None
        settled = known or self._settled(history, turn, now)
        if settled is None:
            return project(history, turn=turn, thoughts=thoughts)
        if now:
            self._keep(history[now - 1].hash, settled)
        conversation = settled.copy(thoughts)
        conversation.speak(spoken(history[now:], turn=turn))
        return conversation.finished()

    def _settled(self, history: Sequence[Message], turn: int, end: int) -> Conversation | None:
        """Return the turns before this one; nothing where only the whole history can tell."""
        start = _start_of(history, turn - 1, end)
        known = self._kept.pop(history[start - 1].hash, None) if start else Conversation()
        rest = history[start if known else 0 : end]
        if any(row.turn >= turn or _is_summary(row) for row in rest) or _answers_earlier(rest):
            return None
        conversation = known or Conversation()
        conversation.speak(spoken(rest, turn=turn))
        return conversation

    def _keep(self, last: str, settled: Conversation) -> None:
        self._kept[last] = settled
        while len(self._kept) > KEPT_MOST:
            self._kept.popitem(last=False)


def _start_of(history: Sequence[Message], turn: int, end: int) -> int:
    """Return where the last rows of a turn begin, walking back from the end."""
    while end and history[end - 1].turn >= turn > 0:
        end -= 1
    return end


def _answers_earlier(rows: Sequence[Message]) -> bool:
    """Tell whether one of the rows is the result of a call before them, which was told without."""
    parts = [part for row in rows for part in row.parts]
    calls = {part.id for part in parts if isinstance(part, ToolCall)}
    return any(isinstance(part, ToolResult) and part.call_id not in calls for part in parts)


def _is_summary(row: Message) -> bool:
    return any(isinstance(part, Compaction) for part in row.parts)
