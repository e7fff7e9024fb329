"""Whole houses for tests: the floors put together as `bootstrap` does, with the test's own runtime.

Also what tests do with a house again and again: wait for news, look into its file, let it crash.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec

from holdfast import keychain
from holdfast.acp.client.process_registry import ProcessRegistry
from holdfast.api import Holdfast, LocalHoldfast
from holdfast.app import STORE_NAME, Environment, workflow_texts
from holdfast.config import Config
from holdfast.domain.agents import LlmRuntime
from holdfast.domain.calls import CallState
from holdfast.domain.events import Event, Gap, TurnEnded
from holdfast.domain.ids import LOCAL_OWNER, SessionId, SessionKey
from holdfast.domain.messages import Message
from holdfast.domain.models import Model
from holdfast.domain.secrets import Scrubber
from holdfast.domain.sessions import Session, SessionState
from holdfast.domain.tools import Grant
from holdfast.execution.coordinator import LocalCoordinator, RunScope
from holdfast.execution.workspace_folders import WorkspaceFolders
from holdfast.functions.calls import FunctionRunner
from holdfast.functions.registry import FunctionRegistry
from holdfast.observations.service import Observations, SubmissionRates
from holdfast.open_store import open_configured_store
from holdfast.ports.runtime import Limits, Runtime
from holdfast.ports.store import Tx
from holdfast.search.service import Search
from holdfast.services.agent_processes import AgentProcesses, ProcessLimit, SessionMcpServers
from holdfast.services.agents import Agents
from holdfast.services.approvals import Approvals, ApprovalSettings
from holdfast.services.calls import Calls
from holdfast.services.costs import Costs
from holdfast.services.event_stream import Events
from holdfast.services.journal import Journal
from holdfast.services.leases import Leases
from holdfast.services.maintenance import Maintenance
from holdfast.services.media import Media
from holdfast.services.messages import Messages
from holdfast.services.models import Models
from holdfast.services.repos import Repos
from holdfast.services.secrets import Secrets
from holdfast.services.session_create import SessionCreation, SessionRules
from holdfast.services.session_views import SessionViews
from holdfast.services.sessions import Sessions
from holdfast.services.stamping import IdFactory, Stamping
from holdfast.services.tokens import Tokens
from holdfast.services.turn_inputs import TurnInputs, Workspaces
from holdfast.services.turns import Compactions, Turns
from holdfast.store.sqlite.connection import set_key
from holdfast.store.sqlite.token_file import SecretFile
from holdfast.tools.toolbox import LocalToolbox
from holdfast.wiring import build_children, known_programs, result_bounds
from holdfast.workers.service import Workers
from holdfast.workflows.session_export import Exports
from holdfast.zones.service import Zones
from tests.new_homes import furnish
from tests.raw_rows import raw_rows
from tests.stand_ins import PATIENCE, GatedRuntime, SettableClock, an_answer, asked, streamed


@dataclass(frozen=True, kw_only=True)
class House(LocalHoldfast):
    """A Holdfast whose lower floors are within reach."""

    journal: Journal
    leases: Leases
    coordinator: LocalCoordinator


@asynccontextmanager
async def open_house(
    home: Path,
    runtime: Runtime,
    *,
    outside: Environment | None = None,
    scope: RunScope = RunScope.ALL,
    at_a_time: int = 64,
    root: Path | None = None,
) -> AsyncIterator[House]:
    """Open a home in which the test's own runtime plays the turns."""
    url = os.environ.get("HOLDFAST_DATABASE_URL")
    config = Config(
        home=furnish(home),
        database_url=url,
        encryption=os.environ.get("HOLDFAST_ENCRYPTION", "auto"),
        turns_at_a_time=at_a_time,
        workspace_root=root,
    )
    async with AsyncExitStack() as stack:
        house = await _assembled(stack, config, runtime, outside or Environment(), scope)
        if scope is RunScope.ALL:
            await house.maintenance.recover()
        yield house


