"""Change what a session does: admit a message, interrupt, close, delete, resume."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.calls import Call, is_open
from holdfast.domain.commits import CommitBuilder
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid
from holdfast.domain.events import SessionClosed, SessionResumed
from holdfast.domain.ids import MessageId, Owner, SessionId, SessionKey
from holdfast.domain.leases import Lease
from holdfast.domain.messages import (
    MEDIA_LARGEST,
    Media,
    Message,
    Notice,
    NoticeCode,
    Role,
    ToolCall,
    ToolResult,
)
from holdfast.domain.recordings import Recorded, RecordedDraft, add_recording, recorded
from holdfast.domain.sessions import (
    Created,
    OnBusy,
    Session,
    SessionContext,
    SessionState,
    Status,
    Verb,
    admit_turn,
    has_waiting_turn,
    is_paused,
    title_of,
    transition,
)
from holdfast.domain.text import require_text
from holdfast.domain.tools import narrow
from holdfast.domain.turns import repair_after_abort
from holdfast.ports.runtime import Coordinator
from holdfast.ports.store import Tx
from holdfast.services.agent_processes import ProcessLimit
from holdfast.services.journal import (
    Journal,
    JournalTransaction,
    SessionWriter,
    session_not_found,
)
from holdfast.services.leases import Leases
from holdfast.services.live_session import MessageRange, read_messages
from holdfast.services.media import find_size
from holdfast.services.models import Models
from holdfast.services.turn_inputs import FolderProvider
from holdfast.services.turns import begin, find_unfinished_step, repair_turn
from holdfast.zones.binding import unbind_zone


class Admission(Struct, frozen=True, kw_only=True):
    """A stored user message, and whether a turn was stopped or the session reopened for it.

    `lease` is set if the turn began in the same transaction.
    """

    made: Created[Message]
    key: SessionKey
    lease: Lease | None = None
    has_interrupted: bool = False
    has_reopened: bool = False


async def admit(
    writer: SessionWriter,
    draft: MessageDraft,
    on_busy: OnBusy,
    *,
    reopen: Callable[[SessionWriter], Coroutine[Any, Any, bool]] | None = None,
    start: Callable[[CommitBuilder], Lease | None] | None = None,
) -> Admission:
    """Write a user's message and queue its turn; `reopen` reopens a closed session first.

    `start` begins the turn in the same transaction, which saves a commit if it runs here.
    """
    # Before the status check: an idempotent retry succeeds even after the session was closed.
    stored = await _find_repeat(writer, writer.redact(draft))
    if stored is not None:
        return Admission(made=Created(value=stored, is_new=False), key=writer.state.key)
    was_closed = reopen is not None and await reopen(writer)
    busy = writer.state.status is Status.RUNNING
    if busy and on_busy is OnBusy.REJECT:
        raise Conflict(
            Code.TURN_RUNNING, "A turn is running; wait for it, queue the message or interrupt."
        )
    stops = busy and on_busy is OnBusy.INTERRUPT
    if stops:
        await abort(writer, more_turns=True)
    await _require_held(writer, draft)
    admitted = add_user_message(writer, draft, start)
    return replace(admitted, has_interrupted=stops, has_reopened=was_closed)


def is_plain_admission(state: SessionState, draft: MessageDraft, on_busy: OnBusy) -> bool:
    """Return whether a message can be admitted by its session's state alone.

    A repeated id is then refused by the store; an inherited message has another session's id.
    """
    if state.status is Status.RUNNING:
        is_ready = on_busy is OnBusy.QUEUE
    else:
        is_ready = state.status is Status.IDLE or state.status is Status.PENDING
    is_own = draft.id is None or not state.inherited
    return is_ready and is_own and Media not in map(type, draft.parts)


def add_user_message(
    writer: CommitBuilder,
    draft: MessageDraft,
    start: Callable[[CommitBuilder], Lease | None] | None = None,
) -> Admission:
    """Add a user's message and its turn; `start` may begin the turn in the same commit."""
    writer.state = admit_turn(writer.state)
    message = writer.add_message(draft, writer.state.turn)
    if writer.state.title is None:
        writer.update(title=title_of(message.text))
    return Admission(
        made=Created(value=message, is_new=True),
        key=writer.state.key,
        lease=start(writer) if start is not None else None,
    )


