"""Approvals over HTTP: a question waits, and whoever may write answers it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Environment
from holdfast.domain.events import ApprovalRequested
from holdfast.domain.ids import SessionId
from tests.houses import head_of, news_until
from tests.http.v1.client import A_STRANGER, Visitor, refusal, visiting
from tests.stand_ins import PATIENCE
from tests.tooled import Recorder, a_config, asks, call, open_tooled, own_tool, says

pytestmark = pytest.mark.anyio

ONCE = {"id": "allow_once", "name": "Allow once", "kind": "allow_once"}
ALWAYS = {"id": "allow_session", "name": "Allow for this session", "kind": "allow_always"}
DENY = {"id": "deny", "name": "Deny", "kind": "reject_once"}


@asynccontextmanager
async def asking(
    home: Path, outside: Environment, memory: str | None = None, **settings: Any
) -> AsyncIterator[tuple[Visitor, dict[str, Any], dict[str, Any], Recorder]]:
    """Let a turn ask before it acts; give who may answer, the session, and the question."""
    act = Recorder()
    tool = own_tool("launch", act, memory=memory)
    config = a_config(home, asks(call("launch", "c1", line="now")), says("Done."), **settings)
    async with (
        open_tooled(config, tool, outside=outside) as house,
        visiting(house) as visitor,
    ):
        described = [{"name": "launch", "description": "Launches."}]
        agent = await visitor.agent(tools=described)
        session = await visitor.session(agent["id"])
        await visitor.say(session, "go")
        await news_until(house, SessionId(session["id"]), ApprovalRequested)
        listed = (await visitor.get("/v1/approvals?state=waiting")).document
        (question,) = listed["data"]
        yield visitor, session, question, act


async def test_a_question_is_shown_whole(home: Path, outside: Environment) -> None:
    async with asking(home, outside) as (visitor, session, question, _):
        own = (await visitor.get(f"/v1/sessions/{session['id']}/approvals")).document
        none = (await visitor.get("/v1/approvals?state=allowed")).document

    assert own == {"data": [question], "next_cursor": None}
    assert none == {"data": [], "next_cursor": None}
    assert question == {
        "id": question["id"],
        "session_id": session["id"],
        "tool_call_id": "c1",
        "question": "launch now?",
        "tool": "launch",
        "arguments": {"line": "now"},
        "digest": question["digest"],
        "options": [ONCE, DENY],
        "state": "waiting",
        "scope": None,
        "answered_by": None,
        "note": None,
        "created_at": question["created_at"],
        "expires_at": question["expires_at"],
        "answered_at": None,
        "class": "process",
        "covers": None,
        "preview": {},
        "amount": None,
    }
    assert question["created_at"][:10] < question["expires_at"][:10]


async def test_a_paused_turn_is_shown_as_one_that_waits(home: Path, outside: Environment) -> None:
    at_once = timedelta()
    async with asking(home, outside, approvals_pause_after=at_once) as (visitor, session, asked, _):
        async with asyncio.timeout(PATIENCE):
            while not await is_paused(visitor, session):  # noqa: ASYNC110 — seen from outside
                await asyncio.sleep(0.01)
        found = (await visitor.get(f"/v1/sessions/{session['id']}")).document
        (listed,) = (await visitor.get("/v1/sessions?status=running")).document["data"]
        waiting = (await visitor.get("/v1/approvals?state=waiting")).document
        path = f"/v1/sessions/{session['id']}/approvals/{asked['id']}"
        allowed = await visitor.post(path, {"decision": "allow", "digest": asked["digest"]})
        await visitor.settled(session)
        done = (await visitor.get(f"/v1/sessions/{session['id']}")).document

    assert (found["status"], found["state"], listed) == ("running", "running", found)
    assert waiting["data"] == [asked]
    assert (allowed.status, done["status"]) == (200, "completed")


async def is_paused(visitor: Visitor, session: dict[str, Any]) -> bool:
    house = visitor.house
    return (await head_of(house, await house.sessions.get(house.owner, session["id"]))).until < 0


async def test_a_question_is_answered_once(home: Path, outside: Environment) -> None:
    async with asking(home, outside, memory="launch") as (visitor, session, question, act):
        path = f"/v1/sessions/{session['id']}/approvals/{question['id']}"
        body = {"decision": "allow", "scope": "session", "digest": question["digest"]}
        allowed = await visitor.post(path, body)
        again = await visitor.post(path, body)
        other = await visitor.post(path, {"decision": "deny"})
        await visitor.settled(session)

    assert question["options"] == [ONCE, ALWAYS, DENY]
    assert (allowed.status, again.status) == (200, 200)
    assert allowed.document == {
        **question,
        "state": "allowed",
        "scope": "session",
        "answered_by": "http",
        "answered_at": allowed.document["answered_at"],
    }
    assert again.document == allowed.document
    assert refusal(other) == (409, "approval_closed")
    assert act.lines == ["now"]


async def test_a_refusal_says_why_and_nothing_runs(home: Path, outside: Environment) -> None:
    async with asking(home, outside) as (visitor, session, question, act):
        path = f"/v1/sessions/{session['id']}/approvals/{question['id']}"
        body = {"decision": "deny", "option_id": "deny", "note": "not today"}
        denied = await visitor.post(path, body)
        await visitor.settled(session)
        (result,) = await visitor.messages(session, "?role=tool_result")

    assert (denied.status, denied.document["state"]) == (200, "denied")
    assert (denied.document["scope"], denied.document["note"]) == ("once", "not today")
    assert result["result_status"] == "denied"
    assert "not today" in result["content"]["error"]
    assert act.lines == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"decision": "allow", "digest": "0" * 64}, 409, "approval_closed"),
        ({"decision": "allow", "scope": "session"}, 409, "option_not_offered"),
        ({"decision": "allow", "option_id": "allow_session"}, 409, "option_not_offered"),
        ({"decision": "allow", "option_id": "deny"}, 409, "option_not_offered"),
        ({"decision": "perhaps"}, 400, "invalid_body"),
        ({"decision": "allow", "note": "x" * 501}, 400, "invalid_body"),
        ({}, 400, "invalid_body"),
    ],
)
async def test_an_answer_that_does_not_fit_is_none(
    home: Path, outside: Environment, body: dict[str, Any], status: int, code: str
) -> None:
    async with asking(home, outside) as (visitor, session, question, act):
        path = f"/v1/sessions/{session['id']}/approvals/{question['id']}"
        refused = await visitor.post(path, body)
        waiting = (await visitor.get("/v1/approvals?state=waiting")).document["data"]

    assert refusal(refused) == (status, code)
    assert waiting == [question]
    assert act.lines == []


async def test_only_the_owner_answers(home: Path, outside: Environment) -> None:
    async with asking(home, outside) as (visitor, session, question, _):
        other = await visitor.as_("somebody")
        path = f"/v1/sessions/{session['id']}/approvals/{question['id']}"
        theirs = await other.post(path, {"decision": "allow"})
        listed = (await other.get("/v1/approvals")).document
        nowhere = f"/v1/sessions/{session['id']}/approvals/{A_STRANGER}"
        missing = await visitor.post(nowhere, {"decision": "allow"})

    assert refusal(theirs) == (404, "session_not_found")
    assert listed["data"] == []
    assert refusal(missing) == (404, "approval_not_found")
