"""Observations: immutable claims about entities, numbered for each, and how all of them are named.

What is computed from them is in `resolutions`; nothing here changes one.
"""

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Protocol

from msgspec import Struct

from holdfast.domain.acceptances import Accepted
from holdfast.domain.canonical import canonical_text, digest
from holdfast.domain.entity_types import EntityType
from holdfast.domain.ids import EntityId, ObservationId, Owner
from holdfast.domain.observation_issues import rejection
from holdfast.domain.observation_schema import member_faults
from holdfast.domain.shapes import Member, Text
from holdfast.domain.texts import require_text
from holdfast.domain.timestamps import truncated

SOURCE_LONGEST: Final = 200
_ENTITY_ID: Final = re.compile(r"ent_[0-9a-f]{24}")
_IDEMPOTENCY_KEY: Final = Member(
    "idempotency_key",
    Text(shortest=1, longest=200),
    "The same key is the same observation.",
    is_required=True,
)


class Kind(StrEnum):
    """How an observation came about."""

    SUBMIT = "submit"
    IMPORT = "import"
    CORRECTION = "correction"
    DELETION = "deletion"
    RESTORATION = "restoration"


IMPORTED: Final = 50
ORDINARY: Final = 100
CORRECTED: Final = 1_000

PRIORITIES: Final[Mapping[Kind, int]] = {
    Kind.SUBMIT: ORDINARY,
    Kind.IMPORT: IMPORTED,
    Kind.CORRECTION: CORRECTED,
    Kind.DELETION: CORRECTED,
    Kind.RESTORATION: CORRECTED,
}


class Subject(Struct, frozen=True, gc=False):
    """What is observed: one owner's entity of a type, by the key it is known by."""

    owner: Owner
    entity_type: EntityType
    key: str

    @property
    def entity_id(self) -> EntityId:
        """Return the id that this owner, type and key always have."""
        return _entity_id(self)


# Remembered, because a claim is on its way through several hands that ask for it.
@lru_cache(maxsize=4096)
def _entity_id(subject: Subject) -> EntityId:
    return EntityId(f"ent_{digest([subject.owner, subject.entity_type, subject.key])[:24]}")


class Observation(Struct, frozen=True, kw_only=True):
    """One claim; `ordinal` counts the claims about its entity from 1 on.

    Surfaces call the key `session_key`.
    """

    id: ObservationId
    subject: Subject
    entity_id: EntityId
    ordinal: int
    fields: dict[str, Any]
    content_hash: str
    kind: Kind
    source: str = ""
    observed_at: datetime
    created_at: datetime
    idempotency_key: str | None = None

    @property
    def priority(self) -> int:
        """Return how much it weighs against others; nobody sets that."""
        return PRIORITIES[self.kind]

    @property
    def place(self) -> tuple[datetime, int]:
        """Return where it stands in time order."""
        return self.observed_at, self.ordinal


class Origin(Struct, frozen=True, kw_only=True):
    """How, and through whom, something comes to be claimed."""

    kind: Kind
    source: str = ""
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        require_text(self.source, field="source", longest=SOURCE_LONGEST)
        if self.idempotency_key is not None:
            require_idempotency_key(self.idempotency_key)


class Entry(Struct, frozen=True, kw_only=True):
    """Where and when the store enters an observation; only imports were observed at another time.

    Both times are kept without what is less than a millisecond.
    """

    ordinal: int
    created_at: datetime
    observed_at: datetime | None = None


def observed(owner: Owner, accepted: Accepted, origin: Origin, entry: Entry) -> Observation:
    """Return what was accepted as the observation of an owner."""
    subject = Subject(owner, accepted.entity_type, accepted.key)
    created_at = truncated(entry.created_at)
    return Observation(
        id=observation_id(subject, entry.ordinal, accepted.content_hash),
        subject=subject,
        entity_id=subject.entity_id,
        ordinal=entry.ordinal,
        fields=accepted.fields,
        content_hash=accepted.content_hash,
        kind=origin.kind,
        source=origin.source,
        observed_at=truncated(entry.observed_at) if entry.observed_at else created_at,
        created_at=created_at,
        idempotency_key=origin.idempotency_key,
    )


def observation_id(subject: Subject, ordinal: int, content_hash: str) -> ObservationId:
    """Return the id of the so-manieth claim about an entity, with that content."""
    named = f'{_beginning(subject)},{ordinal},"{content_hash}"]'
    return ObservationId(f"obs_{hashlib.sha256(named.encode()).hexdigest()[:32]}")


# Remembered, because the claims about an entity are read together.
@lru_cache(maxsize=256)
def _beginning(subject: Subject) -> str:
    """Return the beginning of the canonical form that all claims about an entity are named by."""
    return canonical_text([subject.owner, subject.entity_type, subject.key])[:-1]


class Claimed(Protocol):
    """A claim, as far as it takes to recognise it."""

    @property
    def kind(self) -> Kind: ...
    @property
    def content_hash(self) -> str: ...


def is_repeat(accepted: Accepted, kind: Kind, newest: Claimed | None) -> bool:
    """Tell whether the same was claimed last, so that nothing has to be written."""
    return newest is not None and (accepted.content_hash, kind) == (
        newest.content_hash,
        newest.kind,
    )


def is_entity_id(text: str) -> bool:
    """Tell whether a text is spelled like the id of an entity."""
    return _ENTITY_ID.fullmatch(text) is not None


def require_idempotency_key(key: Any) -> str:
    """Return the key unchanged, or refuse it as a payload is refused."""
    issues = member_faults(_IDEMPOTENCY_KEY, key)
    if issues:
        raise rejection(issues)
    return str(key)
