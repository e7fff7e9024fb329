"""Approvals: durable questions, answered once, from any process that can reach the store."""

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.approvals import (
    NOTE_LONGEST,
    Approval,
    ApprovalContext,
    ApprovalMode,
    ApprovalScope,
    ApprovalState,
    Decision,
    Question,
    apply_answer,
    flag_of,
    stricter_mode,
)
from holdfast.domain.commits import CommitBuilder
from holdfast.domain.drafts import answer_event
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import ApprovalId, Owner, SessionId, SessionKey
from holdfast.domain.queries import (
    LIMIT_MOST,
    Page,
    WorkQuery,
    decode_count,
    encode_count,
    require_limit,
)
from holdfast.domain.sessions import SessionState, is_paused
from holdfast.domain.text import require_text
from holdfast.domain.time import instant
from holdfast.domain.tools import ToolClass
from holdfast.domain.waits import Wait, WaitReason
from holdfast.ports.runtime import Coordinator, TurnPausedError
from holdfast.ports.store import Brief, Store, Tx
from holdfast.ports.system import Clock, Doorbell
from holdfast.services.batches import fill_page, find_listed
from holdfast.services.journal import (
    Journal,
    SessionWriter,
    continue_turn,
    find_session_state,
    session_not_found,
)

# Recorded as the answering party when a question times out.
BY_TIME: Final = "time"
# Classes that a command-line flag cannot approve, because the user has not seen the call.
_EYES_ONLY: Final = frozenset({ToolClass.COMMIT, ToolClass.SENSITIVE_WRITE, ToolClass.MONEY})
_FINAL: Final = frozenset({ApprovalState.ALLOWED, ApprovalState.DENIED})
# Stored states that may correspond to an effective state, because expiry is written lazily.
_STORED: Final[Mapping[ApprovalState, tuple[ApprovalState, ...]]] = {
    ApprovalState.WAITING: (ApprovalState.WAITING,),
    ApprovalState.ALLOWED: (ApprovalState.ALLOWED,),
    ApprovalState.DENIED: (ApprovalState.DENIED,),
    ApprovalState.EXPIRED: (ApprovalState.EXPIRED, ApprovalState.WAITING),
}


class ApprovalSettings(Struct, frozen=True, kw_only=True):
    """Approval settings from the configuration and the surface.

    `loosest` is the widest mode a session gets, `yes_to` the tools approved by a flag. A turn is
    paused when it has waited for `pause_after`.
    """

    expire_after: timedelta
    loosest: ApprovalMode = ApprovalMode.AUTO
    pause_after: timedelta = timedelta(seconds=5)
    is_attended: bool = True
    yes_to: frozenset[str] = frozenset()


