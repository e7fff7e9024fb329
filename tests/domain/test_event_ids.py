"""The id of an event says its number, to those who know its session."""

from holdfast.domain.events import event_id, sequence_in
from holdfast.domain.ids import SessionId
from tests.builders import AT, SESSION_ID, an_id
from tests.marks import each_case


@each_case("sequence", [0, 1, 2, 4_095, 4_096, 1 << 20, (1 << 32) - 1])
def test_an_id_says_its_number(sequence: int) -> None:
    told = event_id(SESSION_ID, sequence, AT)

    assert sequence_in(told, SESSION_ID) == sequence
    assert sequence_in(told, SessionId(an_id(77))) is None


@each_case("text", ["", "nonsense", an_id(1), event_id(SESSION_ID, 1, AT).upper()])
def test_what_is_no_id_of_an_event_says_nothing(text: str) -> None:
    assert sequence_in(text, SESSION_ID) is None
