"""One session's history: as it is, as it was, from which claims, and where to go on from."""

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.ids import Owner
from holdfast.domain.queries import encode_count
from holdfast.domain.time import format_iso8601, milliseconds
from holdfast.observations.queries import EntityOrder, History, HistoryQuery
from tests.marks import demands, each_case
from tests.observations.claims import COMPLETE, MINIMAL, UPDATE, a_payload
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio


def told(clock: SettableClock) -> str:
    """Return the time as a caller tells it."""
    return format_iso8601(milliseconds(clock.now()))


async def submitted(house: Holdfast, *payloads: Any) -> None:
    """Submit what was observed, one after the other."""
    for each in payloads:
        await house.observations.submit(house.owner, each)


@demands("S3-104", "S3-105", "S3-105c", "S3-105d")
async def test_a_session_is_shown_with_its_whole_history(quiet: Holdfast) -> None:
    await submitted(quiet, COMPLETE, UPDATE)

    history = await quiet.observations.show(quiet.owner, "abc123")

    entity = history.entity
    assert (entity.entity_type, entity.schema_version, entity.key) == (
        "agent_session",
        "v1",
        "abc123",
    )
    assert [each["type"] for each in entity.snapshot["actions"]] == [
        "create_feature_unit",
        "run_tests",
        "commit",
    ]
    assert (entity.observation_count, history.observations_total, entity.hosted) == (2, 2, False)
    assert entity.last_observation_at == history.observations[0].observed_at
    assert set(entity.provenance) == set(entity.snapshot)


async def test_of_a_long_history_the_newest_claims_are_shown(quiet: Holdfast) -> None:
    await submitted(quiet, *(a_payload(duration=number) for number in range(1, 103)))

    history = await quiet.observations.show(quiet.owner, "abc123")
    walked, cursor = [], None
    while True:
        page = await quiet.observations.list_observations(
            quiet.owner, "abc123", limit=40, cursor=cursor
        )
        walked += page.items
        cursor = page.next_cursor
        if cursor is None:
            break

    assert [each.ordinal for each in history.observations] == list(range(102, 2, -1))
    assert (history.observations_total, page.total) == (102, 102)
    assert [each.ordinal for each in walked] == list(range(102, 0, -1))


@pytest.mark.parametrize("verb", ["show", "list_observations"])
async def test_history_that_nobody_observed_is_not_there(quiet: Holdfast, verb: str) -> None:
    with pytest.raises(NotFound) as caught:
        await getattr(quiet.observations, verb)(quiet.owner, "never")

    assert caught.value.code is Code.ENTITY_NOT_FOUND


async def test_history_is_shown_as_it_was_observed_and_as_it_was_known(
    quiet: Holdfast, clock: SettableClock
) -> None:
    early = told(clock)
    clock.advance(minutes=1)
    await submitted(quiet, a_payload(duration=5))
    first = told(clock)
    clock.advance(minutes=1)
    await submitted(quiet, a_payload(duration=6))

    async def seen(**when: str) -> History:
        return await quiet.observations.show(quiet.owner, "abc123", **when)

    then = await seen(at=first)
    assert (then.entity.snapshot["duration"], then.observations_total) == (5, 1)
    assert [each.ordinal for each in then.observations] == [1]
    assert (await seen(at_ingested=first)).entity == then.entity
    assert (await seen(at=told(clock))) == (await seen(at="2027-01-01"))
    assert (await seen(at=told(clock))).entity == (await seen()).entity
    before = await seen(at=early)
    assert (before.entity.snapshot, before.entity.observation_count) == ({}, 0)
    assert (before.entity.last_observation_at, before.observations) == (None, ())


async def test_what_was_deleted_then_shows_nothing_and_what_was_not_does(
    quiet: Holdfast, clock: SettableClock
) -> None:
    await submitted(quiet, MINIMAL)
    before = told(clock)
    clock.advance(minutes=1)
    await quiet.observations.delete(quiet.owner, "abc123")
    deleted = told(clock)
    clock.advance(minutes=1)
    await quiet.observations.restore(quiet.owner, "abc123")

    gone = await quiet.observations.show(quiet.owner, "abc123", at=deleted)
    assert (gone.entity.snapshot, gone.observations, gone.observations_total) == ({}, (), 0)
    assert (await quiet.observations.show(quiet.owner, "abc123", at=before)).entity.snapshot
    await quiet.observations.delete(quiet.owner, "abc123")
    for verb in (quiet.observations.show, quiet.observations.list_observations):
        with pytest.raises(NotFound):
            await verb(quiet.owner, "abc123")
    assert (await quiet.observations.show(quiet.owner, "abc123", at=before)).entity.snapshot


