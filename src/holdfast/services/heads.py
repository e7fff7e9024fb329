"""Heads: an owner's session is found here, by owner and id at once, or it is not there."""

from holdfast.domain.errors import Code, Conflict, NotFound
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.sessions import Head
from holdfast.ports import Tx


async def find_head(tx: Tx, owner: Owner, session_id: SessionId) -> Head:
    """Return where the owner's session stands, or say that there is none."""
    head = await tx.sessions.head(owner, session_id)
    if head is None:
        raise session_not_found()
    return head


def session_not_found() -> NotFound:
    """Return the one answer for a missing, a deleted and a foreign session."""
    return NotFound(
        Code.SESSION_NOT_FOUND, "There is no such session; `holdfast sessions list` shows yours."
    )


def stale() -> Conflict:
    """Return the answer to a change of what is not as its sender believes."""
    return Conflict(
        Code.STALE_ETAG, "It was changed since you read it; read it again, then change it."
    )
