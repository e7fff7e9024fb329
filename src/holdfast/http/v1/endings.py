"""Where a session's way ends or parts: interrupt, close, resume, fork, export."""

from typing import Any, Final

from msgspec.structs import asdict

from holdfast.domain.errors import Code
from holdfast.domain.sessions import Status
from holdfast.domain.tokens import Scope
from holdfast.http.answers import Answer, Stream, etag_of
from holdfast.http.bodies import in_pieces
from holdfast.http.table import Asked, NoQuery, Route
from holdfast.http.v1.contexts_forms import context_of
from holdfast.http.v1.endings_forms import (
    ClosePost,
    Compacted,
    CompactPost,
    Exported,
    ExportPost,
    ExportQuery,
    ForkPost,
    Interrupted,
    InterruptPost,
    Resumed,
    ResumePost,
    Verified,
    fork_of,
)
from holdfast.http.v1.messages_forms import export_line
from holdfast.http.v1.paths import of_session, session_of
from holdfast.http.v1.repeats import TELLS, chosen_id
from holdfast.http.v1.sessions import placed, session_made, shown
from holdfast.http.v1.sessions_forms import SessionForm, session_form


async def interrupt_session(asked: Asked[NoQuery, InterruptPost]) -> Answer:
    """Stop the running turn; it has ended on disk when this answers with 200."""
    session_id = await session_of(asked)
    body = asked.body
    done = await asked.house.sessions.interrupt(
        asked.owner, session_id, turn=body.turn, reason=body.reason
    )
    form = session_form(await asked.house.session_views.get(asked.owner, session_id))
    told = Interrupted(session=form, interrupted=done.turn is not None, turn=done.turn)
    return Answer(status=200 if done.is_settled else 202, content=told)


async def close_session(asked: Asked[NoQuery, ClosePost]) -> Answer:
    """End a session."""
    session_id = await session_of(asked)
    ending = Status(asked.body.ending)
    await asked.house.sessions.close(
        asked.owner, session_id, status=ending, reason=asked.body.reason
    )
    return await shown(asked, session_id)


async def resume_session(asked: Asked[NoQuery, ResumePost]) -> Answer:
    """Open a closed session again."""
    session_id = await session_of(asked)
    place = await placed(asked, asked.body.context)
    context = None if place is None else context_of(place)
    done = await asked.house.sessions.resume(asked.owner, session_id, context=context)
    form = session_form(await asked.house.session_views.get(asked.owner, session_id))
    told = Resumed(**asdict(form), turns_left=done.turns_left)
    # The tag of the session itself: that is what `If-Match` will be held against.
    return Answer(content=told, headers={"etag": etag_of(form)})


async def compact_session(asked: Asked[NoQuery, CompactPost]) -> Answer:
    """Sum up what came before the last answer."""
    session_id = await session_of(asked)
    is_folded = await asked.house.compactions.compact(asked.owner, session_id)
    form = session_form(await asked.house.session_views.get(asked.owner, session_id))
    return Answer(content=Compacted(compacted=is_folded, session=form))


async def verify_session(asked: Asked[NoQuery, None]) -> Answer:
    """Check a session's messages against the chain of their hashes."""
    found = await asked.house.sessions.verify(asked.owner, await session_of(asked))
    return Answer(content=Verified(**asdict(found)))


async def fork_session(asked: Asked[NoQuery, ForkPost]) -> Answer:
    """Open a session that goes on from a message of this one."""
    session_id = await session_of(asked)
    id_ = chosen_id(asked)
    new = await asked.house.sessions.make_fork(asked.owner, session_id, fork_of(asked.body), id=id_)
    return await session_made(asked, new.thing, is_new=new.is_new)


async def export_session(asked: Asked[ExportQuery, None]) -> Answer | Stream:
    """Write a session out."""
    session_id = await session_of(asked)
    query = asked.query
    # In the words of this surface, so that a line is what reading the message gives.
    line = export_line(session_id)
    file = await asked.house.exports.stream(
        asked.owner, session_id, query.format, through=query.through, line=line
    )
    named = {"content-disposition": f'attachment; filename="{file.file_name}"'}
    return await in_pieces(asked, file.pieces, Answer(media_type=file.media_type, headers=named))


