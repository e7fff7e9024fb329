"""Deltas: what they say in pieces holds no more secrets than the whole."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.drafts import Draft, MessageDraft
from holdfast.domain.events import Channel, StepDelta, StepEnded
from holdfast.domain.ids import MessageId
from holdfast.domain.messages import Role, Text
from holdfast.domain.secrets import Scrubber, Secret
from holdfast.services.journal import RedactedDeltas
from tests.builders import an_id

KEY = "sk-proj-0aB1cD2eF3gH4iJ5kL6m"
SCRUBBER = Scrubber([("key", Secret(KEY))])

END = StepEnded(step=1)


def known() -> Scrubber:
    """Know the key."""
    return SCRUBBER


def delta(text: str, offset: int, *, step: int = 1, channel: Channel = Channel.TEXT) -> StepDelta:
    """Return a piece of an answer."""
    return StepDelta(
        step=step,
        message_id=MessageId(an_id(step)),
        channel=channel,
        offset=offset,
        text=text,
    )


def row(text: str) -> MessageDraft:
    """Return the row that an answer becomes."""
    return MessageDraft(role=Role.ASSISTANT, parts=(Text(text=text),))


def test_pieces_without_a_secret_pass_as_they_are() -> None:
    drafts: list[Draft] = [delta("one ", 0), delta("two", 4), row("one two"), END]

    assert RedactedDeltas(known).passed(drafts) == drafts


def test_a_secret_in_two_pieces_is_passed_on_as_its_name() -> None:
    deltas = RedactedDeltas(known)

    assert deltas.passed([delta("the key ", 0)]) == [delta("the key ", 0)]
    assert deltas.passed([delta(KEY[:9], 8)]) == []
    assert deltas.passed([delta(KEY[9:] + "!", 17)]) == [delta("[secret:key]!", 8)]
    assert deltas.passed([delta(" ok", 37)]) == [delta(" ok", 21)]


def test_a_secret_that_became_known_during_the_turn_is_in_no_two_pieces_either() -> None:
    scrubbers = [Scrubber()]
    deltas = RedactedDeltas(lambda: scrubbers[-1])

    assert deltas.passed([delta("I ask ", 0), row("I ask ")]) == [delta("I ask ", 0), row("I ask ")]
    scrubbers.append(SCRUBBER)
    assert deltas.passed([delta(KEY[:9], 0, step=2)]) == []
    assert deltas.passed([delta(KEY[9:], 9, step=2)]) == [delta("[secret:key]", 0, step=2)]


def test_what_waits_is_passed_on_before_the_row_that_ends_it() -> None:
    deltas = RedactedDeltas(known)
    begun = KEY[:9]

    assert deltas.passed([delta(begun, 0)]) == []
    assert deltas.passed([row(begun), END]) == [delta(begun, 0), row(begun), END]


def test_what_waits_at_the_end_of_the_turn_is_not_lost() -> None:
    deltas = RedactedDeltas(known)

    assert deltas.passed([delta(KEY[:9], 0)]) == []
    assert deltas.rest() == [delta(KEY[:9], 0)]
    assert deltas.rest() == []


def test_another_channel_and_another_step_are_other_texts() -> None:
    deltas = RedactedDeltas(known)
    thought = Channel.REASONING

    assert deltas.passed(
        [
            delta(KEY[:9], 0, channel=thought),
            delta(KEY[9:], 0),
            delta("sk", len(KEY[9:]), step=1),
            delta("-proj", 0, step=2),
            END,
        ]
    ) == [
        delta(KEY[:9], 0, channel=thought),
        delta(KEY[9:], 0),
        delta("sk", len(KEY[9:])),
        delta("-proj", 0, step=2),
        END,
    ]


@given(
    st.lists(st.sampled_from([KEY, KEY[:12], "s", " and "]) | st.text(max_size=4), max_size=8),
    st.integers(1, 20),
)
def test_the_pieces_add_up_to_the_clean_text(texts: list[str], size: int) -> None:
    whole = "".join(texts)
    pieces = [delta(whole[at : at + size], at) for at in range(0, len(whole), size)]
    deltas = RedactedDeltas(known)

    passed = [each for piece in pieces for each in deltas.passed([piece])] + deltas.passed([END])

    told = [each for each in passed if isinstance(each, StepDelta)]
    assert "".join(each.text for each in told) == SCRUBBER.redact_text(whole)
    assert [each.offset for each in told] == [
        sum(len(before.text) for before in told[:number]) for number in range(len(told))
    ]
    assert passed[-1] == END
