"""Merge one zone into another; where both have a file, neither is lost."""

import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import Agent
from holdfast.domain.errors import Code, Internal
from holdfast.domain.ids import Owner
from holdfast.ports.store import Tx
from holdfast.zones.binding import definition_for
from holdfast.zones.files import ZoneStamp, copy_file, free_archive, have_same_bytes
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
        name: _decide(action, winner) if name in differing else action
        for name, action in actions.items()
    }
    loser = MergeSide.DESTINATION if winner is MergeSide.SOURCE else MergeSide.SOURCE
    return MergePlan(actions=decided, loser=loser, conflicts=conflicts)


def _decide(action: CopyAction, winner: MergeSide) -> CopyAction:
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


async def merge_zone(tx: Tx, owner: Owner, old: str, new: str, *, stamp: ZoneStamp) -> int:
    """Move every file of a zone with its bytes and times; does nothing without files.

    Returns the number of files with equal timestamps but other content.
    """
    sources = await tx.zones.files(owner, old)
    there = {file.name: file for file in await tx.zones.files(owner, new)}
    if not sources:
        return 0
    same = frozenset(
        [
            file.name
            for file in sources
            if file.name in there and await have_same_bytes(tx, file, there[file.name])
        ]
    )
    destination = definition_of(new) or ""
    ms = archive_time(destination, new)
    if ms is not None and there:
        # An archive keeps its content: the other one gets the next free timestamp.
        if len(same) == len(sources) == len(there):
            await tx.zones.remove_all(owner, old)
            return 0
        zone, _ = await free_archive(tx, owner, destination, ms)
        for file in sources:
            await tx.zones.move(owner, replace(file, zone=zone))
        return 0
    plan = plan_merge(sources, there, same)
    places = [new]
    if plan.loser is not None:
        losing = sources if plan.loser is MergeSide.SOURCE else tuple(there.values())
        places.append(await _keep(tx, owner, losing, destination, stamp=stamp))
    for file in sources:
        action, replaced = plan.actions[file.name], there.get(file.name)
        if action in {CopyAction.PRESERVE, CopyAction.CONFLICT}:
            await tx.zones.remove(file)
            continue
        if replaced is not None:
            await tx.zones.remove(replaced)
        await tx.zones.move(owner, replace(file, zone=new))
    found = {file.name for zone in places for file in await tx.zones.files(owner, zone)}
    if {file.name for file in sources} - found or await tx.zones.is_taken(owner, old):
        raise Internal(
            Code.ZONE_MOVE_INCOMPLETE,
            "A zone could not be moved completely and was left unchanged; please report this.",
            {"zone": old},
        )
    return plan.conflicts


async def _keep(
    tx: Tx, owner: Owner, losing: Sequence[ZoneFile], definition_id: str, *, stamp: ZoneStamp
) -> str:
    """Copy the losing side's files to an archive and return its name."""
    newest = max(file.modified_ms for file in losing)
    zone, _ = await free_archive(tx, owner, definition_id, newest)
    for file in losing:
        if file.size:
            await copy_file(tx, owner, file, zone, stamp=stamp)
    return zone


async def adopt_zones(tx: Tx, agent: Agent, stamp: ZoneStamp) -> None:
    """Move zones that were written under a slug to the agent that now has this slug."""
    if await definition_for(tx, agent.owner, agent.slug) != agent.id:
        # The slug is the id of another agent, which owns these zones.
        return
    for zone in await tx.zones.names(agent.owner, f"agent:{agent.slug}:"):
        if definition_of(zone) is None:
            continue
        try:
            await merge_zone(tx, agent.owner, zone, rename_zone(zone, agent.id), stamp=stamp)
        except Internal as error:
            if error.code is not Code.CORRUPT_ROW:
                raise
            # Left in place: a damaged file must not prevent the creation of an agent.
            log.error("a zone was not moved to its agent: %s", error.message)
