"""`spawn`: a task for another agent, in a session below one's own."""

from typing import TYPE_CHECKING, Protocol, Unpack

from holdfast.ask.answers import Answer
from holdfast.ask.options import AskOptions
from holdfast.children.model import ChildRequest, task_id_of
from holdfast.domain.sessions import Budget
from holdfast.domain.text import require_str
from holdfast.domain.tools import Grant

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.domain.ids import Owner, SessionId
    from holdfast.domain.sessions import Session


class ChildrenApi(Protocol):
    """Sessions that sessions have opened."""

    async def spawn(
        self,
        owner: "Owner",
        parent_id: "SessionId",
        request: ChildRequest,
        *,
        id: str | None = None,
    ) -> "Session": ...
    async def tree(self, owner: "Owner", session_id: "SessionId") -> "tuple[Session, ...]": ...


class Child(Protocol):
    """A child of a session, which works on its task."""

    @property
    def session_id(self) -> "SessionId": ...
    async def answer(self, **options: Unpack[AskOptions]) -> Answer[None]:
        """Wait for the end of the task and return the answer; the options are those of `ask`."""


class OpenChild:
    """A child of a session of this Holdfast."""

    def __init__(self, hf: "Holdfast", session_id: "SessionId", task: str) -> None:
        self._hf = hf
        self._task = task
        self.session_id = session_id

    async def answer(self, **options: Unpack[AskOptions]) -> Answer[None]:
        """Wait for the end of the task and return the answer."""
        # Asked again with its id: nothing is sent twice.
        options["session"], options["id"] = self.session_id, task_id_of(self.session_id)
        return await self._hf.ask(self._task, **options)


class SpawnVerbs(Protocol):
    """The verb that opens a session below another one."""

    async def spawn(
        self: "Holdfast",
        session_id: "SessionId",
        agent: str,
        task: str,
        *,
        title: str | None = None,
        budget: Budget | None = None,
        grant: Grant | None = None,
        tools: tuple[str, ...] | None = None,
        id: str | None = None,
    ) -> Child:
        """Open a child of a session with a task; it is on disk when this returns.

        `budget`, `grant` and `tools` can only narrow what the session and the agent have. With an
        `id` it may be repeated.
        """
        require_str(session_id, field="session_id")
        require_str(agent, field="agent")
        require_str(task, field="task")
        request = ChildRequest(
            agent=agent, task=task, title=title, budget=budget, grant=grant, tools=tools
        )
        session = await self.children.spawn(self.owner, session_id, request, id=id)
        return OpenChild(self, session.id, task)
