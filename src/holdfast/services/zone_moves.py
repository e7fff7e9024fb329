"""Moves: every file of one zone goes to another, and of two that differ none is lost.

A move is a part of its caller's transaction: it happens as a whole, or not at all.
"""

import logging

from msgspec import Struct

from holdfast.domain.agents import Agent
from holdfast.domain.errors import Code, Internal
from holdfast.domain.ids import Owner
from holdfast.domain.zone_moves import CopyAction, MovePlan, Side, move_plan
from holdfast.domain.zones import ZoneFile, archive_time, definition_of, renamed
from holdfast.ports import Tx
from holdfast.services.desks import definition_for
from holdfast.services.zone_files import Stamp, ZoneFiles, free_archive

log = logging.getLogger(__name__)


class Moved(Struct, frozen=True, kw_only=True):
    """Where the files of a zone went, and of how many of them nobody could say which is newer."""

    zone: str
    conflicts: int = 0


async def move_zone(tx: Tx, owner: Owner, old: str, new: str, stamp: Stamp) -> Moved:
    """Move every file of a zone, its bytes and times preserved; without files nothing is done."""
    return await _Move(tx, owner, stamp, old).to(new)


async def adopt_zones(tx: Tx, agent: Agent, stamp: Stamp) -> None:
    """Move to a new agent what was written under its slug while nobody had that name."""
    if await definition_for(tx, agent.owner, agent.slug) != agent.id:
        # The slug is another agent's id, and so are the zones of that name.
        return
    for zone in await tx.zones.names(agent.owner, f"agent:{agent.slug}:"):
        if definition_of(zone) is None:
            continue
        try:
            await move_zone(tx, agent.owner, zone, renamed(zone, agent.id), stamp)
        except Internal as error:
            if error.code is not Code.CORRUPT_ROW:
                raise
            # Left where it is: a damaged file must not keep anybody from having an agent.
            log.error("a zone was not moved to its agent: %s", error.message)


class _Move:
    """One move: what there is to move, and the tables it happens in."""

    def __init__(self, tx: Tx, owner: Owner, stamp: Stamp, old: str) -> None:
        self._tx = tx
        self._owner = owner
        self._files = ZoneFiles(tx, owner, stamp)
        self._old = old

    async def to(self, new: str) -> Moved:
        sources = await self._files.files(self._old)
        there = {file.name: file for file in await self._files.files(new)}
        if not sources:
            return Moved(zone=new)
        destination = definition_of(new) or ""
        ms = archive_time(destination, new)
        if ms is not None and there:
            return await self._beside(sources, there, new, ms)
        same = await self._same(sources, there)
        plan = move_plan(sources, there, same)
        kept = await self._kept(sources, there, plan, destination)
        for file in sources:
            await self._carry(file, there.get(file.name), plan.actions[file.name], new)
        await self._require_complete(sources, (new, kept))
        return Moved(zone=new, conflicts=plan.conflicts)

    async def _beside(
        self, sources: tuple[ZoneFile, ...], there: dict[str, ZoneFile], new: str, ms: int
    ) -> Moved:
        """Move an archive to the next free number, unless the one that is there is the same."""
        same = await self._same(sources, there)
        if len(same) == len(sources) == len(there):
            await self._files.delete_zone(self._old)
            return Moved(zone=new)
        zone, _ = await free_archive(self._tx, self._owner, definition_of(new) or "", ms)
        for file in sources:
            await self._files.move(file, zone)
        return Moved(zone=zone)

    async def _same(
        self, sources: tuple[ZoneFile, ...], there: dict[str, ZoneFile]
    ) -> frozenset[str]:
        """Return the names under which both sides have the same bytes."""
        return frozenset(
            [
                file.name
                for file in sources
                if file.name in there and await self._files.is_same(file, there[file.name])
            ]
        )

    async def _kept(
        self,
        sources: tuple[ZoneFile, ...],
        there: dict[str, ZoneFile],
        plan: MovePlan,
        destination: str,
    ) -> str | None:
        """Write all that the losing side had to an archive, and return which; nothing if none."""
        if plan.loser is None:
            return None
        losing = sources if plan.loser is Side.SOURCE else tuple(there.values())
        newest = max(file.modified_ms for file in losing)
        zone, _ = await free_archive(self._tx, self._owner, destination, newest)
        for file in losing:
            if file.size:
                await self._files.copy(file, zone)
        return zone

    async def _carry(
        self, file: ZoneFile, there: ZoneFile | None, action: CopyAction, new: str
    ) -> None:
        if action in {CopyAction.PRESERVE, CopyAction.CONFLICT}:
            await self._tx.zones.remove(file)
            return
        if there is not None:
            await self._tx.zones.remove(there)
        await self._files.move(file, new)

    async def _require_complete(
        self, sources: tuple[ZoneFile, ...], places: tuple[str | None, ...]
    ) -> None:
        """Refuse a move that would leave a name behind, or lose one."""
        found = {
            file.name
            for zone in places
            if zone is not None
            for file in await self._files.files(zone)
        }
        lost = {file.name for file in sources} - found
        if lost or await self._files.files(self._old):
            raise Internal(
                Code.ZONE_MOVE_INCOMPLETE,
                "A zone could not be moved as a whole and was left as it is; please report this.",
                {"zone": self._old},
            )
