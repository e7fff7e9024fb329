"""Identifiers: their types, their grammar, and how they are generated.

Time and randomness are arguments; nothing here reads a clock or a random source.
"""

import re
from typing import Final, NewType

from holdfast.domain.errors import Code, Invalid

Owner = NewType("Owner", str)
AgentId = NewType("AgentId", str)
ApprovalId = NewType("ApprovalId", str)
CallId = NewType("CallId", str)
EntityId = NewType("EntityId", str)
EventId = NewType("EventId", str)
MessageId = NewType("MessageId", str)
ModelId = NewType("ModelId", str)
ObservationId = NewType("ObservationId", str)
RepoId = NewType("RepoId", str)
SessionId = NewType("SessionId", str)
TokenId = NewType("TokenId", str)
# The store's key of a session: an id is unique per owner, a key is unique and never reused.
SessionKey = NewType("SessionKey", int)

LOCAL_OWNER: Final = Owner("local")

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# No slash and no space, because owners appear in keychain entry names and log lines.
_OWNER = re.compile(r"[A-Za-z0-9_.@-]{1,128}")
_SLUG = re.compile(r"[A-Za-z0-9_-]{1,255}")


def uuid7(milliseconds: int, randomness: int) -> str:
    """Return a version 7 UUID (RFC 9562) of a Unix time and at least 74 random bits."""
    value = (
        (milliseconds & 0xFFFF_FFFF_FFFF) << 80
        | 0x7000 << 64
        | (randomness & 0xFFF) << 64
        | 0x8000_0000_0000_0000
        | (randomness >> 12) & 0x3FFF_FFFF_FFFF_FFFF
    )
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_uuid(text: str) -> bool:
    """Return whether the text is a UUID in canonical form: lower case, with dashes."""
    return _UUID.fullmatch(text) is not None


def require_uuid(text: str, *, what: str) -> str:
    """Return the client's id in canonical form, or refuse it."""
    # Lower-cased, because two forms of one id would be two keys.
    lowered = text.lower()
    if not is_uuid(lowered):
        raise Invalid(
            Code.INVALID_ID, f"{what} must be a UUID such as 0192f0c1-….", {"field": what}
        )
    return lowered


def is_slug(text: str) -> bool:
    """Return whether the text is a valid agent slug."""
    return _SLUG.fullmatch(text) is not None


def session_as_owner() -> Invalid:
    """Return the error for the id of a session where the owner is expected."""
    return Invalid(
        Code.INVALID_INPUT,
        "The first argument is the owner: write list(hf.owner, session_id).",
        {"field": "owner"},
    )


def require_owner(text: str) -> Owner:
    """Return the text as an owner, or refuse it."""
    if _OWNER.fullmatch(text) is None:
        raise Invalid(
            Code.INVALID_ID,
            "An owner has 1 to 128 characters of A-Z, a-z, 0-9, '_', '.', '@' and '-'.",
            {"field": "owner"},
        )
    return Owner(text)


def slug_of(name: str) -> str:
    """Return a slug made of a display name; empty if the name has no usable character."""
    return re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:255]
