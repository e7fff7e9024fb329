"""Resumptions: a session goes on where it was, if that is still there, or in another folder.

Nothing but the place changes: grant, tier and variables are those it was opened with.
"""

import asyncio
import os

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.contexts import SessionContext
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.domain.events import SessionResumed
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.sessions import Session, Status, Verb, moved
from holdfast.domain.tools import narrow
from holdfast.services.heads import session_not_found
from holdfast.services.journal import Pen
from holdfast.services.leases import Leases
from holdfast.services.places import Folders
from holdfast.services.slots import Slots


class Resumption(Struct, frozen=True, kw_only=True):
    """A session that goes on, and how many more turns may ask a model: a warning where it is 0."""

    session: Session
    turns_left: int


async def context_of(
    session: Session, wanted: SessionContext | None, folders: Folders
) -> SessionContext:
    """Return where the session goes on, or say that the folder it works in is gone."""
    context = session.context if wanted is None else _moved(session, wanted)
    if await asyncio.to_thread(os.path.isdir, context.working_dir):
        return context
    if wanted is not None:
        raise Invalid(Code.NOT_A_FOLDER, "The session can only move to a folder that is there.")
    # Without tools nothing happens in a folder, so none is missed; its own is made again.
    if _acts(session) and folders.of(session.owner, session.id) != context.working_dir:
        raise Conflict(
            Code.WORKSPACE_MISSING,
            "The folder that the session works in is gone; put it back, or resume the session in "
            "another one (--cwd).",
            {"working_dir": context.working_dir},
        )
    return context


async def move(pen: Pen, context: SessionContext, leases: Leases) -> None:
    """Write down that the session works elsewhere from now on; not while somebody works in it."""
    if pen.head.status is Status.RUNNING and leases.is_live(pen.head):
        raise Conflict(
            Code.TURN_RUNNING, "A turn is running; the session can move when it has ended."
        )
    found = await pen.tx.sessions.get_by_key(pen.head.key)
    if found is None:
        raise session_not_found()
    session = pen.cleaned(replace(found[0], context=context))
    await pen.tx.sessions.patch(pen.head.key, session)
    before = found[0].context.working_dir
    told = f"The session works in {context.working_dir} from now on; before, it was {before}."
    notice = Notice(code=NoticeCode.WORKSPACE_MOVED, text=told)
    await pen.append(MessageDraft(role=Role.SYSTEM, parts=(notice,)), 0)


async def reopen(pen: Pen, slots: Slots) -> bool:
    """Open a closed session again, and tell whether it was one; refused on a failed one."""
    status = moved(pen.head.status, Verb.RESUME)
    if status is pen.head.status:
        return False
    found = await pen.tx.sessions.get_by_key(pen.head.key)
    if found is not None:
        await slots.require(pen.tx, found[0].agent)
    await pen.tell(SessionResumed())
    pen.move(status=status, reason=None)
    return True


def _moved(session: Session, wanted: SessionContext) -> SessionContext:
    kept = session.context
    if session.repo_id is not None and wanted.working_dir != kept.working_dir:
        raise Invalid(
            Code.INVALID_CONTEXT,
            "The session is bound to its repository and stays in it; put that back.",
            {"fields": ["working_dir"]},
        )
    if wanted.variables and wanted.variables != kept.variables:
        raise Invalid(
            Code.INVALID_CONTEXT,
            "The variables of a session are fixed when it opens.",
            {"fields": ["variables"]},
        )
    # Refused where it is wider, as at opening; a narrower one cannot be told from none.
    narrow(session.grant, replace(session.grant, fs=wanted.fs_scope_tier))
    return replace(wanted, fs_scope_tier=kept.fs_scope_tier, variables=kept.variables)


def _acts(session: Session) -> bool:
    return bool(session.tools or session.agent.mcp_servers or session.repo_id)
