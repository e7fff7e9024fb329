"""What a person sees above the prompt: how full, how dear."""

import pytest

from holdfast.api import Holdfast
from holdfast.cli.chat.status_line import StatusLine
from holdfast.domain.costs import Usage
from holdfast.domain.events import Gap, StepEnded, StepStarted, TurnEnded
from holdfast.domain.ids import MessageId
from holdfast.domain.sessions import StopReason
from tests.builders import a_model, an_event, an_id
from tests.cli.chat.test_screen import answered
from tests.marks import each_case

pytestmark = pytest.mark.anyio

MODEL = a_model("openai:large", context_window=200_000)
OTHER = a_model("scripted:/some/where/script.yaml")


def a_meter() -> StatusLine:
    """Return a meter that has heard of one request."""
    meter = StatusLine({each.id: each for each in (MODEL, OTHER)}, MODEL.ref)
    asked = StepStarted(step=1, model_id=MODEL.id, message_id=MessageId(an_id(9)))
    usage = Usage(input=10_000, cache_read=9_000, output=1_000)
    told = StepEnded(step=1, usage=usage, microcents=1_500_000, priced=True)
    for item in (Gap(from_sequence=1, to_sequence=2), an_event(asked), an_event(told)):
        meter.update(item)
    return meter


def test_it_tells_how_full_the_model_is_and_what_was_spent() -> None:
    assert a_meter().line(80) == "openai:large · context 10 % of 200k · $0.0150"


def test_where_the_window_is_unknown_it_counts_tokens() -> None:
    meter = a_meter()
    meter.update(an_event(StepStarted(step=2, model_id=OTHER.id, message_id=MessageId(an_id(9)))))
    meter.update(an_event(StepEnded(step=2, usage=Usage(input=7))))
    meter.update(an_event(StepEnded(step=3)))

    told = "scripted:script.yaml · context 7 tokens · $0.0150 and unknown (unpriced)"
    assert meter.line(80) == told


def test_an_interrupted_request_is_counted_as_an_estimate() -> None:
    meter = a_meter()
    ended = TurnEnded(
        stop_reason=StopReason.ABORTED, microcents=4_500_000, priced=False, estimated=True
    )
    meter.update(an_event(ended))

    assert meter.line(80).endswith(" · at most $0.0450 (estimate)")


def test_a_model_that_a_program_names_itself_cannot_steer_the_terminal() -> None:
    meter = a_meter()
    named = StepStarted(
        step=2, model_id=OTHER.id, message_id=MessageId(an_id(9)), model="a:\x1b[31mb\x01c\x02"
    )
    meter.update(an_event(named))

    assert meter.line(80).startswith("a:bc · ")


@each_case(
    ("columns", "line"), [(40, "context 10 % of 200k · $0.0150"), (20, "$0.0150"), (3, "$0.")]
)
def test_what_matters_least_is_left_out_first(columns: int, line: str) -> None:
    assert a_meter().line(columns) == line


async def test_a_session_that_is_picked_up_is_known(holdfast: Holdfast) -> None:
    session = await answered(holdfast)
    meter = StatusLine({}, "offline:holdfast")

    await meter.recall(holdfast, session)

    assert meter.line(80).startswith("holdfast · offline:holdfast · ask · context ")
    assert meter.line(80).endswith(" tokens · free")
