"""Sessions of ours observe themselves: their journal is a claim that nobody has to submit."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Holdfast, RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import NotFound
from holdfast.domain.events import SessionObserved, TurnEnded
from holdfast.domain.ids import CallId, SessionId
from holdfast.domain.messages import Role, ToolCall
from holdfast.domain.time import format_iso8601, milliseconds, truncate_to_ms
from holdfast.observations.model import Subject
from holdfast.observations.queries import Action, Correction, TimelineQuery
from holdfast.services.calls import SettlementAction, SettlementRequest
from tests.builders import a_tool_result, an_id
from tests.houses import crashed, news_until, payloads, played
from tests.marks import demands
from tests.observations.claims import SESSION, a_payload
from tests.stand_ins import Gate, SeededRandomness, SettableClock, StandInMachine
from tests.tooled import Recorder, a_config, asks, call, open_tooled, own_tool, says, started

pytestmark = pytest.mark.anyio

AUTO = {"approval": ApprovalMode.AUTO}


def told(clock: SettableClock) -> str:
    """Return the time as a caller tells it."""
    return format_iso8601(milliseconds(clock.now()))


@demands("S3-130")
async def test_what_a_session_did_is_shown_without_any_claim(
    home: Path, outside: Environment
) -> None:
    config = a_config(
        home,
        asks(call("post", "c1", line="x"), call("fetch", "c2", line="y")),
        asks(call("checkpoint", "c3", name="half way", state={"done": 1})),
        says("done"),
        approval=ApprovalMode.AUTO,
    )
    tools = (own_tool("post", Recorder()), own_tool("fetch", Recorder(error=OSError("no"))))
    async with open_tooled(config, *tools, outside=outside) as house:
        # Nobody has to give an agent the tool for checkpoints.
        session = await started(house, home.parent / "desk", "post", "fetch", **AUTO)
        await played(house, session.id)
        history = await house.observations.show(house.owner, session.id)
        found = await house.observations.checkpoint(house.owner, session.id, "half way")
        events = (await house.observations.timeline(house.owner, session.id)).events

    entity = history.entity
    assert [(each["type"], each["result"]) for each in entity.snapshot["actions"]] == [
        ("session_opened", "success"),
        ("post", "success"),
        ("fetch", "failure"),
        ("checkpoint", "success"),
    ]
    assert set(entity.snapshot["actions"][1]["details"]) == {"call_id", "turn"}
    assert (entity.hosted, entity.observation_count, history.observations) == (True, 0, ())
    assert entity.provenance["actions"] == (f"journal:{session.id}",)
    assert (found.state, found.provenance) == ({"done": 1}, (f"journal:{session.id}",))
    assert [each.description for each in events] == [
        f"Session {session.id} started",
        "Checkpoint: half way",
    ]


async def test_an_outcome_that_nobody_knows_reads_so_until_it_is_settled(
    home: Path, outside: Environment, clock: SettableClock, machine: StandInMachine
) -> None:
    gate = Gate()
    config = a_config(home, asks(call("post", "c1", line="x")), says("on"), **AUTO)
    acting = own_tool("post", Recorder(gate=gate))
    async with open_tooled(config, acting, outside=outside) as house:
        session = await started(house, home.parent / "desk", "post", **AUTO)
        await gate.reached()
        left = crashed(home)
    other = StandInMachine("second")
    other.dead.add(machine.holder())
    survivor = Environment(clock=clock, randomness=SeededRandomness(1), machine=other)

    async with open_tooled(
        replace(config, home=left), own_tool("post", Recorder()), outside=survivor
    ) as house:
        await news_until(house, session.id, TurnEnded)
        unknown = await house.observations.show(house.owner, session.id)
        wish = SettlementRequest(how=SettlementAction.MARK_DONE, by="ada", result={"ok": True})
        await house.calls.settle(house.owner, session.id, "c1", wish)
        settled = await house.observations.show(house.owner, session.id)

    results = [
        [each["result"] for each in one.entity.snapshot["actions"]] for one in (unknown, settled)
    ]
    assert results == [["success", "unknown"], ["success", "success"]]
    assert unknown.entity.warnings == ()


async def test_a_claim_about_a_session_of_ours_joins_it(
    quiet: Holdfast, clock: SettableClock
) -> None:
    session = await quiet.open()
    clock.advance(minutes=1)
    claim = a_payload(
        session_id=session.id,
        started_at="2020-01-01T00:00:00Z",
        outcomes=[{"type": "unit", "id": "FU-1"}],
    )
    submitted = await quiet.observations.submit(quiet.owner, claim)

    history = await quiet.observations.show(quiet.owner, session.id)
    events = (await quiet.events.list(quiet.owner, session.id)).items
    listed = await quiet.observations.query(quiet.owner)
    named = await quiet.observations.timeline(quiet.owner, "FU-1")
    assert (submitted.action, submitted.observation_count) == (Action.MATCHED, 1)
    assert submitted.entity_id == Subject(quiet.owner, SESSION, session.id).entity_id
    assert payloads(list(events))[-1] == SessionObserved(target=submitted.observation_id)
    assert [each["type"] for each in history.entity.snapshot["actions"]] == [
        "session_opened",
        "create_feature_unit",
    ]
    assert (history.entity.hosted, history.entity.observation_count) == (True, 1)
    assert history.entity.snapshot["started_at"] == "2020-01-01T00:00:00Z"
    assert (listed.items, listed.total) == ((history.entity,), 1)
    assert [each.related_to for each in named.events] == [("FU-1",)]
    assert named.total == 1


async def test_somebody_elses_claim_joins_nothing(quiet: Holdfast) -> None:
    session = await quiet.open()
    before = (await quiet.events.list(quiet.owner, session.id)).items

    submitted = await quiet.observations.submit("ada", a_payload(session_id=session.id))

    assert submitted.action is Action.CREATED
    assert (await quiet.events.list(quiet.owner, session.id)).items == before
    assert not (await quiet.observations.show("ada", session.id)).entity.hosted
    assert (await quiet.observations.show(quiet.owner, session.id)).observations_total == 0


async def test_a_claim_may_come_before_its_session(quiet: Holdfast) -> None:
    chosen = an_id(40)
    await quiet.observations.submit(quiet.owner, a_payload(session_id=chosen, duration=3))
    before = (await quiet.observations.show(quiet.owner, chosen)).entity
    await quiet.open(id=chosen)
    after = (await quiet.observations.show(quiet.owner, chosen)).entity

    assert (before.hosted, after.hosted, after.entity_id) == (False, True, before.entity_id)
    assert len(after.snapshot["actions"]) == 2
    assert (await quiet.observations.query(quiet.owner)).total == 1


async def test_deleting_one_does_not_delete_the_other(quiet: Holdfast) -> None:
    session = await quiet.open()
    await quiet.observations.submit(quiet.owner, a_payload(session_id=session.id, duration=3))
    await quiet.observations.delete(quiet.owner, session.id)
    assert (await quiet.sessions.get(quiet.owner, session.id)).id == session.id
    assert (await quiet.observations.query(quiet.owner)).total == 0
    assert (await quiet.observations.timeline(quiet.owner, session.id)).total == 0
    await quiet.observations.restore(quiet.owner, session.id)
    await quiet.sessions.delete(quiet.owner, session.id)

    left = await quiet.observations.show(quiet.owner, session.id)
    assert (left.entity.hosted, left.observations_total) == (False, 3)
    assert [each["type"] for each in left.entity.snapshot["actions"]] == ["create_feature_unit"]
    assert (await quiet.observations.query(quiet.owner)).items == (left.entity,)
    assert (await quiet.observations.rebuild()).differences == ()


async def test_a_session_without_claims_is_gone_with_its_journal(quiet: Holdfast) -> None:
    session = await quiet.open()
    await quiet.sessions.delete(quiet.owner, session.id)

    with pytest.raises(NotFound):
        await quiet.observations.show(quiet.owner, session.id)
    assert (await quiet.observations.query(quiet.owner)).total == 0


@demands("S3-072")
async def test_what_was_only_corrected_is_told_with_what_is_left(
    quiet: Holdfast, clock: SettableClock
) -> None:
    session = await quiet.open()
    clock.advance(minutes=1)
    right = Correction(session_id=session.id, field="duration", value=3)
    corrected = await quiet.observations.correct(quiet.owner, right)
    await quiet.sessions.delete(quiet.owner, session.id)

    left = (await quiet.observations.show(quiet.owner, session.id)).entity
    events = (await quiet.observations.timeline(quiet.owner, session.id)).events
    assert corrected.observation_count == 1
    assert left.snapshot == {
        "session_id": session.id,
        "actions": [],
        "checkpoints": [],
        "outcomes": [],
        "duration": 3,
        "started_at": told(clock),
    }
    assert left.provenance["started_at"] == (corrected.observation_id,)
    assert (await quiet.observations.query(quiet.owner)).items == (left,)
    assert [each.description for each in events] == [f"Session {session.id} started"]


async def test_a_session_ends_and_goes_on(quiet: Holdfast, clock: SettableClock) -> None:
    session = await quiet.open()
    opened = truncate_to_ms(clock.now())
    clock.advance(seconds=90)
    await quiet.sessions.close(quiet.owner, session.id)
    closed = (await quiet.observations.show(quiet.owner, session.id)).entity.snapshot
    events = (await quiet.observations.timeline(quiet.owner, session.id)).events
    await quiet.sessions.resume(quiet.owner, session.id)
    resumed = (await quiet.observations.show(quiet.owner, session.id)).entity.snapshot

    assert closed["started_at"] == format_iso8601(milliseconds(opened))
    assert (closed["ended_at"], closed["duration"]) == (told(clock), 90)
    assert [each.event_type for each in events] == ["SessionStarted", "SessionEnded"]
    assert "ended_at" not in resumed
    assert "duration" not in resumed


async def test_a_journal_is_cut_at_a_moment(quiet: Holdfast, clock: SettableClock) -> None:
    early = told(clock)
    clock.advance(minutes=1)
    session = await quiet.open()
    opened = told(clock)
    clock.advance(minutes=1)
    await quiet.sessions.close(quiet.owner, session.id)

    async def seen(**when: str) -> Any:
        return (await quiet.observations.show(quiet.owner, session.id, **when)).entity

    assert (await seen(at=early)).snapshot == {}
    assert "ended_at" not in (await seen(at=opened)).snapshot
    assert (await seen(at_ingested=told(clock))) == (await seen())


async def test_an_id_of_an_entity_leads_to_a_session_of_ours(quiet: Holdfast) -> None:
    for _ in range(3):
        session = await quiet.open()
    name = Subject(quiet.owner, SESSION, session.id).entity_id

    page = await quiet.observations.timeline(quiet.owner, name)

    assert page == await quiet.observations.timeline(quiet.owner, session.id)
    assert [each.session_id for each in page.events] == [session.id]
    foreign = Subject("ada", SESSION, session.id).entity_id
    assert (await quiet.observations.timeline(quiet.owner, foreign)).total == 0


async def did(house: Holdfast, session: SessionId, call_id: str) -> None:
    """Record that a session reached a checkpoint."""
    call = ToolCall(id=CallId(call_id), name="checkpoint", arguments={"name": call_id})
    result = a_tool_result(call_id=call_id, name="checkpoint")
    for role, part in ((Role.TOOL_CALL, call), (Role.TOOL_RESULT, result)):
        draft = MessageDraft(role=role, parts=(part,))
        await house.messages.record(house.owner, session, draft)


async def test_what_a_session_does_after_a_correction_is_shown_whoever_looks(
    home: Path, outside: Environment, quiet: Holdfast, clock: SettableClock
) -> None:
    session = SessionId((await quiet.open()).id)
    shown = []

    async def look() -> None:
        entity = (await quiet.observations.show(quiet.owner, session)).entity
        shown.append([each["name"] for each in entity.snapshot["checkpoints"]])
        assert len(entity.snapshot["actions"]) == len(shown[-1]) + 1
        async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as other:
            assert (await other.observations.show(other.owner, session)).entity == entity

    async def correct() -> None:
        right = {"actions": [{"type": "put_right", "result": "success"}], "checkpoints": []}
        for field, value in right.items():
            correction = Correction(session_id=session, field=field, value=value)
            await quiet.observations.correct(quiet.owner, correction)

    for step in ("c1", None, "c2", "c3", None, "c4"):
        clock.advance(seconds=1)
        await (did(quiet, session, step) if step else correct())
        await look()

    assert shown == [["c1"], [], ["c2"], ["c2", "c3"], [], ["c4"]]
    # When the clock goes back, a correction is of a moment before what was done last.
    clock.wall -= timedelta(seconds=2)
    await correct()
    await look()
    assert shown[-1] == ["c4"]


async def test_what_is_remembered_is_never_older_than_the_journal(
    quiet: Holdfast, clock: SettableClock
) -> None:
    session = await quiet.open()
    await quiet.observations.submit(quiet.owner, a_payload(session_id=session.id, duration=1))
    seen = []
    for number in range(2, 5):
        await quiet.observations.show(quiet.owner, session.id)
        clock.advance(seconds=1)
        await quiet.messages.send(quiet.owner, session.id, f"{number}")
        claim = a_payload(session_id=session.id, duration=number)
        await quiet.observations.submit(quiet.owner, claim)
        seen.append((await quiet.observations.show(quiet.owner, session.id)).entity)

    assert [each.snapshot["duration"] for each in seen] == [2, 3, 4]
    assert [each.observation_count for each in seen] == [2, 3, 4]
    assert seen[-1].last_observation_at == truncate_to_ms(clock.now())


async def test_another_process_sees_what_was_claimed(
    home: Path, outside: Environment, quiet: Holdfast
) -> None:
    session = SessionId((await quiet.open()).id)
    await quiet.observations.submit(quiet.owner, a_payload(session_id=session, duration=1))
    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as other:
        for duration in (2, 3):
            claim = a_payload(session_id=session, duration=duration)
            await other.observations.submit(other.owner, claim)
            entity = (await quiet.observations.show(quiet.owner, session)).entity
            assert entity.snapshot["duration"] == duration
            await quiet.observations.submit(quiet.owner, {**claim, "duration": duration + 10})
            entity = (await other.observations.show(other.owner, session)).entity
            assert entity.snapshot["duration"] == duration + 10
    assert (await quiet.observations.timeline(quiet.owner, session, TimelineQuery())).total >= 1
    assert (await quiet.observations.rebuild()).differences == ()
