"""How observed history is asked for over HTTP, and what a page of sessions looks like there.

What is known of one session or entity looks the same on every surface: `services/history_forms`.
"""

from typing import Annotated

from msgspec import Meta, Struct

from holdfast.http.v1.scalars import Cursor
from holdfast.observations.queries import (
    OFFSET_MOST,
    PAGE,
    PAGE_MOST,
    Direction,
    EntityOrder,
    EntityPage,
)
from holdfast.services.history_forms import EntityForm, entity_form

Some = Annotated[int, Meta(ge=1, le=PAGE_MOST)]
# A day, or a time with or without an offset; judged like the times of a submission.
Moment = Annotated[str, Meta(max_length=100)]
Key = Annotated[
    str,
    Meta(min_length=1, max_length=200, description="The same key is the same observation."),
]
Reason = Annotated[str, Meta(max_length=512, description="Why; for people.")]


class HistoryList(Struct, frozen=True, kw_only=True):
    """A page of sessions, and how many there are in all."""

    data: tuple[EntityForm, ...]
    total: int
    next_cursor: str | None


class HistoryPageQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which sessions, in which order, and as of when."""

    limit: Some = PAGE
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MOST)] = 0
    cursor: Cursor | None = None
    order_by: EntityOrder = EntityOrder.STARTED_AT
    order: Direction = Direction.DESC
    at: Moment | None = None
    at_ingested: Moment | None = None


class PastQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As of when: what was true by then, and what was written down by then."""

    at: Moment | None = None
    at_ingested: Moment | None = None


class ClaimsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the claims."""

    limit: Some = PAGE
    cursor: Cursor | None = None


class CheckpointQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of several checkpoints of a name, else the latest; and as of when."""

    timestamp: Moment | None = None
    at: Moment | None = None


class RemovalQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why, and under which key."""

    reason: Reason | None = None
    idempotency_key: Key | None = None


def history_list(page: EntityPage) -> HistoryList:
    """Return a page of sessions as it is shown."""
    data = tuple(map(entity_form, page.items))
    return HistoryList(data=data, total=page.total, next_cursor=page.next_cursor)
