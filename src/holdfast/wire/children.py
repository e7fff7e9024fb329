"""JSON form of the session that opened a session."""

from typing import Annotated

from msgspec import Meta, Struct

from holdfast.domain.ids import CallId, SessionId
from holdfast.domain.sessions import ParentLink
from holdfast.wire.scalars import Uuid


class ParentForm(Struct, frozen=True, kw_only=True):
    """The session that opened a session."""

    session_id: Annotated[Uuid, Meta(description="The parent session.")]
    call_id: Annotated[
        str | None, Meta(description="The call that opened it; null if a program did.")
    ]


def parent_form(link: ParentLink | None) -> ParentForm | None:
    """Return the form of a link to a parent."""
    return None if link is None else ParentForm(session_id=link.session_id, call_id=link.call_id)


def parent_of(form: ParentForm | None) -> ParentLink | None:
    """Return the link of a form."""
    if form is None:
        return None
    call_id = None if form.call_id is None else CallId(form.call_id)
    return ParentLink(session_id=SessionId(form.session_id), call_id=call_id)
