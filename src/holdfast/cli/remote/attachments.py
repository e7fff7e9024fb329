"""Media of a server's messages: they can be read, not uploaded."""

from collections.abc import Mapping
from typing import Any, NoReturn

from holdfast.client import Client
from holdfast.client.sessions import session_path
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner, SessionId


class RemoteMedia:
    """Media of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def keep(
        self, _: Owner, session_id: SessionId, content: bytes, *, mime_type: str
    ) -> NoReturn:
        """Refuse: the server has no route for uploads."""
        raise Invalid(
            Code.INVALID_INPUT, "A content cannot be sent to a server; describe it in words."
        )

    async def read(self, _: Owner, session_id: SessionId, handle: str) -> bytes:
        """Return the content of a media handle."""
        name = handle.removeprefix("media://")
        return await self._client.requests.content(session_path(session_id, "media", name))


class RemoteGuests:
    """Client MCP servers, which are not supported remotely."""

    async def bring(
        self, _: Owner, session_id: SessionId, servers: tuple[Mapping[str, Any], ...]
    ) -> None:
        """Refuse MCP servers: those of a server are configured there."""
        if servers:
            names = ", ".join(str(each["id"]) for each in servers)
            raise Invalid(
                Code.INVALID_INPUT,
                f"These MCP servers cannot be brought to a server: {names}. Describe them in its "
                "own holdfast.toml.",
            )
