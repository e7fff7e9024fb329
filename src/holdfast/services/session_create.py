"""Create sessions: new ones, and forks that continue from a message of another session."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import (
    CHILD_AGENTS_MISSING,
    AcpRuntime,
    Agent,
    AgentStatus,
    LlmRuntime,
    ReasoningEffort,
    Runtime,
    extend_agent,
    functions_of,
    is_known_tool,
    narrow_agent,
    refuse_secrets,
    render,
    require_known_tools,
)
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.commits import CommitBuilder
from holdfast.domain.drafts import MessageDraft, notice_draft
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound, out_of_memory
from holdfast.domain.events import SessionForked, SessionOpened
from holdfast.domain.ids import Owner, SessionId, SessionKey, require_uuid
from holdfast.domain.leases import Lease
from holdfast.domain.messages import CHAIN_START, NoticeCode
from holdfast.domain.repos import Repo
from holdfast.domain.secrets import Scrubber
from holdfast.domain.sessions import (
    TURN_CAP,
    TURN_CAP_LARGEST,
    Budget,
    Created,
    ForkPoint,
    ForkRequest,
    ParentLink,
    Session,
    SessionContext,
    SessionRequest,
    SessionState,
    Status,
    cap_of,
    digest_request,
    has_waiting_turn,
    stricter_budget,
)
from holdfast.domain.time import instant, microseconds
from holdfast.domain.tools import CATALOGUE, INVOKE_AGENT, NARROWEST, Grant, ToolSpec, narrow
from holdfast.ports.store import Tx
from holdfast.services.agent_processes import ProcessLimit
from holdfast.services.agents import find_agent, used_functions, with_overrides
from holdfast.services.costs import turns_left
from holdfast.services.journal import (
    Journal,
    JournalTransaction,
    SessionWriter,
    session_not_found,
)
from holdfast.services.live_session import MessageRange, read_messages
from holdfast.services.models import Models
from holdfast.services.repos import Repos, find_repo
from holdfast.services.session_lifecycle import (
    Resumption,
    add_user_message,
    context_of,
    reopen,
)
from holdfast.services.turn_inputs import FolderProvider
from holdfast.zones.binding import bind_zone


class SessionRules(Struct, frozen=True, kw_only=True):
    """Limits and defaults from the configuration for every new session."""

    ceiling: Grant = Grant()
    turn_cap: int = TURN_CAP
    budget: Budget | None = None
    reasoning_effort: ReasoningEffort | None = None
    scrubber: Callable[[], Scrubber] = Scrubber
    slots: ProcessLimit = ProcessLimit()
    # Refuses an agent whose program is not found.
    require_program: Callable[[AcpRuntime], None] = lambda _: None
    # The functions that this process has for an owner, by name.
    functions: Callable[[Owner], frozenset[str]] = lambda _: frozenset()


class ChildOpening(Struct, frozen=True, kw_only=True):
    """The opening of a session by another one, with its first message.

    `narrow` returns the agent and the request within the powers of the parent, or refuses them;
    `start` may begin the turn in the same transaction.
    """

    parent: SessionKey
    link: ParentLink
    draft: MessageDraft
    narrow: Callable[[Tx, Agent, SessionRequest], Awaitable[tuple[Agent, SessionRequest]]]
    start: Callable[[CommitBuilder], Lease | None]


class AgentSnapshot(Struct, frozen=True, kw_only=True):
    """The agent as frozen into a session, and the notices to write into its record."""

    agent: Agent
    notices: tuple[MessageDraft, ...] = ()


def freeze_agent(
    agent: Agent,
    context: SessionContext,
    rules: SessionRules,
    functions: frozenset[str] = frozenset(),
) -> AgentSnapshot:
    """Return the agent as the session stores it; refuses secrets and unknown tools.

    `functions` are those that processes have or had.
    """
    refuse_secrets(context.variables, rules.scrubber())
    prompt = render(agent.system_prompt, context.variables)
    known = CATALOGUE | functions
    missing = [tool.name for tool in agent.tools if not is_known_tool(tool, agent, known)]
    notices = [
        notice_draft(
            NoticeCode.UNKNOWN_VARIABLE,
            f"The prompt uses a variable that the session does not have: {name}",
        )
        for name in prompt.unknown
    ]
    if missing:
        text = f"These tools are not available: {', '.join(missing)}."
        text += f" {CHILD_AGENTS_MISSING}" if INVOKE_AGENT in missing else ""
        notices.append(notice_draft(NoticeCode.TOOL_UNAVAILABLE, text))
    grant = rules.ceiling if agent.grant is None else agent.grant
    kept = replace(
        agent, system_prompt=prompt.text, grant=grant, runtime=_runtime(agent.runtime, rules)
    )
    return AgentSnapshot(agent=kept, notices=tuple(notices))


def _runtime(runtime: Runtime, rules: SessionRules) -> Runtime:
    """Return the runtime with defaults from the configuration where the agent sets nothing."""
    if isinstance(runtime, LlmRuntime) and runtime.reasoning_effort is None:
        return replace(runtime, reasoning_effort=rules.reasoning_effort)
    return runtime


# Fields that a fork copies from its parent, whichever agent it runs.
_INHERITED: Final = ("title", "tags", "context", "approval", "turn_cap", "budget", "metadata")


async def point_of(tx: Tx, parent: SessionState, request: ForkRequest) -> int:
    """Return the sequence number of the last row that the fork shares."""
    if request.at is not None:
        return _require_position(request.at, parent)
    # All rows so far, including those of an open turn: the fork reads them and does not run them.
    if not request.is_settled or not has_waiting_turn(parent):
        return parent.messages
    rows = await read_messages(tx, parent, MessageRange(1, parent.messages))
    settled = [row.sequence for row in rows if 0 < row.turn <= parent.settled]
    first_open = next(row.sequence for row in rows if row.turn > parent.settled)
    return max([first_open - 1, *settled])


def request_of(parent: Session, request: ForkRequest) -> SessionRequest:
    """Return the request for a fork with another agent: the parent's fields, overridden."""
    kept = {name: getattr(parent, name) for name in _INHERITED}
    return SessionRequest(
        **kept | fork_request_of(request), repo_id=parent.repo_id, model=request.model
    )


