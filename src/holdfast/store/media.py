"""The `media` table: contents by SHA-256 hash, and the sessions that reference them."""

import hashlib

from holdfast.domain.ids import SessionKey
from holdfast.domain.messages import media_hash
from holdfast.store.database import Database, corrupt

KEEP = """
-- Insert a content, unless it is stored already.
INSERT INTO media (hash, content)
VALUES (:hash, :content)
ON CONFLICT DO NOTHING
"""

USE = """
-- Let a session refer to a content.
INSERT INTO media_uses (session_key, hash, mime_type)
VALUES (:session_key, :hash, :mime_type)
ON CONFLICT DO NOTHING
"""

WHOLE = """
-- A content that a session refers to.
SELECT m.content
  FROM media_uses u
  JOIN media m ON m.hash = u.hash
 WHERE u.session_key = :session_key
   AND u.hash = :hash
"""

SIZE = """
-- Size of a content that a session refers to.
SELECT length(m.content)
  FROM media_uses u
  JOIN media m ON m.hash = u.hash
 WHERE u.session_key = :session_key
   AND u.hash = :hash
"""


class MediaRows:
    """Media contents in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def keep(self, key: SessionKey, content: bytes, mime_type: str) -> None:
        digest = hashlib.sha256(content).digest()
        await self._db.execute(KEEP, {"hash": digest, "content": content})
        held = {"session_key": key, "hash": digest, "mime_type": mime_type}
        await self._db.execute(USE, held)

    async def read(self, key: SessionKey, handle: str) -> bytes | None:
        digest = media_hash(handle)
        if digest is None:
            return None
        rows = await self._db.fetch(WHOLE, {"session_key": key, "hash": digest})
        if not rows:
            return None
        content: bytes = rows[0][0]
        # Verify the hash on every read, so that damaged content is never served.
        if hashlib.sha256(content).digest() != digest:
            raise corrupt(f"the content {handle}")
        return content

    async def size(self, key: SessionKey, handle: str) -> int | None:
        digest = media_hash(handle)
        if digest is None:
            return None
        rows = await self._db.fetch(SIZE, {"session_key": key, "hash": digest})
        return rows[0][0] if rows else None
