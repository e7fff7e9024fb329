"""Claims of clients on calls, and workers: which calls they are offered, and what is lost.

The answer to a call is taken by `services/calls.py`. A claim is a lease; the sweep ends those that
ran out, in the session's own transaction.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from msgspec.structs import replace

from holdfast.domain.calls import Call, CallState, ClaimHolder, ClientRequest, with_request
from holdfast.domain.errors import Code, Conflict, HoldfastError, NotFound
from holdfast.domain.events import ToolProgressed, ToolStarted
from holdfast.domain.ids import AgentId, CallId, Owner, SessionId, SessionKey, require_uuid
from holdfast.domain.leases import parse_holder
from holdfast.domain.queries import AgentQuery
from holdfast.domain.text import require_text
from holdfast.domain.time import instant, microseconds
from holdfast.domain.tools import Effect, ToolSpec
from holdfast.domain.turns import results_after_attempts
from holdfast.domain.waits import WaitReason
from holdfast.ports.runtime import Coordinator
from holdfast.ports.store import Brief, Store, Tx
from holdfast.ports.system import REQUESTS, Clock, Doorbell, Machine
from holdfast.services.agents import Agents, require_definitions
from holdfast.services.background_tasks import sleep_despite_memory_error
from holdfast.services.calls import ask_client, call_claimed, continue_unless_asked, lease_lost
from holdfast.services.journal import (
    Journal,
    JournalTransaction,
    SessionWriter,
    continue_turn,
    find_session_state,
)
from holdfast.workers.model import (
    ATTEMPTS_MOST,
    OFFER_LEASE,
    WAIT_LONGEST,
    WORK_MOST,
    WORKER_KEPT,
    WORKER_LEASE,
    ClaimExtension,
    ClaimRequest,
    ClaimsExtension,
    OfferedCall,
    Work,
    Worker,
    WorkerRequest,
    WorkerTool,
    find_difference,
)

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_SWEEP_BATCH: Final = 100
# Between two progress events of a call.
_PROGRESS_INTERVAL: Final = timedelta(seconds=0.25)
_PROGRESS_LONGEST: Final = 500


class Workers:
    """The workers of owners, and the claims of clients on calls."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        coordinator: Coordinator,
        doorbell: Doorbell,
        machine: Machine,
        *,
        agents: Agents,
        lease_clock: Clock,
    ) -> None:
        self._store = store
        self._journal = journal
        self._coordinator = coordinator
        self._doorbell = doorbell
        self._machine = machine
        self._agents = agents
        self._lease_clock = lease_clock
        self._me = str(machine.holder())
        self._my_id = str(uuid5(NAMESPACE_URL, self._me))
        # A process that runs no turns would continue what it cannot run.
        if coordinator.runs_turns:
            coordinator.start(self._keep())

    # Claims: a client runs a call until its lease ends.

    async def claim(
        self, owner: Owner, session_id: SessionId, call_id: str, request: ClaimRequest
    ) -> Call:
        """Claim a requested call: it is started, and runs as far as is known.

        Repeating it with the same id is a no-op; a call that another client runs is refused.
        """
        claim = require_uuid(request.claim, what="claim")
        wanted = replace(request, claim=claim)

        async def write(writer: SessionWriter) -> Call:
            call, asked = await _load_request(writer, call_id)
            if call.state is CallState.STARTED and asked.claim is not None:
                if asked.claim == claim:
                    return with_request(call, asked)
                raise call_claimed(call, asked)
            if call.state is not CallState.REQUESTED or asked.deadline_at <= self._now():
                raise _not_open(call)
            return await self._start(writer, call, asked, wanted)

        return await self._journal.write(owner, session_id, write)

    async def extend_claim(
        self, owner: Owner, session_id: SessionId, call_id: str, claim: str
    ) -> ClaimExtension:
        """Extend a claim; says whether its call has ended meanwhile, so need not be run."""

        async def write(tx: Tx) -> ClaimExtension:
            state = await find_session_state(tx, owner, session_id)
            call = await tx.calls.by_id(state, CallId(call_id))
            asked = await tx.client_requests.of(state.key, CallId(call_id))
            if call is None or asked is None:
                raise _call_not_found()
            if asked.claim != claim:
                raise lease_lost(call)
            if call.state is not CallState.STARTED:
                return ClaimExtension(until=self._now(), is_cancelled=True)
            return ClaimExtension(until=await self._extend(tx, state.key, call.id, asked))

        return await self._store.write(Brief(write))

    async def release(self, owner: Owner, session_id: SessionId, call_id: str, claim: str) -> Call:
        """Give a call back that was claimed and not begun; it is requested again."""

        async def write(writer: SessionWriter) -> Call:
            call, asked = await _load_request(writer, call_id)
            if call.state is CallState.REQUESTED and claim in asked.claims:
                return with_request(call, asked)
            if call.state is not CallState.STARTED or asked.claim != claim:
                raise lease_lost(call)
            return await _ask_again(writer, call, asked.without_claim())

        return await self._journal.write(owner, session_id, write)

    async def progress(
        self,
        owner: Owner,
        session_id: SessionId,
        call_id: str,
        claim: str,
        text: str,
        *,
        fraction: float | None = None,
    ) -> None:
        """Report the progress of a claimed call as an event, at most four a second."""
        require_text(text, field="text", longest=_PROGRESS_LONGEST)

        async def write(writer: SessionWriter) -> None:
            call, asked = await _load_request(writer, call_id)
            if call.state is not CallState.STARTED or asked.claim != claim:
                raise lease_lost(call)
            last, now = asked.progressed_at, self._now()
            if last is not None and now - last < _PROGRESS_INTERVAL:
                return
            await writer.tx.client_requests.save(
                writer.state.key, call.id, replace(asked, progressed_at=now)
            )
            writer.add_event(
                ToolProgressed(call_id=call.id, text=text, fraction=fraction), call.turn
            )

        await self._journal.write(owner, session_id, write)

    # Workers: processes that are offered calls.

    async def register(
        self, owner: Owner, request: WorkerRequest, *, id: str | None = None
    ) -> Worker:
        """Register a worker, or replace what is known of it; it is gone unless heard of again.

        A tool that an agent defines with another schema is refused, or stored with `update`.
        """
        worker_id = self._journal.new_id() if id is None else require_uuid(id, what="worker id")
        require_definitions(request.tools)
        agents = [(await self._agents.get(owner, ref)).id for ref in request.agents]
        await self._require_definitions(owner, request, frozenset(agents))
        names = [tool.name for tool in request.tools]
        worker = Worker(
            id=worker_id,
            owner=owner,
            name=request.name,
            capabilities=tuple(f"tool:{name}" for name in names),
            until=self._now() + WORKER_LEASE,
            tools=tuple(
                WorkerTool(name=name, sessions=request.sessions.get(name, ())) for name in names
            ),
            agents=tuple(agents),
        )
        await self._save(worker)
        return worker

    async def list(self, owner: Owner) -> list[Worker]:
        """Return the workers that are not gone, and the processes that run functions."""
        now = self._journal.now()
        found = await self._store.read(Brief(lambda tx: tx.workers.live(owner, now)))
        return [each for each in found if each.holder is None or not self._is_gone(each.holder)]

    async def next(
        self,
        owner: Owner,
        worker_id: str,
        *,
        claims: Iterable[str] = (),
        limit: int = 4,
        wait_s: float = WAIT_LONGEST,
        claim: bool = False,
    ) -> Work:
        """Return calls for a worker; waits until there are some, for `wait_s` seconds.

        They are reserved for the worker for some seconds, and stay requested until it claims them.
        With `claim` those that may run twice are claimed at once. `claims` are extended; it returns
        early when one of them is lost or its call has ended.
        """
        ends_at, held = time.monotonic() + min(wait_s, WAIT_LONGEST), tuple(claims)
        limit = min(limit, WORK_MOST)
        while True:
            # Taken before the store is read, so that a call requested meanwhile is not missed.
            bell = self._doorbell.listen(REQUESTS)
            worker = await self.get(owner, worker_id)
            known = await self._check(worker, held, extends=False)
            calls = await self._offer(worker, limit, claims_them=claim) if limit > 0 else ()
            left = ends_at - time.monotonic()
            if calls or known.cancelled or known.lost or left <= 0:
                return Work(calls=calls, cancelled=known.cancelled, lost=known.lost)
            try:
                # No bell rings when a reservation of another worker ends.
                async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                    await bell.rung()
            except TimeoutError:
                continue

    async def extend(
        self, owner: Owner, worker_id: str, claims: Iterable[str] = ()
    ) -> ClaimsExtension:
        """Extend the registration of a worker and its claims."""
        worker = await self.get(owner, worker_id)
        return await self._check(worker, tuple(claims), extends=True)

    async def close(self, owner: Owner, worker_id: str) -> None:
        """Forget a worker; its claims stay as they are."""
        await self.get(owner, worker_id)
        await self._store.write(Brief(lambda tx: tx.workers.remove(owner, worker_id)))

    async def announce(self, owner: Owner, capabilities: Iterable[str]) -> None:
        """Announce what this process can run that not every process can."""
        worker = Worker(
            id=self._my_id,
            owner=owner,
            name=f"process {parse_holder(self._me).pid}",
            capabilities=tuple(sorted(capabilities)),
            until=self._now() + WORKER_LEASE,
            holder=self._me,
        )
        await self._save(worker)

    async def withdraw(self, owner: Owner) -> None:
        """End the announcement of this process; the names of its functions stay known."""

        async def write(tx: Tx) -> None:
            known = await tx.workers.of(owner, self._my_id)
            if known is not None:
                await tx.workers.save(replace(known, until=self._now()))

        await self._store.write(Brief(write))

    async def sweep(self) -> None:
        """End the claims whose lease has run out.

        A call that may run twice is requested again, a few times; any other is cut off like one of
        a process that has died, and recovery decides about its turn.
        """
        now = self._journal.now()
        lost = await self._store.read(
            Brief(lambda tx: tx.client_requests.lost(now, limit=_SWEEP_BATCH))
        )
        for key, call_id, claim in lost:

            async def write(
                writer: SessionWriter, call_id: CallId = call_id, claim: str = claim
            ) -> bool:
                return await self._end_claim(writer, call_id, claim)

            try:
                if await self._journal.write_by_key(key, write):
                    self._coordinator.resume(key)
            except NotFound:
                log.debug("a session with a claimed call was deleted")

    async def _keep(self) -> None:
        while True:
            try:
                await self.sweep()
            except HoldfastError as error:
                log.warning("lost claims could not be looked up: %s", error.message)
            await sleep_despite_memory_error(_LOOK_SECONDS)

    async def _end_claim(self, writer: SessionWriter, call_id: CallId, claim: str) -> bool:
        """End a claim that has run out; return whether the turn continues."""
        call, asked = await _load_request(writer, call_id)
        # Race: it was extended or answered.
        if asked.claim != claim or asked.holder is None or asked.holder.until > self._now():
            return False
        if call.state is not CallState.STARTED:
            # Kept until now, so that its client learned that the call has ended.
            await writer.tx.client_requests.save(
                writer.state.key, call.id, replace(asked, claim=None)
            )
            return False
        if call.effect is Effect.UNSAFE:
            # Still started: the process that takes the turn over decides that it is unknown.
            await continue_turn(writer, WaitReason.CLIENT, self._lease_clock)
            return True
        if asked.attempt < ATTEMPTS_MOST:
            await _ask_again(
                writer, call, replace(asked.without_claim(), attempt=asked.attempt + 1)
            )
            return False
        await writer.tx.client_requests.save(writer.state.key, call.id, asked.without_claim())
        writer.add(results_after_attempts((call,)), call.turn)
        await continue_unless_asked(writer, self._lease_clock)
        return True

    async def _start(
        self, writer: SessionWriter, call: Call, asked: ClientRequest, wanted: ClaimRequest
    ) -> Call:
        until = self._now() + timedelta(seconds=wanted.lease_s)
        holder = ClaimHolder(worker=writer.redact(wanted.worker), until=until)
        claimed = replace(asked.with_claim(wanted.claim, holder), lease_s=wanted.lease_s)
        await writer.tx.client_requests.save(writer.state.key, call.id, claimed)
        event = ToolStarted(
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
            by=holder.worker,
            attempt=asked.attempt,
        )
        writer.add_event(event, call.turn)
        return with_request(_known(writer, call), claimed)

    async def _extend(
        self, tx: Tx, key: SessionKey, call_id: CallId, asked: ClientRequest
    ) -> datetime:
        until = self._now() + timedelta(seconds=asked.lease_s)
        holder = asked.holder and replace(asked.holder, until=until)
        await tx.client_requests.save(key, call_id, replace(asked, holder=holder))
        return until

    async def get(self, owner: Owner, worker_id: str) -> Worker:
        """Return a worker."""
        found = await self._store.read(Brief(lambda tx: tx.workers.of(owner, worker_id)))
        if found is None or found.until <= self._now():
            raise worker_not_found()
        return found

    async def _check(
        self, worker: Worker, claims: tuple[str, ...], *, extends: bool
    ) -> ClaimsExtension:
        """Return what became of claims; they are extended if wanted, or if a third is over."""
        found, is_due = await self._store.read(
            Brief(partial(self._examine, worker, claims, extends=False))
        )
        if not extends and not is_due:
            return found
        return (
            await self._store.write(Brief(partial(self._examine, worker, claims, extends=True)))
        )[0]

    async def _examine(
        self, worker: Worker, claims: tuple[str, ...], tx: Tx, *, extends: bool
    ) -> tuple[ClaimsExtension, bool]:
        """Return what became of claims, and whether they or the worker should be extended."""
        now = self._now()
        until = now + WORKER_LEASE if extends else worker.until
        is_due = worker.until - now < WORKER_LEASE * 2 / 3
        # Read again: it may have been registered with other tools, or closed, since (race).
        known = await tx.workers.of(worker.owner, worker.id) if extends else None
        if known is not None:
            await tx.workers.save(replace(known, until=until))
        lost, cancelled = [], []
        for claim in claims:
            found = await tx.client_requests.by_claim(worker.owner, claim)
            asked = None if found is None else await _locked(tx, found.key, found.call_id)
            if found is None or asked is None or asked.claim != claim or asked.holder is None:
                lost.append(claim)
            elif found.state is not CallState.STARTED:
                cancelled.append(found.call_id)
            elif extends:
                await self._extend(tx, found.key, found.call_id, asked)
            else:
                is_due |= asked.holder.until - now < timedelta(seconds=asked.lease_s) * 2 / 3
        result = ClaimsExtension(until=until, lost=tuple(lost), cancelled=tuple(cancelled))
        return result, is_due

    async def _offer(
        self, worker: Worker, limit: int, *, claims_them: bool
    ) -> tuple[OfferedCall, ...]:
        """Reserve calls for a worker, or claim them; one that another was quicker to is left."""
        now = self._journal.now()

        async def read(tx: Tx) -> list[tuple[SessionKey, SessionId, CallId]]:
            found: list[tuple[SessionKey, SessionId, CallId]] = []
            for tool in worker.tools:
                if len(found) < limit:
                    found += await tx.client_requests.free(
                        worker.owner,
                        tool.name,
                        now,
                        agents=worker.agents,
                        sessions=tool.sessions,
                        limit=limit - len(found),
                    )
            return found

        free = await self._store.read(Brief(read))
        if not free:
            return ()

        async def reserve(entry: JournalTransaction) -> tuple[OfferedCall, ...]:
            offers = []
            for key, _, call_id in free:
                state = await entry.tx.sessions.state_by_key(key)
                call = None if state is None else await entry.tx.calls.by_id(state, call_id)
                asked = await entry.tx.client_requests.of(key, call_id)
                if call is None or asked is None or not self._is_free(call, asked):
                    continue
                if claims_them and call.effect is not Effect.UNSAFE:
                    offers.append(await self._claim_at_once(entry, worker, key, call.id))
                    continue
                holder = ClaimHolder(worker=worker.name, until=self._now() + OFFER_LEASE)
                await entry.tx.client_requests.save(key, call_id, replace(asked, holder=holder))
                offers.append(OfferedCall(call=with_request(call, asked)))
            return tuple(offers)

        return await self._journal.enter(reserve, is_brief=True)

    def _is_free(self, call: Call, asked: ClientRequest) -> bool:
        now = self._now()
        is_held = asked.holder is not None and asked.holder.until > now
        return call.state is CallState.REQUESTED and not is_held and asked.deadline_at > now

    async def _claim_at_once(
        self, entry: JournalTransaction, worker: Worker, key: SessionKey, call_id: CallId
    ) -> OfferedCall:
        writer = await entry.open_by_key(key)
        call, asked = await _load_request(writer, call_id)
        wanted = ClaimRequest(claim=self._journal.new_id(), worker=worker.name)
        return OfferedCall(call=await self._start(writer, call, asked, wanted), claim=wanted.claim)

    async def _require_definitions(
        self, owner: Owner, request: WorkerRequest, agents: frozenset[AgentId]
    ) -> None:
        """Refuse tools that agents or sessions define with another schema, or update the agents."""
        given = {tool.name: tool for tool in request.tools if tool.parameters is not None}
        for name, sessions in request.sessions.items():
            for session_id in sessions if name in given else ():
                session, _ = await self._journal.read_session(owner, session_id)
                _require_same(session.tools, given, f"The session {session_id}")
        shared = {name: tool for name, tool in given.items() if name not in request.sessions}
        cursor: str | None = None
        while shared:
            page = await self._agents.list(AgentQuery(owner=owner), cursor=cursor)
            for agent in page.items:
                if agents and agent.id not in agents:
                    continue
                if request.update:
                    await self._update(owner, agent.id, agent.tools, shared)
                else:
                    _require_same(agent.tools, shared, f"The agent {agent.slug}")
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _update(
        self,
        owner: Owner,
        agent_id: AgentId,
        stored: tuple[ToolSpec, ...],
        given: Mapping[str, ToolSpec],
    ) -> None:
        """Store the definitions of tools with an agent that has others of the same names."""
        changed = [
            given[tool.name] if _difference(tool, given) is not None else tool for tool in stored
        ]
        if changed != list(stored):
            tools = [tool.as_given() for tool in changed]
            await self._agents.update(owner, agent_id, {"tools": tools})

    async def _save(self, worker: Worker) -> None:
        before = microseconds(self._now() - WORKER_KEPT)

        async def write(tx: Tx) -> None:
            await tx.workers.forget(worker.owner, before)
            await tx.workers.save(worker)

        await self._store.write(Brief(write))

    def _is_gone(self, holder: str) -> bool:
        return holder != self._me and self._machine.is_gone(parse_holder(holder))

    def _now(self) -> datetime:
        return instant(self._journal.now())