async def note_export(asked: Asked[NoQuery, ExportPost]) -> Answer:
    """Write down where a session's workflow was written to."""
    session_id = await session_of(asked)
    event = await asked.house.exports.record(asked.owner, session_id, asked.body.target)
    return Answer(content=Exported(target=asked.body.target, sequence=event.sequence))


def _change(verb: str, summary: str, act: Any, **rest: Any) -> tuple[Route, Route]:
    """Return the rows of a verb that takes a small body, or none."""
    return of_session(
        Route(
            method="POST",
            path=f"/{verb}",
            name=f"sessions.{verb}",
            summary=summary,
            act=act,
            needs=Scope.WRITE,
            body_may_be_missing=True,
            **rest,
        )
    )


ROUTES: Final[tuple[Route, ...]] = (
    *_change(
        "interrupt",
        "Stop the running turn; what was streamed is kept, and the session stays open.",
        interrupt_session,
        body=InterruptPost,
        examples={"body": {"reason": "enough"}},
        gives={200: Interrupted, 202: Interrupted},
        refuses=(Code.INVALID_TEXT, Code.SESSION_NOT_FOUND),
    ),
    *_change(
        "close",
        "End a session as completed or cancelled; a running turn is stopped with it.",
        close_session,
        body=ClosePost,
        gives={200: SessionForm},
        tells={200: ("etag",)},
        refuses=(Code.INVALID_TEXT, Code.SESSION_NOT_FOUND),
        examples={"body": {"as": "completed", "reason": "done"}},
    ),
    *_change(
        "resume",
        "Open a closed session again; an open one stays as it is.",
        resume_session,
        body=ResumePost,
        examples={"body": {}},
        gives={200: Resumed},
        tells={200: ("etag",)},
        refuses=(
            Code.INVALID_CONTEXT,
            Code.REPO_OUTSIDE_ROOT,
            Code.SESSION_FAILED,
            Code.SESSION_LIMIT,
            Code.SESSION_NOT_FOUND,
            Code.WORKSPACE_ROOT_UNSET,
        ),
    ),
    *_change(
        "compact",
        "Sum up what came before the last answer; no message is removed or changed.",
        compact_session,
        body=CompactPost,
        gives={200: Compacted},
        refuses=(Code.SESSION_NOT_FOUND, Code.TURN_RUNNING),
    ),
    *_change(
        "fork",
        "Open a session that goes on from a message of this one; nothing is copied.",
        fork_session,
        body=ForkPost,
        gives={201: SessionForm, 200: SessionForm},
        tells=TELLS,
        refuses=(
            Code.AGENT_ARCHIVED,
            Code.AGENT_NOT_FOUND,
            Code.GRANT_EXCEEDED,
            Code.ID_REUSED,
            Code.INVALID_TEXT,
            Code.MESSAGE_NOT_FOUND,
            Code.MODEL_NOT_FOUND,
            Code.SESSION_LIMIT,
            Code.SESSION_NOT_FOUND,
        ),
        examples={"body": {"at": 4, "title": "Another way"}},
    ),
    *of_session(
        Route(
            method="GET",
            path="/verify",
            name="sessions.verify",
            summary="Check a session's messages against the chain of their hashes.",
            act=verify_session,
            needs=Scope.READ,
            gives={200: Verified},
            refuses=(Code.SESSION_NOT_FOUND,),
        )
    ),
    *of_session(
        Route(
            method="GET",
            path="/export",
            name="sessions.export",
            summary="Write a session out: one message per line, to be read, or as a workflow.",
            act=export_session,
            needs=Scope.READ,
            query=ExportQuery,
            gives={200: bytes},
            tells={200: ("content-disposition",)},
            media_type="application/x-ndjson",
            kinds=("text/markdown", "application/yaml"),
            refuses=(Code.MESSAGE_NOT_FOUND, Code.SESSION_NOT_FOUND, Code.WORKFLOW_TOO_LARGE),
        )
    ),
    *of_session(
        Route(
            method="POST",
            path="/export",
            name="sessions.exported",
            summary="Write down where a session's workflow was written to.",
            act=note_export,
            needs=Scope.WRITE,
            body=ExportPost,
            examples={"body": {"target": "plan.relavium.yaml"}},
            gives={200: Exported},
            refuses=(Code.INVALID_TEXT, Code.SESSION_NOT_FOUND),
        )
    ),
)
