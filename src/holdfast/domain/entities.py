"""Entities as they are shown: a snapshot, and where each part of it comes from."""

from datetime import datetime
from typing import Any

from msgspec import Struct

from holdfast.domain.entity_types import SCHEMA_VERSION, EntityType
from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import EntityId
from holdfast.domain.observation_issues import SchemaWarning


class StatusChange(Struct, frozen=True, kw_only=True):
    """An observation by which an entity's status became another one."""

    status: str
    previous: str | None
    at: datetime
    reference: str


class Entity(Struct, frozen=True, kw_only=True, gc=False):
    """What is known of an entity; nothing is shown of one that is deleted or was not known yet.

    `provenance` names for each field of the snapshot whose claims it is made of, in time order,
    and `provenance_items` the same for each element of its lists. The parts of a snapshot are
    shared with what comes after it and must not be changed.
    """

    entity_id: EntityId
    entity_type: EntityType
    key: str
    schema_version: str = SCHEMA_VERSION
    snapshot: dict[str, Any] = {}
    provenance: dict[str, tuple[str, ...]] = {}
    provenance_items: dict[str, tuple[tuple[str, ...], ...]] = {}
    observation_count: int = 0
    last_observation_at: datetime | None = None
    hosted: bool = False
    deleted: bool = False
    warnings: tuple[SchemaWarning, ...] = ()
    status_changes: tuple[StatusChange, ...] = ()


def entity_not_found() -> NotFound:
    """Return the one answer for a missing, a foreign and a deleted entity."""
    return NotFound(Code.ENTITY_NOT_FOUND, "There is no history of that session or entity.")
