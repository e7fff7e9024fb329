"""Rows beside damaged pages: found by going through all of them, because looking for one fails.

Where a row is long, SQLite reads all of it to compare its number with the one that is looked for.
So a page that cannot be read hides rows that are not on it. Whoever goes from row to row reads
nothing of those that are passed over.
"""

import apsw

from holdfast.storage.database import Database, Parameters, Row

DAMAGE = (apsw.CorruptError,)

FOUND = """
-- Rows of a stretch, one after another and without looking for any.
SELECT sequence, id, turn, role, parts, model_id, created_at, hash
  FROM messages NOT INDEXED
 WHERE +session_key = :session_key
   AND +sequence BETWEEN :first AND :last
"""

HASH_FOUND = """
-- The hash of one row, without looking for it.
SELECT hash
  FROM messages NOT INDEXED
 WHERE +session_key = :session_key
   AND +sequence = :sequence
"""

NUMBER_FOUND = """
-- The number of one row, without looking for it.
SELECT sequence
  FROM messages NOT INDEXED
 WHERE +session_key = :session_key
   AND +id = :id
"""


TOLD_OF_FOUND = """
-- One message as news, without looking for it.
SELECT event, turn, created_at, id, role, sequence, told
  FROM messages NOT INDEXED
 WHERE +session_key = :session_key
   AND +sequence = :sequence
"""

APPENDED_FOUND = """
-- Messages as news, one after another and without looking for any.
SELECT event, turn, created_at, id, role, sequence, told
  FROM messages NOT INDEXED
 WHERE +session_key = :session_key
   AND +sequence >= :first
 LIMIT :limit
"""


async def fetched(
    database: Database, sql: str, otherwise: str, parameters: Parameters
) -> list[Row]:
    """Return the rows of a query, by another one where damage is in the way of the first."""
    try:
        return await database.fetch(sql, parameters)
    except DAMAGE:
        return await database.fetch(otherwise, parameters)


async def salvaged(database: Database, key: int, wanted: range) -> list[Row]:
    """Return the rows of a stretch that can be read; those that cannot are left out."""
    if not wanted:
        return []
    asked = {"session_key": key, "first": wanted.start, "last": wanted.stop - 1}
    try:
        return await database.fetch(FOUND, asked)
    except DAMAGE:
        if len(wanted) == 1:
            return []
    middle = wanted.start + len(wanted) // 2
    return [
        *await salvaged(database, key, range(wanted.start, middle)),
        *await salvaged(database, key, range(middle, wanted.stop)),
    ]
