"""Moves zones owned by templates to new agents, because a template must not own a zone.

Runs at every start and after every import. It is idempotent: the marker file is evidence only.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.domain.agents import Agent
from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import AgentId, Owner, is_uuid
from holdfast.domain.queries import SessionQuery
from holdfast.importers.block_zones import write_flag_file
from holdfast.ports.store import Store, Tx
from holdfast.services.stamping import Stamping
from holdfast.zones.binding import stamp_of
from holdfast.zones.merge import merge_zone
from holdfast.zones.model import (
    TEMPLATE_PROMOTE_MARKER_V1,
    TEMPLATE_TAG,
    archive_time,
    definition_of,
    rename_zone,
)

log = logging.getLogger(__name__)

PROMOTED_TAG = "promoted"
_TITLES_MOST = 200


class TemplatePromoteStats(Struct, frozen=True, kw_only=True):
    """Counts of a run."""

    templates_scanned: int = 0
    templates_promoted: int = 0
    archives_moved: int = 0
    instances_repointed: int = 0
    conflicts: int = 0
    failures: int = 0


class TemplatePromotion:
    """Moves the zones of templates to new agents, for all owners."""

    def __init__(self, store: Store, stamping: Stamping) -> None:
        self._store = store
        self._stamping = stamping
        self._counts: dict[str, int] = {}

    async def promote(self, data_dir: Path) -> TemplatePromoteStats:
        """Promote every template that has a zone; a run without failures leaves a marker file."""
        self._counts = {}
        zones = await self._store.read(lambda tx: tx.zones.all())
        grouped: dict[tuple[Owner, str], list[str]] = {}
        for owner, zone in zones:
            definition_id = definition_of(zone)
            if definition_id is not None:
                grouped.setdefault((owner, definition_id), []).append(zone)
        for (owner, definition_id), of_it in sorted(grouped.items()):
            try:
                template = await self._template(owner, definition_id)
            except HoldfastError as error:
                # An unreadable agent must not prevent the server from starting.
                self._fail(definition_id, error)
                continue
            if template is not None:
                self._count("templates_scanned")
                await self._promote(template, sorted(of_it))
        stats = TemplatePromoteStats(**self._counts)
        log.info("templates were promoted", extra={"fields": asdict(stats)})
        if not stats.failures:
            await asyncio.to_thread(write_flag_file, data_dir, TEMPLATE_PROMOTE_MARKER_V1)
        return stats

    async def _template(self, owner: Owner, definition_id: str) -> Agent | None:
        if not is_uuid(definition_id):
            return None
        agent = await self._store.read(lambda tx: tx.agents.by_id(owner, AgentId(definition_id)))
        return agent if agent is not None and is_template(agent) else None

    async def _promote(self, template: Agent, zones: list[str]) -> None:
        """Move a template's sessions, then its zones.

        In this order, because a remaining zone makes the next run retry what failed.
        """
        try:
            target = await self._store.write(lambda tx: self._target(tx, template))
            repointed = await self._store.write(
                lambda tx: tx.zones.repoint(template.owner, template.id, target.id)
            )
        except HoldfastError as error:
            self._fail(template.id, error)
            return
        self._count("instances_repointed", repointed)
        done = [await self._move(template, target, zone) for zone in zones]
        self._count("templates_promoted", int(all(done)))

    async def _move(self, template: Agent, target: Agent, zone: str) -> bool:
        new = rename_zone(zone, target.id)

        async def work(tx: Tx) -> int:
            stamp = stamp_of(self._stamping)
            conflicts = await merge_zone(tx, template.owner, zone, new, stamp=stamp)
            bound_session = await tx.zones.bound_session(template.owner, zone)
            if bound_session is not None:
                await tx.zones.unbind(bound_session)
                if await tx.zones.bound_session(template.owner, new) is None:
                    await tx.zones.bind(template.owner, new, bound_session)
            return conflicts

        try:
            self._count("conflicts", await self._store.write(work))
        except HoldfastError as error:
            self._fail(template.id, error)
            return False
        self._count("archives_moved", int(archive_time(template.id, zone) is not None))
        return True

    async def _target(self, tx: Tx, template: Agent) -> Agent:
        """Return the agent that receives a template's zones; creates it if it is missing."""
        slug = f"template-promote-v1-{template.id}"
        known = await tx.agents.by_slug(template.owner, slug)
        if known is not None:
            return known
        kept = tuple(tag for tag in template.tags if tag not in {TEMPLATE_TAG, PROMOTED_TAG})
        now = self._stamping.clock.now()
        made = replace(
            template,
            id=AgentId(self._stamping.id_factory.new()),
            slug=slug,
            name=await _title(tx, template) or template.name,
            tags=(*kept, PROMOTED_TAG),
            extra={name: each for name, each in template.extra.items() if name != "is_seeded"},
            created_at=now,
            updated_at=now,
        )
        await tx.agents.add(made)
        return made

    def _fail(self, definition_id: str, error: HoldfastError) -> None:
        log.error("the zones of %s were not promoted: %s", definition_id, error.message)
        self._count("failures")

    def _count(self, name: str, more: int = 1) -> None:
        self._counts[name] = self._counts.get(name, 0) + more


def is_template(agent: Agent) -> bool:
    """Return whether an agent is a template.

    An imported definition is marked by `is_seeded` instead of the tag.
    """
    said: Any = agent.extra.get("is_seeded")
    return TEMPLATE_TAG in agent.tags or said in (1, True)


async def _title(tx: Tx, template: Agent) -> str | None:
    query = SessionQuery(owner=template.owner, agent_id=template.id, limit=_TITLES_MOST)
    found = await tx.sessions.page(query)
    return next((state.title for _, state in found if state.title), None)