async def record(writer: SessionWriter, draft: MessageDraft) -> Created[Message]:
    """Write a row without a turn: a message, call or result produced elsewhere."""
    call = await _call_of(writer, draft)
    match draft.parts:
        case (ToolResult() as result,) if call is not None:
            draft = replace(draft, parts=(replace(result, name=call.name),))
        case _:
            pass
    stored = await _find_repeat(writer, writer.redact(draft))
    if stored is not None:
        return Created(value=stored, is_new=False)
    await _require_held(writer, draft)
    return Created(value=record_plain(writer, draft, call), is_new=True)


def is_plain_record(state: SessionState, draft: MessageDraft) -> bool:
    """Return whether a message can be recorded by its session's state alone."""
    is_own = draft.id is None or not state.inherited
    has_media = any(isinstance(part, Media) for part in draft.parts)
    return is_own and not has_media and draft.role in {Role.ASSISTANT, Role.SYSTEM}


def record_plain(writer: CommitBuilder, draft: MessageDraft, call: Call | None = None) -> Message:
    """Add a row without a turn; `call` is the one that it makes or answers."""
    transition(writer.state.status, Verb.ADMIT)
    _require_place(writer.state, draft.role, call)
    return writer.add_message(draft, 0)


async def record_turns(
    writer: SessionWriter, drafts: Sequence[RecordedDraft], models: Models
) -> Recorded:
    """Write whole turns that were played elsewhere; messages that are stored are left out."""
    stored = await _stored_beginning(writer, drafts)
    rest = drafts[len(stored) :]
    if not rest:
        return recorded(stored, is_new=False)
    for draft in rest:
        await _require_held(writer, draft)
        if (call := await _call_of(writer, draft)) is not None:
            _require_place(writer.state, draft.role, call)
    await _require_later(writer, next((each.at for each in rest if each.at is not None), None))
    refs = {draft.model for draft in rest if draft.model is not None}
    found = {ref: await models.find_or_add(writer.tx, ref) for ref in sorted(refs)}
    turn = stored[-1].turn if stored else 0
    return recorded([*stored, *add_recording(writer, rest, found, turn=turn)], is_new=True)


async def _stored_beginning(writer: SessionWriter, drafts: Sequence[MessageDraft]) -> list[Message]:
    """Return the rows of the first messages if they are stored; no other one may be."""
    if not writer.state.messages:
        return []
    found = [await _find_repeat(writer, writer.redact(draft)) for draft in drafts]
    stored = [row for row in found if row is not None]
    is_beginning = all(row is not None for row in found[: len(stored)])
    if not is_beginning or (0 < len(stored) < len(drafts) and not await _is_end(writer, stored)):
        raise Conflict(
            Code.MESSAGE_ID_REUSED,
            "Some of these messages are stored, and not as the last ones of the session; record "
            "the others with new ids.",
        )
    return stored


async def _require_later(writer: SessionWriter, at: datetime | None) -> None:
    """Refuse a time before the last message of the session."""
    last = await _rows_after(writer, writer.state.messages - 1) if at is not None else []
    if at is not None and last and at < last[0].created_at:
        raise Invalid(
            Code.INVALID_INPUT,
            "The session has a later message; recorded times must not fall.",
            {"field": "at"},
        )


async def _rows_after(writer: SessionWriter, sequence: int) -> list[Message]:
    first, last = max(1, sequence + 1), writer.state.messages
    return await read_messages(writer.tx, writer.state, MessageRange(first, last)) if last else []


async def _is_end(writer: SessionWriter, stored: Sequence[Message]) -> bool:
    """Return whether nothing follows rows of a recording but the results that it lacked."""
    if stored[-1].sequence == writer.state.messages:
        return True
    after = await _rows_after(writer, stored[-1].sequence)
    calls = {part.id for row in stored for part in row.parts if isinstance(part, ToolCall)}
    parts = [part for row in after for part in row.parts]
    return all(isinstance(part, ToolResult) and part.call_id in calls for part in parts)


async def find_message(tx: Tx, state: SessionState, message_id: MessageId) -> Message | None:
    """Return a message by id, also from the sessions this one was forked from."""
    own = await tx.messages.by_id(state, message_id)
    if own is not None or not state.inherited:
        return own
    for part in await tx.sessions.lineage(state.key):
        ancestor = await tx.sessions.state_by_key(part.key)
        found = await tx.messages.by_id(ancestor, message_id) if ancestor else None
        if found is not None and part.first <= found.sequence <= part.last:
            return found
    return None


