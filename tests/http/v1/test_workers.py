"""Workers over HTTP: claims, extensions, results under a claim, offers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Invalid, open_holdfast
from holdfast.app import Environment
from holdfast.domain.tokens import Scope
from tests.http.v1.client import A_STRANGER, Visitor, refusal, visiting
from tests.http.v1.test_client_calls import OK, REFUND, waiting
from tests.marks import demands, each_case
from tests.tooled import a_config, asks, call, says

pytestmark = pytest.mark.anyio


@pytest.fixture
async def visitor(home: Path, outside: Environment) -> AsyncIterator[Visitor]:
    config = a_config(home, asks(call("refund", "c1", order="17")), says("Done."))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as found:
        yield found


def a_claim(**more: Any) -> dict[str, Any]:
    return {"claim": str(uuid4()), "worker": "payments-1"} | more


@demands("S2-020j")
async def test_a_call_is_claimed_extended_and_answered(visitor: Visitor) -> None:
    session, _ = await waiting(visitor)
    base = f"/v1/agents/{session['agent_id']}/sessions/{session['id']}/calls/c1"
    mine, other = a_claim(), a_claim(worker="payments-2")
    worker = await visitor.as_("local", Scope.TOOLS)

    claimed = await worker.post(f"{base}/claim", mine)
    again = await worker.post(f"{base}/claim", mine)
    refused = await worker.post(f"{base}/claim", other)
    extended = await worker.post(f"{base}/extend", {"claim": mine["claim"]})
    lost = await worker.post(f"{base}/extend", {"claim": other["claim"]})
    progressed = await worker.post(
        f"{base}/progress", {"claim": mine["claim"], "text": "1 of 2", "fraction": 0.5}
    )
    bare = await worker.post(f"{base}/result", OK)
    done = await worker.post(f"{base}/result", OK | {"claim": mine["claim"].upper()})
    await visitor.settled(session)
    repeated = await worker.post(f"{base}/result", OK | {"claim": mine["claim"]})
    path = f"/v1/sessions/{session['id']}/events?format=json&types=tool.started,tool.progressed"
    events = (await visitor.get(path)).document["data"]

    assert (claimed.status, again.status) == (200, 200)
    assert claimed.document == again.document
    form = claimed.document
    assert (form["state"], form["attempt"], form["claim"]["worker"]) == ("started", 1, "payments-1")
    assert form["claim"]["until"] < form["deadline_at"]
    assert refusal(refused) == refusal(bare) == (409, "call_claimed")
    assert refused.document["details"] == {"worker": "payments-1"}
    assert (extended.status, extended.document["cancel"]) == (200, False)
    # The clock of the test stands still.
    assert extended.document["until"] == form["claim"]["until"]
    assert refusal(lost) == (409, "lease_lost")
    assert progressed.status == 202
    assert (done.status, done.document["state"], done.document["claim"]) == (200, "finished", None)
    assert repeated.headers["idempotency-replayed"] == "true"
    assert [each["data"] for each in events] == [
        {
            "turn": 1,
            "tool_call_id": "c1",
            "name": "refund",
            "arguments": {"order": "17"},
            "by": "payments-1",
            "attempt": 1,
        },
        {"turn": 1, "tool_call_id": "c1", "text": "1 of 2", "fraction": 0.5},
    ]


async def test_a_claimed_call_is_released(visitor: Visitor) -> None:
    session, requested = await waiting(visitor)
    base = f"/v1/sessions/{session['id']}/calls/c1"
    mine = a_claim()
    await visitor.post(f"{base}/claim", mine)
    for body in ({}, {"claim": mine["claim"], "result": 1}):
        refused = await visitor.post(f"{base}/result", {"status": "released"} | body)
        assert refusal(refused) == (400, "invalid_input")
    released = await visitor.post(f"{base}/result", {"status": "released", "claim": mine["claim"]})

    assert released.document == requested


async def test_a_worker_registers_waits_and_leaves(visitor: Visitor) -> None:
    worker = await visitor.as_("local", Scope.TOOLS)
    id_ = str(uuid4())
    made = await worker.post("/v1/workers", {"id": id_, "name": "one", "tools": ["refund"]})
    path = f"/v1/workers/{id_}"
    asking = asyncio.create_task(worker.post(f"{path}/next", {"wait_s": 20, "claim": True}))
    agent = await visitor.agent(tools=[REFUND])
    session = await visitor.session(agent["id"])
    await visitor.say(session, "Refund order 17")
    work = (await asking).document
    (offer,) = work["work"]
    extended = await worker.post(f"{path}/extend", {"claims": [offer["claim"], A_STRANGER]})
    listed = (await visitor.get("/v1/workers")).document["data"]
    full = await worker.post(f"{path}/next", {"wait_s": 0, "claims": [offer["claim"]]})
    await visitor.post(f"/v1/sessions/{session['id']}/interrupt", {})
    ended = await worker.post(f"{path}/next", {"claims": [offer["claim"]]})
    left = await worker.delete(path)
    gone = await worker.post(f"{path}/next", {"wait_s": 0})

    assert (made.status, made.document["id"], made.document["lease_s"]) == (201, id_, 30.0)
    assert made.document["capabilities"] == ["tool:refund"]
    assert listed[0]["id"] == id_
    assert (offer["kind"], offer["session_id"]) == ("call", session["id"])
    # Its tool is idempotent.
    assert (offer["call"]["state"], offer["call"]["id"]) == ("started", "c1")
    assert offer["claim"] is not None
    assert (extended.document["lost"], extended.document["cancel"]) == ([A_STRANGER], [])
    assert full.document == {"work": [], "cancel": [], "lost": []}
    assert ended.document == {"work": [], "cancel": ["c1"], "lost": []}
    assert (left.status, refusal(gone)) == (204, (404, "worker_not_found"))


async def test_a_worker_needs_write_access_to_change_agents(visitor: Visitor) -> None:
    await visitor.agent(tools=[REFUND])
    worker = await visitor.as_("local", Scope.TOOLS)
    body = {"name": "one", "tools": [REFUND | {"effect": "pure"}]}
    changed = await worker.post("/v1/workers", body)
    denied = await worker.post("/v1/workers", body | {"update": True})
    updated = await visitor.post("/v1/workers", body | {"update": True})
    agents = (await visitor.get("/v1/agents")).document["data"]

    assert refusal(changed) == (409, "tool_changed")
    assert changed.document["details"] == {"tool": "refund", "path": "$.effect"}
    assert refusal(denied) == (403, "forbidden")
    assert updated.status == 201
    assert agents[0]["tools"][0]["effect"] == "pure"


async def test_a_session_may_have_tools_of_its_own(visitor: Visitor) -> None:
    agent = await visitor.agent()
    session = await visitor.session(agent["id"], tools=[REFUND])
    path = f"/v1/sessions/{session['id']}"
    added = await visitor.post(f"{path}/tools", {"tools": [REFUND | {"name": "lookup"}]})
    bare = await visitor.post(f"{path}/tools", {"tools": [{"name": "x"}]})
    bad = await visitor.post(
        f"{path}/tools", {"tools": [REFUND | {"name": "y", "parameters": {"type": "string"}}]}
    )
    rows = await visitor.messages(session)

    stored = await visitor.house.sessions.get(visitor.house.owner, session["id"])
    assert [each.as_given() for each in stored.tools] == [REFUND, REFUND | {"name": "lookup"}]
    assert added.document["id"] == session["id"]
    assert refusal(bare) == (400, "tool_invalid")
    assert refusal(bad) == (400, "tool_invalid")
    assert [row["role"] for row in rows] == ["system"]


@each_case(
    ("agents", "tools"),
    [((), ("lookup",)), (("other",), ()), (("helper", "other"), ("lookup",))],
)
async def test_a_token_bound_elsewhere_sees_no_call(
    visitor: Visitor, agents: tuple[str, ...], tools: tuple[str, ...]
) -> None:
    session, _ = await waiting(visitor)
    await visitor.post("/v1/agents", {"name": "Other", "slug": "other", "system_prompt": ""})
    worker = await visitor.bound(agents, tools)
    path = f"/v1/sessions/{session['id']}/calls/c1"
    claim = a_claim()

    answers = [
        await worker.get(path),
        await worker.post(f"{path}/claim", claim),
        await worker.post(f"{path}/extend", {"claim": claim["claim"]}),
        await worker.post(f"{path}/progress", {"claim": claim["claim"], "text": "x"}),
        await worker.post(f"{path}/result", OK),
        await worker.post(f"{path}/result", {"status": "released", "claim": claim["claim"]}),
    ]
    words = "agent=helper&tool=refund"
    listed = await worker.get(f"/v1/calls?state=requested&{words}")
    named = {"name": "w", "tools": ["refund"], "agents": ["helper"]}
    registered = await worker.post("/v1/workers", named)
    broad = (await visitor.post("/v1/workers", named)).document["id"]
    taken = await worker.post(f"/v1/workers/{broad}/next", {"wait_s": 0})

    assert [refusal(each) for each in answers] == [(404, "call_not_found")] * 6
    assert refusal(listed) == refusal(registered) == (403, "forbidden")
    assert refusal(taken) == (404, "worker_not_found")
    assert (await visitor.get(path)).document["state"] == "requested"


async def test_a_bound_token_runs_the_calls_of_its_agents_and_tools(visitor: Visitor) -> None:
    session, requested = await waiting(visitor)
    await visitor.post("/v1/agents", {"name": "Other", "slug": "other", "system_prompt": ""})
    worker = await visitor.bound(("helper", "other"), ("refund",))
    path = f"/v1/sessions/{session['id']}/calls/c1"

    unnamed = await worker.get("/v1/calls?state=requested")
    listed = await worker.get("/v1/calls?state=requested&agent=helper")
    made = await worker.post("/v1/workers", {"name": "w", "tools": ["refund"]})
    worker_id = made.document["id"]
    taken = await worker.post(f"/v1/workers/{worker_id}/next", {"wait_s": 0, "claim": True})
    (work,) = taken.document["work"]
    answered = await worker.post(f"{path}/result", OK | {"claim": work["claim"]})
    await visitor.settled(session)
    closed = await worker.ask("DELETE", f"/v1/workers/{worker_id}")

    assert refusal(unnamed) == (403, "forbidden")
    assert listed.document["data"] == [requested]
    helper = (await visitor.get("/v1/agents/helper")).document["id"]
    other = (await visitor.get("/v1/agents/other")).document["id"]
    assert set(made.document["agents"]) == {helper, other}
    assert (answered.status, closed.status) == (200, 204)


async def test_only_a_token_for_tools_is_bound(visitor: Visitor) -> None:
    with pytest.raises(Invalid) as refused:
        await visitor.house.tokens.create(visitor.house.owner, "w", Scope.WRITE, tools=("refund",))

    assert refused.value.details == {"field": "scope"}
