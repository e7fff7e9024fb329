"""Resolution: what is known of a session when all that was claimed of it is merged."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from holdfast.observations.as_of import AsOf
from holdfast.observations.merge import Fold
from holdfast.observations.model import Observation, ObservationKind
from tests.marks import demands, each_case
from tests.observations.claims import (
    AT,
    COMPLETE,
    MINIMAL,
    SUBJECT,
    UPDATE,
    a_claim,
    a_correction,
    a_deletion,
    resolved,
)

START = "2025-12-31T11:00:00Z"


def at(minute: int) -> str:
    """Return a time of the session."""
    return f"2025-12-31T11:{minute:02}:00Z"


def done(name: str, **more: Any) -> dict[str, Any]:
    """Return an action that succeeded."""
    return {"type": name, "result": "success", **more}


def actions_of(*lists: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what lists of actions, submitted one after the other, come to."""
    claims = [a_claim(number, actions=each) for number, each in enumerate(lists, 1)]
    found: list[dict[str, Any]] = resolved(*claims).snapshot["actions"]
    return found


@demands("S3-060")
def test_one_observation_is_its_own_snapshot() -> None:
    claim = a_claim(**COMPLETE)

    entity = resolved(claim)

    assert entity.snapshot == COMPLETE
    assert list(entity.snapshot) == [
        "session_id",
        "actions",
        "checkpoints",
        "outcomes",
        "duration",
        "started_at",
        "ended_at",
    ]
    assert (entity.entity_id, entity.entity_type, entity.schema_version) == (
        "ent_31ed4722e1f7ffa6ea9a9ed8",
        "agent_session",
        "v1",
    )
    assert (entity.observation_count, entity.last_observation_at) == (1, claim.observed_at)
    assert (entity.hosted, entity.deleted, entity.warnings) == (False, False, ())


@demands("S3-072")
def test_lists_that_nobody_claimed_are_empty() -> None:
    entity = resolved(a_claim())

    assert entity.snapshot == {**MINIMAL, "checkpoints": [], "outcomes": []}
    assert entity.provenance["checkpoints"] == ()


@demands("S3-074", "S3-066", "S3-066b")
def test_the_seeds_update_adds_a_checkpoint_and_loses_nothing() -> None:
    entity = resolved(a_claim(1, **COMPLETE), a_claim(2, **UPDATE))

    assert entity.snapshot["actions"] == COMPLETE["actions"]
    assert entity.snapshot["checkpoints"] == [
        *COMPLETE["checkpoints"],
        {"name": "committed", "timestamp": at(45)},
    ]
    assert entity.snapshot["outcomes"] == COMPLETE["outcomes"]
    assert (entity.snapshot["duration"], entity.snapshot["ended_at"]) == (
        3600,
        "2025-12-31T12:00:00Z",
    )
    assert entity.observation_count == 2
    assert entity.entity_id == resolved(a_claim()).entity_id


def test_null_clears_a_single_value_and_what_follows_sets_it_again() -> None:
    cleared = [a_claim(1, duration=5), a_claim(2, duration=None)]

    assert "duration" not in resolved(*cleared).snapshot
    assert "duration" not in resolved(*cleared).provenance
    assert resolved(*cleared, a_claim(3, duration=1)).snapshot["duration"] == 1


def test_null_for_a_list_is_as_good_as_nothing() -> None:
    claims = [a_claim(1, **COMPLETE), a_claim(2, checkpoints=None, outcomes=None)]

    assert resolved(*claims).snapshot == COMPLETE
    assert resolved(claims[1]).snapshot["outcomes"] == []
    assert resolved(claims[1]).provenance["outcomes"] == ()


