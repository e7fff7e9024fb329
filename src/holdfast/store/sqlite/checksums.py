"""Checksums of rows for readers that need them: an encrypted store has none in some tables.

Its pages are authenticated. A copy in another database and the schema before `FIRST` are not.
"""

from typing import Any, Final

from holdfast.store.database import checksum, encode
from holdfast.store.events import event_sum, join_payload
from holdfast.store.sqlite.connection import Connection

# The first schema whose encrypted stores may lack checksums.
FIRST: Final = 11
FILL: Final = (
    """
-- Checksums of sessions: the columns that a commit may change, except the end of the lease.
UPDATE sessions
   SET checksum = row_checksum(
       id, owner, agent_id, title, status, last_stop, reason, turn, settled, messages, events,
       began, chain, holder, epoch, tokens_in, tokens_out, microcents, requests, updated_at,
       started_at, finished_at)
""",
    """
-- The checksums of calls.
UPDATE calls
   SET checksum = row_checksum(
       id, turn, sequence, name, arguments, state, effect, idempotency_key, settlement,
       result_sequence, started_at, ended_at)
""",
    """
-- The checksums of ledger entries.
UPDATE costs
   SET checksum = row_checksum(
       request_id, turn, model_id, input, output, cache_read, cache_write, reasoning, microcents,
       priced, at)
""",
    """
-- The checksums of events.
UPDATE events
   SET checksum = event_checksum(sequence, turn, at, name, ids, payload)
""",
    """
-- The checksums of deltas.
UPDATE deltas
   SET checksum = event_checksum(sequence, turn, at, name, ids, payload)
""",
)


def fill_checksums(connection: Connection) -> None:
    """Compute all checksums that an encrypted store lacks, inside the current transaction."""
    if connection.checks_rows:
        return
    connection.raw.create_scalar_function("row_checksum", _of_row)
    connection.raw.create_scalar_function("event_checksum", _of_event)
    for sql in FILL:
        connection.query(sql)


def _of_row(*columns: Any) -> int:
    return checksum(encode(columns))


def _of_event(*columns: Any) -> int:
    *place, ids, rest = columns
    return event_sum(tuple(place), join_payload(place[3], ids, rest))