async def _call_of(writer: SessionWriter, draft: MessageDraft) -> Call | None:
    """Return the call that a row makes or answers, if the session has it."""
    match draft.parts:
        case (ToolCall(id=call_id),) | (ToolResult(call_id=call_id),):
            return await writer.load_call(call_id)
        case _:
            return None


def _require_place(state: SessionState, role: Role, call: Call | None) -> None:
    """Refuse a row that would conflict with a running turn or with another row."""
    if role in {Role.ASSISTANT, Role.TOOL_CALL} and state.status is Status.RUNNING:
        raise Conflict(
            Code.SESSION_RUNNING, f"A turn is running; record a {role} message when it has ended."
        )
    if role is Role.TOOL_CALL and call is not None:
        raise Conflict(
            Code.ID_REUSED, "The session already has a call with this id; choose another."
        )
    # The calls of an open turn belong to the process that runs it.
    is_theirs = call is not None and call.turn > state.settled
    if role is Role.TOOL_RESULT and (call is None or is_theirs or not is_open(call)):
        raise Conflict(
            Code.CALL_NOT_OPEN,
            "The session has no call with this id that waits for a result.",
            {"state": call.state} if call else {},
        )


async def _find_repeat(writer: SessionWriter, draft: MessageDraft) -> Message | None:
    """Return the message of a repeated request; the same id with other content is refused."""
    stored = await find_message(writer.tx, writer.state, draft.id) if draft.id else None
    if stored is not None and (stored.role, stored.parts) != (draft.role, draft.parts):
        raise Conflict(
            Code.MESSAGE_ID_REUSED, "A message with this id and different content already exists."
        )
    return stored


async def _require_held(writer: SessionWriter, draft: MessageDraft) -> None:
    """Refuse media handles that the session does not hold, and media above the size limit."""
    total = 0
    for part in draft.parts:
        if isinstance(part, Media):
            size = await find_size(writer.tx, writer.state.key, part.ref)
            if size is None:
                raise Invalid(Code.MEDIA_NOT_FOUND, "There is no media with this handle.")
            total += size
    if total > MEDIA_LARGEST:
        raise Invalid(
            Code.MESSAGE_TOO_LARGE, "The media of a message may have at most 20 MiB together."
        )


async def abort(
    writer: SessionWriter, *, more_turns: bool | None = None, reason: str | None = None
) -> None:
    """Stop the running turn at a user's request, and fence the process that runs it.

    `more_turns` is set by a caller that closes the session or adds the next turn itself.
    """
    await writer.load_turn()
    calls = tuple(writer.turn_calls())
    await repair_turn(
        writer,
        repair_after_abort(await find_unfinished_step(writer.tx, writer.state), calls, reason),
        more_turns=more_turns,
    )
    # A higher epoch: the running process gets LEASE_LOST at its next write.
    writer.update(holder=None, until=0, epoch=writer.state.epoch + 1)
    await abort_children(writer, reason)


async def abort_children(writer: SessionWriter, reason: str | None = None) -> None:
    """Stop the turns that run or wait in a session's children, and in theirs.

    In the same transaction, so that a crash leaves no child at work for a parent that has ended.
    """
    for child in await writer.tx.sessions.children(writer.state.key):
        below = await writer.entry.open_by_key(child.key)
        if has_waiting_turn(below.state):
            # A task that has not begun must not run, either.
            begin(below)
            await abort(below, reason=reason)
        else:
            await abort_children(below, reason)


VERB_BY_ENDING: Final[Mapping[Status, Verb]] = {
    Status.COMPLETED: Verb.COMPLETE,
    Status.CANCELLED: Verb.CANCEL,
}


class DeletePolicy(StrEnum):
    """What happens to the forks and the children of a deleted session."""

    REFUSE = "refuse"
    CASCADE = "cascade"
    DETACH = "detach"


def require_reason(reason: str | None) -> None:
    """Refuse a reason that is empty, too long or not displayable."""
    if reason is not None:
        require_text(reason, field="reason", shortest=1, longest=255)