def test_an_import_fills_gaps_and_overrides_nothing() -> None:
    submitted = a_claim(
        1,
        duration=5,
        actions=[done("a")],
        checkpoints=[{"name": "c", "timestamp": at(1), "state": {"by": "submit"}}],
    )
    imported = a_claim(
        2,
        kind=ObservationKind.IMPORT,
        duration=7,
        ended_at="2025-12-31T12:00:00Z",
        started_at="2025-12-31T10:00:00Z",
        actions=[done("a", details={"by": "import"}), done("b")],
        checkpoints=[
            {"name": "c", "timestamp": at(1), "state": {"by": "import"}, "note": "kept"},
            {"name": "d", "timestamp": at(2)},
        ],
        outcomes=[{"type": "x"}],
    )

    snapshot = resolved(submitted, imported).snapshot

    assert snapshot == {
        "session_id": "abc123",
        "actions": [done("a", details={"by": "import"}), done("b")],
        "checkpoints": [
            {"name": "c", "timestamp": at(1), "state": {"by": "submit"}, "note": "kept"},
            {"name": "d", "timestamp": at(2)},
        ],
        "outcomes": [{"type": "x"}],
        "duration": 5,
        "started_at": START,
        "ended_at": "2025-12-31T12:00:00Z",
    }


@each_case(
    ("times", "shown"),
    [
        ([at(5), at(3), at(4)], at(3)),
        (["2025-12-31T12:03:00+01:00", at(3)], "2025-12-31T12:03:00+01:00"),
        ([at(3), "2025-12-31T12:03:00+01:00"], at(3)),
    ],
)
def test_a_session_started_at_the_earliest_that_was_claimed(times: list[str], shown: str) -> None:
    claims = [a_claim(number, started_at=each) for number, each in enumerate(times, 1)]

    assert resolved(*claims).snapshot["started_at"] == shown


def test_a_corrected_start_is_the_newest_correction() -> None:
    claims = [
        a_claim(1, started_at=at(5)),
        a_correction(2, "started_at", at(7)),
        a_correction(3, "started_at", at(9)),
        a_claim(4, started_at=at(1)),
    ]

    entity = resolved(*claims)

    assert entity.snapshot["started_at"] == at(9)
    assert entity.provenance["started_at"] == (claims[2].id,)


def test_a_start_that_only_an_import_knows_gives_way() -> None:
    imported = a_claim(1, kind=ObservationKind.IMPORT, started_at=at(1))

    assert resolved(imported, a_claim(2, started_at=at(5))).snapshot["started_at"] == at(5)
    assert resolved(a_claim(1, started_at=at(5)), a_claim(2, kind=ObservationKind.IMPORT)).snapshot[
        "started_at"
    ] == at(5)


def test_an_end_before_the_start_is_kept_with_a_warning() -> None:
    entity = resolved(a_claim(1, ended_at=at(30)), a_correction(2, "started_at", at(45)))

    assert (entity.snapshot["started_at"], entity.snapshot["ended_at"]) == (at(45), at(30))
    assert [each.code for each in entity.warnings] == ["ENDED_BEFORE_STARTED"]


@each_case(
    ("first", "second", "merged"),
    [
        pytest.param([done("a"), done("b")], [done("a")], [done("a"), done("b")], id="shorter"),
        pytest.param([done("a")], [done("a")], [done("a")], id="equal"),
        pytest.param([done("a")], [done("a"), done("b")], [done("a"), done("b")], id="longer"),
        pytest.param([done("a")], [done("b")], [done("a"), done("b")], id="disjoint"),
        pytest.param(
            [done("a"), done("b")],
            [done("b"), done("c")],
            [done("a"), done("b"), done("c")],
            id="overlapping",
        ),
        pytest.param(
            [done("a", timestamp=at(1))],
            [done("a", timestamp=at(2))],
            [done("a", timestamp=at(1)), done("a", timestamp=at(2))],
            id="told apart by time",
        ),
        pytest.param(
            [done("a", timestamp=at(1))],
            [done("a", details={"x": 1})],
            [done("a", timestamp=at(1), details={"x": 1})],
            id="each knows something else",
        ),
        pytest.param(
            [done("a", details=None)], [done("a", details={})], [done("a", details={})], id="null"
        ),
        pytest.param(
            [done("a", n=1)], [done("a", n=True)], [done("a", n=1), done("a", n=True)], id="types"
        ),
        pytest.param(
            [done("a", n=1)],
            [{"type": "a", "result": "failure", "n": 1}],
            [done("a", n=1), {"type": "a", "result": "failure", "n": 1}],
            id="another result",
        ),
        pytest.param(
            [done("x"), done("a", n=1), done("a", n=2), done("a")],
            [done("a", n=2), done("a"), done("a"), done("a")],
            [done("x"), done("a", n=1), done("a", n=2), done("a"), done("a")],
            id="the first that none is yet",
        ),
        pytest.param(
            [
                done("x"),
                done("a", p=1, q=2),
                done("a", p=1, q=9),
                done("a", p=1),
                done("a", p=2, q=9),
                done("a", p=2, q=9),
            ],
            [done("a", p=1, q=9), done("a", p=1, q=9)],
            [
                done("x"),
                done("a", p=1, q=2),
                done("a", p=1, q=9),
                done("a", p=1, q=9),
                done("a", p=2, q=9),
                done("a", p=2, q=9),
            ],
            id="between those it cannot be",
        ),
    ],
)
def test_actions_are_matched_and_never_dropped(
    first: list[dict[str, Any]], second: list[dict[str, Any]], merged: list[dict[str, Any]]
) -> None:
    assert actions_of(first, second) == merged


