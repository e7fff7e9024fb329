"""Moves: which side's files stay where two zones become one; the other side's are kept apart."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from holdfast.domain.zones import OUTPUT_FILE, SNAPSHOT_FILE, ZoneFile


class CopyAction(StrEnum):
    """What becomes of one file of the source."""

    COPY = "copy"
    PRESERVE = "preserve"
    OVERWRITE = "overwrite"
    CONFLICT = "conflict"


class Side(StrEnum):
    """Whose files stay."""

    SOURCE = "source"
    DESTINATION = "destination"


class MovePlan(Struct, frozen=True, kw_only=True):
    """Per file what happens, and whose former files go into an archive first, if anybody's."""

    actions: dict[str, CopyAction]
    loser: Side | None
    conflicts: int


_WINNERS: Final[Mapping[CopyAction, Side]] = {
    CopyAction.OVERWRITE: Side.SOURCE,
    CopyAction.PRESERVE: Side.DESTINATION,
    CopyAction.CONFLICT: Side.DESTINATION,
}


def action_of(source: ZoneFile, there: ZoneFile | None, *, is_same: bool) -> CopyAction:
    """Decide about one file; `is_same` tells whether both hold the same bytes."""
    if there is None or there.size == 0:
        return CopyAction.COPY
    if is_same:
        return CopyAction.PRESERVE
    if source.modified_ms > there.modified_ms:
        return CopyAction.OVERWRITE
    return CopyAction.CONFLICT if source.modified_ms == there.modified_ms else CopyAction.PRESERVE


def move_plan(
    sources: Sequence[ZoneFile], there: Mapping[str, ZoneFile], same: frozenset[str]
) -> MovePlan:
    """Decide about all files of a zone at once, so that a snapshot and its log stay together."""
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
        return MovePlan(actions=actions, loser=None, conflicts=0)
    winners = set(differing.values())
    winner = winners.pop() if len(winners) == 1 else _newer(sources, there)
    decided = {
        name: _decided(action, winner) if name in differing else action
        for name, action in actions.items()
    }
    loser = Side.DESTINATION if winner is Side.SOURCE else Side.SOURCE
    return MovePlan(actions=decided, loser=loser, conflicts=conflicts)


def _decided(action: CopyAction, winner: Side) -> CopyAction:
    if winner is Side.SOURCE:
        return CopyAction.OVERWRITE
    return CopyAction.PRESERVE if action is CopyAction.OVERWRITE else action


def _newer(sources: Sequence[ZoneFile], there: Mapping[str, ZoneFile]) -> Side:
    """Return whose output is newer, else whose snapshot, else the destination."""
    ours = {file.name: file for file in sources}
    for name in (OUTPUT_FILE, SNAPSHOT_FILE):
        left, right = ours.get(name), there.get(name)
        if left is not None and right is not None and left.modified_ms != right.modified_ms:
            return Side.SOURCE if left.modified_ms > right.modified_ms else Side.DESTINATION
    return Side.DESTINATION
