"""Media: content too large for a row, or replaced by a call, addressed by handle."""

import asyncio

from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.messages import media_handle, require_media_content
from holdfast.ports.store import Store, Tx
from holdfast.ports.tools import Slice
from holdfast.services.journal import find_session_state, session_not_found


class SessionOutputStore:
    """Implements the `OutputStore` port for one session, including content inherited by a fork."""

    def __init__(self, store: Store, key: SessionKey) -> None:
        self._store = store
        self._key = key

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        """Store the content and return its handle; it is on disk when this returns."""
        # Hashed in a thread, because large content would block the event loop.
        handle = await asyncio.to_thread(media_handle, content)

        async def put(tx: Tx) -> None:
            # The session may be deleted while its tool runs; the turn then fails here, as at any
            # write.
            if await tx.sessions.state_by_key(self._key) is None:
                raise session_not_found()
            await tx.media.keep(self._key, content, mime_type)

        await self._store.write(put)
        return handle

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> Slice | None:
        """Return a part of content that this session has stored or inherited."""

        content = await self._store.read(lambda tx: find_content(tx, self._key, handle))
        if content is None:
            return None
        first = max(start, 0)
        return Slice(content=content[first:end], start=first, total=len(content))


class Media:
    """Media attached to messages of an owner's sessions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def keep(
        self, owner: Owner, session_id: SessionId, content: bytes, *, mime_type: str
    ) -> str:
        """Store content for a session and return its handle, to be sent in a message."""
        require_media_content(content, mime_type)
        state = await self._store.read(lambda tx: find_session_state(tx, owner, session_id))
        return await SessionOutputStore(self._store, state.key).keep(content, mime_type=mime_type)

    async def read(self, owner: Owner, session_id: SessionId, handle: str) -> bytes:
        """Return content that the session holds."""

        async def look(tx: Tx) -> bytes | None:
            return await find_content(
                tx, (await find_session_state(tx, owner, session_id)).key, handle
            )

        content = await self._store.read(look)
        if content is None:
            raise NotFound(Code.MEDIA_NOT_FOUND, "The session has no such media.")
        return content


async def find_content(tx: Tx, key: SessionKey, handle: str) -> bytes | None:
    """Return content that the session has stored, or has inherited as a fork."""
    for holder in await _holders(tx, key):
        content = await tx.media.read(holder, handle)
        if content is not None:
            return content
    return None


async def find_size(tx: Tx, key: SessionKey, handle: str) -> int | None:
    """Return the size of such content in bytes, without reading it."""
    for holder in await _holders(tx, key):
        size = await tx.media.size(holder, handle)
        if size is not None:
            return size
    return None


async def _holders(tx: Tx, key: SessionKey) -> tuple[SessionKey, ...]:
    line = reversed(await tx.sessions.lineage(key))
    # Its own key first, because a session without own rows is not in its lineage.
    return tuple(dict.fromkeys((key, *(segment.key for segment in line))))