def test_checkpoints_are_known_by_name_and_instant() -> None:
    entity = resolved(
        a_claim(1, checkpoints=[{"name": "a", "timestamp": at(20), "state": {"n": 1}}]),
        a_claim(
            2,
            checkpoints=[
                {"name": "a", "timestamp": "2025-12-31T12:20:00.0009+01:00", "state": {"m": 2}},
                {"name": "a", "timestamp": at(10)},
                {"name": "b", "timestamp": at(20)},
            ],
        ),
    )

    assert entity.snapshot["checkpoints"] == [
        {"name": "a", "timestamp": at(10)},
        {"name": "a", "timestamp": "2025-12-31T12:20:00.0009+01:00", "state": {"m": 2}},
        {"name": "b", "timestamp": at(20)},
    ]


def test_null_takes_a_member_of_a_checkpoint_away() -> None:
    known = {"name": "a", "timestamp": at(1)}
    first = a_claim(1, checkpoints=[{**known, "state": {"n": 1}}])
    gone = a_claim(2, checkpoints=[{**known, "state": None}])
    imported = a_claim(3, kind=ObservationKind.IMPORT, checkpoints=[{**known, "state": {"n": 3}}])
    again = a_claim(4, checkpoints=[{**known, "state": {"n": 4}}])

    assert resolved(first, gone).snapshot["checkpoints"] == [known]
    assert resolved(first, gone, imported).snapshot["checkpoints"] == [known]
    assert resolved(first, gone, gone_again(gone)).snapshot["checkpoints"] == [known]
    assert resolved(gone, again).snapshot["checkpoints"] == [{**known, "state": {"n": 4}}]


def gone_again(claim: Observation) -> Observation:
    """Return the same claim as the next observation."""
    return a_claim(claim.ordinal + 1, checkpoints=claim.fields["checkpoints"])


@demands("S3-067")
def test_outcomes_are_known_by_type_and_id_or_as_a_whole() -> None:
    entity = resolved(
        a_claim(
            1,
            outcomes=[
                {"type": "made", "id": "FU-1", "details": {"a": 1}},
                {"type": "made", "details": {"b": 1}},
            ],
        ),
        a_claim(
            2,
            outcomes=[
                {"type": "made", "details": {"b": 1}, "id": None},
                {"type": "made", "details": {"b": 2}},
                {"type": "made", "id": "FU-1", "details": {"c": 1}, "url": "x"},
                {"type": "seen", "id": "FU-1"},
            ],
        ),
    )

    assert entity.snapshot["outcomes"] == [
        {"type": "made", "id": "FU-1", "details": {"c": 1}, "url": "x"},
        {"type": "made", "details": {"b": 1}},
        {"type": "made", "details": {"b": 2}},
        {"type": "seen", "id": "FU-1"},
    ]


def test_unknown_fields_stay_out_of_the_snapshot() -> None:
    claim = a_claim(1, mood="good", actions=[done("a", mood="good")])

    assert claim.fields["mood"] == "good"
    assert resolved(claim).snapshot == {
        **MINIMAL,
        "actions": [done("a", mood="good")],
        "checkpoints": [],
        "outcomes": [],
    }


