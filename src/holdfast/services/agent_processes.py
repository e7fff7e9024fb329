"""Agent processes: the registry of programs that run sessions, their limit, and the client's MCP
servers.
"""

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
from holdfast.domain.leases import holder_of
from holdfast.domain.messages import Media
from holdfast.domain.sessions import OPEN, Session, SessionState
from holdfast.ports import Brief, Doorbell, Machine, ProcessPool, Store, Toolbox, Tx
from holdfast.services.background_tasks import Background, rest
from holdfast.services.journal import Journal, SessionWriter, session_not_found
from holdfast.services.repos import Repos, find_repo
from holdfast.services.workspaces import FolderProvider, Visitors, workspace_name

log = logging.getLogger(__name__)
LIMIT: Final = 5
RETRY_AFTER: Final = 60


class ProcessLimit:
    """So many programs at a time, and a line in the log whenever their number changes."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit

    async def require(self, tx: Tx, agent: Agent) -> None:
        """Refuse another session with the agent when all slots are taken.

        In the transaction that opens it: two who see the last free slot cannot both have it.
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
        """Tell the same of any session: one whose agent is no program has no slot."""
        if isinstance(session.agent.runtime, AcpRuntime):
            await self.tell(store, session.id, delta=delta, cause=cause)

    async def tell(self, store: Store, session_id: SessionId, *, delta: int, cause: str) -> None:
        """Tell that a session took its slot or gave it up; to be said when that is on disk."""
        fields = {
            "active": await store.read(lambda tx: tx.sessions.slots()),
            "limit": self._limit,
            "delta": delta,
            "session_id": session_id,
            "cause": cause,
        }
        log.info("sessions.active_changed", extra={"fields": fields})


class SessionMcpServers:
    """Brings servers along, for the owner of a session."""

    def __init__(self, visitors: Visitors, toolbox: Toolbox) -> None:
        """`visitors` is where those who build workplaces look."""
        self._visitors = visitors
        self._toolbox = toolbox

    async def bring(
        self, owner: Owner, session_id: SessionId, servers: tuple[Mapping[str, Any], ...]
    ) -> None:
        """Give a session these servers instead of those that were brought before."""
        name = workspace_name(owner, session_id)
        if self._visitors.get(name, ()) == servers:
            return
        if servers:
            self._visitors[name] = servers
        else:
            del self._visitors[name]
        # Connected anew with the next turn: a line to a server is kept as it was declared.
        await self._toolbox.leave(name)


# A turn rings for every piece of its text; more often than this nobody has to look.
LOOK_SECONDS: Final = 0.5
TEND_SECONDS: Final = 30.0


class AgentProcesses(Background):
    """What programs need of the store; a context manager, because it looks after them."""

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
        self._harbour = process_pool
        self._watches: dict[SessionKey, asyncio.Task[None]] = {}

    def of(
        self, ground: "WorkspaceResolver", session: Session, key: SessionKey
    ) -> "SessionProcessSlot | None":
        """Return the place of a session's program; nothing where its agent is none."""
        if not isinstance(session.agent.runtime, AcpRuntime):
            return None
        return SessionProcessSlot(self, session, key, ground)

    async def known(self, key: SessionKey) -> ProcessRecord:
        """Return what is kept about a session's program."""
        return await self.store.read(Brief(lambda tx: tx.programs.get(key))) or ProcessRecord()

    async def keep(
        self, key: SessionKey, process_record: ProcessRecord, *, is_activity: bool
    ) -> None:
        """Keep what is known about a session's program, and look after it while it lives."""
        is_alive = process_record.state in ALIVE
        holder = str(self._machine.holder()) if is_alive else None

        async def write(pen: SessionWriter) -> ProcessRecord:
            found = await pen.tx.programs.get(key) or ProcessRecord()
            if not is_alive and _is_another(found, process_record):
                return found
            kept = pen.cleaned(replace(process_record, holder=holder))
            # That it does something is told often, and mostly that is all the news.
            if msgspec.json.encode(kept) != msgspec.json.encode(found):
                await pen.tx.programs.save(key, kept)
            if is_activity:
                pen.now()
            return found

        before = await self._journal.write_by_key(key, write)
        if before.state is not process_record.state:
            log.info("agent.state_changed", extra={"fields": _told(key, before, process_record)})
        if is_alive and key not in self._watches:
            watch = self._watches[key] = self.start(self._watch(key))
            watch.add_done_callback(lambda _: self._watches.pop(key, None))
        elif not is_alive and (old := self._watches.get(key)) is not None:
            old.cancel()

    async def tend(self) -> None:
        """Look after what others leave behind, again and again; never returns."""
        while True:
            await rest(TEND_SECONDS)
            await self.recover()

    async def recover(self) -> tuple[SessionKey, ...]:
        """End what processes left behind that are no more; return whose programs those were."""
        try:
            alive = await self.store.read(lambda tx: tx.programs.alive())
        except HoldfastError as error:
            # A store that doubts this table can still be worked with.
            log.warning("programs were not looked after: %s", error.message)
            return ()
        left = [(key, each) for key, each in alive if not self._is_looked_after(key, each)]
        return tuple(
            [key for key, process_record in left if await self._clear(key, process_record)]
        )

    async def _clear(self, key: SessionKey, process_record: ProcessRecord) -> bool:
        """End what is left of a program; `False` if its session has news of it meanwhile."""
        head = await self.store.read(Brief(lambda tx: tx.sessions.head_by_key(key)))
        if head is None:
            return False
        await self._harbour.reap(process_record, head.session_id)
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
            return key in self._harbour.held()
        return not self._machine.is_gone(holder_of(process_record.holder))

    async def _watch(self, key: SessionKey) -> None:
        """Wait until the session has ended, or goes on in another process."""
        while key in self._harbour.held():
            # Taken before reading, so that a change in between is not overlooked.
            bell = self._doorbell.listen(key)
            if await self._has_ended(key):
                with suppress(HoldfastError):
                    await self._harbour.end(key)
                return
            await bell.rung()
            await rest(LOOK_SECONDS)

    async def _has_ended(self, key: SessionKey) -> bool:
        try:
            head = await self.store.read(Brief(lambda tx: tx.sessions.head_by_key(key)))
        except HoldfastError as error:
            log.warning("a program could not be looked after: %s", error.message)
            return False
        return head is None or head.status not in OPEN or self._is_elsewhere(head)

    def _is_elsewhere(self, head: SessionState) -> bool:
        return head.holder is not None and head.holder != str(self._machine.holder())


