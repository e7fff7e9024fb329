"""What a caller may say when it opens a session; everything has a default."""

import hashlib
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.contexts import SessionContext
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner
from holdfast.domain.sessions import Budget
from holdfast.domain.texts import require_tags, require_text
from holdfast.domain.tools import Grant

METADATA_LARGEST: Final = 16 << 10


class SessionRequest(Struct, frozen=True, kw_only=True):
    """The wishes of a caller; `None` leaves the choice to the agent and the configuration."""

    title: str | None = None
    tags: tuple[str, ...] = ()
    model: str | None = None
    repo_id: str | None = None
    context: SessionContext | None = None
    grant: Grant | None = None
    tools: tuple[str, ...] | None = None
    # Where nobody says anything somebody is asked: nobody should learn afterwards what was allowed.
    approval: ApprovalMode | None = None
    turn_cap: int | None = None
    budget: Budget | None = None
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.title is not None:
            require_text(self.title, field="title", shortest=1, longest=255)
        if require_tags(self.tags) != self.tags:
            raise Invalid(Code.INVALID_INPUT, "Each tag once, please.", {"field": "tags"})
        if self.budget is not None and self.budget.microcents < 0:
            raise Invalid(
                Code.INVALID_INPUT, "A budget is zero or more micro-cents.", {"field": "budget"}
            )
        _require_storable(self.metadata)


class ForkRequest(Struct, frozen=True, kw_only=True):
    """The wishes of who forks a session; what is left out is as in the parent.

    `at` is the last row to share; without it that is the last one of all, or only of the turns
    that have settled. With another agent, the fork is as if opened with it.
    """

    at: int | None = None
    is_settled: bool = False
    title: str | None = None
    tags: tuple[str, ...] | None = None
    model: str | None = None
    agent: str | None = None

    def __post_init__(self) -> None:
        if self.title is not None:
            require_text(self.title, field="title", shortest=1, longest=255)
        if self.tags is not None and require_tags(self.tags) != self.tags:
            raise Invalid(Code.INVALID_INPUT, "Each tag once, please.", {"field": "tags"})


# msgspec learns a type at its first use, and two threads must not be the first at once.
PREPARED: Final = msgspec.json.Decoder(SessionRequest)


def digest_of(owner: Owner, *asked: object) -> bytes:
    """Return what makes a repeated request to make something recognisable."""
    try:
        told = msgspec.json.encode([owner, *asked], order="sorted")
    except UnicodeEncodeError:
        raise Invalid(
            Code.INVALID_TEXT, "The request contains a lone surrogate; remove it."
        ) from None
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise Invalid(Code.INVALID_INPUT, "The request must be plain JSON.") from None
    return hashlib.sha256(told).digest()


def _require_storable(metadata: dict[str, Any]) -> None:
    try:
        size = len(msgspec.json.encode(metadata))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise Invalid(
            Code.INVALID_INPUT, "metadata must be plain JSON.", {"field": "metadata"}
        ) from None
    if size > METADATA_LARGEST:
        raise Invalid(
            Code.INVALID_INPUT, "metadata may have 16 KiB at most.", {"field": "metadata"}
        )
