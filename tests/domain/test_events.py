"""The news of a session."""

import re
from datetime import UTC, datetime, timedelta
from typing import get_args
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.costs import Usage
from holdfast.domain.events import (
    NAMES,
    Channel,
    Failure,
    FailureCode,
    Gap,
    Payload,
    StepDelta,
    StepEnded,
    TurnEnded,
    TurnStarted,
    decode_payload,
    encode_payload,
    event_id,
    name_of,
)
from holdfast.domain.ids import MessageId, SessionId, is_uuid
from holdfast.domain.sessions import StopReason
from tests.builders import AT, SESSION_ID, an_event, an_id
from tests.domain.strategies import UUIDS, values_of
from tests.marks import each_case

KINDS = get_args(Payload)
SEQUENCES = st.integers(1, (1 << 32) - 1)
INSTANTS = st.datetimes(
    min_value=datetime(1970, 1, 1), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)
)


def test_the_names_are_the_houses_words() -> None:
    assert sorted(NAMES) == [
        "approval.answered",
        "approval.requested",
        "call.settled",
        "message.appended",
        "message.withdrawn",
        "plan.changed",
        "session.closed",
        "session.compacted",
        "session.exported",
        "session.forked",
        "session.observed",
        "session.opened",
        "session.resumed",
        "step.delta",
        "step.ended",
        "step.failed",
        "step.started",
        "tool.ended",
        "tool.progressed",
        "tool.requested",
        "tool.started",
        "turn.continued",
        "turn.ended",
        "turn.paused",
        "turn.started",
        "zone.archived",
    ]
    assert len(NAMES) == len(KINDS)


@each_case("kind", KINDS)
def test_every_event_is_named_by_a_noun_and_what_happened(kind: type[Payload]) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z]+", name_of(kind))


def test_an_event_and_its_type_have_the_same_name() -> None:
    assert name_of(TurnStarted()) == name_of(TurnStarted) == "turn.started"


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_an_event_is_read_as_it_was_stored(data: st.DataObject, kind: type[Payload]) -> None:
    payload = data.draw(values_of(kind))
    stored = encode_payload(payload)

    assert decode_payload(stored) == payload
    assert encode_payload(decode_payload(stored)) == stored


def test_an_event_is_stored_under_its_name() -> None:
    delta = StepDelta(
        step=1, message_id=MessageId(an_id(9)), channel=Channel.TEXT, offset=0, text="hé"
    )

    assert msgspec.json.decode(encode_payload(delta)) == {
        "type": "step.delta",
        "step": 1,
        "message_id": an_id(9),
        "channel": "text",
        "offset": 0,
        "text": "hé",
    }


@each_case(
    "stored",
    [
        b"",
        b"[]",
        b'{"type": "turn.exploded"}',
        b'{"step": 1}',
        b'{"type": "turn.ended"}',
        b'{"type": "turn.ended", "stop_reason": "boredom"}',
        b'{"type": "session.forked", "target": "a", "sequence": true}',
    ],
)
def test_bytes_that_hold_no_event_are_not_read(stored: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_payload(stored)


def test_a_newer_writers_keys_are_passed_over() -> None:
    assert decode_payload(b'{"type": "turn.started", "mood": "good"}') == TurnStarted()


@given(UUIDS.map(SessionId), SEQUENCES, SEQUENCES, INSTANTS, INSTANTS)
def test_an_events_id_is_unique_in_its_session_whatever_the_clock_does(
    session_id: SessionId, sequence: int, other: int, at: datetime, then: datetime
) -> None:
    same = event_id(session_id, sequence, at) == event_id(session_id, other, then)

    assert not same or sequence == other


@given(UUIDS.map(SessionId), SEQUENCES, INSTANTS)
def test_every_bit_of_the_number_is_in_the_id(
    session_id: SessionId, sequence: int, at: datetime
) -> None:
    turned = {event_id(session_id, sequence ^ 1 << bit, at) for bit in range(32)}

    assert len(turned | {event_id(session_id, sequence, at)}) == 33


@given(UUIDS, SEQUENCES, INSTANTS)
def test_events_of_two_sessions_have_two_ids(session_id: str, sequence: int, at: datetime) -> None:
    others = {str(UUID(int=UUID(session_id).int ^ 1 << bit)) for bit in range(42)}

    made = {event_id(SessionId(each), sequence, at) for each in others | {session_id}}
    assert len(made) == 43


def test_an_events_id_never_changes_its_recipe() -> None:
    session_id = SessionId("0192f0c1-abcd-7ef0-8123-456789abcdef")

    # Number 0x12345678: its low 12 bits follow the version, the rest the session's 42 bits.
    made = event_id(session_id, 0x12345678, AT)
    assert made == "019b7ca9-8f2e-7678-9678-9abcdef12345"


@given(UUIDS.map(SessionId), SEQUENCES, INSTANTS)
def test_an_events_id_is_a_uuid_of_version_7_of_its_time(
    session_id: SessionId, sequence: int, at: datetime
) -> None:
    made = event_id(session_id, sequence, at)

    assert is_uuid(made)
    assert UUID(made).version == 7
    since_1970 = at - datetime(1970, 1, 1, tzinfo=UTC)
    assert UUID(made).int >> 80 == since_1970 // timedelta(milliseconds=1)


def test_an_events_id_is_computed_and_the_same_again() -> None:
    assert event_id(SESSION_ID, 7, AT) == event_id(SESSION_ID, 7, AT) == an_event(sequence=7).id


@each_case("code", FailureCode)
def test_a_failure_is_retryable_when_the_same_turn_may_work_later(code: FailureCode) -> None:
    later = {"provider_rate_limit", "provider_unavailable", "interrupted"}

    assert Failure(code=code, message="Wait.").retryable is (code.value in later)


def test_what_a_turn_or_a_step_did_not_cost_is_zero() -> None:
    ended = TurnEnded(stop_reason=StopReason.STOP)

    assert ended == TurnEnded(
        stop_reason=StopReason.STOP,
        usage=Usage(),
        microcents=0,
        priced=True,
        more_turns=False,
        failure=None,
    )
    assert StepEnded(step=1) == StepEnded(step=1, usage=None, microcents=0, priced=False)


def test_a_failure_is_data_of_the_turns_end() -> None:
    failure = Failure(code=FailureCode.INTERNAL, message="Our bug.", correlation_id="c1")
    ended = TurnEnded(stop_reason=StopReason.ERROR, failure=failure)

    assert decode_payload(encode_payload(ended)) == ended
    assert b"retryable" not in encode_payload(ended)


def test_a_gap_says_what_to_read_instead() -> None:
    gap = Gap(from_sequence=3, to_sequence=9)

    assert msgspec.to_builtins(gap) == {
        "from_sequence": 3,
        "to_sequence": 9,
        "reason": "pruned",
        "resync": "messages",
    }
