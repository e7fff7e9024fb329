"""Agent processes: their records, their limit, and the MCP servers that clients pass."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agent_processes import ALIVE, ProcessRecord, ProcessState
from holdfast.domain.agents import AcpRuntime, Agent
from holdfast.domain.errors import Code, HoldfastError, LimitReached, NotFound
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.leases import parse_holder
from holdfast.domain.messages import Media
from holdfast.domain.sessions import OPEN, Session, SessionState
from holdfast.ports.agent_processes import ProcessPool
from holdfast.ports.store import Brief, Store, Tx
from holdfast.ports.system import Doorbell, Machine
from holdfast.ports.tools import Toolbox
from holdfast.services.background_tasks import Background, sleep_despite_memory_error
from holdfast.services.journal import Journal, SessionWriter, session_not_found
from holdfast.services.repos import Repos, find_repo
from holdfast.services.turn_inputs import FolderProvider, Visitors, workspace_name

log = logging.getLogger(__name__)
LIMIT: Final = 5
RETRY_AFTER: Final = 60


class ProcessLimit:
    """Limit of concurrent agent programs; logs every change of their number."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit

    async def require(self, tx: Tx, agent: Agent) -> None:
        """Refuse another session with the agent when all slots are taken.

        Runs in the transaction that opens the session, so that two requests cannot take the last
        slot.
        """
        if not isinstance(agent.runtime, AcpRuntime):
            return
        active = await tx.sessions.slots()
        if active >= self._limit:
            raise LimitReached(
                Code.SESSION_LIMIT,
                f"{active} of {self._limit} agent sessions are open. Wait for one to finish, or "
                "end one.",
                {"limit": self._limit, "active": active, "retry_after": RETRY_AFTER},
            )

    async def tell_of(self, store: Store, session: Session, *, delta: int, cause: str) -> None:
        """Log a slot change of a session; a no-op if its agent is not a program."""
        if isinstance(session.agent.runtime, AcpRuntime):
            await self.tell(store, session.id, delta=delta, cause=cause)

    async def tell(self, store: Store, session_id: SessionId, *, delta: int, cause: str) -> None:
        """Log that a session took or released its slot; call after the commit."""
        fields = {
            "active": await store.read(lambda tx: tx.sessions.slots()),
            "limit": self._limit,
            "delta": delta,
            "session_id": session_id,
            "cause": cause,
        }
        log.info("sessions.active_changed", extra={"fields": fields})


class SessionMcpServers:
    """MCP servers that a client passes to its session."""

    def __init__(self, visitors: Visitors, toolbox: Toolbox) -> None:
        """`visitors` is shared with the code that builds tool workspaces."""
        self._visitors = visitors
        self._toolbox = toolbox

    async def attach(
        self, owner: Owner, session_id: SessionId, servers: tuple[Mapping[str, Any], ...]
    ) -> None:
        """Replace the client's MCP servers of a session."""
        name = workspace_name(owner, session_id)
        if self._visitors.get(name, ()) == servers:
            return
        if servers:
            self._visitors[name] = servers
        else:
            del self._visitors[name]
        # Disconnected, so that the next turn connects with the new declaration.
        await self._toolbox.leave(name)


# Debounce: a turn notifies for every delta, and checking the session less often is enough.
LOOK_SECONDS: Final = 0.5
TEND_SECONDS: Final = 30.0