class Approvals:
    """Approval questions of an owner's sessions."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        doorbell: Doorbell,
        clock: Clock,
        settings: ApprovalSettings,
        *,
        lease_clock: Clock,
    ) -> None:
        self._store = store
        self._journal = journal
        self._doorbell = doorbell
        self._clock = clock
        self._settings = settings
        self._lease_clock = lease_clock
        self._coordinator: Coordinator | None = None

    def attach(self, coordinator: Coordinator) -> None:
        """Set what runs the turns; it is made later, because its turns ask here."""
        self._coordinator = coordinator

    def of(self, key: SessionKey, *, may_pause: bool = False) -> "SessionApprover":
        """Return the approver of one session, whose turns can be paused or not."""
        patience = self._settings.pause_after.total_seconds() if may_pause else math.inf
        return SessionApprover(self, key, patience)

    async def list(
        self,
        owner: Owner,
        session_id: SessionId | None = None,
        *,
        state: ApprovalState | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_MOST,
    ) -> Page[Approval]:
        """Return the questions of one session, or of all, oldest first."""
        require_limit(limit)
        filters = ("approvals", owner, session_id, state)
        after = decode_count(cursor, filters)

        async def read(tx: Tx) -> tuple[tuple[Approval, ...], bool]:
            key = await find_listed(tx, owner, session_id)
            stored = _STORED[state] if state is not None else ()
            query = WorkQuery(owner=owner, key=key, states=stored, after=after)

            async def behind(last: Approval | None, most: int) -> list[Approval]:
                place = query.after if last is None else (0, last.id)
                return await _page(
                    tx, replace(query, after=place, limit=most), state, self._with_expiry
                )

            return await fill_page(behind, limit)

        shown, more = await self._store.read(read)
        last = (0, shown[-1].id) if more else None
        return Page(items=shown, next_cursor=encode_count(last, filters))

    async def get(self, owner: Owner, session_id: SessionId, approval_id: str) -> Approval:
        """Return one question."""

        async def read(tx: Tx) -> Approval:
            return await _find(tx, await find_session_state(tx, owner, session_id), approval_id)

        return self._with_expiry(await self._store.read(read))

    async def answer(
        self,
        owner: Owner,
        session_id: SessionId,
        approval_id: str,
        answer: Decision,
        *,
        digest: str | None = None,
    ) -> Approval:
        """Answer a question; with `digest`, only if the question is still the same (TOCTOU)."""
        if answer.state not in _FINAL:
            raise Invalid(Code.INVALID_INPUT, "An approval request can only be allowed or denied.")
        if answer.note is not None:
            require_text(answer.note, field="note", longest=NOTE_LONGEST)

        paused: list[SessionKey] = []

        async def write(writer: SessionWriter) -> Approval:
            paused[:] = [writer.state.key] if is_paused(writer.state) else []
            # Expiry is applied first, because a late answer is refused even if nothing waits for
            # it.
            found = self._as_of_now(await _find(writer.tx, writer.state, approval_id))
            if digest is not None and digest != found.question.digest:
                raise Conflict(
                    Code.APPROVAL_CLOSED,
                    "The approval request has changed since it was read; read it again.",
                )
            return await self._store_answer(writer, found, answer)

        answered = await self._journal.write(owner, session_id, write)
        for key in paused:
            if self._coordinator is not None:
                self._coordinator.resume(key)
        return self._with_expiry(answered)

    async def revoke(self, owner: Owner, session_id: SessionId, approval_id: str) -> Approval:
        """Limit a session-wide answer to its own call; calls that already ran are unaffected."""

        async def write(writer: SessionWriter) -> Approval:
            found = await _find(writer.tx, writer.state, approval_id)
            taken_back = replace(found, scope=ApprovalScope.ONCE)
            writer.add_approval(taken_back)
            return taken_back

        return self._with_expiry(await self._journal.write(owner, session_id, write))

    async def standing(self, key: SessionKey, question: Question) -> ApprovalContext:
        """Return the approval context of a session for a question that is not stored yet."""

        async def read(tx: Tx) -> ApprovalContext:
            found = await tx.sessions.get_by_key(key)
            if found is None:
                raise session_not_found()
            session, state = found
            memory = question.memory
            return ApprovalContext(
                mode=stricter_mode(session.approval, self._settings.loosest),
                earlier=await tx.approvals.about(state, question.digest, question.call_id),
                is_remembered=memory is not None
                and await tx.approvals.is_remembered(state, memory),
                is_attended=self._settings.is_attended or self._is_flagged(question),
            )

        return await self._store.read(Brief(read))

    async def decision(
        self, key: SessionKey, question: Question, *, patience: float = math.inf
    ) -> Approval:
        """Wait for the answer to a stored question; returns it as expired after the timeout.

        Raises `TurnPausedError` if it takes longer than `patience` in seconds.
        """
        await self._replace_older(key, question)
        if self._is_flagged(question):
            flagged = Decision(state=ApprovalState.ALLOWED, by="flag")
            return await self._answer_by_key(key, question.id, flagged)
        coordinator = self._coordinator
        async with coordinator.release_slot_while_waiting(key) if coordinator else nullcontext():
            return await self._wait(key, question, patience)

    async def _wait(self, key: SessionKey, question: Question, patience: float) -> Approval:
        loop = asyncio.get_running_loop()
        pause_at = loop.time() + patience
        while True:
            # Subscribed before reading, so that an answer in between is not lost.
            bell = self._doorbell.listen(key)
            found = await self._store.read(lambda tx: _by_key(tx, key, question.id))
            if found.state is not ApprovalState.WAITING:
                return found
            left = (self._end(found) - self._clock.now()).total_seconds()
            if left <= 0:
                expired = Decision(state=ApprovalState.EXPIRED, by=BY_TIME)
                return await self._answer_by_key(key, question.id, expired)
            if loop.time() >= pause_at:
                raise TurnPausedError(_wait_for(question, until=self._end(found)))
            try:
                async with asyncio.timeout(min(left, pause_at - loop.time())):
                    await bell.rung()
            except TimeoutError:
                continue

    async def withdraw(
        self, key: SessionKey, question: Question, *, by: str = "unattended"
    ) -> Approval:
        """Expire a question that no longer needs an answer; an earlier answer stays."""
        expired = Decision(state=ApprovalState.EXPIRED, by=by)
        return await self._answer_by_key(key, question.id, expired)

    def _with_expiry(self, approval: Approval) -> Approval:
        return replace(self._as_of_now(approval), expires_at=self._end(approval))

    def _as_of_now(self, approval: Approval) -> Approval:
        """Return the approval as expired if its time is over, even if that is not stored yet."""
        if approval.state is ApprovalState.WAITING and self._end(approval) <= self._clock.now():
            return replace(approval, state=ApprovalState.EXPIRED)
        return approval

    def _end(self, approval: Approval) -> datetime:
        return approval.asked_at + self._settings.expire_after

    def _is_flagged(self, question: Question) -> bool:
        return flag_of(question) in self._settings.yes_to and question.tool_class not in _EYES_ONLY

    async def _replace_older(self, key: SessionKey, question: Question) -> None:
        """Expire questions that a crash left open for the same call; its target has changed."""

        def is_older(other: Approval) -> bool:
            return other.question.call_id == question.call_id and other.id != question.id

        async def write(writer: SessionWriter) -> None:
            await writer.load_turn()
            expire_questions(writer, by="a different request", which=is_older)

        waiting = await self._store.read(lambda tx: _waiting(tx, key))
        if any(map(is_older, waiting)):
            await self._journal.write_by_key(key, write)

    async def _answer_by_key(
        self, key: SessionKey, approval_id: ApprovalId, answer: Decision
    ) -> Approval:
        async def write(writer: SessionWriter) -> Approval:
            found = await _find(writer.tx, writer.state, approval_id)
            # Another process may have answered at the last moment; the first answer wins.
            if found.state is not ApprovalState.WAITING:
                return found
            return await self._store_answer(writer, found, answer)

        return await self._journal.write_by_key(key, write)

    async def _store_answer(
        self, writer: SessionWriter, approval: Approval, answer: Decision
    ) -> Approval:
        changed = apply_answer(approval, answer, at=self._clock.now())
        if changed is not approval:
            add_answer(writer, changed)
            await _pay(writer, changed)
            reason = _reason(approval.question)
            await continue_turn(writer, reason, self._lease_clock)
        return changed


def _reason(question: Question) -> WaitReason:
    return WaitReason.BUDGET if question.call_id is None else WaitReason.APPROVAL


def _wait_for(question: Question, *, until: datetime) -> Wait:
    return Wait(
        reason=_reason(question),
        text=f"The turn waits for the approval of {question.tool}.",
        until=until,
        call_ids=() if question.call_id is None else (question.call_id,),
        approval_id=question.id,
    )


class SessionApprover:
    """Implements the `Approver` port for one session."""

    def __init__(self, approvals: Approvals, key: SessionKey, patience: float) -> None:
        self._approvals = approvals
        self._key = key
        self._patience = patience

    def waiting(self, seconds: float) -> "SessionApprover":
        """Return an approver that waits so long before it pauses the turn."""
        return SessionApprover(self._approvals, self._key, seconds)

    async def standing(self, question: Question) -> ApprovalContext:
        """Return the approval context of the session for a question."""
        return await self._approvals.standing(self._key, question)

    async def decision(self, question: Question) -> Approval:
        """Wait for the answer to a stored question."""
        return await self._approvals.decision(self._key, question, patience=self._patience)

    async def withdraw(self, question: Question, *, by: str = "unattended") -> Approval:
        """Expire a question that no longer needs an answer."""
        return await self._approvals.withdraw(self._key, question, by=by)


def add_answer(writer: CommitBuilder, approval: Approval) -> None:
    """Write an answer and its event."""
    writer.add_approval(approval)
    writer.add_event(answer_event(approval))


def expire_questions(
    writer: CommitBuilder, *, by: str, which: Callable[[Approval], bool] = lambda _: True
) -> None:
    """Expire the waiting questions that match `which`."""
    answer = Decision(state=ApprovalState.EXPIRED, by=by)
    for approval in filter(which, writer.waiting()):
        add_answer(writer, apply_answer(approval, answer, at=instant(writer.tick())))


async def _page(
    tx: Tx,
    query: WorkQuery,
    state: ApprovalState | None,
    dated: Callable[[Approval], Approval],
) -> list[Approval]:
    """Return a page by effective state: a question stored as waiting may have expired."""
    found: list[Approval] = []
    while True:
        rows = await tx.approvals.page(query)
        found += [each for each in map(dated, rows) if state is None or each.state is state]
        if len(rows) < query.limit or len(found) >= query.limit:
            return found[: query.limit]
        query = replace(query, after=(0, rows[-1].id))


async def _pay(writer: SessionWriter, approval: Approval) -> None:
    """Raise the session's budget by the approved amount, in the transaction of the answer."""
    amount = approval.question.amount
    if approval.state is not ApprovalState.ALLOWED or amount is None:
        return
    found = await writer.tx.sessions.get_by_key(writer.state.key)
    budget = found[0].budget if found else None
    if found is None or budget is None:
        return
    raised = replace(budget, microcents=budget.microcents + amount)
    await writer.tx.sessions.patch(writer.state.key, replace(found[0], budget=raised))


async def _find(tx: Tx, state: SessionState, approval_id: str) -> Approval:
    found = await tx.approvals.by_id(state, ApprovalId(approval_id))
    if found is None:
        raise NotFound(Code.APPROVAL_NOT_FOUND, "The session has no such approval request.")
    return found


async def _by_key(tx: Tx, key: SessionKey, approval_id: ApprovalId) -> Approval:
    return await _find(tx, await _head(tx, key), approval_id)


async def _waiting(tx: Tx, key: SessionKey) -> list[Approval]:
    return await tx.approvals.waiting(await _head(tx, key))


async def _head(tx: Tx, key: SessionKey) -> SessionState:
    state = await tx.sessions.state_by_key(key)
    if state is None:
        raise session_not_found()
    return state
