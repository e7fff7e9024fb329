"""A refusal says what may stand there instead."""

from typing import Any

import pytest

from tests.http.v1.client import Visitor
from tests.marks import each_case

pytestmark = pytest.mark.anyio

ROLES = "Invalid value 'boss'; allowed values: user, assistant, system, tool_call, tool_result"


@each_case(
    ("path", "body", "where", "rule"),
    [
        ("B/messages", {"role": "boss", "content": {"text": "x"}}, "role", ROLES),
        (
            "B/messages",
            {"role": "user", "content": {"text": "x"}, "on_busy": "forever"},
            "on_busy",
            "Invalid enum value 'forever'; allowed values: queue, reject, interrupt",
        ),
        (
            "B/messages",
            {"role": "user", "content": {"text": "x"}, "id": "x"},
            "id",
            "Expected a UUID",
        ),
        (
            "B/messages",
            {"role": "user", "parts": [{"type": "odd"}]},
            "parts[0].type",
            "Invalid value 'odd'; allowed values: text, media",
        ),
        (
            "/v1/agents",
            {"name": "x", "system_prompt": "x", "grant": {"fs": "all"}},
            "grant.fs",
            "Invalid enum value 'all'; allowed values: sandboxed, project, full",
        ),
        (
            "/v1/agents",
            {"name": "x", "system_prompt": "x", "runtime": {"type": "none"}},
            "runtime.type",
            "Invalid value 'none'; allowed values: llm, acp, loop, external",
        ),
        (
            "/v1/agents",
            {"name": "x", "system_prompt": "x", "slug": "a b"},
            "slug",
            "Expected 1 to 255 characters out of A-Z, a-z, 0-9, _ and -",
        ),
    ],
)
async def test_a_body_is_refused_with_what_it_may_say(
    quiet_visitor: Visitor, path: str, body: dict[str, Any], where: str, rule: str
) -> None:
    session = await quiet_visitor.session()

    answer = await quiet_visitor.post(path.replace("B", f"/v1/sessions/{session['id']}"), body)

    assert answer.status == 400
    assert answer.document["details"] == {"path": where, "rule": rule}


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        (
            "status=idle",
            "Expected a comma-separated list of pending, running, completed, failed",
        ),
        ("begins=x", "Expected at least 8 characters of an id"),
    ],
)
async def test_a_query_is_refused_with_what_it_may_say(
    quiet_visitor: Visitor, query: str, rule: str
) -> None:
    answer = await quiet_visitor.get(f"/v1/sessions?{query}")

    assert answer.status == 400
    assert answer.document["details"]["rule"] == rule
