"""Endings: how a notebook is closed, and how one is taken away with its heirs."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import SessionClosed
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.sessions import Head, Status, Verb, moved
from holdfast.domain.texts import require_text
from holdfast.services.admissions import abort
from holdfast.services.desks import leave_desk
from holdfast.services.journal import Entry, Pen

CLOSING: Final[Mapping[Status, Verb]] = {
    Status.COMPLETED: Verb.COMPLETE,
    Status.CANCELLED: Verb.CANCEL,
}


class Heirs(StrEnum):
    """What becomes of the forks of a deleted session."""

    REFUSE = "refuse"
    CASCADE = "cascade"
    DETACH = "detach"


def require_reason(reason: str | None) -> None:
    """Refuse words about why something ends that nobody could show."""
    if reason is not None:
        require_text(reason, field="reason", shortest=1, longest=255)


async def close(pen: Pen, status: Status, reason: str | None) -> Head:
    """End a notebook, its running turn with it; one that has ended stays as it is."""
    ended = moved(pen.head.status, CLOSING[status])
    if ended is pen.head.status:
        return pen.head
    if pen.head.status is Status.RUNNING:
        # What waits is not played before the session is resumed.
        await abort(pen, more_turns=False)
    told = f"Session {ended}: {reason}" if reason else f"Session {ended}."
    notice = Notice(code=NoticeCode.SESSION_CLOSED, text=told)
    await pen.append(MessageDraft(role=Role.SYSTEM, parts=(notice,)), 0)
    await leave_desk(pen)
    event = await pen.tell(SessionClosed(status=ended, reason=reason))
    pen.move(
        status=ended,
        reason=reason,
        finished_at=event.at,
        holder=None,
        until=0,
        epoch=pen.head.epoch + 1,
    )
    return pen.head


async def delete(entry: Entry, head: Head, heirs: Heirs) -> tuple[Head, ...]:
    """Take a notebook away; return the heads of all that are gone, this one last."""
    sessions = entry.tx.sessions
    forks = await sessions.forks(head.key)
    if forks and heirs is Heirs.REFUSE:
        raise Conflict(
            Code.SESSION_HAS_FORKS,
            "Forks point into this session; delete them too (--cascade) or make them stand alone "
            "(--detach); over HTTP, ?cascade=true or ?detach=true.",
            {"forks": [fork.session_id for fork in forks]},
        )
    gone: tuple[Head, ...] = ()
    # Forks first: what they inherit is read from rows that are still there.
    for fork in forks:
        if heirs is Heirs.DETACH:
            await sessions.detach(fork.key)
        else:
            gone += await delete(entry, fork, heirs)
    await entry.remove(head)
    return (*gone, head)
