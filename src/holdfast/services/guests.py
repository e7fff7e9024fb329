"""Guests: MCP servers that whoever talks in a session brought along for themselves.

They are known to this process only and never written down: their variables may be secrets, and
whoever comes next may not have them. Naming one is the person's consent to it, for that session.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.domain.ids import Owner, SessionId
from holdfast.ports import Toolbox
from holdfast.services.places import Visitors, workplace_name


class Guests:
    """Brings servers along, for the owner of a session."""

    def __init__(self, visitors: Visitors, toolbox: Toolbox) -> None:
        """`visitors` is where those who build workplaces look."""
        self._visitors = visitors
        self._toolbox = toolbox

    async def bring(
        self, owner: Owner, session_id: SessionId, servers: tuple[Mapping[str, Any], ...]
    ) -> None:
        """Give a session these servers instead of those that were brought before."""
        name = workplace_name(owner, session_id)
        if self._visitors.get(name, ()) == servers:
            return
        if servers:
            self._visitors[name] = servers
        else:
            del self._visitors[name]
        # Connected anew with the next turn: a line to a server is kept as it was declared.
        await self._toolbox.leave(name)
