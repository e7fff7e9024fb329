"""Servers that are brought along: for one session of one owner, in this process, until they go."""

from pathlib import Path

import pytest

from holdfast.api import Holdfast
from holdfast.domain.ids import Owner, SessionId
from holdfast.services.agent_processes import SessionMcpServers
from holdfast.services.turn_inputs import Visitors, workspace_name
from tests.tools.mcp_servers import Book

pytestmark = pytest.mark.anyio


class Leaving:
    """A toolbox of which only the leaving is looked at."""

    def __init__(self) -> None:
        self.left: list[str] = []

    async def leave(self, session: str) -> None:
        self.left.append(session)


async def test_servers_are_known_until_others_take_their_place() -> None:
    visitors: Visitors = {}
    toolbox = Leaving()
    guests = SessionMcpServers(visitors, toolbox)  # type: ignore[arg-type]
    owner, session = Owner("me"), SessionId("s")
    name = workspace_name(owner, session)
    one, two = ({"id": "one"},), ({"id": "two"},)

    for servers in ((), one, one, two, ()):
        await guests.attach(owner, session, servers)
        assert visitors == ({name: servers} if servers else {})

    # Not where nothing has changed: a line that is open stays so.
    assert toolbox.left == [name] * 3


async def test_a_session_of_another_owner_has_none(holdfast: Holdfast, tmp_path: Path) -> None:
    book = Book(tmp_path)
    session = await holdfast.open()

    await holdfast.mcp_servers.attach(holdfast.owner, session.id, (book.entry(),))

    other = workspace_name(Owner("other"), session.id)
    assert other != workspace_name(holdfast.owner, session.id)
