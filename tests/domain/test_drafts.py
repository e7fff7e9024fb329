"""What a runtime may emit."""

from typing import get_args

from holdfast.domain.approvals import Question
from holdfast.domain.drafts import (
    ApprovalDecided,
    CallDetails,
    CallsRequested,
    CostDraft,
    Draft,
    MessageDraft,
    Outcome,
    Summary,
    TitleChange,
    ToolsFound,
)
from holdfast.domain.events import Payload
from holdfast.domain.ids import ModelId

OWN = {
    MessageDraft,
    CostDraft,
    Question,
    ApprovalDecided,
    TitleChange,
    Summary,
    ToolsFound,
    CallDetails,
    CallsRequested,
}


def test_a_runtime_emits_what_is_written_and_any_news_but_no_outcome() -> None:
    assert set(get_args(Draft)) == OWN | set(get_args(Payload))


def test_a_draft_carries_nothing_that_the_journal_stamps() -> None:
    stamped = {"session_id", "sequence", "turn", "hash", "created_at", "at", "owner", "asked_at"}

    assert not stamped & {name for kind in (*OWN, Outcome) for name in kind.__struct_fields__}


def test_a_cost_without_usage_is_unpriced_and_belongs_to_its_turn() -> None:
    draft = CostDraft(request_id="r", model_id=ModelId("m"))

    assert (draft.usage, draft.microcents, draft.priced, draft.is_aside) == (None, 0, False, False)


def test_a_question_has_room_for_no_answer() -> None:
    assert not {"state", "scope", "answered_by", "note"} & set(Question.__struct_fields__)