async def _locked(tx: Tx, key: SessionKey, call_id: CallId) -> ClientRequest | None:
    """Return a request as it is until the commit: an answer comes before or after it."""
    await tx.sessions.state_by_key(key)
    return await tx.client_requests.of(key, call_id)


async def _load_request(writer: SessionWriter, call_id: str) -> tuple[Call, ClientRequest]:
    """Return a call that a client was asked to run, with its turn; refuses any other."""
    await writer.load_turn()
    call = await writer.load_call(CallId(call_id))
    if call is None:
        raise _call_not_found()
    asked = await writer.tx.client_requests.of(writer.state.key, call.id)
    if asked is None:
        raise _not_open(call)
    return call, asked


async def _ask_again(writer: SessionWriter, call: Call, asked: ClientRequest) -> Call:
    await ask_client(writer, call, asked)
    return with_request(_known(writer, call), asked)


def _known(writer: SessionWriter, call: Call) -> Call:
    return writer.known_call(call.id) or call


def worker_not_found() -> NotFound:
    """Return the same error for a missing worker, one that is gone and one of another owner."""
    return NotFound(
        Code.WORKER_NOT_FOUND, "There is no such worker, or it is gone; register it again."
    )


def _call_not_found() -> NotFound:
    return NotFound(Code.CALL_NOT_FOUND, "The session has no such call.")


def _not_open(call: Call) -> Conflict:
    return Conflict(
        Code.CALL_NOT_OPEN,
        f"The call is {call.state}; only a call that waits for a client can be claimed.",
        {"state": call.state},
    )


def _difference(stored: ToolSpec, given: Mapping[str, ToolSpec]) -> str | None:
    """Return the path of what differs between a stored definition and the given one of its name."""
    wanted = given.get(stored.name) if stored.is_client_run else None
    if wanted is None:
        return None
    if stored.effect is not wanted.effect:
        return "$.effect"
    return find_difference(stored.parameters, wanted.parameters, "$.parameters")


def _require_same(stored: Iterable[ToolSpec], given: Mapping[str, ToolSpec], where: str) -> None:
    for tool in stored:
        path = _difference(tool, given)
        if path is not None:
            raise Conflict(
                Code.TOOL_CHANGED,
                f"{where} defines {tool.name} differently, at {path}; change one of them, or pass "
                "`update` to store the new definition with the agents.",
                {"tool": tool.name, "path": path},
            )