async def close(
    writer: SessionWriter, status: Status, reason: str | None, *, is_tree: bool = True
) -> list[SessionState]:
    """Close a session and, unless it stands alone, its children; a running turn is stopped.

    Returns what was closed, deepest last; nothing for a closed session.
    """
    ended = transition(writer.state.status, VERB_BY_ENDING[status])
    if ended is writer.state.status:
        return []
    if writer.state.status is Status.RUNNING:
        # Waiting turns do not run until the session is resumed.
        await abort(writer, more_turns=False)
    text = f"Session {ended}: {reason}" if reason else f"Session {ended}."
    notice = Notice(code=NoticeCode.SESSION_CLOSED, text=text)
    writer.add_message(MessageDraft(role=Role.SYSTEM, parts=(notice,)), 0)
    await unbind_zone(writer)
    at = writer.add_event(SessionClosed(status=ended, reason=reason))
    writer.update(
        status=ended,
        reason=reason,
        finished_at=at,
        holder=None,
        until=0,
        epoch=writer.state.epoch + 1,
    )
    closed = [writer.state]
    for child in await writer.tx.sessions.children(writer.state.key) if is_tree else ():
        closed += await close(await writer.entry.open_by_key(child.key), status, reason)
    return closed


async def delete(
    entry: JournalTransaction, state: SessionState, policy: DeletePolicy
) -> tuple[SessionState, ...]:
    """Delete a session; return the states of all deleted sessions, this one last."""
    sessions = entry.tx.sessions
    forks = await sessions.forks(state.key)
    if forks and policy is DeletePolicy.REFUSE:
        raise Conflict(
            Code.SESSION_HAS_FORKS,
            "The session has forks; delete them too (--cascade) or make them independent "
            "(--detach); over HTTP, ?cascade=true or ?detach=true.",
            {"forks": [fork.session_id for fork in forks]},
        )
    children = await sessions.children(state.key)
    if children and policy is DeletePolicy.REFUSE:
        raise Conflict(
            Code.SESSION_HAS_CHILDREN,
            "The session has started other sessions; delete them too (--cascade) or make them "
            "independent (--detach); over HTTP, ?cascade=true or ?detach=true.",
            {"children": [child.session_id for child in children]},
        )
    gone: tuple[SessionState, ...] = ()
    if policy is DeletePolicy.DETACH:
        await entry.tx.children.detach(state.key)
    else:
        for child in children:
            gone += await delete(entry, child, policy)
    # Forks first, because their inherited rows are read from the parent.
    for fork in forks:
        if policy is DeletePolicy.DETACH:
            await sessions.detach(fork.key)
        else:
            gone += await delete(entry, fork, policy)
    await entry.remove(state)
    return (*gone, state)


log = logging.getLogger(__name__)
# Timeout in seconds for the end of an interrupted turn.
PATIENCE: Final = 10.0


class Interruption(Struct, frozen=True, kw_only=True):
    """A session after an interrupt, and the turn that was stopped; `None` if no turn ran.

    `is_settled` is false if the write timed out; the turn then ends in the background.
    """

    session: Session
    turn: int | None = None
    is_settled: bool = True


class TurnStop(Struct, frozen=True, kw_only=True):
    """The turn to stop, by default the running one, and the reason."""

    turn: int | None = None
    reason: str | None = None


class Interruptions:
    """Stops turns; of several concurrent requests only one gets the turn number."""

    def __init__(
        self,
        journal: Journal,
        coordinator: Coordinator,
        look: Callable[[Owner, SessionId], Awaitable[Session]],
    ) -> None:
        """`look` returns the current session."""
        self._journal = journal
        self._coordinator = coordinator
        self._look = look

    async def interrupt(self, owner: Owner, session_id: SessionId, stop: TurnStop) -> Interruption:
        """Stop a turn and wait for its end, for at most PATIENCE seconds."""
        try:
            async with asyncio.timeout(PATIENCE):
                stopped = await self._stop(owner, session_id, stop)
        except TimeoutError:
            return await self._interrupt_in_background(owner, session_id, stop)
        return Interruption(session=await self._look(owner, session_id), turn=stopped)

    async def _interrupt_in_background(
        self, owner: Owner, session_id: SessionId, stop: TurnStop
    ) -> Interruption:
        session = await self._look(owner, session_id)
        running = session.settled + 1
        if session.status is not Status.RUNNING or stop.turn not in (None, running):
            return Interruption(session=session)
        # Pinned to this turn, because another one may run by the time the store is writable.
        self._coordinator.start(self._stop_quietly(owner, session_id, replace(stop, turn=running)))
        return Interruption(session=session, turn=running, is_settled=False)

    async def _stop_quietly(self, owner: Owner, session_id: SessionId, stop: TurnStop) -> None:
        try:
            await self._stop(owner, session_id, stop)
        except HoldfastError as error:
            log.warning("a turn was not stopped: %s", error.message)

    async def _stop(self, owner: Owner, session_id: SessionId, stop: TurnStop) -> int | None:
        """End a turn in the store, then its local task; return its number if this call ended it."""

        async def end(writer: SessionWriter) -> tuple[SessionState, bool, int | None]:
            running = writer.state.settled + 1
            is_meant = stop.turn in (None, running)
            if not is_meant or writer.state.status is not Status.RUNNING:
                if stop.turn is None:
                    # What a program has started may be at work although nothing waits for it.
                    await abort_children(writer, stop.reason)
                return writer.state, is_meant, None
            await abort(writer, reason=stop.reason)
            return writer.state, is_meant, running

        # Committed before the task is cancelled, so that cancelling loses nothing.
        state, is_meant, stopped = await self._journal.write(owner, session_id, end, urgent=True)
        if is_meant:
            self._coordinator.interrupt(state.key, epoch=state.epoch)
        if has_waiting_turn(state):
            # The turns waiting behind it were admitted before and must still run.
            self._coordinator.wake(state.key, turn=state.settled)
        return stopped


