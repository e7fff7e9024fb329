"""Commits of the very rows that a test chooses, whatever the journal would stamp."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.approvals import Approval
from holdfast.domain.calls import Call
from holdfast.domain.commits import CommitBuilder, NewEvent, NewMessage, SessionCommit
from holdfast.domain.costs import CostEntry
from holdfast.domain.events import Event, Payload, TurnStarted, encode_stored, name_of
from holdfast.domain.messages import Message, encode_parts
from holdfast.domain.secrets import Scrubber
from holdfast.domain.sessions import SessionState
from holdfast.domain.time import microseconds
from holdfast.ports.store import Tx
from tests.builders import AT, an_id

NUMBERS: Final = count(500_000)


def new_messages(
    rows: Iterable[Message], events: Sequence[int] | None = None
) -> tuple[NewMessage, ...]:
    """Return rows as a commit has them, each with the event of its own number unless told."""
    return tuple(
        NewMessage(
            row,
            encode_parts(row.parts),
            bytes.fromhex(row.hash),
            microseconds(row.created_at),
            row.sequence if events is None else events[place],
        )
        for place, row in enumerate(rows)
    )


def new_events(events: Iterable[Event]) -> tuple[NewEvent, ...]:
    """Return events as a commit has them."""
    return tuple(
        NewEvent(
            event.sequence,
            event.turn,
            microseconds(event.at),
            name_of(event.payload),
            encode_stored(event.payload),
        )
        for event in events
    )


async def append_rows(
    tx: Tx,
    head: SessionState,
    *,
    messages: tuple[NewMessage, ...] = (),
    events: Iterable[Event] = (),
    calls: tuple[Call, ...] = (),
    costs: tuple[CostEntry, ...] = (),
    approvals: tuple[Approval, ...] = (),
    state: Mapping[str, Any] | None = None,
) -> SessionState:
    """Append rows to a session as it is stored; of its state only the given fields change."""
    before = await tx.sessions.state_by_key(head.key)
    assert before is not None
    commit = SessionCommit(
        before=before,
        state=replace(before, **(state or {})),
        messages=messages,
        events=new_events(events),
        calls=calls,
        costs=costs,
        approvals=approvals,
    )
    await tx.append(commit)
    return commit.state


def a_commit(state: SessionState, *payloads: Payload, **changes: Any) -> SessionCommit:
    """Return what the journal would build of payloads, by default of one, on a state."""
    builder = CommitBuilder(
        state,
        now=microseconds(AT),
        new_id=lambda _: an_id(next(NUMBERS)),
        scrubber=Scrubber(()),
    )
    for payload in payloads or (TurnStarted(),):
        builder.add_event(payload)
    builder.update(**changes)
    return builder.commit()


def appending(head: SessionState, *payloads: Payload) -> Callable[[Tx], Any]:
    """Return work that appends the next event to a session, and returns its number."""

    async def work(tx: Tx) -> int:
        now = await tx.sessions.state_by_key(head.key)
        assert now is not None
        commit = a_commit(now, *payloads)
        await tx.append(commit)
        return commit.state.events

    return work
