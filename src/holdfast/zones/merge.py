"""Merge one zone into another; where both have a file, neither is lost."""

import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from holdfast.domain.agents import Agent
from holdfast.domain.errors import Code, Internal
from holdfast.domain.ids import Owner
from holdfast.ports.store import Tx
from holdfast.zones.binding import definition_for
from holdfast.zones.files import ZoneFiles, ZoneStamp, free_archive
from holdfast.zones.model import (
    OUTPUT_FILE,
    SNAPSHOT_FILE,
    ZoneFile,
    archive_time,
    definition_of,
    rename_zone,
)


class CopyAction(StrEnum):
    """Action for one file of the source."""

    COPY = "copy"
    PRESERVE = "preserve"
    OVERWRITE = "overwrite"
    CONFLICT = "conflict"


class MergeSide(StrEnum):
    """Side of a merge."""

    SOURCE = "source"
    DESTINATION = "destination"


class MergePlan(Struct, frozen=True, kw_only=True):
    """Action for each file, and the side to archive before the merge, if any."""

    actions: dict[str, CopyAction]
    loser: MergeSide | None
    conflicts: int


_WINNERS: Final[Mapping[CopyAction, MergeSide]] = {
    CopyAction.OVERWRITE: MergeSide.SOURCE,
    CopyAction.PRESERVE: MergeSide.DESTINATION,
    CopyAction.CONFLICT: MergeSide.DESTINATION,
}


def action_of(source: ZoneFile, there: ZoneFile | None, *, is_same: bool) -> CopyAction:
    """Choose the action for one file; `is_same` means that both hold the same bytes."""
    if there is None or there.size == 0:
        return CopyAction.COPY
    if is_same:
        return CopyAction.PRESERVE
    if source.modified_ms > there.modified_ms:
        return CopyAction.OVERWRITE
    return CopyAction.CONFLICT if source.modified_ms == there.modified_ms else CopyAction.PRESERVE


def plan_merge(
    sources: Sequence[ZoneFile], there: Mapping[str, ZoneFile], same: frozenset[str]
) -> MergePlan:
    """Plan all files of a zone together, so that a snapshot and its log stay consistent."""
    actions = {
        file.name: action_of(file, there.get(file.name), is_same=file.name in same)
        for file in sources
    }
    conflicts = sum(action is CopyAction.CONFLICT for action in actions.values())
    differing = {
        name: _WINNERS[action]
        for name, action in actions.items()
        if action is not CopyAction.COPY and name not in same
    }
    if not differing:
        return MergePlan(actions=actions, loser=None, conflicts=0)
    winners = set(differing.values())
    winner = winners.pop() if len(winners) == 1 else _newer(sources, there)
    decided = {
        name: _decided(action, winner) if name in differing else action
        for name, action in actions.items()
    }
    loser = MergeSide.DESTINATION if winner is MergeSide.SOURCE else MergeSide.SOURCE
    return MergePlan(actions=decided, loser=loser, conflicts=conflicts)


def _decided(action: CopyAction, winner: MergeSide) -> CopyAction:
    if winner is MergeSide.SOURCE:
        return CopyAction.OVERWRITE
    return CopyAction.PRESERVE if action is CopyAction.OVERWRITE else action


def _newer(sources: Sequence[ZoneFile], there: Mapping[str, ZoneFile]) -> MergeSide:
    """Return the side with the newer output, else the newer snapshot, else the destination."""
    ours = {file.name: file for file in sources}
    for name in (OUTPUT_FILE, SNAPSHOT_FILE):
        left, right = ours.get(name), there.get(name)
        if left is not None and right is not None and left.modified_ms != right.modified_ms:
            return (
                MergeSide.SOURCE if left.modified_ms > right.modified_ms else MergeSide.DESTINATION
            )
    return MergeSide.DESTINATION


log = logging.getLogger(__name__)


class MergeResult(Struct, frozen=True, kw_only=True):
    """Destination zone, and the number of files with equal timestamps but other content."""

    zone: str
    conflicts: int = 0


async def merge_zone(tx: Tx, owner: Owner, old: str, new: str, stamp: ZoneStamp) -> MergeResult:
    """Move every file of a zone with its bytes and times; does nothing without files."""
    return await _ZoneMerge(tx, owner, stamp, old).to(new)


async def adopt_zones(tx: Tx, agent: Agent, stamp: ZoneStamp) -> None:
    """Move zones that were written under a slug to the agent that now has this slug."""
    if await definition_for(tx, agent.owner, agent.slug) != agent.id:
        # The slug is the id of another agent, which owns these zones.
        return
    for zone in await tx.zones.names(agent.owner, f"agent:{agent.slug}:"):
        if definition_of(zone) is None:
            continue
        try:
            await merge_zone(tx, agent.owner, zone, rename_zone(zone, agent.id), stamp)
        except Internal as error:
            if error.code is not Code.CORRUPT_ROW:
                raise
            # Left in place: a damaged file must not prevent the creation of an agent.
            log.error("a zone was not moved to its agent: %s", error.message)


class _ZoneMerge:
    """One merge with its source zone and tables."""

    def __init__(self, tx: Tx, owner: Owner, stamp: ZoneStamp, old: str) -> None:
        self._tx = tx
        self._owner = owner
        self._files = ZoneFiles(tx, owner, stamp)
        self._old = old

    async def to(self, new: str) -> MergeResult:
        sources = await self._files.files(self._old)
        there = {file.name: file for file in await self._files.files(new)}
        if not sources:
            return MergeResult(zone=new)
        destination = definition_of(new) or ""
        ms = archive_time(destination, new)
        if ms is not None and there:
            return await self._beside(sources, there, new, ms)
        same = await self._same(sources, there)
        plan = plan_merge(sources, there, same)
        kept = await self._kept(sources, there, plan, destination)
        for file in sources:
            await self._carry(file, there.get(file.name), plan.actions[file.name], new)
        await self._require_complete(sources, (new, kept))
        return MergeResult(zone=new, conflicts=plan.conflicts)

    async def _beside(
        self, sources: tuple[ZoneFile, ...], there: dict[str, ZoneFile], new: str, ms: int
    ) -> MergeResult:
        """Move an archive to the next free timestamp; drops it if the existing one is the same."""
        same = await self._same(sources, there)
        if len(same) == len(sources) == len(there):
            await self._files.delete_zone(self._old)
            return MergeResult(zone=new)
        zone, _ = await free_archive(self._tx, self._owner, definition_of(new) or "", ms)
        for file in sources:
            await self._files.move(file, zone)
        return MergeResult(zone=zone)

    async def _same(
        self, sources: tuple[ZoneFile, ...], there: dict[str, ZoneFile]
    ) -> frozenset[str]:
        """Return the names of files with the same bytes on both sides."""
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
        plan: MergePlan,
        destination: str,
    ) -> str | None:
        """Copy the losing side's files to an archive and return it; `None` if there is none."""
        if plan.loser is None:
            return None
        losing = sources if plan.loser is MergeSide.SOURCE else tuple(there.values())
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
        """Raise `Internal` if a file was lost or left behind; rolls back the merge."""
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
                "A zone could not be moved completely and was left unchanged; please report this.",
                {"zone": self._old},
            )