class Resumption(Struct, frozen=True, kw_only=True):
    """A resumed session, and how many turns it has left; 0 calls for a warning."""

    session: Session
    turns_left: int


async def context_of(
    session: Session, wanted: SessionContext | None, folders: FolderProvider
) -> SessionContext:
    """Return the context to continue in; refuses a working directory that is missing."""
    context = session.context if wanted is None else _with_context(session, wanted)
    if await asyncio.to_thread(os.path.isdir, context.working_dir):
        return context
    if wanted is not None:
        raise Invalid(Code.NOT_A_FOLDER, "A session can only move to an existing folder.")
    # Without tools no working directory is needed; a private folder is created again.
    if _acts(session) and folders.of(session.owner, session.id) != context.working_dir:
        raise Conflict(
            Code.WORKSPACE_MISSING,
            "The working folder of the session does not exist any more; restore it, or "
            "resume the session in another one (--cwd).",
            {"working_dir": context.working_dir},
        )
    return context


async def move(writer: SessionWriter, context: SessionContext, leases: Leases) -> None:
    """Change the session's working directory; refused while a turn is running."""
    is_active = is_paused(writer.state) or leases.is_live(writer.state)
    if writer.state.status is Status.RUNNING and is_active:
        raise Conflict(
            Code.TURN_RUNNING, "A turn is running; the session can move when it has ended."
        )
    found = await writer.tx.sessions.get_by_key(writer.state.key)
    if found is None:
        raise session_not_found()
    session = writer.redact(replace(found[0], context=context))
    await writer.tx.sessions.patch(writer.state.key, session)
    before = found[0].context.working_dir
    text = f"The session now works in {context.working_dir}; before, it worked in {before}."
    notice = Notice(code=NoticeCode.WORKSPACE_MOVED, text=text)
    writer.add_message(MessageDraft(role=Role.SYSTEM, parts=(notice,)), 0)


async def reopen(writer: SessionWriter, slots: ProcessLimit) -> bool:
    """Reopen a closed session and return whether it was closed; refused on a failed one."""
    status = transition(writer.state.status, Verb.RESUME)
    if status is writer.state.status:
        return False
    found = await writer.tx.sessions.get_by_key(writer.state.key)
    if found is not None:
        await slots.require(writer.tx, found[0].agent)
    writer.add_event(SessionResumed())
    writer.update(status=status, reason=None)
    return True


def _with_context(session: Session, wanted: SessionContext) -> SessionContext:
    kept = session.context
    if session.repo_id is not None and wanted.working_dir != kept.working_dir:
        raise Invalid(
            Code.INVALID_CONTEXT,
            "The session is bound to its repository and cannot move; restore the repository.",
            {"fields": ["working_dir"]},
        )
    if wanted.variables and wanted.variables != kept.variables:
        raise Invalid(
            Code.INVALID_CONTEXT,
            "The variables of a session cannot be changed after it is opened.",
            {"fields": ["variables"]},
        )
    # Refuses a wider tier, as when opening; a narrower one is indistinguishable from an unset one.
    narrow(session.grant, replace(session.grant, fs=wanted.fs_scope_tier))
    return replace(wanted, fs_scope_tier=kept.fs_scope_tier, variables=kept.variables)


def _acts(session: Session) -> bool:
    return bool(session.tools or session.agent.mcp_servers or session.repo_id)
