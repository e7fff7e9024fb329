"""The table of `/v1` as a whole: every path, who may ask, and both paths of a session."""

from typing import Any

import pytest

from holdfast.domain.tokens import Scope
from holdfast.http.app import V1_ROUTES
from holdfast.http.routing import AGENT_SESSION_PATH, SESSION_PATH, RouteTable
from tests.http.v1.client import A_STRANGER, Visitor, refusal
from tests.marks import demands, each_case

pytestmark = pytest.mark.anyio

PATHS = {
    "POST /v1/agents",
    "GET /v1/agents",
    "GET /v1/agents/{agent_id}",
    "PATCH /v1/agents/{agent_id}",
    "DELETE /v1/agents/{agent_id}",
    "POST /v1/agents/{agent_id}/sessions",
    "GET /v1/agents/{agent_id}/sessions",
    "GET /v1/models",
    "GET /v1/models/{model_id}",
    "POST /v1/models",
    "GET /v1/sessions",
    "GET /v1/approvals",
    "GET /v1/calls",
    "GET /v1/costs",
    "GET /v1/defaults",
    "GET /v1/programs",
    "GET /v1/zones/{definition_id}",
    "GET /v1/zones/{definition_id}/state",
    "PUT /v1/zones/{definition_id}/state",
    "GET /v1/zones/{definition_id}/output",
    "POST /v1/zones/{definition_id}/output",
    "GET /v1/zones/{definition_id}/replay",
    "GET /v1/zones/{definition_id}/files/{name}",
    "POST /v1/zones/{definition_id}/archive",
    "GET /v1/zones/{definition_id}/archives",
    "GET /v1/zones/{definition_id}/archives/{ms}",
    "DELETE /v1/zones/{definition_id}/archives/{ms}",
    "GET /v1/zones/{definition_id}/archives/{ms}/output",
    "GET /v1/zones/{definition_id}/archives/{ms}/files/{name}",
    "POST /v1/zones/{definition_id}/archives/{ms}/restore",
    "POST /v1/history",
    "GET /v1/history",
    "GET /v1/history/{session_key}",
    "DELETE /v1/history/{session_key}",
    "POST /v1/history/{session_key}/restore",
    "POST /v1/history/{session_key}/correct",
    "GET /v1/history/{session_key}/checkpoints/{checkpoint}",
    "GET /v1/history/{session_key}/observations",
    "GET /v1/workers",
    "POST /v1/workers",
    "POST /v1/workers/{worker_id}/next",
    "POST /v1/workers/{worker_id}/extend",
    "DELETE /v1/workers/{worker_id}",
    "GET /v1/search",
    "GET /v1/timeline",
    "POST /v1/entities",
    "GET /v1/entities",
    "GET B",
    "PATCH B",
    "DELETE B",
    "POST B/messages",
    "GET B/messages",
    "POST B/record",
    "GET B/messages/{message_id}",
    "GET B/events",
    "POST B/media",
    "GET B/media/{hash}",
    "POST B/interrupt",
    "POST B/close",
    "POST B/resume",
    "POST B/tools",
    "POST B/children",
    "GET B/children",
    "GET B/tree",
    "POST B/fork",
    "GET B/export",
    "POST B/export",
    "GET B/verify",
    "POST B/compact",
    "GET B/approvals",
    "GET B/approvals/{approval_id}",
    "POST B/approvals/{approval_id}",
    "POST B/approvals/{approval_id}/revoke",
    "GET B/calls",
    "GET B/calls/{call_id}",
    "POST B/calls/{call_id}/claim",
    "POST B/calls/{call_id}/extend",
    "POST B/calls/{call_id}/progress",
    "POST B/calls/{call_id}/result",
    "POST B/calls/{call_id}/settle",
}


@demands("S2-009c")
def test_every_path_of_a_session_exists_under_its_agent_and_by_itself() -> None:
    expected = {
        path.replace(" B", f" {base}")
        for path in PATHS
        for base in (AGENT_SESSION_PATH, SESSION_PATH)
    }

    assert {f"{route.method} {route.path}" for route in V1_ROUTES} == expected
    assert len({route.name for route in V1_ROUTES}) == len(V1_ROUTES)
    assert RouteTable(V1_ROUTES).routes == V1_ROUTES


def test_what_changes_something_needs_more_than_reading() -> None:
    needs = {route.name: route.needs for route in V1_ROUTES}
    changing = {route.name for route in V1_ROUTES if route.changes}

    administering = {name for name, scope in needs.items() if scope is Scope.ADMIN}
    reading = {name for name, scope in needs.items() if scope is Scope.READ}
    assert administering == {"models.add", "programs"}
    assert reading == set(needs) - changing - administering


def test_every_row_says_what_it_gives_and_shows_how_to_ask() -> None:
    for route in V1_ROUTES:
        assert route.summary.endswith(".")
        assert route.responses
        assert len(set(route.errors)) == len(route.errors)


@each_case("route", V1_ROUTES, ids=lambda route: route.name)
async def test_a_reader_changes_nothing_and_a_stranger_learns_nothing(
    visitor: Visitor, route: Any
) -> None:
    path = route.path.replace("{agent_id}", A_STRANGER).replace("{session_id}", A_STRANGER)
    path = path.replace("{", "").replace("}", "")
    reader = await visitor.as_("local", Scope.READ)
    nobody = Visitor(visitor.house, visitor.app, "hf_wrong")

    wrong = await nobody.ask(route.method, path)
    assert refusal(wrong) == (401, "unauthenticated")
    assert wrong.headers["www-authenticate"] == "Bearer"
    if route.changes:
        assert refusal(await reader.ask(route.method, path, {})) == (403, "forbidden")


@each_case("method", ["PUT", "PATCH", "DELETE"])
async def test_a_wrong_method_is_told_the_right_ones(visitor: Visitor, method: str) -> None:
    answer = await visitor.ask(method, "/v1/agents")

    assert refusal(answer) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD, POST"
