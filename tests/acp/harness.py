"""A house with the scripted agent in it: what tests of the runtime do again and again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from holdfast import Config, Holdfast, RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.config import Acp
from holdfast.domain.agent_processes import ProcessState
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.approvals import Approval, ApprovalState, Decision
from holdfast.domain.events import TurnEnded
from holdfast.domain.messages import Message, Notice
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import Session, SessionRequest
from holdfast.domain.tools import Grant
from tests.acp.scripted_agents import Peer
from tests.houses import news_until, payloads, played
from tests.new_homes import furnish

T = TypeVar("T")
PATIENCE = 20.0
END: dict[str, Any] = {"reply": {"stopReason": "end_turn"}}
GRANT = Grant(commands=("sh",))


@dataclass(frozen=True, kw_only=True)
class Aboard:
    """An open house, the scripted agent and a repository for it."""

    house: Holdfast
    peer: Peer
    repo: Repo
    tree: Path

    async def open(self, **wishes: Any) -> Session:
        """Open a session with the scripted agent."""
        return await self.house.open("peer", SessionRequest(repo_id=self.repo.id, **wishes))

    async def tell(self, session: Session, text: str = "hello") -> tuple[Message, ...]:
        """Send a message, wait for the end of its turn, and return all rows."""
        await self.house.send(session.id, text)
        return await self.settled(session)

    async def settled(self, session: Session) -> tuple[Message, ...]:
        """Wait until no turn runs or waits, and return the rows."""
        async with asyncio.timeout(PATIENCE):
            return await played(self.house, session.id)

    async def now(self, session: Session) -> Session:
        """Return the session as it is now."""
        return await self.house.sessions.get(self.house.owner, session.id)

    async def ended(self, session: Session) -> TurnEnded:
        """Return how the last turn has ended."""
        news = payloads(await news_until(self.house, session.id, TurnEnded))
        last: TurnEnded = news[-1]
        return last

    async def waiting(self, session: Session, count: int = 1) -> list[Approval]:
        """Wait until so many questions wait for an answer, and return them."""
        async with asyncio.timeout(PATIENCE):
            while True:
                page = await self.house.approvals.list(
                    self.house.owner, session.id, state=ApprovalState.WAITING
                )
                if len(page.items) >= count:
                    return list(page.items)
                await asyncio.sleep(0.01)

    async def answer(self, session: Session, answer: Decision) -> Approval:
        """Wait for the one question that waits, and answer it."""
        (asked,) = await self.waiting(session)
        await self.house.approvals.answer(self.house.owner, session.id, asked.id, answer)
        return asked

    async def asked(self, session: Session, *answers: Decision) -> list[Approval]:
        """Play a turn, answer its questions one after the other, and return them."""
        await self.house.send(session.id, "go")
        found = [await self.answer(session, each) for each in answers]
        await self.settled(session)
        return found

    async def approvals(self, session: Session) -> list[Approval]:
        """Return the questions of a session, also those that a rule has answered."""
        return list((await self.house.approvals.list(self.house.owner, session.id)).items)

    async def answered(self, session: Session) -> list[tuple[str, str, str | None]]:
        """Return what was asked about, how that stands, and who answered."""
        return [
            (each.question.tool, str(each.state), each.answered_by)
            for each in await self.approvals(session)
        ]

    async def until(self, session: Session, holds: Callable[[Session], Any]) -> Session:
        """Wait until something holds of a session, and return it as it is then."""
        async with asyncio.timeout(PATIENCE):
            while True:
                now = await self.now(session)
                if holds(now):
                    return now
                await asyncio.sleep(0.01)

    async def logged(self, event: str, **fields: Any) -> dict[str, Any]:
        """Wait until the agent has logged something."""
        return await asyncio.to_thread(self.peer.wait_for, event, **fields)


@asynccontextmanager
async def aboard(
    folder: Path,
    *,
    outside: Environment | None = None,
    scope: RunScope = RunScope.ALL,
    options: dict[str, Any] | None = None,
    **script: Any,
) -> AsyncIterator[Aboard]:
    """Open a home whose agent `peer` plays a script; keys of `Config` begin with `config_`.

    The agent is not confined, because that takes longer than all the rest of its start.
    """
    settings = {name[7:]: script.pop(name) for name in list(script) if name.startswith("config_")}
    tree = folder / "tree"
    (tree / ".git").mkdir(parents=True, exist_ok=True)
    peer = Peer(folder / "peer", **script)
    home = folder / "home"
    config = Config(home=home if "encryption" in settings else furnish(home), **settings)
    async with open_holdfast(config=config, outside=outside or Environment(), scope=scope) as house:
        await provide(house, peer, options)
        repo = await house.repos.add(house.owner, str(tree), at_terminal=True)
        yield Aboard(house=house, peer=peer, repo=repo, tree=tree)


async def provide(house: Holdfast, peer: Peer, options: dict[str, Any] | None = None) -> None:
    """Make the agent `peer`, unless it is there."""
    # Where it keeps its log, and where tests leave files for it.
    given = {"writable": [str(peer.folder.parent)], "confined": False} | (options or {})
    runtime = AcpRuntime(command=peer.argv[0], args=peer.argv[1:], options=given)
    fields = {"name": "Peer", "slug": "peer", "runtime": runtime, "grant": GRANT}
    if not (await agents_of(house)).get("peer"):
        await house.agents.create(house.owner, fields)


async def agents_of(house: Holdfast) -> dict[str, str]:
    """Return the agents of a house by their slugs."""
    from holdfast.domain.queries import AgentQuery

    page = await house.agents.list(AgentQuery(owner=house.owner))
    return {agent.slug: agent.id for agent in page.items}


def hasty(**changes: float) -> Acp:
    """Return deadlines that a test can wait for, in seconds."""
    seconds = {"start": 5.0, "session": 5.0, "option": 2.0, "silence": 60.0, "cancel": 1.0}
    seconds |= changes
    return Acp(**{f"{name}_timeout": timedelta(seconds=each) for name, each in seconds.items()})


def stands(*states: ProcessState) -> Callable[[Session], bool]:
    """Return whether a session's program stands so."""
    return lambda session: session.program is not None and session.program.state in states


def parts(rows: tuple[Message, ...], kind: type[T]) -> list[T]:
    """Return the parts of one kind."""
    return [part for row in rows for part in row.parts if isinstance(part, kind)]


def notices(rows: tuple[Message, ...]) -> list[tuple[str, str]]:
    """Return what notices say, with their codes."""
    return [(str(part.code), part.text) for part in parts(rows, Notice)]


def codes(rows: tuple[Message, ...]) -> list[str]:
    """Return the codes of the notices."""
    return [code for code, _ in notices(rows)]
