"""What a person has said before, for the arrow keys.

It comes from the store: a file of its own would lie in plain text beside what is encrypted.
"""

from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Final

from prompt_toolkit.history import History

from holdfast.domain.errors import HoldfastError
from holdfast.domain.messages import Role
from holdfast.domain.queries import SessionOrder, SessionQuery

if TYPE_CHECKING:
    from holdfast.cli.house import House

SESSIONS_MOST: Final = 8
ROWS_MOST: Final = 100
LONGEST: Final = 10_000


class PastWords(History):
    """Lines of this conversation, and behind them what was said in the last sessions."""

    def __init__(self, holdfast: "House") -> None:
        super().__init__()
        self._holdfast = holdfast

    async def load(self) -> AsyncGenerator[str, None]:
        """Yield the lines, the newest first; the store is asked once."""
        if not self._loaded:
            self._loaded = True
            self._loaded_strings += await self._past()
        for line in self._loaded_strings:
            yield line

    def load_history_strings(self) -> Iterable[str]:
        """Return nothing: what there is takes time, and comes with `load`."""
        return ()

    def store_string(self, string: str) -> None:
        """Do nothing: what was sent is in the store."""

    async def _past(self) -> list[str]:
        try:
            return [line async for line in _said(self._holdfast)]
        except HoldfastError:
            # The past is a comfort; whoever cannot be reached says so when something is sent.
            return []


async def _said(holdfast: "House") -> AsyncGenerator[str, None]:
    query = SessionQuery(owner=holdfast.owner, order=SessionOrder.UPDATED_AT, limit=SESSIONS_MOST)
    last = None
    for session in (await holdfast.sessions.list(query)).items:
        rows = await holdfast.messages.list(
            holdfast.owner, session.id, before=session.message_count + 1, limit=ROWS_MOST
        )
        for row in reversed(rows.items):
            said = row.text
            if row.role is Role.USER and said != last and 0 < len(said) <= LONGEST:
                last = said
                yield said
