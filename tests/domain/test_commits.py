"""What a write to a session needs to have read, and what it leaves out."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.calls import Call, CallState, Settlement, retry_id
from holdfast.domain.commits import CommitBuilder, OpenTurn
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Internal
from holdfast.domain.messages import ResultStatus, Role
from holdfast.domain.secrets import Scrubber
from holdfast.domain.time import microseconds
from tests.builders import AT, a_call, a_head, a_tool_result, an_id
from tests.marks import each_case


def a_builder(turn: OpenTurn | None) -> CommitBuilder:
    return CommitBuilder(
        a_head(), now=microseconds(AT), new_id=lambda _: an_id(9), scrubber=Scrubber(()), turn=turn
    )


@each_case("read", ["turn_calls", "waiting", "costs"])
def test_a_turn_that_was_not_read_is_not_taken_for_an_empty_one(read: str) -> None:
    with pytest.raises(Internal, match="was not read before it changed"):
        getattr(a_builder(None), read)()

    assert getattr(a_builder(OpenTurn()), read)() == []


def test_a_retry_that_was_not_run_reopens_the_call_that_it_repeats() -> None:
    original = a_call(state=CallState.SETTLED, settlement=Settlement.RETRIED)

    again, finished, notice = skip_retry({original.idempotency_key: original})

    assert again == replace(original, state=CallState.UNKNOWN, settlement=None)
    assert finished.state is CallState.FINISHED
    assert "still unknown" in notice


def test_without_the_call_that_it_repeats_a_retry_is_a_call_like_any_other() -> None:
    (finished,) = skip_retry({})

    assert finished.state is CallState.FINISHED


def skip_retry(retried: dict[str, Call]) -> list[Any]:
    """Return the calls that a skipped retry changes, then the text of its notice."""
    retry = a_call(id=retry_id("1"))
    builder = a_builder(OpenTurn(calls={retry.id: retry}, retried=retried))
    result = a_tool_result(call_id=retry.id, status=ResultStatus.SKIPPED)
    builder.add_message(MessageDraft(role=Role.TOOL_RESULT, parts=(result,)), 1)
    commit = builder.commit()
    notices = [each.message.parts[0].text for each in commit.messages[1:]]
    return [*sorted(commit.calls, key=lambda call: call.id), *notices]
