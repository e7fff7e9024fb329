"""Claims are written once, numbered, and on disk when they are answered; none is ever changed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.time import truncate_to_ms
from holdfast.observations.issues import SchemaWarning, WarningCode
from holdfast.observations.model import ObservationKind
from holdfast.observations.queries import Action, Correction, Removal, SubmitResult
from tests.houses import crashed
from tests.marks import demands, each_case
from tests.observations.claims import (
    COMPLETE,
    DECISION,
    FEATURE_UNIT,
    MINIMAL,
    RELEASE,
    UPDATE,
    a_payload,
    imported,
)
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

ENTITY = "ent_31ed4722e1f7ffa6ea9a9ed8"
FIRST = "obs_4f6122a30d2ef3d0db94b0a3c8b1430a"


async def submit(house: Holdfast, payload: Any = MINIMAL, **more: Any) -> SubmitResult:
    """Submit what was observed of a session."""
    return await house.observations.submit(house.owner, payload, **more)


async def count(house: Holdfast, session_id: str = "abc123") -> int:
    """Return how many claims there are about a session."""
    return (await house.observations.show(house.owner, session_id)).observations_total


@demands("S3-044", "S3-044b", "S3-154")
async def test_a_claim_is_kept_as_it_was_made(quiet: Holdfast, clock: SettableClock) -> None:
    submitted = await submit(quiet, COMPLETE, source="tests", idempotency_key="one")

    (kept,) = (await quiet.observations.list_observations(quiet.owner, "abc123")).items
    assert submitted == SubmitResult(
        entity_id=ENTITY,
        observation_id=kept.id,
        observation_count=1,
        action=Action.CREATED,
        deduplicated=False,
        warnings=submitted.warnings,
    )
    assert [each.code for each in submitted.warnings] == [WarningCode.NONSTANDARD_RESULT]
    assert (kept.fields, kept.ordinal, kept.kind) == (COMPLETE, 1, ObservationKind.SUBMIT)
    assert (kept.source, kept.idempotency_key, kept.priority) == ("tests", "one", 100)
    assert kept.observed_at == kept.created_at == truncate_to_ms(clock.now())
    assert (kept.subject.owner, kept.subject.key, kept.entity_id) == ("local", "abc123", ENTITY)


@demands("S3-041", "S3-041b", "S3-041c", "S3-041d", "S3-041e", "S3-043", "S3-043b")
async def test_an_update_is_another_claim_about_the_same_session(quiet: Holdfast) -> None:
    first = await submit(quiet, COMPLETE)
    second = await submit(quiet, UPDATE)
    foreign = await submit(quiet, a_payload(session_id="ABC123"))

    history = await quiet.observations.show(quiet.owner, "abc123")
    assert (second.action, second.observation_count) == (Action.MATCHED, 2)
    assert second.entity_id == first.entity_id == history.entity.entity_id
    assert foreign.entity_id == "ent_ce6547ae0b6362c10436e6c6"
    assert [each.id for each in history.observations] == [
        second.observation_id,
        first.observation_id,
    ]
    assert history.observations[1].fields == COMPLETE
    names = [each["name"] for each in history.entity.snapshot["checkpoints"]]
    assert names == ["spec_complete", "tests_passing", "committed"]


async def test_the_ids_are_those_of_the_contract(quiet: Holdfast) -> None:
    first = await submit(quiet)
    again = await submit(quiet, idempotency_key="another")

    assert (first.entity_id, first.observation_id) == (ENTITY, FIRST)
    assert again.observation_id == "obs_fab593d84ef432abffa847fd253b5338"


async def test_a_claim_that_was_the_last_one_is_not_written_again(quiet: Holdfast) -> None:
    first = await submit(quiet)
    repeated = await submit(quiet)

    assert (repeated.observation_id, repeated.observation_count) == (FIRST, 1)
    assert (repeated.action, repeated.deduplicated) == (Action.MATCHED, True)
    assert (first.deduplicated, await count(quiet)) == (False, 1)


async def test_back_and_forth_are_three_claims(quiet: Holdfast) -> None:
    for duration in (5, 6, 5):
        await submit(quiet, a_payload(duration=duration))

    history = await quiet.observations.show(quiet.owner, "abc123")
    assert (history.observations_total, history.entity.snapshot["duration"]) == (3, 5)


async def test_a_key_is_good_for_one_claim_for_ever(quiet: Holdfast) -> None:
    first = await submit(quiet, idempotency_key="one")
    await submit(quiet, a_payload(duration=9))
    repeated = await submit(quiet, idempotency_key="one")

    assert repeated.observation_id == first.observation_id
    assert (repeated.deduplicated, repeated.observation_count) == (True, 2)


@each_case(
    "other",
    [
        lambda house: submit(house, a_payload(duration=9), idempotency_key="one"),
        lambda house: submit(house, a_payload(session_id="another"), idempotency_key="one"),
        lambda house: house.observations.submit_entity(
            house.owner, "feature_unit", FEATURE_UNIT, idempotency_key="one"
        ),
        lambda house: house.observations.delete(house.owner, "abc123", idempotency_key="one"),
    ],
)
async def test_nothing_else_is_written_under_a_key(quiet: Holdfast, other: Any) -> None:
    await submit(quiet, idempotency_key="one")

    with pytest.raises(Conflict) as caught:
        await other(quiet)

    assert caught.value.code is Code.IDEMPOTENCY_MISMATCH
    assert await count(quiet) == 1


async def test_another_owner_has_keys_of_their_own(quiet: Holdfast) -> None:
    await submit(quiet, idempotency_key="one")
    other = await quiet.observations.submit("ada", a_payload(duration=3), idempotency_key="one")

    assert (other.deduplicated, other.entity_id == ENTITY) == (False, False)


@each_case("key", ["", "x" * 201, 5])
async def test_a_key_that_cannot_be_is_refused(quiet: Holdfast, key: Any) -> None:
    with pytest.raises(Invalid) as caught:
        await submit(quiet, idempotency_key=key)

    assert caught.value.code is Code.SCHEMA_VALIDATION_FAILED
    assert caught.value.details["field"] == "idempotency_key"


async def test_many_at_once_with_one_key_are_one_claim(quiet: Holdfast) -> None:
    answers = await asyncio.gather(*(submit(quiet, idempotency_key="one") for _ in range(50)))

    assert sorted(each.deduplicated for each in answers) == [False] + [True] * 49
    assert {each.observation_id for each in answers} == {FIRST}
    assert await count(quiet) == 1


async def test_many_at_once_are_numbered_without_a_hole(quiet: Holdfast) -> None:
    payloads = [a_payload(duration=number + 1) for number in range(20)]

    await asyncio.gather(*(submit(quiet, each) for each in payloads))

    page = await quiet.observations.list_observations(quiet.owner, "abc123")
    assert [each.ordinal for each in page.items] == list(range(20, 0, -1))
    rebuilt = await quiet.observations.rebuild()
    assert (rebuilt.entities, rebuilt.differences) == (1, ())


async def test_a_refused_payload_leaves_nothing(quiet: Holdfast) -> None:
    with pytest.raises(Invalid) as caught:
        await submit(quiet, a_payload(actions=[]))

    assert caught.value.details["field"] == "actions"
    with pytest.raises(NotFound):
        await count(quiet)


async def test_a_claim_is_on_disk_when_it_is_answered(
    home: Path, outside: Environment, quiet: Holdfast
) -> None:
    submitted = await submit(quiet, COMPLETE)
    left = crashed(home)

    async with open_holdfast(left, outside=outside, scope=RunScope.NONE) as survivor:
        history = await survivor.observations.show(survivor.owner, "abc123")

    assert history.observations[0].id == submitted.observation_id
    assert history.entity.snapshot == COMPLETE


async def test_what_is_written_later_is_later_even_when_the_clock_goes_back(
    quiet: Holdfast, clock: SettableClock
) -> None:
    await submit(quiet, a_payload(duration=5))
    clock.advance(hours=-1)
    await submit(quiet, a_payload(duration=6))

    history = await quiet.observations.show(quiet.owner, "abc123")
    newest, oldest = history.observations
    assert (newest.ordinal, newest.created_at) == (2, oldest.created_at)
    assert history.entity.snapshot["duration"] == 6


async def test_an_import_fills_gaps_and_overrides_nothing(
    quiet: Holdfast, clock: SettableClock
) -> None:
    await submit(quiet, a_payload(duration=5))
    found = a_payload(duration=9, ended_at="2025-12-31T12:00:00Z")
    claim = imported(found, "file-1", clock.now(), source="notes/a.json")
    first = await quiet.observations.import_(quiet.owner, claim)
    again = await quiet.observations.import_(quiet.owner, claim)

    history = await quiet.observations.show(quiet.owner, "abc123")
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert (history.observations[0].kind, history.observations[0].source) == (
        ObservationKind.IMPORT,
        "notes/a.json",
    )
    assert history.entity.snapshot["duration"] == 5
    assert history.entity.snapshot["ended_at"] == "2025-12-31T12:00:00Z"


async def test_an_import_of_earlier_times_stands_before_what_is_known(
    quiet: Holdfast, clock: SettableClock
) -> None:
    observed_at = clock.now()
    clock.advance(days=1)
    first = await submit(quiet, a_payload(actions=[{"type": "second", "result": "success"}]))
    earlier = a_payload(actions=[{"type": "first", "result": "success"}])
    second = await quiet.observations.import_(quiet.owner, imported(earlier, "b", observed_at))

    history = await quiet.observations.show(quiet.owner, "abc123")
    types = [each["type"] for each in history.entity.snapshot["actions"]]
    assert types == ["first", "second"]
    assert [each.id for each in history.observations] == [
        first.observation_id,
        second.observation_id,
    ]
    assert (await quiet.observations.rebuild()).differences == ()


@demands("S3-011", "S3-063", "S3-066", "S3-066b", "S3-067")
async def test_a_session_is_recorded_from_its_start_to_its_end(quiet: Holdfast) -> None:
    start = await submit(quiet, a_payload(actions=[{"type": "begin", "result": "success"}]))
    begun = (await quiet.observations.show(quiet.owner, "abc123")).entity.snapshot
    reached = {"name": "spec_complete", "timestamp": "2025-12-31T11:15:00Z", "state": {"n": 1}}
    await submit(quiet, a_payload(checkpoints=[reached]))
    outcome = {"type": "created", "id": "FU-061", "details": {"lines": 3}}
    end = {"outcomes": [outcome], "duration": 3600, "ended_at": "2025-12-31T12:00:00Z"}
    ended = await submit(quiet, a_payload(**end))

    snapshot = (await quiet.observations.show(quiet.owner, "abc123")).entity.snapshot
    events = (await quiet.observations.timeline(quiet.owner, "FU-061")).events
    assert (begun["session_id"], begun["checkpoints"], "ended_at" in begun) == ("abc123", [], False)
    assert (ended.entity_id, ended.warnings) == (start.entity_id, ())
    assert snapshot == {**begun, "actions": snapshot["actions"], "checkpoints": [reached], **end}
    assert [each["type"] for each in snapshot["actions"]] == ["begin", "create_feature_unit"]
    assert [each.description for each in events] == [
        "Session abc123 started",
        "Checkpoint: spec_complete",
        "Session abc123 ended",
    ]


@demands("S3-031", "S3-032")
async def test_contradictions_between_start_checkpoint_and_end_are_warnings(
    quiet: Holdfast,
) -> None:
    def at(name: str, time: str) -> dict[str, Any]:
        return a_payload(checkpoints=[{"name": name, "timestamp": f"2025-12-31T{time}Z"}])

    start = await submit(quiet, a_payload())
    inside = await submit(quiet, at("inside", "11:15:00"))
    late = await submit(quiet, at("late", "12:30:00"))
    end = await submit(quiet, a_payload(ended_at="2025-12-31T12:00:00Z"))
    length = await submit(quiet, a_payload(duration=60, outcomes=[{"type": "done"}]))
    entity = (await quiet.observations.show(quiet.owner, "abc123")).entity

    assert (start.warnings, inside.warnings, late.warnings) == ((), (), ())
    out_of_range = SchemaWarning(
        code=WarningCode.CHECKPOINT_OUT_OF_RANGE,
        field="checkpoints[1].timestamp",
        message="The checkpoint was not reached between started_at and ended_at",
        details={"name": "late", "timestamp": "2025-12-31T12:30:00Z"},
    )
    mismatch = SchemaWarning(
        code=WarningCode.DURATION_MISMATCH,
        field="duration",
        message="duration is not the time between started_at and ended_at",
        details={"duration": 60, "expected": 3600.0},
    )
    assert end.warnings == (out_of_range,)
    assert length.warnings == (out_of_range, mismatch)
    assert entity.warnings == (out_of_range, mismatch)
    assert (entity.snapshot["duration"], entity.snapshot["outcomes"]) == (60, [{"type": "done"}])


async def test_a_correction_stays_whoever_claims_what_later(quiet: Holdfast) -> None:
    await submit(quiet, COMPLETE)
    wrong = Correction(session_id="abc123", field="duration", value=10, reason="measured")
    corrected = await quiet.observations.correct(quiet.owner, wrong)
    for minutes in range(10):
        await submit(quiet, a_payload(duration=100 + minutes))

    assert (corrected.action, corrected.observation_count) == (Action.MATCHED, 2)
    assert [each.code for each in corrected.warnings] == [WarningCode.DURATION_MISMATCH]
    history = await quiet.observations.show(quiet.owner, "abc123")
    assert history.entity.snapshot["duration"] == 10
    assert history.entity.provenance["duration"] == (corrected.observation_id,)


@each_case(
    "verb",
    [
        lambda house: house.observations.correct(
            house.owner, Correction(session_id="never", field="duration", value=1)
        ),
        lambda house: house.observations.delete(house.owner, "never"),
        lambda house: house.observations.restore(house.owner, "never"),
    ],
)
async def test_only_what_is_known_is_corrected_or_deleted(quiet: Holdfast, verb: Any) -> None:
    with pytest.raises(NotFound) as caught:
        await verb(quiet)

    assert caught.value.code is Code.ENTITY_NOT_FOUND


async def test_deleted_history_is_gone_until_it_is_restored(quiet: Holdfast) -> None:
    await submit(quiet, COMPLETE)
    removal = await quiet.observations.delete(quiet.owner, "abc123", reason="private")
    again = await quiet.observations.delete(quiet.owner, "abc123", reason="private")
    with pytest.raises(NotFound) as caught:
        await quiet.observations.show(quiet.owner, "abc123")
    hidden = await submit(quiet, UPDATE)
    listed = await quiet.observations.query(quiet.owner)
    told = await quiet.observations.timeline(quiet.owner, "FU-061")
    restored = await quiet.observations.restore(quiet.owner, "abc123")

    assert removal == Removal(entity_id=ENTITY, observation_id=removal.observation_id, deleted=True)
    assert (again.observation_id, again.deduplicated) == (removal.observation_id, True)
    assert caught.value.code is Code.ENTITY_NOT_FOUND
    assert WarningCode.ENTITY_DELETED in [each.code for each in hidden.warnings]
    assert hidden.observation_count == 3
    assert (listed.items, listed.total, told.events, told.total) == ((), 0, (), 0)
    assert (restored.deleted, restored.deduplicated) == (False, False)
    assert await count(quiet) == 4
    assert (await quiet.observations.timeline(quiet.owner, "FU-061")).total == 5


async def test_a_correction_does_not_bring_deleted_history_back(quiet: Holdfast) -> None:
    await submit(quiet)
    for verb in (quiet.observations.delete, quiet.observations.restore, quiet.observations.delete):
        await verb(quiet.owner, "abc123")
    wrong = Correction(session_id="abc123", field="duration", value=10)
    corrected = await quiet.observations.correct(quiet.owner, wrong)

    assert [each.code for each in corrected.warnings] == [WarningCode.ENTITY_DELETED]
    with pytest.raises(NotFound):
        await count(quiet)


async def test_what_sessions_work_on_is_observed_as_well(
    quiet: Holdfast, clock: SettableClock
) -> None:
    entities = quiet.observations.submit_entity
    unit = await entities(quiet.owner, "feature_unit", {**FEATURE_UNIT, "status": "deployed"})
    back = await entities(quiet.owner, "feature_unit", FEATURE_UNIT)
    past = {**RELEASE, "target_ship_date": "2020-01-01"}
    release = await entities(quiet.owner, "release", past)
    future = {**DECISION, "timestamp": "2126-01-01T00:00:00Z"}
    decision = await entities(quiet.owner, "agent_decision", future)

    assert (unit.entity_id, unit.action) == ("ent_0d066099de6edd63f03ad189", Action.CREATED)
    assert (back.entity_id, back.observation_count) == (unit.entity_id, 2)
    assert [each.code for each in back.warnings] == [WarningCode.STATUS_REGRESSION]
    assert release.entity_id == "ent_f614becf7d93782145f9b4c4"
    assert [each.code for each in release.warnings] == [
        WarningCode.DATE_IN_PAST,
        WarningCode.TIMESTAMP_ASSUMED_UTC,
    ]
    assert [each.code for each in decision.warnings] == [WarningCode.DATE_IN_FUTURE]
