"""Ids of the client's own: a request that carries one can be sent again and is done once."""

import secrets
import time

from holdfast.domain.ids import uuid7


def new_id() -> str:
    """Return an id that nobody has used."""
    return uuid7(time.time_ns() // 1_000_000, secrets.randbits(74))
