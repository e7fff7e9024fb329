"""Media: contents that are too large for a row, or that a call has replaced, by their handles."""

import asyncio

from holdfast.domain.ids import SessionKey
from holdfast.domain.messages import media_handle
from holdfast.ports import Slice, Store, Tx


class SessionShelf:
    """Implements the `Shelf` port for one session, and for what it inherited as a fork."""

    def __init__(self, store: Store, key: SessionKey) -> None:
        self._store = store
        self._key = key

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        """Store the content and return its handle; it is on disk when this returns."""
        # Hashed in a thread: a large content must not hold up the other sessions.
        handle = await asyncio.to_thread(media_handle, content)
        await self._store.write(lambda tx: tx.media.keep(self._key, content, mime_type))
        return handle

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> Slice | None:
        """Return a part of a content that this session has kept or inherited."""

        async def look(tx: Tx) -> bytes | None:
            for segment in reversed(await tx.sessions.lineage(self._key)):
                content = await tx.media.read(segment.key, handle)
                if content is not None:
                    return content
            return None

        content = await self._store.read(look)
        if content is None:
            return None
        first = max(start, 0)
        return Slice(content=content[first:end], start=first, total=len(content))
