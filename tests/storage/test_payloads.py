"""What is kept of an event: all that it says, and nothing where it says nothing."""

import msgspec
import pytest

from holdfast.domain.costs import Usage
from holdfast.domain.events import (
    Failure,
    FailureCode,
    Payload,
    StepEnded,
    TurnEnded,
    TurnStarted,
    decode_payload,
)
from holdfast.domain.ids import MessageId
from holdfast.domain.sessions import StopReason
from holdfast.storage.payloads import stored_payload, stored_usage

FULL = Usage(input=1, output=2, cache_read=3, cache_write=4, reasoning=5)
FAILURE = Failure(code=FailureCode.INTERNAL, message="It broke.")
KEPT: dict[bytes, Payload] = {
    b'{"type":"turn.started"}': TurnStarted(),
    b'{"type":"step.ended","step":1}': StepEnded(step=1),
    b'{"type":"step.ended","step":2,"usage":{}}': StepEnded(step=2, usage=Usage()),
    b'{"type":"turn.ended","stop_reason":"stop","usage":{"output":7}}': TurnEnded(
        stop_reason=StopReason.STOP, usage=Usage(output=7)
    ),
}
EVERYTHING: tuple[Payload, ...] = (
    StepEnded(step=1, message_id=MessageId("m"), usage=FULL, microcents=9, priced=True),
    TurnEnded(
        stop_reason=StopReason.ERROR,
        usage=FULL,
        microcents=9,
        priced=False,
        more_turns=True,
        failure=FAILURE,
    ),
)


@pytest.mark.parametrize("kept", KEPT)
def test_what_says_nothing_is_not_kept(kept: bytes) -> None:
    assert stored_payload(KEPT[kept]) == kept


@pytest.mark.parametrize("payload", [*KEPT.values(), *EVERYTHING])
def test_what_was_kept_says_what_was_said(payload: Payload) -> None:
    assert decode_payload(stored_payload(payload)) == payload


@pytest.mark.parametrize("payload", EVERYTHING)
def test_what_says_something_everywhere_is_kept_whole(payload: Payload) -> None:
    assert stored_payload(payload) == msgspec.json.encode(payload)


def test_a_usage_is_kept_without_its_noughts() -> None:
    assert stored_usage(Usage(input=3)) == b'{"input":3}'
    assert stored_usage(FULL) == msgspec.json.encode(FULL)
