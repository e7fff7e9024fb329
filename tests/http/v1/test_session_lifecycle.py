"""Interrupt, close, resume, fork and export over HTTP."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from holdfast.app import Environment, RunScope
from holdfast.domain.events import Event, SessionExported
from holdfast.domain.ids import SessionId
from holdfast.domain.models import model_of
from holdfast.parsing.workflow_files import parse_workflow
from tests.houses import crashed, open_house
from tests.http.v1.client import A_STRANGER, Visitor, refusal, visiting
from tests.marks import demands, each_case
from tests.stand_ins import (
    Gate,
    GatedRuntime,
    HeldStore,
    SeededRandomness,
    SettableClock,
    StandInMachine,
    an_answer,
    asked,
    streamed,
)
from tests.tooled import a_config, says

pytestmark = pytest.mark.anyio


async def test_an_interrupt_stops_the_turn_that_runs(home: Path, outside: Environment) -> None:
    gate = Gate()
    runtime = GatedRuntime([(asked(), streamed("Half of i")), gate])
    async with open_house(home, runtime, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        path = f"/v1/sessions/{session['id']}"
        await visitor.say(session, "Tell me all.")
        await gate.reached()
        running = (await visitor.get(path)).document

        stopped = await visitor.post(f"{path}/interrupt", {"reason": "enough"})
        again = await visitor.post(f"{path}/interrupt")
        rows = await visitor.messages(session)
        one = (await visitor.get(f"{path}/messages/{rows[1]['id']}")).document

    assert (running["status"], running["state"]) == ("running", "running")
    assert running["finished_at"] is None
    assert (stopped.status, again.status) == (200, 200)
    after = stopped.document["session"]
    assert stopped.document == {"session": after, "interrupted": True, "turn": 1}
    assert again.document == {"session": after, "interrupted": False, "turn": None}
    assert (after["status"], after["last_stop"]) == ("completed", "aborted")
    assert [row["role"] for row in rows] == ["user", "assistant", "system"]
    assert rows[1]["content"] == {"text": "Half of i"}
    assert [row.get("interrupted") for row in rows] == [None, True, None]
    assert one == rows[1]
    assert rows[2]["parts"][0]["code"] == "aborted"
    assert rows[2]["parts"][0]["text"] == "The turn was stopped by its user: enough"
    assert rows[2]["content"]["text"] == rows[2]["parts"][0]["text"]


@demands("S2-040f")
async def test_a_killed_turn_is_pending_until_it_goes_on(
    home: Path, outside: Environment, machine: StandInMachine, clock: SettableClock
) -> None:
    gate = Gate()
    runtime = GatedRuntime([an_answer("One.")], [(asked(), streamed("Tw")), gate])
    async with open_house(home, runtime, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        path = f"/v1/sessions/{session['id']}"
        await visitor.told(session, "Count.")
        await visitor.say(session, "Go on.")
        await gate.reached()
        left = crashed(home)
    other = StandInMachine("second")
    other.dead.add(machine.holder())
    survivor = Environment(clock=clock, randomness=SeededRandomness(1), machine=other)

    async with (
        open_house(left, GatedRuntime(), outside=survivor, scope=RunScope.NONE) as house,
        visiting(house) as visitor,
    ):
        killed = (await visitor.get(path)).document
        listed = {
            word: [
                each["id"] for each in (await visitor.get(f"/v1/sessions?{word}")).document["data"]
            ]
            for word in (
                *("status=running", "status=pending", "state=running", "state=idle"),
                *("status=running,failed", "status=completed"),
            )
        }

    assert listed == {
        "status=running": [],
        "status=pending": [session["id"]],
        "state=running": [],
        "state=idle": [session["id"]],
        "status=running,failed": [],
        "status=completed": [],
    }
    assert (killed["status"], killed["state"], killed["finished_at"]) == ("pending", "idle", None)


async def test_a_session_with_a_waiting_turn_is_pending(home: Path, outside: Environment) -> None:
    runtime = GatedRuntime([an_answer("One.")], [an_answer("One.")])
    async with open_house(home, runtime, outside=outside) as house, visiting(house) as visitor:
        session, other = await visitor.session(), await visitor.session()
        for each in (session, other):
            await visitor.told(each, "Count.")
    async with (
        open_house(home, runtime, outside=outside, scope=RunScope.NONE) as house,
        visiting(house) as visitor,
    ):
        await visitor.say(session, "Go on.")
        waiting = (await visitor.get(f"/v1/sessions/{session['id']}")).document
        listed = {
            word: [
                each["id"]
                for each in (await visitor.get(f"/v1/sessions?status={word}")).document["data"]
            ]
            for word in ("pending", "completed", "failed")
        }

    assert (waiting["status"], waiting["finished_at"]) == ("pending", None)
    assert listed == {"pending": [session["id"]], "completed": [other["id"]], "failed": []}


async def test_of_interrupts_that_arrive_together_one_has_stopped_the_turn(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    runtime = GatedRuntime([gate])
    async with open_house(home, runtime, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        await visitor.say(session, "Tell me all.")
        await gate.reached()
        path = f"/v1/sessions/{session['id']}/interrupt"
        answers = await asyncio.gather(*(visitor.post(path) for _ in range(5)))

    told = sorted((each.document["interrupted"], each.document["turn"] or 0) for each in answers)
    assert told == [(False, 0)] * 4 + [(True, 1)]
    assert {each.status for each in answers} == {200}


async def test_an_interrupt_that_takes_too_long_is_accepted(
    home: Path, outside: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.session_lifecycle.PATIENCE", 0.05)
    gate = Gate()
    runtime = GatedRuntime([gate])
    outside = replace(outside, wrap=HeldStore)
    async with open_house(home, runtime, outside=outside) as house, visiting(house) as visitor:
        assert isinstance(house.store, HeldStore)
        session = await visitor.session()
        path = f"/v1/sessions/{session['id']}"
        await visitor.say(session, "Tell me all.")
        await gate.reached()
        house.store.hold()
        accepted = await visitor.post(f"{path}/interrupt")
        house.store.let_go()
        await visitor.settled(session)
        after = (await visitor.get(path)).document

    assert accepted.status == 202
    running = accepted.document["session"]
    assert accepted.document == {"session": running, "interrupted": True, "turn": 1}
    assert (running["state"], running["settled"]) == ("running", 0)
    assert (after["state"], after["last_stop"]) == ("idle", "aborted")


@pytest.mark.parametrize(
    ("on_busy", "answered", "stops"),
    [
        ("queue", 201, ["stop", "stop"]),
        ("interrupt", 201, ["aborted", "stop"]),
        ("reject", 409, []),
    ],
)
async def test_the_sender_says_what_a_running_turn_is_worth(
    home: Path, outside: Environment, on_busy: str, answered: int, stops: list[str]
) -> None:
    gate = Gate()
    runtime = GatedRuntime([gate, an_answer("first")], [an_answer("second")])
    async with open_house(home, runtime, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        path = f"/v1/sessions/{session['id']}"
        await visitor.say(session, "One.")
        await gate.reached()
        body = {"role": "user", "content": {"text": "Two."}, "on_busy": on_busy}
        answer = await visitor.post(f"{path}/messages", body)
        brought = {"role": "assistant", "content": {"text": "From elsewhere."}}
        refused = (
            None if on_busy == "interrupt" else await visitor.post(f"{path}/messages", brought)
        )
        gate.open()
        await visitor.settled(session)
        events = (await visitor.get(f"{path}/events?format=json&limit=1000")).document["data"]

    assert answer.status == answered
    if answered == 409:
        assert refusal(answer) == (409, "turn_running")
    else:
        assert answer.document["turn"] == 2
        ends = [each for each in events if each["event_type"] == "session.completed"]
        assert [end["data"]["stop_reason"] for end in ends] == stops
    if refused is not None:
        assert refusal(refused) == (409, "session_running")


async def test_a_session_is_closed_and_resumed_without_loss(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")
    path = f"/v1/sessions/{session['id']}"

    closed = await visitor.post(f"{path}/close", {"as": "cancelled", "reason": "no time"})
    again = await visitor.post(f"{path}/close", {"as": "completed"})
    resumed = await visitor.post(f"{path}/resume", {})
    twice = await visitor.post(f"{path}/resume")

    shown = [(one["status"], one["state"], one["reason"]) for one in _documents(closed, again)]
    assert shown == [("completed", "cancelled", "no time")] * 2
    shown = [(one["status"], one["state"], one["reason"]) for one in _documents(resumed, twice)]
    assert shown == [("completed", "idle", None)] * 2
    rows = await visitor.messages(session)
    assert [row["role"] for row in rows] == ["user", "assistant", "system"]
    assert rows[2]["content"] == {"text": "Session cancelled: no time"}


async def test_resuming_at_the_turn_cap_is_answered_with_a_warning(visitor: Visitor) -> None:
    session = await visitor.session(turn_cap=1)
    path = f"/v1/sessions/{session['id']}"

    fresh = await visitor.post(f"{path}/resume")
    await visitor.told(session, "hello")
    used = await visitor.post(f"{path}/resume")
    shown = await visitor.get(path)
    renamed = await visitor.patch(path, {"title": "Done"}, **{"if-match": used.headers["etag"]})

    assert (fresh.status, fresh.document["turns_left"]) == (200, 1)
    assert used.document == {**shown.document, "turns_left": 0}
    # The tag is the session's own, so that it can be changed by who has just resumed it.
    assert (used.headers["etag"], renamed.status) == (shown.headers["etag"], 200)


@each_case(
    ("verb", "body"),
    [
        ("close", {"as": "failed"}),
        ("close", {"as": "completed", "reason": ""}),
        ("resume", {"x": 1}),
        ("interrupt", {"reason": 1}),
        ("fork", {"at": -1}),
        ("fork", {"tags": ["x" * 65]}),
    ],
)
async def test_a_body_that_is_not_right_is_refused(
    visitor: Visitor, verb: str, body: dict[str, Any]
) -> None:
    session = await visitor.session()

    answer = await visitor.post(f"/v1/sessions/{session['id']}/{verb}", body)

    assert refusal(answer) == (400, "invalid_body")


async def test_a_fork_goes_on_from_a_message(home: Path, outside: Environment) -> None:
    config = a_config(home, says("one"), says("two"), says("other"))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session(title="Sums")
        await visitor.told(session, "first")
        parent = await visitor.told(session, "second")
        path = f"/v1/sessions/{session['id']}"
        answer = await visitor.post(
            f"{path}/fork",
            {"at": 2, "title": "Other", "tags": ["x"], "model_id": "offline:holdfast"},
        )
        fork = answer.document
        await visitor.told(fork, "third")
        rows = await visitor.messages(fork)
        listed = (await visitor.get(f"/v1/sessions?forked_from={session['id']}")).document["data"]
        one = (await visitor.get(f"/v1/sessions/{fork['id']}/messages/{rows[0]['id']}")).document
        unchanged = await visitor.messages(session)

    assert answer.status == 201
    assert answer.headers["location"] == f"/v1/agents/{fork['agent_id']}/sessions/{fork['id']}"
    assert fork["forked_from"] == {"session_id": session["id"], "sequence": 2}
    assert (fork["title"], fork["tags"]) == ("Other", ["x"])
    assert fork["model_id"] == model_of("offline:holdfast").id
    assert rows[:2] == [{**row, "inherited": True} for row in parent[:2]]
    assert [row["sequence"] for row in rows] == [1, 2, 3, 4]
    assert [row.get("inherited") for row in rows] == [True, True, None, None]
    assert {row["session_id"] for row in rows[2:]} == {fork["id"]}
    assert one == rows[0]
    assert [each["id"] for each in listed] == [fork["id"]]
    assert unchanged == parent


async def test_a_fork_is_repeatable_and_needs_a_message_that_is_there(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")
    path = f"/v1/sessions/{session['id']}/fork"

    first = await visitor.post(path, {"id": A_STRANGER})
    again = await visitor.post(path, {}, idempotency_key=A_STRANGER)
    other = await visitor.post(path, {"id": A_STRANGER, "title": "Other"})
    nowhere = await visitor.post(path, {"at": 3})
    nobody = await visitor.post(path, {"agent_id": "nobody"})

    assert first.status == 201
    assert first.document["forked_from"] == {"session_id": session["id"], "sequence": 2}
    assert (again.status, again.document) == (200, first.document)
    assert again.headers["idempotency-replayed"] == "true"
    assert refusal(other) == (409, "id_reused")
    assert refusal(nowhere) == (404, "message_not_found")
    assert refusal(nobody) == (404, "agent_not_found")


async def test_a_fork_may_have_another_agent(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")
    other = await visitor.agent(name="Other")

    fork = await visitor.post(f"/v1/sessions/{session['id']}/fork", {"agent_id": other["slug"]})

    # Not used before, and there when it is asked for.
    own = await visitor.post(f"/v1/sessions/{session['id']}/fork", {"agent_id": "holdfast"})

    assert (fork.status, fork.document["agent_id"]) == (201, other["id"])
    assert len(await visitor.messages(fork.document)) == 2
    assert (own.status, own.document["agent"]["slug"]) == (201, "holdfast")


async def test_a_fork_leaves_a_running_turn_to_its_session(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    runtime = GatedRuntime([an_answer("one")], [gate])
    async with open_house(home, runtime, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        await visitor.told(session, "first")
        await visitor.say(session, "second")
        await gate.reached()
        fork = (await visitor.post(f"/v1/sessions/{session['id']}/fork")).document

    assert fork["forked_from"]["sequence"] == 2
    assert fork["status"] == "completed"


async def test_an_export_has_one_message_per_line(visitor: Visitor) -> None:
    session = await visitor.session(title="Sums")
    rows = await visitor.told(session, "hello")
    path = f"/v1/sessions/{session['id']}/export"

    whole = await visitor.get(path)
    first = await visitor.get(f"{path}?format=jsonl&through=1")

    assert whole.status == 200
    assert whole.headers["content-type"] == "application/x-ndjson"
    named = f'attachment; filename="{session["id"]}.jsonl"'
    assert whole.headers["content-disposition"] == named
    assert [json.loads(line) for line in whole.body.splitlines()] == rows
    assert [json.loads(line) for line in first.body.splitlines()] == rows[:1]


async def test_an_export_can_be_read_and_shows_no_secret(visitor: Visitor) -> None:
    session = await visitor.session(title="Sums")
    secret = "sk-" + "a1b2" * 6
    await visitor.told(session, f"my key is {secret}")
    path = f"/v1/sessions/{session['id']}/export"

    readable = await visitor.get(f"{path}?format=markdown")
    lines = await visitor.get(f"{path}?format=jsonl")

    assert readable.headers["content-type"] == "text/markdown; charset=utf-8"
    assert readable.body.startswith(b"# Sums\n")
    for answer in (readable, lines):
        assert secret.encode() not in answer.body
        assert b"my key is" in answer.body


@demands("S0-422")
async def test_an_export_is_a_workflow_and_the_same_bytes_every_time(visitor: Visitor) -> None:
    session = await visitor.session(title="Sums")
    await visitor.told(session, "hello")
    path = f"/v1/sessions/{session['id']}/export"

    first = await visitor.get(f"{path}?format=workflow")
    noted = await visitor.post(path, {"target": "/desk/sums.relavium.yaml"})
    again = await visitor.get(f"{path}?format=workflow")
    cut = await visitor.get(f"{path}?format=workflow&through=1")

    assert first.headers["content-type"] == "application/yaml"
    assert first.headers["content-disposition"] == 'attachment; filename="sums.relavium.yaml"'
    workflow = parse_workflow(first.body.decode(), where="it")
    assert list(workflow.nodes) == ["input", "turn-1", "output"]
    assert list(parse_workflow(cut.body.decode(), where="it").nodes) == ["input", "output"]
    assert again.body == first.body
    house = visitor.house
    news = (await house.events.list(house.owner, SessionId(session["id"]))).items
    assert [event.payload for event in news if isinstance(event, Event)][-1] == SessionExported(
        target="/desk/sums.relavium.yaml"
    )
    assert json.loads(noted.body) == {
        "target": "/desk/sums.relavium.yaml",
        "sequence": len(news),
    }


@each_case("body", [{}, {"target": ""}, {"target": "x" * 5000}, {"to": "x"}])
async def test_a_place_that_is_none_is_refused(visitor: Visitor, body: Any) -> None:
    session = await visitor.session()

    answer = await visitor.post(f"/v1/sessions/{session['id']}/export", body)

    assert refusal(answer) == (400, "invalid_body")


@each_case("query", ["format=pdf", "through=0", "through=x", "x=1"])
async def test_an_export_that_there_is_not_is_refused(visitor: Visitor, query: str) -> None:
    session = await visitor.session()

    answer = await visitor.get(f"/v1/sessions/{session['id']}/export?{query}")

    assert refusal(answer) == (400, "invalid_query")


async def test_nothing_of_this_can_be_done_to_a_strangers_session(visitor: Visitor) -> None:
    session = await visitor.session()
    other = await visitor.as_("somebody")

    for id_ in (session["id"], A_STRANGER):
        path = f"/v1/sessions/{SessionId(id_)}"
        for verb in ("interrupt", "close", "resume", "fork"):
            assert refusal(await other.post(f"{path}/{verb}")) == (404, "session_not_found")
        assert refusal(await other.get(f"{path}/export")) == (404, "session_not_found")
        noted = await other.post(f"{path}/export", {"target": "x"})
        assert refusal(noted) == (404, "session_not_found")


def _documents(*answers: Any) -> list[dict[str, Any]]:
    for answer in answers:
        assert answer.status == 200, answer.body
    return [answer.document for answer in answers]
