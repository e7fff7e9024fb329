"""Admissions: how a row from outside gets into a notebook, and what is refused at the door."""

from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.calls import Call, is_open
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.domain.ids import MessageId, SessionKey
from holdfast.domain.leases import Lease
from holdfast.domain.messages import MEDIA_LARGEST, Media, Message, Role, ToolCall, ToolResult
from holdfast.domain.repeats import Made
from holdfast.domain.sessions import Head, OnBusy, Status, Verb, admitting, moved, title_of
from holdfast.domain.turns import after_abort
from holdfast.ports import Tx
from holdfast.services.journal import Pen
from holdfast.services.media import find_size
from holdfast.services.turns import mend, open_step


class Admitted(Struct, frozen=True, kw_only=True):
    """A user's message in its notebook, and whether a turn was stopped or a session reopened.

    `lease` is what its turn was begun with, if it was begun in the same entry.
    """

    made: Made[Message]
    key: SessionKey
    lease: Lease | None = None
    has_interrupted: bool = False
    has_reopened: bool = False


async def admit(
    pen: Pen,
    draft: MessageDraft,
    on_busy: OnBusy,
    *,
    reopen: Callable[[Pen], Coroutine[Any, Any, bool]] | None = None,
    start: Callable[[Pen], Coroutine[Any, Any, Lease | None]] | None = None,
) -> Admitted:
    """Write a user's message into its turn; `reopen` opens a closed session for it.

    `start` begins the turn in the same entry, which saves a commit where the turn is played here.
    """
    # Before the status is judged: a retry gets its first answer even when the session is closed.
    stored = await _repeated(pen, pen.cleaned(draft))
    if stored is not None:
        return Admitted(made=Made(thing=stored, is_new=False), key=pen.head.key)
    was_closed = reopen is not None and await reopen(pen)
    busy = pen.head.status is Status.RUNNING
    if busy and on_busy is OnBusy.REJECT:
        raise Conflict(
            Code.TURN_RUNNING, "A turn is running; wait for it, queue the message or interrupt."
        )
    stops = busy and on_busy is OnBusy.INTERRUPT
    if stops:
        await abort(pen, more_turns=True)
    await _require_held(pen, draft)
    pen.head = admitting(pen.head)
    message = await pen.append(draft, pen.head.turn)
    if pen.head.title is None:
        pen.move(title=title_of(message.text))
    return Admitted(
        made=Made(thing=message, is_new=True),
        key=pen.head.key,
        lease=await start(pen) if start is not None else None,
        has_interrupted=stops,
        has_reopened=was_closed,
    )


async def record(pen: Pen, draft: MessageDraft) -> Made[Message]:
    """Write a row that belongs to no turn: what was said, called or answered elsewhere."""
    call = await _call_of(pen, draft)
    match draft.parts:
        case (ToolResult() as result,) if call is not None:
            draft = replace(draft, parts=(replace(result, name=call.name),))
        case _:
            pass
    stored = await _repeated(pen, pen.cleaned(draft))
    if stored is not None:
        return Made(thing=stored, is_new=False)
    moved(pen.head.status, Verb.ADMIT)
    _require_place(pen.head, draft.role, call)
    await _require_held(pen, draft)
    return Made(thing=await pen.append(draft, 0), is_new=True)


async def shown_message(tx: Tx, head: Head, message_id: MessageId) -> Message | None:
    """Return a message by its id, looking through the sessions this one was forked from."""
    own = await tx.messages.by_id(head, message_id)
    if own is not None or not head.inherited:
        return own
    for part in await tx.sessions.lineage(head.key):
        ancestor = await tx.sessions.head_by_key(part.key)
        found = await tx.messages.by_id(ancestor, message_id) if ancestor else None
        if found is not None and part.first <= found.sequence <= part.last:
            return found
    return None


async def _call_of(pen: Pen, draft: MessageDraft) -> Call | None:
    """Return the call that a row makes or answers, if the session knows it."""
    match draft.parts:
        case (ToolCall(id=call_id),) | (ToolResult(call_id=call_id),):
            return await pen.tx.calls.by_id(pen.head, call_id)
        case _:
            return None


def _require_place(head: Head, role: Role, call: Call | None) -> None:
    """Refuse a row where it would get in the way of a turn, or of another row."""
    if role in {Role.ASSISTANT, Role.TOOL_CALL} and head.status is Status.RUNNING:
        raise Conflict(
            Code.SESSION_RUNNING, f"A turn is running; record a {role} message when it has ended."
        )
    if role is Role.TOOL_CALL and call is not None:
        raise Conflict(Code.ID_REUSED, "The session has a call of this id; choose another.")
    # The calls of a turn that has not ended belong to whoever runs it.
    is_theirs = call is not None and call.turn > head.settled
    if role is Role.TOOL_RESULT and (call is None or is_theirs or not is_open(call)):
        raise Conflict(
            Code.CALL_NOT_OPEN,
            "The session has no call of this id that waits for its result.",
            {"state": call.state} if call else {},
        )


async def _repeated(pen: Pen, draft: MessageDraft) -> Message | None:
    """Return the stored message if this one was sent before; refuse its id with other content."""
    stored = await shown_message(pen.tx, pen.head, draft.id) if draft.id else None
    if stored is not None and (stored.role, stored.parts) != (draft.role, draft.parts):
        raise Conflict(
            Code.MESSAGE_ID_REUSED, "A message with this id and other content is stored already."
        )
    return stored


async def _require_held(pen: Pen, draft: MessageDraft) -> None:
    """Refuse a handle to bytes that the session does not hold, and more than a message may have."""
    total = 0
    for part in draft.parts:
        if isinstance(part, Media):
            size = await find_size(pen.tx, pen.head.key, part.ref)
            if size is None:
                raise Invalid(Code.MEDIA_NOT_FOUND, "Nothing is stored under this media handle.")
            total += size
    if total > MEDIA_LARGEST:
        raise Invalid(
            Code.MESSAGE_TOO_LARGE, "The media of a message may have 20 MiB at most, all together."
        )


async def abort(pen: Pen, *, more_turns: bool | None = None, reason: str | None = None) -> None:
    """Stop the running turn for its user, and fence whoever runs it.

    A caller that closes the session, or brings the next turn itself, says so with `more_turns`.
    """
    calls = await pen.tx.calls.of_turn(pen.head, pen.head.settled + 1)
    await mend(pen, after_abort(await open_step(pen), calls, reason), more_turns=more_turns)
    # Whoever runs the turn learns it at its next write, in this process or another.
    pen.move(holder=None, until=0, epoch=pen.head.epoch + 1)
