"""Checkpoints: finding the one to go on from."""

import pytest

from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.observations.model import entity_not_found
from holdfast.observations.queries import CheckpointState, checkpoint_of
from tests.observations.claims import COMPLETE, UPDATE, a_claim, a_deletion, resolved

EARLY, LATE = "2025-12-31T11:15:00Z", "2025-12-31T11:45:00Z"


def test_a_checkpoint_gives_back_its_state() -> None:
    claim = a_claim(**COMPLETE)

    assert checkpoint_of(resolved(claim), "spec_complete") == CheckpointState(
        session_id="abc123",
        name="spec_complete",
        timestamp=EARLY,
        state={"feature_unit_id": "FU-061", "status": "planning"},
        has_state=True,
        provenance=(claim.id,),
    )


def test_a_checkpoint_without_state_says_so() -> None:
    found = checkpoint_of(resolved(a_claim(**UPDATE)), "committed")

    assert (found.state, found.has_state) == (None, False)


def test_of_several_it_is_the_latest_unless_a_time_selects() -> None:
    same = [{"name": "a", "timestamp": LATE}, {"name": "a", "timestamp": EARLY, "state": {}}]
    entity = resolved(a_claim(checkpoints=[*same, {"name": "b", "timestamp": "2026-01-01"}]))

    assert checkpoint_of(entity, "a").timestamp == LATE
    assert checkpoint_of(entity, "a", timestamp="2025-12-31T12:15:00+01:00").has_state
    with pytest.raises(NotFound):
        checkpoint_of(entity, "a", timestamp="2026-01-01")


def test_an_unknown_checkpoint_is_named_with_those_there_are() -> None:
    entity = resolved(a_claim(**UPDATE))

    with pytest.raises(NotFound) as missing:
        checkpoint_of(entity, "deployed")

    assert missing.value.body() == {
        "error": "checkpoint_not_found",
        "message": "Checkpoint deployed not found in session abc123",
        "details": {"available": ["spec_complete", "tests_passing", "committed"]},
    }


def test_a_history_that_shows_nothing_has_no_checkpoints() -> None:
    with pytest.raises(NotFound) as missing:
        checkpoint_of(resolved(a_claim(**COMPLETE), a_deletion(2)), "spec_complete")

    assert missing.value.details == {"available": []}


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(Invalid):
        checkpoint_of(resolved(a_claim(**COMPLETE)), "spec_complete", timestamp="then")


def test_missing_foreign_and_deleted_entities_have_one_answer() -> None:
    assert entity_not_found().code is Code.ENTITY_NOT_FOUND