@demands("S3-108", "S3-108b", "S3-108d", "S3-108f", "S3-104b", "S3-112b")
async def test_the_state_of_a_checkpoint_is_given_back(quiet: Holdfast) -> None:
    await submitted(quiet, COMPLETE, UPDATE)

    found = await quiet.observations.checkpoint(quiet.owner, "abc123", "spec_complete")
    bare = await quiet.observations.checkpoint(quiet.owner, "abc123", "committed")

    assert found.state == {"feature_unit_id": "FU-061", "status": "planning"}
    assert (found.session_id, found.name, found.has_state) == ("abc123", "spec_complete", True)
    assert (bare.state, bare.has_state) == (None, False)


@demands("S3-108c")
async def test_a_checkpoint_that_is_not_there_is_named(quiet: Holdfast) -> None:
    await submitted(quiet, COMPLETE)

    with pytest.raises(NotFound) as caught:
        await quiet.observations.checkpoint(quiet.owner, "abc123", "deployed")

    assert caught.value.code is Code.CHECKPOINT_NOT_FOUND
    assert caught.value.message == "Checkpoint deployed not found in session abc123"
    assert caught.value.details == {"available": ["spec_complete", "tests_passing"]}


async def test_a_checkpoint_is_chosen_by_its_time_and_as_of_a_moment(
    quiet: Holdfast, clock: SettableClock
) -> None:
    early, late = "2025-12-31T11:05:00Z", "2025-12-31T11:10:00Z"
    marks = [{"name": "saved", "timestamp": each, "state": {"at": each}} for each in (early, late)]
    await submitted(quiet, a_payload(checkpoints=marks[:1]))
    before = told(clock)
    clock.advance(minutes=1)
    await submitted(quiet, a_payload(checkpoints=marks))

    async def state(**which: str) -> Any:
        found = await quiet.observations.checkpoint(quiet.owner, "abc123", "saved", **which)
        return found.state

    assert await state() == {"at": late}
    assert await state(timestamp="2025-12-31T11:05:00.000+00:00") == {"at": early}
    assert await state(at=before) == {"at": early}
    with pytest.raises(NotFound):
        await state(timestamp="2026-01-01")
    with pytest.raises(Invalid):
        await state(timestamp="then")


async def test_a_cursor_is_good_for_its_owner_and_its_session(quiet: Holdfast) -> None:
    other = Owner("ada")
    for owner, session in ((quiet.owner, "abc123"), (quiet.owner, "another"), (other, "abc123")):
        for duration in (1, 2):
            claim = a_payload(session_id=session, duration=duration)
            await quiet.observations.submit(owner, claim)
    page = await quiet.observations.list_observations(quiet.owner, "abc123", limit=1)

    for owner, session in ((quiet.owner, "another"), (other, "abc123")):
        with pytest.raises(Invalid) as caught:
            await quiet.observations.list_observations(owner, session, cursor=page.next_cursor)
        assert caught.value.code is Code.INVALID_CURSOR


@each_case("place", ["x", "", "93ff00", "92cf400000000000000001"])
async def test_a_forged_cursor_is_refused(quiet: Holdfast, place: str) -> None:
    await submitted(quiet, MINIMAL)
    cursor = encode_count((0, place), ("observations", quiet.owner, "abc123"))

    with pytest.raises(Invalid) as caught:
        await quiet.observations.list_observations(quiet.owner, "abc123", cursor=cursor)

    assert caught.value.code is Code.INVALID_CURSOR


async def test_a_session_of_ours_that_nobody_observed_has_no_claims(quiet: Holdfast) -> None:
    session = await quiet.open()

    page = await quiet.observations.list_observations(quiet.owner, session.id)

    assert (page.items, page.total, page.next_cursor) == ((), 0, None)


async def test_whole_numbers_of_any_size_are_kept(quiet: Holdfast) -> None:
    many, more = 10**30, 10**400
    await submitted(quiet, a_payload(duration=many), a_payload(session_id="longer", duration=more))

    by_length = HistoryQuery(order_by=EntityOrder.DURATION, limit=1)
    longest = await quiet.observations.query(quiet.owner, by_length)
    next_one = await quiet.observations.query(quiet.owner, by_length, cursor=longest.next_cursor)
    lengths = [each.items[0].snapshot["duration"] for each in (longest, next_one)]
    assert lengths == [more, many]
    assert (await quiet.observations.rebuild()).differences == ()