@each_case(
    ("field", "wrong", "right"),
    [
        ("duration", 5, 7),
        ("ended_at", "2025-12-31T12:00:00Z", "2025-12-31T13:00:00Z"),
        ("started_at", START, at(5)),
        ("actions", [done("a"), done("b")], [done("c"), done("a")]),
        ("checkpoints", [{"name": "a", "timestamp": at(1)}], []),
        ("outcomes", [{"type": "x", "id": "1"}], [{"type": "x", "id": "2"}]),
    ],
)
def test_a_correction_survives_ten_later_submits(field: str, wrong: Any, right: Any) -> None:
    claims = [a_claim(1, **{field: wrong}), a_correction(2, field, right)]
    claims += [a_claim(number, **{field: wrong}) for number in range(3, 13)]

    assert resolved(*claims).snapshot[field] == right


def test_what_is_new_is_added_to_a_corrected_list() -> None:
    corrected = [
        a_claim(
            1,
            actions=[done("a"), done("b", n=1)],
            checkpoints=[{"name": "a", "timestamp": at(1)}, {"name": "b", "timestamp": at(2)}],
        ),
        a_correction(2, "actions", [done("a")]),
        a_correction(3, "checkpoints", [{"name": "b", "timestamp": at(2), "state": None}]),
        a_claim(
            4,
            actions=[done("b"), done("a", note="x"), done("c")],
            checkpoints=[
                {"name": "a", "timestamp": at(1)},
                {"name": "b", "timestamp": at(2), "state": {"n": 1}, "note": "y"},
                {"name": "c", "timestamp": at(3)},
            ],
        ),
    ]

    snapshot = resolved(*corrected).snapshot

    assert snapshot["actions"] == [done("a", note="x"), done("c")]
    assert snapshot["checkpoints"] == [
        {"name": "b", "timestamp": at(2), "note": "y"},
        {"name": "c", "timestamp": at(3)},
    ]


def test_a_second_correction_brings_back_what_the_first_removed() -> None:
    claims = [
        a_claim(1, actions=[done("a"), done("b")], outcomes=[{"type": "x"}]),
        a_correction(2, "actions", [done("a")]),
        a_correction(3, "outcomes", []),
        a_correction(4, "actions", [done("b")]),
        a_correction(5, "outcomes", [{"type": "x"}]),
        a_claim(6, actions=[done("a"), done("b", n=1)], outcomes=[{"type": "x"}]),
    ]

    snapshot = resolved(*claims).snapshot

    assert (snapshot["actions"], snapshot["outcomes"]) == ([done("b", n=1)], [{"type": "x"}])


def test_delete_restore_delete_ends_deleted() -> None:
    first, gone = a_claim(1), a_deletion(2)
    back, again = a_deletion(3, is_deleted=False), a_deletion(4)

    assert [
        resolved(first, *more).deleted for more in ([], [gone], [gone, back], [gone, back, again])
    ] == [False, True, False, True]
    assert resolved(first, gone, back).snapshot == resolved(first).snapshot
    assert resolved(first, gone, back).observation_count == 3


def test_nothing_but_a_restoration_revives_what_is_deleted() -> None:
    entity = resolved(a_claim(1), a_deletion(2), a_correction(3, "duration", 5), a_claim(4))

    assert (entity.deleted, entity.snapshot, entity.provenance) == (True, {}, {})
    assert (entity.observation_count, entity.last_observation_at) == (0, None)


def test_a_history_of_nothing_but_its_end_and_return_began_when_it_was_first_spoken_of() -> None:
    entity = resolved(a_deletion(1), a_deletion(2, is_deleted=False))

    assert entity.snapshot == {
        "session_id": "abc123",
        "actions": [],
        "checkpoints": [],
        "outcomes": [],
        "started_at": "2026-01-02T03:05:05.678Z",
    }
    assert entity.provenance == {
        **dict.fromkeys(entity.snapshot, ()),
        "session_id": (a_deletion(1).id,),
        "started_at": (a_deletion(1).id,),
    }


def test_provenance_names_for_every_field_whose_claims_it_is_made_of() -> None:
    first = a_claim(1, **{**COMPLETE, "ended_at": None, "duration": 5})
    second, third = a_claim(2, **UPDATE, outcomes=[]), a_claim(3, duration=7)

    entity = resolved(third, first, second)

    assert entity.provenance == {
        "session_id": (first.id,),
        "actions": (first.id,),
        "checkpoints": (first.id, second.id),
        "outcomes": (first.id,),
        "duration": (third.id,),
        "started_at": (first.id,),
    }
    assert entity.provenance_items == {
        "actions": ((first.id,), (first.id,), (first.id,)),
        "checkpoints": ((first.id,), (first.id,), (second.id,)),
        "outcomes": ((first.id,),),
    }
    assert set(entity.provenance) == set(entity.snapshot)