def fork_request_of(request: ForkRequest) -> dict[str, object]:
    """Return the fields in which the fork differs from its parent."""
    given = {"title": request.title, "tags": request.tags}
    return {name: value for name, value in given.items() if value is not None}


async def fork_session(
    tx: Tx, child: Session, parent: SessionState, point: int
) -> tuple[Session, SessionState]:
    """Return a session as a fork with its state; all inherited turns count as settled."""
    rows = await read_messages(tx, parent, MessageRange(1, point))
    # Open turns stay with the parent; the fork does not continue them.
    turn = max((row.turn for row in rows), default=0)
    status = Status.IDLE if rows else Status.PENDING
    forked_from = ForkPoint(session_id=parent.session_id, sequence=point)
    child = replace(child, status=status, turn=turn, settled=turn, forked_from=forked_from)
    state = replace(
        empty_state(child),
        status=status,
        turn=turn,
        settled=turn,
        messages=point,
        inherited=point,
        chain=rows[-1].chain if rows else CHAIN_START,
        # The fork's own rows must be later than inherited ones even if the clock goes back.
        updated_at=max([microseconds(child.created_at), *(row.at for row in rows[-1:])]),
    )
    return child, state


def twin_of(parent: Session, child_id: SessionId) -> Session:
    """Return a new session with the parent's settings and none of its history."""
    return Session(
        id=child_id,
        owner=parent.owner,
        agent_id=parent.agent_id,
        agent=parent.agent,
        repo_id=parent.repo_id,
        title=parent.title,
        tags=parent.tags,
        model_id=parent.model_id,
        context=parent.context,
        grant=parent.grant,
        tools=parent.tools,
        approval=parent.approval,
        turn_cap=parent.turn_cap,
        budget=parent.budget,
        created_at=parent.created_at,
        updated_at=parent.created_at,
        metadata=parent.metadata,
    )


def empty_state(session: Session) -> SessionState:
    """Return the state of a session without any rows or events."""
    return SessionState(
        session_id=session.id,
        owner=session.owner,
        agent_id=session.agent_id,
        title=session.title,
        chain=CHAIN_START,
        updated_at=microseconds(session.created_at),
    )


def _require_position(at: int, state: SessionState) -> int:
    if not 0 <= at <= state.messages:
        raise NotFound(
            Code.MESSAGE_NOT_FOUND,
            f"The session has messages 1 to {state.messages}; it cannot be forked at {at}.",
            {"at": at},
        )
    return at


