"""Listings as they were at a moment: only what has changed since then is computed again."""

from typing import Final

from msgspec.structs import replace

from holdfast.domain.entity_listings import Hosted, Listed, Listing, hosted_value, in_order
from holdfast.domain.entity_queries import EntityOrder, order_value
from holdfast.domain.horizons import Horizon
from holdfast.domain.observations import Subject
from holdfast.domain.times import instant
from holdfast.domain.timestamps import moment
from holdfast.ports import Known, Tx
from holdfast.services.observation_resolving import Found, as_of, claims_of

_EVERY: Final = 1 << 31


async def listed_as_of(tx: Tx, listing: Listing, seen: Horizon) -> list[Listed]:
    """Return every entity that could be seen then, in order, wherever the listing starts."""
    found: list[Listed] = []
    every = await tx.projections.page(replace(listing, after=None, limit=_EVERY))
    now = {each.entity_id: each for each in every}
    for known in await tx.projections.entities(listing.owner, listing.entity_type):
        if _is_unchanged(known, seen):
            found += [] if known.is_deleted else [now[known.entity_id]]
            continue
        asked = Found(known.subject, known, known.session_key)
        entity = await as_of(tx, asked, await claims_of(tx, asked), seen)
        if entity.snapshot:
            found.append(
                Listed(
                    value=order_value(entity, listing.order),
                    entity_id=known.entity_id,
                    key=known.key,
                    session_key=known.session_key,
                )
            )
    for hosted in await tx.projections.hosted(listing.owner):
        opened = instant(hosted.created_at)
        if seen.shows(opened, opened):
            found.append(await _opened(tx, listing, hosted, seen))
    return in_order(found, listing)


def _is_unchanged(known: Known, seen: Horizon) -> bool:
    """Tell whether all that is known now was known then."""
    is_seen = seen.shows(moment(known.last_ms), moment(known.known_ms))
    # A journal goes on without a claim.
    return is_seen and known.session_key is None


async def _opened(tx: Tx, listing: Listing, hosted: Hosted, seen: Horizon) -> Listed:
    """Return a session of ours as it would have been listed."""
    subject = Subject(listing.owner, listing.entity_type, hosted.id)
    listed = Listed(value=None, entity_id=subject.entity_id, session_key=hosted.key)
    changed = instant(hosted.updated_at)
    if listing.order is EntityOrder.LAST_OBSERVATION_AT and not seen.shows(changed, changed):
        entity = await as_of(tx, Found(subject, None, hosted.key), (), seen)
        return replace(listed, value=order_value(entity, listing.order))
    ended = None if hosted.finished_at is None else instant(hosted.finished_at)
    if ended is not None and not seen.shows(ended, ended):
        hosted = replace(hosted, finished_at=None)
    return replace(listed, value=hosted_value(hosted, listing.order))