@asynccontextmanager
async def counting_house(home: Path, outside: Environment) -> AsyncIterator[House]:
    """Open a home whose first turn streams its answer in five pieces."""
    pieces = ((streamed(f"{number}", offset=number),) for number in range(5))
    runtime = GatedRuntime([(asked(),), *pieces, an_answer("01234")])
    async with open_house(home, runtime, outside=outside) as house:
        yield house


async def counted(house: House) -> Session:
    """Play the turn of such a home, up to event 12; its deltas are 5 to 9."""
    session = await house.open()
    await house.send(session.id, "count")
    await played(house, session.id)
    return await current(house, session)


class Anything:
    """Knows every model, and nothing about it."""

    def check(self, model: Model) -> None:
        pass

    def describe(self, model: Model) -> Model:
        return model


async def _assembled(
    stack: AsyncExitStack, config: Config, runtime: Runtime, outside: Environment, scope: RunScope
) -> House:
    kept = await open_configured_store(stack, config, outside.clock, outside.machine, outside.vfs)
    store, doorbell = outside.wrap(kept.store), kept.doorbell
    id_factory = IdFactory(outside.clock, outside.randomness)
    secrets = Secrets(keychain, {})
    stamping = Stamping(clock=outside.clock, id_factory=id_factory)
    journal = Journal(store, doorbell, stamping)
    # Where the test has time in its hand it is the time of leases, too, whatever the store.
    clock = outside.clock if isinstance(outside.clock, SettableClock) else kept.clock
    leases = Leases(store, journal, clock, kept.machine)
    models = Models(store, config.default_model, Anything())
    folders = WorkspaceFolders(config.home)
    rules = ApprovalSettings(
        expire_after=config.approvals_expire_after,
        is_attended=outside.is_attended,
        yes_to=outside.yes_to,
    )
    approvals = Approvals(store, journal, doorbell, outside.clock, rules, lease_clock=clock)
    places = Workspaces(store, folders, Grant())
    inputs = TurnInputs(models, places, approvals, Limits(), journal=journal)
    runtimes = {LlmRuntime: runtime}
    turns = Turns(store, journal, inputs, runtimes, ProcessLimit())
    events = await stack.enter_async_context(Events(store, doorbell))
    coordinator = await stack.enter_async_context(
        LocalCoordinator(leases, turns, scope=scope, at_a_time=config.turns_at_a_time)
    )
    approvals.attach(coordinator)
    agent_processes = await stack.enter_async_context(
        AgentProcesses(store, journal, doorbell, kept.machine, ProcessRegistry())
    )
    repos = Repos(store, outside.clock, id_factory, config.workspace_root)
    creation = SessionCreation(journal, models, repos, folders, SessionRules())
    agents = Agents(store, models, outside.clock, id_factory)
    sessions = Sessions(store, journal, creation, leases, coordinator, agents=agents)
    children = build_children(config, store, journal, doorbell, leases)
    children.connect(sessions, coordinator)
    return House(
        config=config,
        owner=LOCAL_OWNER,
        store=store,
        key_source=kept.key_source,
        agents=agents,
        approvals=approvals,
        agent_processes=agent_processes,
        calls=Calls(
            store,
            journal,
            coordinator,
            id_factory,
            lease_clock=clock,
            bound_result=result_bounds(store, Scrubber),
        ),
        children=children,
        compactions=Compactions(store, journal, inputs, runtimes),
        mcp_servers=SessionMcpServers({}, LocalToolbox(())),
        models=models,
        repos=repos,
        secrets=secrets,
        sessions=sessions,
        messages=Messages(store, journal, coordinator, creation, leases, models=models),
        media=Media(store),
        events=events,
        session_views=SessionViews(store, leases),
        costs=Costs(store),
        exports=Exports(store, journal, workflow_texts(models, config), lambda: secrets.scrubber),
        maintenance=Maintenance(store, sessions, leases, coordinator, outside.clock, events=events),
        observations=Observations(store, journal, stamping, SubmissionRates(outside.clock)),
        search=Search(store),
        tools=FunctionRegistry(LOCAL_OWNER, FunctionRunner(threads=2)),
        tokens=Tokens(store, outside.clock, id_factory, SecretFile(config.home), secrets.remember),
        workers=Workers(
            store,
            journal,
            coordinator,
            doorbell,
            kept.machine,
            agents=agents,
            lease_clock=clock,
        ),
        zones=Zones(store, journal, stamping),
        journal=journal,
        leases=leases,
        coordinator=coordinator,
        programs=known_programs,
    )


