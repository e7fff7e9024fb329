"""What is computed from claims is disposable: computed again it is the same, to the byte."""

import hashlib
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.observations.model import EntityType, Subject
from holdfast.observations.queries import Correction, RebuildReport
from tests.marks import each_case
from tests.observations.claims import COMPLETE, FEATURE_UNIT, UPDATE, a_payload, imported
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

DERIVED = ("snapshots", "timeline", "mentioned_ids")


async def query(house: Holdfast, sql: str) -> Any:
    """Run a statement on the writer's own connection."""

    async def run(tx: Any) -> Any:
        return await tx.observations._db.fetch(sql)

    return await house.store.write(run)


async def kept(house: Holdfast) -> dict[str, Any]:
    """Return every row that is computed."""
    return {
        name: sorted(await query(house, f"SELECT * FROM {name}"), key=repr)
        for name in ("entities", *DERIVED)
    }


async def filled(house: Holdfast, clock: SettableClock) -> None:
    """Submit claims of several sorts."""
    session = await house.open()
    for payload in (
        COMPLETE,
        UPDATE,
        a_payload(session_id="another", outcomes=COMPLETE["outcomes"]),
        a_payload(session_id=session.id, outcomes=COMPLETE["outcomes"]),
    ):
        clock.advance(seconds=1)
        await house.observations.submit(house.owner, payload)
    await house.observations.submit_entity(house.owner, "feature_unit", FEATURE_UNIT)
    await house.observations.submit(house.owner, a_payload(session_id="deleted"))
    await house.observations.delete(house.owner, "deleted")


def corrected(field: str, value: Any) -> Correction:
    """Return a correction of the session that the payloads are about."""
    return Correction(session_id="abc123", field=field, value=value)


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_what_each_claim_changes_comes_to_what_all_of_them_do(
    quiet: Holdfast, clock: SettableClock, is_forgotten: bool
) -> None:
    told, owner = quiet.observations, quiet.owner
    name = Subject(owner, EntityType.AGENT_SESSION, "abc123").entity_id
    reached = {"name": "pushed", "timestamp": "2025-12-31T11:50:00Z"}
    named = [{"type": "release", "id": "v0.2.3"}]
    for claim in (
        lambda: told.submit(owner, COMPLETE),
        lambda: told.submit(owner, a_payload(duration=7)),
        lambda: told.submit(owner, a_payload(checkpoints=[reached])),
        lambda: told.submit(owner, a_payload(outcomes=named)),
        lambda: told.correct(owner, corrected("checkpoints", [reached])),
        lambda: told.correct(owner, corrected("outcomes", [])),
        lambda: told.submit(owner, a_payload(started_at="2025-12-31T10:00:00Z")),
        lambda: told.delete(owner, "abc123"),
        lambda: told.submit(owner, a_payload(ended_at="2025-12-31T13:00:00Z")),
        lambda: told.restore(owner, "abc123"),
    ):
        clock.advance(seconds=1)
        if is_forgotten:
            told._resolver.folds.take(name)
        await claim()
        assert await told.rebuild() == RebuildReport(entities=1)


async def test_the_rows_are_those_that_earlier_versions_wrote(
    quiet: Holdfast, clock: SettableClock
) -> None:
    told, owner = quiet.observations, quiet.owner
    unit, renamed = dict(FEATURE_UNIT), {**FEATURE_UNIT, "status": "deployed", "risk_level": "low"}
    copied = imported(a_payload(duration=2.5), "once", clock.now(), source="file")
    for claim in (
        lambda: told.submit(owner, COMPLETE),
        lambda: told.submit(owner, UPDATE),
        lambda: told.submit(owner, a_payload(duration=None, ended_at=None)),
        lambda: told.import_(owner, copied),
        lambda: told.correct(owner, corrected("actions", COMPLETE["actions"][1:])),
        lambda: told.submit_entity(owner, "feature_unit", unit),
        lambda: told.submit_entity(owner, "feature_unit", renamed),
        lambda: told.submit(owner, a_payload(session_id="deleted")),
        lambda: told.delete(owner, "deleted"),
    ):
        clock.advance(seconds=1)
        await claim()

    rows = await kept(quiet)
    rows["observations"] = await query(quiet, "SELECT * FROM observations ORDER BY 1, 2")
    digest = hashlib.sha256(repr(rows).encode()).hexdigest()
    assert digest == "901dadff559bdc8bc143cad5d7a5008580672b17010e0d30a733975199de6edb"


