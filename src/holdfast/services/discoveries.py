"""Discoveries: the tools of servers, kept with a session as soon as they are found.

With these it goes on, so that narrowing, export, fork and resume agree about what it has.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.domain.ids import SessionKey
from holdfast.domain.tools import ToolSpec
from holdfast.ports import Tx
from holdfast.services.heads import session_not_found


async def keep_tools(tx: Tx, key: SessionKey, names: Iterable[str]) -> None:
    """Add tools to those that the session has."""
    found = await tx.sessions.get_by_key(key)
    if found is None:
        raise session_not_found()
    session, _ = found
    known = {tool.name for tool in session.tools}
    # By their names alone: what a server says about them may change, and is asked about then.
    fresh = tuple(ToolSpec(name=name) for name in names if name not in known)
    await tx.sessions.patch(key, replace(session, tools=(*session.tools, *fresh)))