class SessionCreation:
    """Creates sessions; a client-chosen id is the idempotency key of the request."""

    def __init__(
        self,
        journal: Journal,
        models: Models,
        repos: Repos,
        folders: FolderProvider,
        rules: SessionRules,
    ) -> None:
        """`folders` provides private folders for sessions without another workspace."""
        self._journal = journal
        self._models = models
        self._repos = repos
        self._folders = folders
        self._rules = rules
        self.slots = rules.slots

    async def open(
        self,
        owner: Owner,
        agent: str,
        request: SessionRequest,
        *,
        id: str | None,
        functions: tuple[ToolSpec, ...] = (),
        under: ChildOpening | None = None,
    ) -> Created[Session]:
        """Open a session with an agent, given by id or slug; `functions` join the agent's tools."""
        session_id = self._session_id(id)
        given = (tuple(tool.as_given() for tool in functions),) if functions else ()
        parent = () if under is None else (under.link, under.draft.parts)
        digest = digest_request(owner, agent, request.identity(), *given, *parent)
        await self.require_model(request.model)

        async def compose(entry: JournalTransaction) -> Created[Session]:
            known = await _find_repeat(entry, owner, session_id, digest)
            if known is not None:
                return Created(value=known, is_new=False)
            chosen = await find_agent(entry.tx, owner, agent)
            wanted = request
            if under is not None:
                chosen, wanted = await under.narrow(entry.tx, chosen, request)
            session, notices = await self._build_session(
                entry, chosen, wanted, session_id, functions
            )
            await self.slots.require(entry.tx, chosen)
            opened, key = await _start_session(
                entry, session, empty_state(session), digest, notices
            )
            await bind_zone(entry, chosen, key)
            if under is not None:
                await entry.tx.children.add(key, under.parent, under.link)
                add_user_message(await entry.open_by_key(key), under.draft, under.start)
            return Created(value=opened, is_new=True)

        # Not brief with a repository, because resolving its path may block on a slow disk.
        return await self._journal.enter(compose, is_brief=request.repo_id is None)

    async def fork(
        self, owner: Owner, parent_id: SessionId, request: ForkRequest, *, id: str | None
    ) -> Created[Session]:
        """Create a session that shares the parent's rows up to a sequence, without a copy."""
        session_id = self._session_id(id)
        digest = digest_request(owner, "fork", parent_id, request)
        await self.require_model(request.model)
        # Before the transaction, so that a large copy does not block other writers.
        copy = await self._copy_folder(owner, parent_id, session_id)

        async def compose(entry: JournalTransaction) -> Created[Session]:
            known = await _find_repeat(entry, owner, session_id, digest)
            if known is not None:
                return Created(value=known, is_new=False)
            writer = await entry.open(owner, parent_id)
            point = await point_of(entry.tx, writer.state, request)
            stored = await _read_session(entry, writer.state)
            parent = self._with_fork_folder(stored, session_id)
            child, notices = await self._child(entry, parent, request, session_id)
            await self.slots.require(entry.tx, child.agent)
            child, state = await fork_session(entry.tx, child, writer.state, point)
            writer.add_event(SessionForked(target=child.id, sequence=point))
            opened, _ = await _start_session(entry, child, state, digest, notices)
            # Last, so that a refused fork leaves no files.
            if parent is not stored:
                files = copy or self._folders.copied(owner, parent.id)
                self._folders.adopt(files, owner, opened.id)
            return Created(value=opened, is_new=True)

        try:
            return await self._journal.enter(compose)
        finally:
            # Not in a thread, because starting one may fail; after `adopt` there is nothing to
            # remove.
            if copy is not None:
                self._folders.discard(copy)

    async def require_model(self, ref: Any) -> None:
        """Refuse a model that cannot be used; a value that is not a string is validated later."""
        if isinstance(ref, str):
            await self._models.check(ref)

    async def patched(self, tx: Tx, session: Session, changes: Mapping[str, Any]) -> Session:
        """Return the session with its owner's changes, validated like a request that opens one."""
        names = ("title", "tags", "approval", "metadata", "turn_cap")
        kept = {name: getattr(session, name) for name in names}
        try:
            changed = msgspec.convert(kept | dict(changes), SessionRequest)
        except msgspec.ValidationError as error:
            raise Invalid(Code.INVALID_INPUT, f"The change is not valid: {error}.") from None
        model = session.model_id
        if "model" in changes:
            model = await self._models.resolve(tx, changed.model) if changed.model else None
        return replace(
            session,
            title=changed.title,
            tags=changed.tags,
            model_id=model,
            metadata=changed.metadata,
            approval=changed.approval or session.approval,
            turn_cap=_require_cap(changed.turn_cap),
        )

    async def resumed_context(
        self, session: Session, wanted: SessionContext | None = None
    ) -> SessionContext:
        """Return the context in which a resumed session continues."""
        return await context_of(session, wanted, self._folders)

    async def reopen(self, writer: SessionWriter) -> bool:
        """Reopen a closed session and return whether it was closed; refused on a failed one."""
        return await reopen(writer, self.slots)

    async def resumption(self, tx: Tx, session: Session, state: SessionState) -> Resumption:
        """Return the session with the number of turns it has left."""
        left = await turns_left(tx, session, state, self._rules.budget)
        return Resumption(session=session, turns_left=left)

    def forget(self, owner: Owner, session_id: SessionId) -> None:
        """Remove the private folder of a session that was deleted."""
        self._folders.remove(owner, session_id)

    def _session_id(self, wanted: str | None) -> SessionId:
        return SessionId(
            self._journal.new_id() if wanted is None else require_uuid(wanted, what="session id")
        )

    async def _build_session(
        self,
        entry: JournalTransaction,
        agent: Agent,
        request: SessionRequest,
        session_id: SessionId,
        functions: tuple[ToolSpec, ...] = (),
    ) -> tuple[Session, tuple[MessageDraft, ...]]:
        if agent.status is AgentStatus.ARCHIVED:
            raise Conflict(
                Code.AGENT_ARCHIVED,
                f"Agent {agent.slug} is archived; run `holdfast agents edit {agent.slug} "
                "--status active` to restore it.",
            )
        repo = await self._repo(entry.tx, agent, request)
        if isinstance(agent.runtime, AcpRuntime):
            self._rules.require_program(agent.runtime)
        context = self._context(agent.owner, request, repo, session_id)
        model = await self._models.resolve(entry.tx, request.model) if request.model else None
        now = entry.now()
        changed = extend_agent(with_overrides(agent, request.overrides), functions)
        names = tuple(tool.name for tool in functions)
        own = frozenset(names) | self._rules.functions(agent.owner)
        if not own.issuperset(functions_of(changed.tools)):
            own |= await used_functions(entry.tx, agent)
        snapshot = freeze_agent(changed, context, self._rules, own)
        wanted = None if request.tools is None else (*request.tools, *names)
        require_known_tools(wanted or (), snapshot.agent, CATALOGUE | own)
        kept, tools = narrow_agent(snapshot.agent, wanted)
        session = Session(
            id=session_id,
            owner=agent.owner,
            agent_id=agent.id,
            agent=kept,
            repo_id=repo.id if repo else None,
            title=request.title,
            tags=request.tags,
            model_id=model,
            context=context,
            grant=_narrow_grant(snapshot.agent, request, context),
            tools=tools,
            approval=request.approval or _approval(agent),
            turn_cap=cap_of(request.turn_cap or self._rules.turn_cap),
            budget=stricter_budget(request.budget, self._rules.budget, granted=0),
            created_at=now,
            updated_at=now,
            metadata=request.metadata,
        )
        return session, snapshot.notices

    async def _child(
        self,
        entry: JournalTransaction,
        parent: Session,
        request: ForkRequest,
        session_id: SessionId,
    ) -> tuple[Session, tuple[MessageDraft, ...]]:
        """Return the fork before it inherits rows, and the notices about its agent."""
        if request.agent is not None:
            agent = await find_agent(entry.tx, parent.owner, request.agent)
            return await self._build_session(entry, agent, request_of(parent, request), session_id)
        now = entry.now()
        model = await self._models.resolve(entry.tx, request.model) if request.model else None
        twin = replace(
            twin_of(parent, session_id),
            model_id=model or parent.model_id,
            created_at=now,
            updated_at=now,
            **fork_request_of(request),
        )
        return twin, ()

    async def _copy_folder(
        self, owner: Owner, parent_id: SessionId, session_id: SessionId
    ) -> str | None:
        """Copy the parent's private folder for a fork; `None` if the parent does not work in it."""

        async def look(entry: JournalTransaction) -> Session | None:
            if await entry.tx.sessions.digest(owner, session_id) is not None:
                return None
            found = await entry.tx.sessions.get(owner, parent_id)
            return found[0] if found else None

        parent = await self._journal.enter(look, is_brief=True)
        if parent is None or not self._is_private(parent):
            return None
        try:
            return await asyncio.to_thread(self._folders.copied, owner, parent.id)
        # Failing to start a thread (RuntimeError) also means that memory is exhausted.
        except (MemoryError, RuntimeError) as error:
            raise out_of_memory() from error

    def _with_fork_folder(self, parent: Session, session_id: SessionId) -> Session:
        """Return the parent with the fork's private folder in place of its own, if it uses one."""
        if not self._is_private(parent):
            return parent
        folder = self._folders.of(parent.owner, session_id)
        return replace(parent, context=replace(parent.context, working_dir=folder))

    def _is_private(self, session: Session) -> bool:
        return session.context.working_dir == self._folders.of(session.owner, session.id)

    async def _repo(self, tx: Tx, agent: Agent, request: SessionRequest) -> Repo | None:
        if request.repo_id is None:
            if isinstance(agent.runtime, AcpRuntime):
                raise Invalid(Code.REPO_REQUIRED, "This agent requires a repository; name one.")
            return None
        repo = await find_repo(tx, agent.owner, request.repo_id)
        self._repos.require_inside(repo)
        return repo

    def _context(
        self, owner: Owner, request: SessionRequest, repo: Repo | None, session_id: SessionId
    ) -> SessionContext:
        if request.context is not None:
            return request.context
        return SessionContext(
            working_dir=repo.path if repo else self._folders.of(owner, session_id)
        )


