"""Forks: where one leaves its parent, and what it takes along."""

from typing import Final

from msgspec.structs import replace

from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import CHAIN_START
from holdfast.domain.openings import ForkRequest, SessionRequest
from holdfast.domain.sessions import ForkPoint, Head, Session, Status, has_waiting_turn
from holdfast.ports import Tx
from holdfast.services.histories import Stretch, rows_of

# What a fork has from its parent, whoever answers in it.
_INHERITED: Final = ("title", "tags", "context", "approval", "turn_cap", "budget", "metadata")


async def point_of(tx: Tx, parent: Head, wish: ForkRequest) -> int:
    """Return the number of the last row that the fork shares."""
    if wish.at is not None:
        return _required(wish.at, parent)
    # Everything so far, an open turn's rows included: the fork reads, it does not run them.
    if not wish.is_settled or not has_waiting_turn(parent):
        return parent.messages
    rows = await rows_of(tx, parent, Stretch(1, parent.messages))
    settled = [row.sequence for row in rows if 0 < row.turn <= parent.settled]
    first_open = next(row.sequence for row in rows if row.turn > parent.settled)
    return max([first_open - 1, *settled])


def request_of(parent: Session, wish: ForkRequest) -> SessionRequest:
    """Return the request that opens a fork with another agent: the parent's, but for the wishes."""
    kept = {name: getattr(parent, name) for name in _INHERITED}
    return SessionRequest(**kept | wished(wish), repo_id=parent.repo_id, model=wish.model)


def wished(wish: ForkRequest) -> dict[str, object]:
    """Return what is to be unlike in the parent."""
    told = {"title": wish.title, "tags": wish.tags}
    return {name: value for name, value in told.items() if value is not None}


async def forked(tx: Tx, child: Session, parent: Head, point: int) -> tuple[Session, Head]:
    """Return a session as a fork, and its head: all that it inherits counts as settled."""
    rows = await rows_of(tx, parent, Stretch(1, point))
    # What was open in the parent is the parent's business.
    turn = max((row.turn for row in rows), default=0)
    status = Status.IDLE if rows else Status.PENDING
    forked_from = ForkPoint(session_id=parent.session_id, sequence=point)
    child = replace(child, status=status, turn=turn, settled=turn, forked_from=forked_from)
    head = replace(
        blank_head(child),
        status=status,
        turn=turn,
        settled=turn,
        messages=point,
        inherited=point,
        chain=bytes.fromhex(rows[-1].hash) if rows else CHAIN_START,
        # The fork's own rows are later than those it inherits, whatever the clock says.
        updated_at=max([child.created_at, *(row.created_at for row in rows[-1:])]),
    )
    return child, head


def twin_of(parent: Session, child_id: SessionId) -> Session:
    """Return a session with all that the parent was opened with, and nothing that happened."""
    return Session(
        id=child_id,
        owner=parent.owner,
        agent_id=parent.agent_id,
        agent=parent.agent,
        repo_id=parent.repo_id,
        title=parent.title,
        tags=parent.tags,
        model_id=parent.model_id,
        context=parent.context,
        grant=parent.grant,
        tools=parent.tools,
        approval=parent.approval,
        turn_cap=parent.turn_cap,
        budget=parent.budget,
        created_at=parent.created_at,
        updated_at=parent.created_at,
        metadata=parent.metadata,
    )


def blank_head(session: Session) -> Head:
    """Return where a notebook stands in which nothing is written yet."""
    return Head(
        session_id=session.id,
        owner=session.owner,
        agent_id=session.agent_id,
        title=session.title,
        chain=CHAIN_START,
        updated_at=session.created_at,
    )


def _required(at: int, head: Head) -> int:
    if not 0 <= at <= head.messages:
        raise NotFound(
            Code.MESSAGE_NOT_FOUND,
            f"The session has messages 1 to {head.messages}; it cannot be forked at {at}.",
            {"at": at},
        )
    return at
