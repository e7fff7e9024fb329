"""Verifications: whether a session's record is what was written."""

from msgspec import Struct

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Head
from holdfast.ports import Tx
from holdfast.services.histories import Stretch, rows_of


class Verification(Struct, frozen=True, kw_only=True):
    """Whether a session's record is what was written."""

    session_id: SessionId
    messages: int
    head: str
    faults: tuple[str, ...] = ()


async def verified(tx: Tx, head: Head) -> Verification:
    """Check every row of a session against its chain, inherited rows included."""
    chain = head.chain.hex()
    try:
        rows = await rows_of(tx, head, Stretch(1, head.messages))
    except HoldfastError as error:
        return Verification(
            session_id=head.session_id, messages=0, head=chain, faults=(error.message,)
        )
    # The rows prove one another; that nothing is missing behind the last one, only the head tells.
    is_whole = not rows or rows[-1].hash == chain
    faults = () if is_whole else ("The last message is not the one the session ends with.",)
    return Verification(session_id=head.session_id, messages=len(rows), head=chain, faults=faults)
