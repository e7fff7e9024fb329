"""Workspaces: where the tool calls of a session act, and how far they reach now."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Protocol

from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.sessions import Session
from holdfast.domain.tools import ALWAYS, CHECKPOINT, Grant
from holdfast.ports.store import Store
from holdfast.ports.tools import ToolWorkspace
from holdfast.services.media import SessionOutputStore


class FolderProvider(Protocol):
    """The private folders of sessions, each readable by this user only."""

    def of(self, owner: Owner, session_id: SessionId) -> str:
        """Return the folder of a session, created if it is missing."""

    def remove(self, owner: Owner, session_id: SessionId) -> None:
        """Remove the folder of a session with its content, if it exists."""

    def copied(self, owner: Owner, session_id: SessionId) -> str:
        """Copy the folder of a session for a fork; return the path of the copy."""

    def adopt(self, copy: str, owner: Owner, session_id: SessionId) -> str:
        """Make a copy the folder of a session that is being created; return the folder."""

    def discard(self, copy: str) -> None:
        """Remove a copy that was not adopted, if it exists."""


# MCP servers passed by clients, by workspace name.
Visitors = dict[str, tuple[Mapping[str, Any], ...]]

_MADE_MOST: Final = 10_000


class Workspaces:
    """Builds tool workspaces from sessions and the configuration."""

    def __init__(
        self,
        store: Store,
        folders: FolderProvider,
        ceiling: Grant,
        visitors: Visitors | None = None,
    ) -> None:
        """`ceiling` is the widest grant the configuration allows now, not when a session opened."""
        self._visitors: Visitors = {} if visitors is None else visitors
        self._store = store
        self._folders = folders
        self._ceiling = ceiling
        # Cached per process, so that the disk is not accessed in every turn.
        self._made: dict[SessionKey, str] = {}

    def of(self, session: Session, key: SessionKey) -> ToolWorkspace:
        """Return the workspace of a session."""
        servers = session.agent.mcp_servers
        name = workspace_name(session.owner, session.id)
        session_servers = self._visitors.get(name, ())
        has_tools = bool(session.tools or servers or session_servers)
        implied = ALWAYS if has_tools else frozenset({CHECKPOINT})
        folder = session.context.working_dir
        return ToolWorkspace(
            session=name,
            owner=session.owner,
            session_id=session.id,
            working_dir=folder,
            # A checkpoint needs no temporary folder, and creating one accesses the disk.
            scratch=self._scratch(session, key) if has_tools else folder,
            # The session's grant is already within its agent's.
            grants=(session.grant, self._ceiling),
            tools=frozenset(tool.name for tool in session.tools) | implied,
            client_tools={tool.name: tool for tool in session.tools if tool.is_client_run},
            servers=servers,
            session_servers=session_servers,
            shelf=self.shelf(key),
        )

    def is_current(self, place: ToolWorkspace | None) -> bool:
        """Return whether a workspace still has the MCP servers of the session's client."""
        return place is not None and self._visitors.get(place.session, ()) is place.session_servers

    def shelf(self, key: SessionKey) -> SessionOutputStore:
        """Return the content store of a session, with or without tools."""
        return SessionOutputStore(self._store, key)

    def _scratch(self, session: Session, key: SessionKey) -> str:
        if key not in self._made:
            if len(self._made) >= _MADE_MOST:
                self._made.clear()
            self._made[key] = self._folders.of(session.owner, session.id)
        return self._made[key]


def workspace_name(owner: Owner, session_id: SessionId) -> str:
    """Return the opaque name under which tools know a session."""
    # Includes the owner, because two owners may have sessions with the same id.
    return hashlib.sha256(f"{owner}/{session_id}".encode()).hexdigest()[:32]