def test_an_element_is_of_all_whose_members_it_shows() -> None:
    known = {"name": "a", "timestamp": at(1)}
    claims = [
        a_claim(1, checkpoints=[{**known, "state": {"n": 1}}], actions=[done("a")]),
        a_claim(2, checkpoints=[{**known, "state": {"n": 2}}], actions=[done("a", n=2)]),
        a_claim(3, checkpoints=[{**known, "state": {"n": 3}}], actions=[done("a", m=3)]),
    ]

    entity = resolved(*claims)

    assert entity.provenance_items["checkpoints"] == ((claims[0].id, claims[2].id),)
    assert entity.provenance_items["actions"] == (tuple(each.id for each in claims),)
    assert entity.provenance["checkpoints"] == (claims[0].id, claims[2].id)


def test_more_weight_for_the_same_value_does_not_change_whose_it_is() -> None:
    known = {"name": "a", "timestamp": at(1), "state": {"n": 1}}
    claims = [
        a_claim(1, kind=ObservationKind.IMPORT, checkpoints=[known]),
        a_claim(2, checkpoints=[known]),
        a_claim(3, kind=ObservationKind.IMPORT, checkpoints=[{**known, "state": {"n": 3}}]),
    ]

    entity = resolved(*claims)

    assert entity.snapshot["checkpoints"] == [known]
    assert entity.provenance_items["checkpoints"] == ((claims[0].id,),)


def test_an_empty_list_is_theirs_who_said_so() -> None:
    claims = [a_claim(1), a_claim(2, outcomes=[]), a_claim(3, outcomes=[])]
    corrected = a_correction(4, "actions", [done("z")])
    emptied = a_correction(5, "checkpoints", [])

    entity = resolved(*claims, corrected, emptied)

    assert entity.provenance["outcomes"] == (claims[1].id,)
    assert entity.provenance["checkpoints"] == (emptied.id,)
    assert entity.provenance["actions"] == (corrected.id,)


@each_case(
    ("horizon", "duration", "count"),
    [
        (AsOf(), 3, 3),
        (AsOf(at=AT + timedelta(minutes=2)), 2, 2),
        (AsOf(at=AT + timedelta(minutes=2) - timedelta(milliseconds=1)), 1, 1),
        (AsOf(at_ingested=AT + timedelta(minutes=1)), 1, 1),
        (AsOf(at=AT + timedelta(minutes=1), at_ingested=AT + timedelta(minutes=2)), 1, 1),
        (AsOf(at=AT), None, 0),
        (AsOf(at_ingested=AT), None, 0),
    ],
)
def test_what_was_observed_or_known_later_is_not_seen(
    horizon: AsOf, duration: int | None, count: int
) -> None:
    claims = [a_claim(number, duration=number) for number in (1, 2, 3)]

    entity = resolved(*claims, horizon=horizon)

    assert (entity.snapshot.get("duration"), entity.observation_count) == (duration, count)
    assert (entity.snapshot == {}) == (count == 0)
    assert entity.last_observation_at == (claims[count - 1].observed_at if count else None)


def test_a_fold_takes_only_what_follows() -> None:
    fold = Fold(SUBJECT)
    fold.add(a_claim(2, minute=5))

    assert fold.follows(a_claim(3, minute=5))
    assert not fold.follows(a_claim(2, minute=5))
    assert not fold.follows(a_claim(3, minute=4))
    with pytest.raises(AssertionError):
        fold.add(a_claim(3, minute=4))


def test_what_was_shown_does_not_change_when_more_is_claimed() -> None:
    fold = Fold(SUBJECT)
    fold.add(a_claim(1, actions=[done("a")], checkpoints=[{"name": "a", "timestamp": at(1)}]))
    shown: Mapping[str, Any] = fold.entity().snapshot

    fold.add(
        a_claim(
            2,
            actions=[done("a", n=1), done("b")],
            checkpoints=[{"name": "a", "timestamp": at(1), "state": {}}],
        )
    )

    assert (shown["actions"], shown["checkpoints"]) == (
        [done("a")],
        [{"name": "a", "timestamp": at(1)}],
    )