async def news_until(
    house: Holdfast, session_id: SessionId, kind: type, *, after: int = 0
) -> list[Event | Gap]:
    """Return the news after a cursor, up to and with the first of a kind, waiting for it."""
    found: list[Event | Gap] = []
    async with asyncio.timeout(PATIENCE), aclosing(house.follow(session_id, after=after)) as news:
        async for item in news:
            found.append(item)
            if isinstance(item, Event) and isinstance(item.payload, kind):
                break
    return found


async def played(house: Holdfast, session_id: SessionId) -> tuple[Message, ...]:
    """Wait until no turn runs or waits, and return the rows."""
    after = 0
    while True:
        news = await news_until(house, session_id, TurnEnded, after=after)
        session = await house.sessions.get(house.owner, session_id)
        if session.settled == session.turn:
            return await house.read(session_id)
        assert isinstance(news[-1], Event)
        after = news[-1].sequence


def payloads(news: list[Event | Gap]) -> list[Any]:
    """Return what the news say, without their stamps."""
    return [item.payload if isinstance(item, Event) else item for item in news]


def texts(rows: tuple[Message, ...]) -> list[tuple[str, str]]:
    """Return who said what, in order."""
    return [(str(row.role), _words(row)) for row in rows]


def _words(row: Message) -> str:
    return row.text or " ".join(str(getattr(part, "text", part)) for part in row.parts)


def crashed(home: Path, name: str = "crashed") -> Path:
    """Return a home with exactly what a power cut would leave of this one now."""
    copy = home.with_name(name)
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns("*-shm"))
    return copy


@contextmanager
def raw(home: Path) -> Any:
    """Open the file of a home past all our rules: no triggers, no foreign keys, no checks.

    Where the test is kept in a database it is that one, and the rules have to be taken away.
    """
    url = os.environ.get("HOLDFAST_DATABASE_URL")
    if url is not None:
        with raw_rows(url) as rows:
            yield rows
        return
    connection = apsw.Connection(str(home / STORE_NAME))
    try:
        key = home / "key"
        if key.exists():
            set_key(connection, bytes.fromhex(key.read_text().strip()))
        yield connection
    finally:
        connection.close()


def unlocked(connection: apsw.Connection) -> None:
    """Take the triggers away that keep rows as they are."""
    connection.execute("DROP TRIGGER messages_are_never_edited")
    connection.execute("DROP TRIGGER messages_are_never_removed_one_by_one")


def script(folder: Path, *steps: dict[str, Any]) -> str:
    """Write a script and return the model that plays it."""
    file = folder / "script.json"
    file.write_bytes(msgspec.json.encode(list(steps)))
    return f"scripted:{file}"


async def current(house: Holdfast, session: Session) -> Session:
    """Return the session as it is now."""
    return await house.sessions.get(house.owner, session.id)


async def head_of(house: Holdfast, session: Session) -> SessionState:
    """Return where the session stands."""
    head = await house.store.read(lambda tx: tx.sessions.state(session.owner, session.id))
    assert head is not None
    return head


async def key_of(house: Holdfast, session: Session) -> SessionKey:
    """Return what the house knows the session by."""
    return (await head_of(house, session)).key


async def calls_of(house: Holdfast, session_id: SessionId, *, turn: int) -> dict[str, CallState]:
    """Return how far each call of a turn has come."""

    async def read(tx: Tx) -> dict[str, CallState]:
        head = await tx.sessions.state(house.owner, session_id)
        assert head is not None
        return {call.id: call.state for call in await tx.calls.of_turn(head, turn)}

    return await house.store.read(read)
