"""Openings: a new notebook, either blank or as a fork that goes on from a row of another."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.domain.agents import AcpRuntime, Agent, AgentStatus
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.contexts import SessionContext
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, Invalid, out_of_memory
from holdfast.domain.events import SessionForked, SessionOpened
from holdfast.domain.ids import Owner, SessionId, require_uuid
from holdfast.domain.openings import ForkRequest, SessionRequest, digest_of
from holdfast.domain.repeats import Made
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import Head, Session, cap_of, tightened
from holdfast.domain.tools import NARROWEST, Grant, narrow
from holdfast.ports import Tx
from holdfast.services.agents import find_agent
from holdfast.services.budgets import turns_left
from holdfast.services.desks import take_desk
from holdfast.services.forks import blank_head, forked, point_of, request_of, twin_of, wished
from holdfast.services.heads import session_not_found
from holdfast.services.journal import Entry, Journal, Pen
from holdfast.services.models import Models
from holdfast.services.places import Folders
from holdfast.services.repos import Repos, find_repo
from holdfast.services.resumptions import Resumption, context_of, reopen
from holdfast.services.snapshots import OpeningRules, frozen, narrowed


class Openings:
    """Opens notebooks; an id that the caller chooses makes a retry get the first answer."""

    def __init__(
        self,
        journal: Journal,
        models: Models,
        repos: Repos,
        folders: Folders,
        rules: OpeningRules,
    ) -> None:
        """`folders` are the private ones, for sessions that have no other workspace."""
        self._journal = journal
        self._models = models
        self._repos = repos
        self._folders = folders
        self._rules = rules
        self.slots = rules.slots

    async def open(
        self, owner: Owner, agent: str, request: SessionRequest, *, id: str | None
    ) -> Made[Session]:
        """Open a session with an agent, given by id or slug."""
        session_id = self._session_id(id)
        digest = digest_of(owner, agent, request)
        await self.require_model(request.model)

        async def compose(entry: Entry) -> Made[Session]:
            known = await _opened_before(entry, owner, session_id, digest)
            if known is not None:
                return Made(thing=known, is_new=False)
            chosen = await find_agent(entry.tx, owner, agent)
            session, notices = await self._built(entry, chosen, request, session_id)
            await self.slots.require(entry.tx, chosen)
            opened = await _started(entry, session, blank_head(session), digest, notices)
            # The notebook that was begun last is its own.
            await take_desk(entry, chosen, next(reversed(entry.pens)))
            return Made(thing=opened, is_new=True)

        # A repository is looked for on a disk that may be far away.
        return await self._journal.enter(compose, is_brief=request.repo_id is None)

    async def fork(
        self, owner: Owner, parent_id: SessionId, wish: ForkRequest, *, id: str | None
    ) -> Made[Session]:
        """Open a session that shares the parent's rows up to a sequence: a pointer, not a copy."""
        session_id = self._session_id(id)
        digest = digest_of(owner, "fork", parent_id, wish)
        await self.require_model(wish.model)
        # Before the transaction: however much there is to copy, nobody waits for it to write.
        copy = await self._copied(owner, parent_id, session_id)

        async def compose(entry: Entry) -> Made[Session]:
            known = await _opened_before(entry, owner, session_id, digest)
            if known is not None:
                return Made(thing=known, is_new=False)
            pen = await entry.open(owner, parent_id)
            point = await point_of(entry.tx, pen.head, wish)
            stored = await _stored(entry, pen.head)
            parent = self._placed(stored, session_id)
            child, notices = await self._child(entry, parent, wish, session_id)
            await self.slots.require(entry.tx, child.agent)
            child, head = await forked(entry.tx, child, pen.head, point)
            await pen.tell(SessionForked(target=child.id, sequence=point))
            opened = await _started(entry, child, head, digest, notices)
            # Last, so that a fork that is refused leaves no files.
            if parent is not stored:
                files = copy or self._folders.copied(owner, parent.id)
                self._folders.adopt(files, owner, opened.id)
            return Made(thing=opened, is_new=True)

        try:
            return await self._journal.enter(compose)
        finally:
            # Here and not in a thread: adopted it is gone, and a thread may not be had.
            if copy is not None:
                self._folders.discard(copy)

    async def require_model(self, ref: Any) -> None:
        """Refuse a model that cannot be asked; what is no text is judged with the other wishes."""
        if isinstance(ref, str):
            await self._models.check(ref)

    async def patched(self, tx: Tx, session: Session, changes: Mapping[str, Any]) -> Session:
        """Return the session with its owner's changes, each judged like a wish at opening."""
        kept = {name: getattr(session, name) for name in ("title", "tags", "approval", "metadata")}
        try:
            wishes = msgspec.convert(kept | dict(changes), SessionRequest)
        except msgspec.ValidationError as error:
            raise Invalid(Code.INVALID_INPUT, f"The change is not valid: {error}.") from None
        model = session.model_id
        if "model" in changes:
            model = await self._models.resolve(tx, wishes.model) if wishes.model else None
        return replace(
            session,
            title=wishes.title,
            tags=wishes.tags,
            model_id=model,
            metadata=wishes.metadata,
            approval=wishes.approval or session.approval,
        )

    async def place_of(
        self, session: Session, wanted: SessionContext | None = None
    ) -> SessionContext:
        """Return where a session that is picked up goes on."""
        return await context_of(session, wanted, self._folders)

    async def reopen(self, pen: Pen) -> bool:
        """Open a closed session again, and tell whether it was one; refused on a failed one."""
        return await reopen(pen, self.slots)

    async def resumption(self, tx: Tx, session: Session, head: Head) -> Resumption:
        """Return what is answered to who picked a session up."""
        left = await turns_left(tx, session, head, self._rules.budget)
        return Resumption(session=session, turns_left=left)

    def forget(self, owner: Owner, session_id: SessionId) -> None:
        """Remove the private folder of a session that was deleted."""
        self._folders.remove(owner, session_id)

    def _session_id(self, wanted: str | None) -> SessionId:
        return SessionId(
            self._journal.new_id() if wanted is None else require_uuid(wanted, what="session id")
        )

    async def _built(
        self, entry: Entry, agent: Agent, request: SessionRequest, session_id: SessionId
    ) -> tuple[Session, tuple[MessageDraft, ...]]:
        if agent.status is AgentStatus.ARCHIVED:
            raise Conflict(
                Code.AGENT_ARCHIVED,
                f"Agent {agent.slug} is archived; `holdfast agents edit {agent.slug} --status "
                "active` brings it back.",
            )
        repo = await self._repo(entry.tx, agent, request)
        if isinstance(agent.runtime, AcpRuntime):
            self._rules.require_program(agent.runtime)
        context = self._context(agent.owner, request, repo, session_id)
        model = await self._models.resolve(entry.tx, request.model) if request.model else None
        now = entry.now()
        snapshot = frozen(agent, context, self._rules)
        kept, tools = narrowed(snapshot.agent, request.tools)
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
            grant=_granted(snapshot.agent, request, context),
            tools=tools,
            approval=request.approval or _approval(agent),
            turn_cap=cap_of(request.turn_cap or self._rules.turn_cap),
            budget=tightened(request.budget, self._rules.budget, granted=0),
            created_at=now,
            updated_at=now,
            metadata=request.metadata,
        )
        return session, snapshot.notices

    async def _child(
        self, entry: Entry, parent: Session, wish: ForkRequest, session_id: SessionId
    ) -> tuple[Session, tuple[MessageDraft, ...]]:
        """Return the fork before it inherits anything, and what its record says about its agent."""
        if wish.agent is not None:
            agent = await find_agent(entry.tx, parent.owner, wish.agent)
            return await self._built(entry, agent, request_of(parent, wish), session_id)
        now = entry.now()
        model = await self._models.resolve(entry.tx, wish.model) if wish.model else None
        twin = replace(
            twin_of(parent, session_id),
            model_id=model or parent.model_id,
            created_at=now,
            updated_at=now,
            **wished(wish),
        )
        return twin, ()

    async def _copied(
        self, owner: Owner, parent_id: SessionId, session_id: SessionId
    ) -> str | None:
        """Return a copy of the parent's private folder for a fork, if it works in that."""

        async def look(entry: Entry) -> Session | None:
            if await entry.tx.sessions.digest(owner, session_id) is not None:
                return None
            found = await entry.tx.sessions.get(owner, parent_id)
            return found[0] if found else None

        parent = await self._journal.enter(look, is_brief=True)
        if parent is None or not self._is_private(parent):
            return None
        try:
            return await asyncio.to_thread(self._folders.copied, owner, parent.id)
        # A thread that cannot be started is a lack of memory, too.
        except (MemoryError, RuntimeError) as error:
            raise out_of_memory() from error

    def _placed(self, parent: Session, session_id: SessionId) -> Session:
        """Return the parent as its fork sees it: with the fork's folder where it had its own."""
        if not self._is_private(parent):
            return parent
        folder = self._folders.of(parent.owner, session_id)
        return replace(parent, context=replace(parent.context, working_dir=folder))

    def _is_private(self, session: Session) -> bool:
        return session.context.working_dir == self._folders.of(session.owner, session.id)

    async def _repo(self, tx: Tx, agent: Agent, request: SessionRequest) -> Repo | None:
        if request.repo_id is None:
            if isinstance(agent.runtime, AcpRuntime):
                raise Invalid(Code.REPO_REQUIRED, "This agent works in a repository; name one.")
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


