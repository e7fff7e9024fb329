"""Ids as rows keep them: a UUID is 16 bytes, and its 36 letters only where somebody reads them."""

import re
from typing import Any, Final

UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"

_is_uuid: Final = re.compile(UUID).fullmatch


def uuid_bytes(ids: str) -> bytes:
    """Return the 16 bytes of each of the UUIDs that follow one another."""
    return bytes.fromhex(ids.replace("-", ""))


def packed(id_: str) -> bytes | str:
    """Return an id as it is stored; one that is no UUID as it is."""
    # Only our own spelling: what is stored has to give back the very letters.
    return uuid_bytes(id_) if _is_uuid(id_) else id_


def spelled(stored: Any) -> Any:
    """Return the id that is stored, of whichever kind; of damage something that is no id."""
    if not isinstance(stored, bytes):
        return stored
    # In groups of four letters, because to cut three hyphens out is quicker than to put four in.
    text = stored.hex("-", 2)
    return f"{text[:4]}{text[5:29]}{text[30:34]}{text[35:]}"
