"""Zone binding: which session is bound to an agent's active zone."""

import logging
from collections.abc import Callable
from datetime import datetime

from holdfast.domain.agents import Agent
from holdfast.domain.errors import Internal
from holdfast.domain.events import ZoneArchived
from holdfast.domain.ids import Owner, SessionKey
from holdfast.domain.time import instant, milliseconds
from holdfast.ports.store import Tx
from holdfast.services.journal import JournalTransaction, SessionWriter
from holdfast.services.stamping import Stamping
from holdfast.zones.files import ZoneStamp, clear_active_zone
from holdfast.zones.model import ArchiveResult, agent_current_zone, require_definition_id

log = logging.getLogger(__name__)


def stamp_of(stamping: Stamping) -> ZoneStamp:
    """Return the time and the generation factory for file changes."""
    # The last sixteen digits of an id, nearly all of them random.
    return ZoneStamp(
        at=milliseconds(stamping.clock.now()),
        generation=lambda: stamping.id_factory.new().replace("-", "")[-16:],
    )


async def definition_for(tx: Tx, owner: Owner, definition_id: str) -> str:
    """Return the id that names an agent's zones, given its id or its slug.

    A value that matches no agent of this owner is returned unchanged.
    """
    return await tx.agents.id_of(owner, require_definition_id(definition_id)) or definition_id


async def bind_zone(entry: JournalTransaction, agent: Agent, key: SessionKey) -> None:
    """Archive an agent's active zone and bind the zone to a new session."""
    zone = agent_current_zone(agent.id)
    archived = await _clear(entry.tx, agent.owner, zone, entry.now)
    if archived is not None:
        await notify_bound_session(entry, agent.owner, zone, archived.archive_zoneid)
    await entry.tx.zones.bind(agent.owner, zone, key)


async def unbind_zone(writer: SessionWriter) -> None:
    """Archive and unbind the zone of a session that ends; other zones are unchanged."""
    bound = await writer.tx.zones.zone_of_session(writer.state.key)
    if bound is None:
        return
    owner, zone = bound
    archived = await _clear(writer.tx, owner, zone, lambda: instant(writer.tick()))
    if archived is not None:
        writer.add_event(ZoneArchived(zone=archived.archive_zoneid))
    await writer.tx.zones.unbind(writer.state.key)


async def notify_bound_session(
    entry: JournalTransaction, owner: Owner, zone: str, archive: str
) -> None:
    """Emit `ZoneArchived` in the session bound to the zone, if any."""
    key = await entry.tx.zones.bound_session(owner, zone)
    if key is None:
        return
    try:
        writer = await entry.open_by_key(key)
    except Internal as error:
        # One damaged session must not prevent the others from using the zone.
        log.error("a session was not bound to its zone: %s", error.message)
    else:
        writer.add_event(ZoneArchived(zone=archive))


async def _clear(
    tx: Tx, owner: Owner, zone: str, now: Callable[[], datetime]
) -> ArchiveResult | None:
    try:
        return await clear_active_zone(tx, owner, zone, lambda: milliseconds(now()))
    except Internal as error:
        # A damaged zone must not prevent a session from starting or ending.
        log.error("an active zone was not archived: %s", error.message)
        return None