async def test_what_was_wiped_is_computed_again(quiet: Holdfast, clock: SettableClock) -> None:
    await filled(quiet, clock)
    before = await kept(quiet)
    for name in DERIVED:
        await query(quiet, f"DELETE FROM {name}")

    rebuilt = await quiet.observations.rebuild()

    assert (rebuilt.entities, len(rebuilt.differences)) == (5, 5)
    assert await kept(quiet) == before
    assert (await quiet.observations.rebuild()).differences == ()


@each_case(
    "statement",
    [
        "UPDATE snapshots SET body = x'7b7d'",
        "UPDATE timeline SET body = x'7b7d', checksum = 1",
        "DELETE FROM timeline WHERE rank = 1",
        "DELETE FROM mentioned_ids",
        "UPDATE timeline SET ms = ms + 1 WHERE rank = 0",
        "UPDATE entities SET session_key = NULL",
        "UPDATE timeline SET type = 4",
        "UPDATE entities SET started_ms = started_ms + 1",
        "UPDATE entities SET observations = 7, is_deleted = 1 - is_deleted",
        "UPDATE entities SET checksum = checksum + 1 WHERE name = 'another'",
    ],
)
async def test_what_differs_is_told_and_put_right(
    quiet: Holdfast, clock: SettableClock, statement: str
) -> None:
    # The cases share a store, which each leaves as it was.
    if not await query(quiet, "SELECT 1 FROM observations"):
        await filled(quiet, clock)
    before = await kept(quiet)
    await query(quiet, statement)

    rebuilt = await quiet.observations.rebuild()

    assert rebuilt.differences
    assert await kept(quiet) == before
    assert (await quiet.observations.rebuild()).differences == ()


async def test_a_damaged_claim_is_told_and_the_others_are_computed(
    quiet: Holdfast, clock: SettableClock
) -> None:
    await filled(quiet, clock)
    await query(quiet, "DROP TRIGGER observations_are_never_edited")
    await query(
        quiet,
        "UPDATE observations SET source = 'x' WHERE entity_key ="
        " (SELECT key FROM entities WHERE name = 'another')",
    )

    rebuilt = await quiet.observations.rebuild()

    (told,) = rebuilt.differences
    assert (rebuilt.entities, "observation 1 of ent_" in told) == (5, True)


async def test_an_entity_that_is_not_what_its_id_says_is_told_and_the_others_are_computed(
    quiet: Holdfast, clock: SettableClock
) -> None:
    await filled(quiet, clock)
    before = await kept(quiet)
    await query(quiet, "UPDATE entities SET name = 'stranger' WHERE name = 'another'")
    await query(quiet, "UPDATE entities SET entity_type = 'none' WHERE name = 'deleted'")
    await query(quiet, "UPDATE entities SET duration = 1 WHERE name = 'abc123'")

    rebuilt = await quiet.observations.rebuild()

    assert rebuilt.entities == 5
    assert [told.split()[0] for told in rebuilt.differences] == ["The", "entity", "entity"]
    await query(quiet, "UPDATE entities SET name = 'another' WHERE name = 'stranger'")
    await query(quiet, "UPDATE entities SET entity_type = 'agent_session' WHERE name = 'deleted'")
    assert await kept(quiet) == before


async def test_an_entity_whose_claims_are_gone_is_told_and_the_others_are_computed(
    quiet: Holdfast, clock: SettableClock
) -> None:
    await filled(quiet, clock)
    await query(quiet, "DROP TRIGGER observations_are_never_removed")
    await query(
        quiet,
        "DELETE FROM observations WHERE entity_key ="
        " (SELECT key FROM entities WHERE name = 'another')",
    )

    rebuilt = await quiet.observations.rebuild()

    (told,) = rebuilt.differences
    assert (rebuilt.entities, "the observations of ent_" in told) == (5, True)


async def test_a_snapshot_that_is_too_large_is_computed_when_it_is_asked_for(
    quiet: Holdfast,
) -> None:
    details = {"text": "x" * 60_000}
    for number in range(6):
        moment = f"2026-01-01T00:00:0{number}Z"
        action = {"type": "a", "result": "success", "timestamp": moment, "details": details}
        await quiet.observations.submit(quiet.owner, a_payload(actions=[action]))
    assert await query(quiet, "SELECT count(*) FROM snapshots") == [(0,)]

    shown = [await quiet.observations.show(quiet.owner, "abc123") for _ in range(2)]
    assert len(shown[0].entity.snapshot["actions"]) == 6
    assert shown[0].entity == shown[1].entity
    assert (await quiet.observations.rebuild()).differences == ()
    fewer = a_payload(session_id="abc123", duration=5)
    await quiet.observations.submit(quiet.owner, fewer)
    assert (await quiet.observations.show(quiet.owner, "abc123")).entity.snapshot["duration"] == 5
