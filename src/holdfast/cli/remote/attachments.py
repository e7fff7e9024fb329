"""What stands beside the messages of a server: contents can be read from here, not brought."""

from collections.abc import Mapping
from typing import Any, NoReturn

from holdfast.client import Client
from holdfast.client.sessions import session_path
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner, SessionId


class RemoteMedia:
    """The contents there."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def keep(
        self, _: Owner, session_id: SessionId, content: bytes, *, mime_type: str
    ) -> NoReturn:
        """Refuse: the server has no door for contents."""
        raise Invalid(
            Code.INVALID_INPUT, "A content cannot be sent to a server; describe it in words."
        )

    async def read(self, _: Owner, session_id: SessionId, handle: str) -> bytes:
        """Return a content."""
        name = handle.removeprefix("media://")
        return await self._client.requests.content(session_path(session_id, "media", name))


class RemoteGuests:
    """MCP servers, which stay at home."""

    async def bring(
        self, _: Owner, session_id: SessionId, servers: tuple[Mapping[str, Any], ...]
    ) -> None:
        """Refuse servers: what runs where the server is, is configured there."""
        if servers:
            names = ", ".join(str(each["id"]) for each in servers)
            raise Invalid(
                Code.INVALID_INPUT,
                f"These MCP servers cannot be brought to a server: {names}. Describe them in its "
                "own holdfast.toml.",
            )
