"""What a runtime may yield."""

from typing import get_args

from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Outcome
from holdfast.domain.events import Payload
from holdfast.domain.ids import ModelId


def test_a_runtime_yields_rows_costs_an_outcome_and_any_news() -> None:
    assert set(get_args(Draft)) == {MessageDraft, CostDraft, Outcome, *get_args(Payload)}


def test_a_draft_carries_nothing_that_the_journal_stamps() -> None:
    stamped = {"session_id", "sequence", "turn", "hash", "created_at", "at", "owner"}

    assert not stamped & set(
        MessageDraft.__struct_fields__ + CostDraft.__struct_fields__ + Outcome.__struct_fields__
    )


def test_a_cost_without_usage_is_unpriced() -> None:
    draft = CostDraft(request_id="r", model_id=ModelId("m"))

    assert (draft.usage, draft.microcents, draft.priced) == (None, 0, False)
