"""Verifications: whether a session's record is what was written."""

from contextlib import aclosing

from msgspec import Struct

from holdfast.domain.errors import HoldfastError, NotFound
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Head
from holdfast.ports import Store
from holdfast.services.batches import read_batches


class Verification(Struct, frozen=True, kw_only=True):
    """Whether a session's record is what was written."""

    session_id: SessionId
    messages: int
    head: str
    faults: tuple[str, ...] = ()


async def verified(store: Store, head: Head) -> Verification:
    """Check every row of a session against its chain, inherited rows included."""
    chain = head.chain.hex()
    count, last = 0, chain
    try:
        async with aclosing(read_batches(store, head)) as batches:
            async for batch in batches:
                count, last = count + len(batch.rows), batch.rows[-1].hash
    except NotFound:
        raise
    except HoldfastError as error:
        return Verification(
            session_id=head.session_id, messages=0, head=chain, faults=(error.message,)
        )
    # The rows prove one another; that nothing is missing behind the last one, only the head tells.
    faults = () if last == chain else ("The last message is not the one the session ends with.",)
    return Verification(session_id=head.session_id, messages=count, head=chain, faults=faults)