async def _read_session(entry: JournalTransaction, state: SessionState) -> Session:
    found = await entry.tx.sessions.get_by_key(state.key)
    if found is None:
        raise session_not_found()
    return found[0]


async def _find_repeat(
    entry: JournalTransaction, owner: Owner, session_id: SessionId, digest: bytes
) -> Session | None:
    """Return the session of a repeated request; the same id with another request is refused."""
    stored = await entry.tx.sessions.digest(owner, session_id)
    if stored is None and not await entry.tx.sessions.is_buried(owner, session_id):
        return None
    found = await entry.tx.sessions.get(owner, session_id)
    # A tombstone counts as taken, so that an id never names two sessions of its owner.
    if found is None or stored != digest:
        raise Conflict(Code.ID_REUSED, "This id is taken; leave it out, or choose another.")
    return found[0]


async def _start_session(
    entry: JournalTransaction,
    session: Session,
    state: SessionState,
    digest: bytes,
    notices: tuple[MessageDraft, ...] = (),
) -> tuple[Session, SessionKey]:
    writer = await entry.start(session, state, digest)
    model = await entry.tx.models.by_id(session.model_id) if session.model_id else None
    writer.add_event(
        SessionOpened(
            agent=session.agent.slug,
            model=model.ref if model else None,
            context=session.context,
        )
    )
    for notice in notices:
        writer.add_message(notice, 0)
    stored = writer.commit().state
    opened = replace(
        session,
        message_count=stored.messages,
        last_event=stored.events,
        updated_at=instant(stored.updated_at),
    )
    return opened, stored.key


def _require_cap(wanted: int | None) -> int:
    if wanted is None or not 1 <= wanted <= TURN_CAP_LARGEST:
        raise Invalid(
            Code.INVALID_INPUT,
            f"turn_cap must be 1 to {TURN_CAP_LARGEST:,}.",
            {"field": "turn_cap"},
        )
    return wanted


def _approval(agent: Agent) -> ApprovalMode:
    """Return the default approval mode of the agent's sessions; `ask` if it sets none."""
    said = agent.runtime.options.get("approve") if isinstance(agent.runtime, AcpRuntime) else None
    return ApprovalMode(said) if said in set(ApprovalMode) else ApprovalMode.ASK


def _narrow_grant(agent: Agent, request: SessionRequest, context: SessionContext) -> Grant:
    granted = agent.grant or NARROWEST
    wanted = request.grant or replace(granted, fs=context.fs_scope_tier)
    # Both must fit: the requested grant, and the file system tier of the context.
    narrow(granted, replace(wanted, fs=context.fs_scope_tier))
    return narrow(granted, wanted)