class WorkspaceResolver(Struct, frozen=True):
    """Where programs may work, and where sessions have private folders."""

    repos: Repos
    folders: FolderProvider


class SessionProcessSlot:
    """Implements the `Berth` port for one session."""

    def __init__(
        self,
        agent_processes: AgentProcesses,
        session: Session,
        key: SessionKey,
        ground: WorkspaceResolver,
    ) -> None:
        self._berths = agent_processes
        self._session = session
        self._key = key
        self._ground = ground

    @property
    def session(self) -> SessionId:
        """Return the session's id."""
        return self._session.id

    @property
    def owner(self) -> Owner:
        """Return whose session it is."""
        return self._session.owner

    @property
    def key(self) -> SessionKey:
        """Return what tells this session from every other of the store."""
        return self._key

    async def folder(self) -> str:
        """Return the repository, resolved and judged at this moment."""

        async def read(tx: Tx) -> Any:
            return await find_repo(tx, self._session.owner, self._session.repo_id or "")

        repo = await self._berths.store.read(read)
        # In a thread: a repository may lie on a disk that takes its time.
        return str(await asyncio.to_thread(self._ground.repos.require_inside, repo, "start"))

    async def put(self, media: Media, content: bytes) -> str:
        """Write a content into a file of the session's private folder, named by its hash."""
        return await asyncio.to_thread(self._put, media, content)

    def _put(self, media: Media, content: bytes) -> str:
        owner, folders = self._session.owner, self._ground.folders
        folder = Path(folders.of(owner, self._session.id)) / "attachments"
        folder.mkdir(mode=0o700, exist_ok=True)
        name = PurePosixPath(media.name or "").name
        file = folder / f"{media.ref.removeprefix('media://sha256-')[:16]}-{name or 'content'}"
        if not file.exists():
            # Named by its hash: whoever finds it finds this very content.
            file.write_bytes(content)
        return str(file)

    async def known(self) -> ProcessRecord:
        """Return what is kept about the session's program."""
        return await self._berths.known(self._key)

    async def keep(self, process_record: ProcessRecord, *, is_activity: bool = False) -> None:
        """Keep what is known from now on."""
        try:
            await self._berths.keep(self._key, process_record, is_activity=is_activity)
        except NotFound:
            # Deleted meanwhile, and all that was known of its program with it.
            if process_record.state in ALIVE:
                raise session_not_found() from None


def _is_another(found: ProcessRecord, ended: ProcessRecord) -> bool:
    """Tell whether the end of a program is old news, because another was started since."""
    # One that was cleared away has no birth any more, and may still say how it ended.
    was_cleared = found.state is ProcessState.NOT_STARTED and found.birth is None
    return found.birth != ended.birth and not was_cleared


def _told(key: SessionKey, before: ProcessRecord, after: ProcessRecord) -> dict[str, Any]:
    end = after.exit
    return {
        "session_key": key,
        "before": before.state,
        "state": after.state,
        "pid": after.birth.pid if after.birth else None,
        "exit_code": end.code if end else None,
        "signal": end.signal if end else None,
    }