async def _stored(entry: Entry, head: Head) -> Session:
    found = await entry.tx.sessions.get_by_key(head.key)
    if found is None:
        raise session_not_found()
    return found[0]


async def _opened_before(
    entry: Entry, owner: Owner, session_id: SessionId, digest: bytes
) -> Session | None:
    """Return the session of a repeated request; an id with another request is refused."""
    stored = await entry.tx.sessions.digest(owner, session_id)
    if stored is None and not await entry.tx.sessions.is_buried(owner, session_id):
        return None
    found = await entry.tx.sessions.get(owner, session_id)
    # A tombstone counts as taken, so that an id never names two sessions of its owner.
    if found is None or stored != digest:
        raise Conflict(Code.ID_REUSED, "This id is taken; leave it out, or choose another.")
    return found[0]


async def _started(
    entry: Entry,
    session: Session,
    head: Head,
    digest: bytes,
    notices: tuple[MessageDraft, ...] = (),
) -> Session:
    pen = await entry.start(session, head, digest)
    model = await entry.tx.models.by_id(session.model_id) if session.model_id else None
    event = await pen.tell(
        SessionOpened(
            agent=session.agent.slug,
            model=model.ref if model else None,
            context=session.context,
        )
    )
    for notice in notices:
        await pen.append(notice, 0)
    return replace(
        session,
        message_count=pen.head.messages,
        last_event=pen.head.events,
        updated_at=pen.head.updated_at if notices else event.at,
    )


def _approval(agent: Agent) -> ApprovalMode:
    """Return the mode of a session that says nothing itself; asked, if nobody says anything."""
    said = agent.runtime.options.get("approve") if isinstance(agent.runtime, AcpRuntime) else None
    return ApprovalMode(said) if said in set(ApprovalMode) else ApprovalMode.ASK


def _granted(agent: Agent, request: SessionRequest, context: SessionContext) -> Grant:
    granted = agent.grant or NARROWEST
    wanted = request.grant or replace(granted, fs=context.fs_scope_tier)
    # Both have to fit: the grant that was asked for, and the tier the context runs in.
    narrow(granted, replace(wanted, fs=context.fs_scope_tier))
    return narrow(granted, wanted)
