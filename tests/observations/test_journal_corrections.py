"""Corrections of lists beside a journal that goes on: what they are about, and what is news."""

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.domain.messages import Message, Role
from holdfast.domain.time import microseconds, milliseconds
from holdfast.observations.as_of import EVERYTHING, AsOf
from holdfast.observations.claims import ValidPayload, accept_correction, accept_payload
from holdfast.observations.hosted_session import HostedSessionView
from holdfast.observations.merge import resolve
from holdfast.observations.model import Observation, ObservationKind
from tests.builders import (
    SESSION_ID,
    a_message,
    a_session,
    a_tool_call,
    a_tool_result,
    a_transcript,
)
from tests.observations.claims import AT, SESSION, entered
from tests.observations.test_resolve_laws import bytes_of

RIGHT = [{"type": "put_right", "result": "success"}]


def a_journal(*minutes: float) -> HostedSessionView:
    """Return a journal that reached a checkpoint in each of these minutes."""
    rows: list[Message] = []
    for number, minute in enumerate(minutes):
        at, name = AT + timedelta(minutes=minute), f"call-{number}"
        call = a_tool_call(id=name, name="checkpoint", arguments={"name": f"m{minute}"})
        result = a_tool_result(call_id=name, name="checkpoint")
        rows.append(a_message(role=Role.TOOL_CALL, parts=(call,), at=microseconds(at)))
        rows.append(a_message(role=Role.TOOL_RESULT, parts=(result,), at=microseconds(at)))
    session = a_session(created_at=AT, updated_at=AT + timedelta(minutes=max(minutes, default=0)))
    return HostedSessionView(session=session, messages=a_transcript(*rows))


def corrected(ordinal: int, field: str, value: Any, *, minute: int) -> Observation:
    """Return the correction of a list, made in a minute."""
    told = accept_correction(SESSION_ID, field, value)
    return _in(minute, told, ordinal, ObservationKind.CORRECTION)


def submitted(ordinal: int, *, minute: int, **fields: Any) -> Observation:
    """Return a claim, made in a minute."""
    payload = {"session_id": SESSION_ID, "started_at": "2026-01-02", "actions": RIGHT, **fields}
    return _in(minute, accept_payload(SESSION, payload), ordinal, ObservationKind.SUBMIT)


def _in(minute: int, told: ValidPayload, ordinal: int, kind: ObservationKind) -> Observation:
    return replace(
        entered(told, ordinal, kind=kind, minute=minute),
        created_ms=milliseconds(AT + timedelta(minutes=minute)),
    )


def actions(
    journal: HostedSessionView, *claims: Observation, horizon: AsOf = EVERYTHING
) -> list[str]:
    """Return when each action was done that is shown; those that say nothing of it are `-`."""
    entity = resolve(journal.subject, claims, hosted=journal, horizon=horizon)
    return [each.get("timestamp", "")[14:16] or "-" for each in entity.snapshot["actions"]]


def test_what_a_session_does_after_a_correction_is_told_behind_it() -> None:
    journal = a_journal(1, 3)

    assert actions(journal, corrected(1, "actions", RIGHT, minute=2)) == ["-", "07"]
    assert actions(journal, corrected(1, "actions", RIGHT, minute=3)) == ["-"]


def test_a_checkpoint_that_is_reached_after_a_correction_is_shown() -> None:
    journal = a_journal(1, 3)
    claim = corrected(1, "checkpoints", [], minute=2)

    entity = resolve(journal.subject, [claim], hosted=journal)

    assert [each["name"] for each in entity.snapshot["checkpoints"]] == ["m3"]
    assert entity.provenance["checkpoints"] == (f"journal:{SESSION_ID}", claim.id)


def test_each_correction_is_about_what_was_known_until_then() -> None:
    journal = a_journal(1, 3, 5)
    claims = [
        corrected(1, "actions", RIGHT, minute=2),
        corrected(2, "actions", [{"type": "put_right", "result": "failure"}], minute=4),
    ]

    assert actions(journal, *claims) == ["-", "09"]
    assert actions(journal, *claims, horizon=AsOf(at=AT + timedelta(minutes=3))) == ["-", "07"]


def test_a_vague_claim_that_was_taken_away_does_not_keep_news_out() -> None:
    journal = a_journal(3)
    vague = submitted(1, minute=1, actions=[{"type": "checkpoint", "result": "success"}])

    assert actions(journal, vague, corrected(2, "actions", RIGHT, minute=2)) == ["-", "07"]


def test_what_is_claimed_again_after_a_correction_joins_the_news() -> None:
    journal = a_journal(1, 3)
    right = corrected(1, "actions", RIGHT, minute=2)
    shown = resolve(journal.subject, [right], hosted=journal).snapshot["actions"]
    again = submitted(2, minute=4, actions=[*shown, {"type": "after", "result": "success"}])

    assert actions(journal, right, again) == ["-", "07", "-"]


def test_a_key_that_was_taken_away_comes_back_as_news() -> None:
    journal = a_journal(3)
    known = {"name": "m3", "timestamp": "2026-01-02T03:07:05.678Z", "state": {"early": True}}
    claims = [
        submitted(1, minute=1, checkpoints=[known]),
        corrected(2, "checkpoints", [], minute=2),
    ]

    found = resolve(journal.subject, claims, hosted=journal).snapshot["checkpoints"]

    assert found == [{"name": "m3", "timestamp": "2026-01-02T03:07:05.678Z"}]


WORDS = st.sampled_from(["checkpoint", "put_right"])
LISTS = st.lists(st.fixed_dictionaries({"type": WORDS, "result": st.just("success")}), min_size=1)
CLAIMS = st.lists(st.tuples(st.booleans(), st.integers(0, 5), LISTS), max_size=5)


@given(CLAIMS, st.lists(st.integers(0, 5), max_size=4), st.randoms())
def test_order_does_not_matter_beside_a_journal(
    told: list[tuple[bool, int, Any]], minutes: list[int], chance: Any
) -> None:
    journal = a_journal(*minutes)
    claims = [
        corrected(number, "actions", items, minute=minute)
        if is_correction
        else submitted(number, minute=minute, actions=items)
        for number, (is_correction, minute, items) in enumerate(told, 1)
    ]
    whole = bytes_of(resolve(journal.subject, claims, hosted=journal))
    chance.shuffle(claims)

    assert bytes_of(resolve(journal.subject, claims, hosted=journal)) == whole
