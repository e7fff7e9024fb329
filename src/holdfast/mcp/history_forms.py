"""A page of sessions as tools show it; all else of history looks the same on every surface."""

from typing import Annotated

from msgspec import Meta, Struct

from holdfast.observations.queries import EntityPage
from holdfast.services.history_forms import EntityForm, NextCursor, Total, entity_form


class SessionsForm(Struct, frozen=True, kw_only=True):
    """A page of sessions."""

    sessions: Annotated[tuple[EntityForm, ...], Meta(description="The sessions, in order.")]
    total: Total
    next_cursor: NextCursor


def sessions_form(page: EntityPage) -> SessionsForm:
    """Return a page of sessions."""
    return SessionsForm(
        sessions=tuple(map(entity_form, page.items)),
        total=page.total,
        next_cursor=page.next_cursor,
    )