class AgentProcesses(Background):
    """Records of agent processes in the store; a context manager, because it watches them."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        doorbell: Doorbell,
        machine: Machine,
        process_pool: ProcessPool,
    ) -> None:
        super().__init__()
        self.store = store
        self._journal = journal
        self._doorbell = doorbell
        self._machine = machine
        self._process_pool = process_pool
        self._watches: dict[SessionKey, asyncio.Task[None]] = {}

    def of(
        self, ground: "WorkspaceResolver", session: Session, key: SessionKey
    ) -> "SessionProcessSlot | None":
        """Return the process slot of a session; `None` if its agent is not a program."""
        if not isinstance(session.agent.runtime, AcpRuntime):
            return None
        return SessionProcessSlot(self, session, key, ground)

    async def known(self, key: SessionKey) -> ProcessRecord:
        """Return the stored record of a session's process."""
        return await self.store.read(Brief(lambda tx: tx.programs.get(key))) or ProcessRecord()

    async def keep(
        self, key: SessionKey, process_record: ProcessRecord, *, is_activity: bool
    ) -> None:
        """Store the record of a session's process, and watch the session while it lives."""
        is_alive = process_record.state in ALIVE
        holder = str(self._machine.holder()) if is_alive else None

        async def write(writer: SessionWriter) -> ProcessRecord:
            found = await writer.tx.programs.get(key) or ProcessRecord()
            if not is_alive and _is_another(found, process_record):
                return found
            kept = writer.redact(replace(process_record, holder=holder))
            # Activity is reported often, and usually nothing else has changed.
            if msgspec.json.encode(kept) != msgspec.json.encode(found):
                await writer.tx.programs.save(key, kept)
            if is_activity:
                writer.tick()
            return found

        before = await self._journal.write_by_key(key, write)
        if before.state is not process_record.state:
            log.info(
                "agent.state_changed", extra={"fields": _log_fields(key, before, process_record)}
            )
        if is_alive and key not in self._watches:
            watch = self._watches[key] = self.start(self._watch(key))
            watch.add_done_callback(lambda _: self._watches.pop(key, None))
        elif not is_alive and (old := self._watches.get(key)) is not None:
            old.cancel()

    async def tend(self) -> None:
        """Recover abandoned processes periodically; never returns."""
        while True:
            await sleep_despite_memory_error(TEND_SECONDS)
            await self.recover()

    async def recover(self) -> tuple[SessionKey, ...]:
        """End processes whose owning process has died; return their sessions."""
        try:
            alive = await self.store.read(lambda tx: tx.programs.alive())
        except HoldfastError as error:
            # A store with a damaged process table can still be used.
            log.warning("agent processes were not cleaned up: %s", error.message)
            return ()
        left = [(key, each) for key, each in alive if not self._is_looked_after(key, each)]
        return tuple(
            [key for key, process_record in left if await self._clear(key, process_record)]
        )

    async def _clear(self, key: SessionKey, process_record: ProcessRecord) -> bool:
        """End what is left of a process; `False` if its record has changed meanwhile."""
        state = await self.store.read(Brief(lambda tx: tx.sessions.state_by_key(key)))
        if state is None:
            return False
        await self._process_pool.reap(process_record, state.session_id)
        gone = replace(process_record, state=ProcessState.NOT_STARTED, birth=None, holder=None)

        async def write(tx: Tx) -> bool:
            is_same = await tx.programs.get(key) == process_record
            if is_same:
                await tx.programs.save(key, gone)
            return is_same

        return await self.store.write(write)

    def _is_looked_after(self, key: SessionKey, process_record: ProcessRecord) -> bool:
        mine = self._machine.holder()
        if process_record.holder is None:
            return False
        if process_record.holder == str(mine):
            return key in self._process_pool.held()
        return not self._machine.is_gone(parse_holder(process_record.holder))

    async def _watch(self, key: SessionKey) -> None:
        """End the program when its session has ended or continues in another process."""
        while key in self._process_pool.held():
            # Subscribed before reading, so that a change in between is not lost.
            bell = self._doorbell.listen(key)
            if await self._has_ended(key):
                with suppress(HoldfastError):
                    await self._process_pool.end(key)
                return
            await bell.rung()
            await sleep_despite_memory_error(LOOK_SECONDS)

    async def _has_ended(self, key: SessionKey) -> bool:
        try:
            state = await self.store.read(Brief(lambda tx: tx.sessions.state_by_key(key)))
        except HoldfastError as error:
            log.warning("an agent process could not be cleaned up: %s", error.message)
            return False
        return state is None or state.status not in OPEN or self._is_elsewhere(state)

    def _is_elsewhere(self, state: SessionState) -> bool:
        return state.holder is not None and state.holder != str(self._machine.holder())


class WorkspaceResolver(Struct, frozen=True):
    """Repositories that programs may work in, and the private folders of sessions."""

    repos: Repos
    folders: FolderProvider


class SessionProcessSlot:
    """Implements the `ProcessSlot` port for one session."""

    def __init__(
        self,
        agent_processes: AgentProcesses,
        session: Session,
        key: SessionKey,
        ground: WorkspaceResolver,
    ) -> None:
        self._processes = agent_processes
        self._session = session
        self._key = key
        self._ground = ground

    @property
    def session(self) -> SessionId:
        """Return the session's id."""
        return self._session.id

    @property
    def key(self) -> SessionKey:
        """Return the key that identifies the session in the store."""
        return self._key

    async def folder(self) -> str:
        """Return the repository's path, resolved and checked now."""

        async def read(tx: Tx) -> Any:
            return await find_repo(tx, self._session.owner, self._session.repo_id or "")

        repo = await self._processes.store.read(read)
        # In a thread, because a repository may be on a slow disk.
        return str(await asyncio.to_thread(self._ground.repos.require_inside, repo, "start"))

    async def scratch(self) -> str:
        """Return the private folder of the session."""
        owner, folders = self._session.owner, self._ground.folders
        return await asyncio.to_thread(folders.of, owner, self._session.id)

    async def put(self, media: Media, content: bytes) -> str:
        """Write content into a file of the session's private folder, named by its hash."""
        return await asyncio.to_thread(self._put, media, content)

    def _put(self, media: Media, content: bytes) -> str:
        owner, folders = self._session.owner, self._ground.folders
        folder = Path(folders.of(owner, self._session.id)) / "attachments"
        folder.mkdir(mode=0o700, exist_ok=True)
        name = PurePosixPath(media.name or "").name
        file = folder / f"{media.ref.removeprefix('media://sha256-')[:16]}-{name or 'content'}"
        if not file.exists():
            # Named by its hash, so an existing file has the same content.
            file.write_bytes(content)
        return str(file)

    async def known(self) -> ProcessRecord:
        """Return the stored record of the session's process."""
        return await self._processes.known(self._key)

    async def keep(self, process_record: ProcessRecord, *, is_activity: bool = False) -> None:
        """Store a new record of the session's process."""
        try:
            await self._processes.keep(self._key, process_record, is_activity=is_activity)
        except NotFound:
            # The session was deleted meanwhile, together with its process record.
            if process_record.state in ALIVE:
                raise session_not_found() from None


def _is_another(found: ProcessRecord, ended: ProcessRecord) -> bool:
    """Return whether the end of a process is outdated, because another was started since."""
    # A cleared record has no birth, and the process may still report how it ended.
    was_cleared = found.state is ProcessState.NOT_STARTED and found.birth is None
    return found.birth != ended.birth and not was_cleared


def _log_fields(key: SessionKey, before: ProcessRecord, after: ProcessRecord) -> dict[str, Any]:
    end = after.exit
    return {
        "session_key": key,
        "before": before.state,
        "state": after.state,
        "pid": after.birth.pid if after.birth else None,
        "exit_code": end.code if end else None,
        "signal": end.signal if end else None,
    }
