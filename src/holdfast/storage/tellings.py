"""Which message an event tells of: looked for by halves, past those that are damaged."""

import logging
from itertools import chain

from holdfast.domain.errors import Internal
from holdfast.domain.sessions import Head
from holdfast.storage.database import Database, Row, corrupt
from holdfast.storage.messages import told
from holdfast.storage.salvage import TOLD_OF_FOUND, fetched

log = logging.getLogger(__name__)

TOLD_OF = """
-- One message as news.
SELECT event, turn, created_at, id, role, sequence, told
  FROM messages
 WHERE session_key = :session_key
   AND sequence = :sequence
"""


async def first_told_after(database: Database, head: Head, event: int) -> tuple[int, int, int]:
    """Return the first message that may be told after an event, the first that is, and when.

    They differ where damaged ones stand between. The stretch is halved, because an index that
    answers at once would cost every append a page that only readers need.
    """
    low, high = head.inherited + 1, head.messages + 1
    at = head.events + 1
    # Readers are mostly at the end, so the end is asked first.
    middle = high - 1
    while low < high:
        number, found = await _sound_near(database, head, range(low, high), middle)
        if number is None:
            break
        if found > event:
            high, at = number, found
        else:
            low = number + 1
        middle = (low + high) // 2
    return low, high, at


async def _sound_near(
    database: Database, head: Head, stretch: range, middle: int
) -> tuple[int | None, int]:
    """Return a message of a stretch that can be believed, and when it was told."""
    for number in chain(range(middle, stretch.start - 1, -1), range(middle + 1, stretch.stop)):
        row = {"session_key": head.key, "sequence": number}
        found = await fetched(database, TOLD_OF, TOLD_OF_FOUND, row)
        if not found:
            raise corrupt(f"message {number} of session {head.session_id}")
        try:
            return number, told_at(found[0], head)
        except Internal as error:
            log.error("%s", error.message)
    return None, 0


def told_at(row: Row, head: Head) -> int:
    """Return the number of the event that tells of a message; 0 if none tells of it here."""
    event, stored = row[0], row[-1]
    is_told = event != 0 or stored != 0
    if not isinstance(event, int) or (is_told and told(row[:-1]) != stored):
        raise corrupt(f"event {event} of session {head.session_id}")
    return event
