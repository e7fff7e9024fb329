"""What is kept of an event: all that it says, and nothing where it says nothing."""

import msgspec

from holdfast.domain.costs import Usage
from holdfast.domain.events import (
    Channel,
    Failure,
    FailureCode,
    Payload,
    StepDelta,
    StepEnded,
    StepStarted,
    TurnEnded,
    TurnStarted,
    decode_payload,
    encode_stored,
    name_of,
)
from holdfast.domain.ids import MessageId, ModelId
from holdfast.domain.sessions import StopReason
from holdfast.store.events import join_payload, split_payload
from tests.marks import each_case

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
        estimated=True,
    ),
)


@each_case("kept", KEPT)
def test_what_says_nothing_is_not_kept(kept: bytes) -> None:
    assert encode_stored(KEPT[kept]) == kept


@each_case("payload", [*KEPT.values(), *EVERYTHING])
def test_what_was_kept_says_what_was_said(payload: Payload) -> None:
    assert decode_payload(encode_stored(payload)) == payload


@each_case("payload", EVERYTHING)
def test_what_says_something_everywhere_is_kept_whole(payload: Payload) -> None:
    assert encode_stored(payload) == msgspec.json.encode(payload)


MESSAGE = MessageId("01a1e088-ac2a-70c7-ac36-953725abbfbd")
MODEL = ModelId("6c3dd24c-0430-5e05-94e3-500f55d335e2")
DIVIDED: tuple[tuple[Payload, bytes | None, bytes], ...] = (
    (TurnStarted(), None, b"}"),
    (
        StepStarted(message_id=MESSAGE, model_id=MODEL, step=1, model="a:b"),
        bytes.fromhex((MESSAGE + MODEL).replace("-", "")),
        b'\x011\2a:b"}',
    ),
    (
        StepStarted(message_id=MESSAGE, model_id=MODEL, step=1, model="a:b", bound=7),
        bytes.fromhex((MESSAGE + MODEL).replace("-", "")),
        b'\x011\2a:b","bound":7}',
    ),
    (
        StepEnded(message_id=MESSAGE, step=2),
        bytes.fromhex(MESSAGE.replace("-", "")),
        b"\x012}",
    ),
    # Only ids as we spell them: the very letters have to come back.
    (StepEnded(message_id=MessageId("m"), step=2), None, b',"message_id":"m"\x012}'),
    (
        StepEnded(message_id=MessageId(MESSAGE.upper()), step=2),
        None,
        b',"message_id":"%b"\x012}' % MESSAGE.upper().encode(),
    ),
    (
        TurnEnded(stop_reason=StopReason.STOP, usage=Usage(input=5, output=7), priced=False),
        None,
        b"\3\x045\x057}\x08false}",
    ),
    (
        StepDelta(step=1, channel=Channel.TEXT, offset=0, text=f',"message_id":"{MESSAGE}"'),
        None,
        b',"message_id":null,"step":1,"channel":"text","offset":0,'
        b'"text":",\\"message_id\\":\\"%b\\""}' % MESSAGE.encode(),
    ),
)


@each_case(("payload", "ids", "rest"), DIVIDED)
def test_what_an_event_begins_with_is_kept_once_and_its_ids_as_bytes(
    payload: Payload, ids: bytes | None, rest: bytes
) -> None:
    name, kept = name_of(payload), encode_stored(payload)

    assert split_payload(name, kept) == (ids, rest)
    assert join_payload(name, ids, rest) == kept
