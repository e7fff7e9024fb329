"""Answers of a newer server: what it has added is passed over, what is wrong stays wrong."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.client.requests import decode_tolerantly
from holdfast.wire.agents import AgentForm, AgentList, LlmRuntimeForm
from holdfast.wire.sessions import SessionForm
from tests.client.test_requests import AGENT
from tests.marks import each_case

NEW: dict[str, Any] = {"unheard": {"of": [1]}}
NEWER = {
    **AGENT,
    **NEW,
    "runtime": {"type": "llm", **NEW},
    "grant": {"fs": "sandboxed", "commands": ["ls"], "domains": [], **NEW},
    "tools": ["read_file", {"name": "fetch", "parameters": {"type": "object"}, **NEW}],
}


def test_new_keys_are_passed_over_wherever_they_stand() -> None:
    agent = decode_tolerantly(json.dumps(NEWER).encode(), AgentForm)
    listed = decode_tolerantly(
        json.dumps({"data": [NEWER], "next_cursor": None, **NEW}).encode(), AgentList
    )

    assert agent.runtime == LlmRuntimeForm()
    assert agent.tools == (
        "read_file",
        {"name": "fetch", "parameters": {"type": "object"}, **NEW},
    )
    assert agent.grant is not None
    assert agent.grant.commands == ("ls",)
    assert listed.data == (agent,)


@each_case("wrong", [{**NEWER, "name": 3}, {"data": []}, []])
def test_what_is_wrong_stays_wrong(wrong: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_tolerantly(json.dumps(wrong).encode(), AgentForm)


def test_half_a_document_is_none() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_tolerantly(b"{", SessionForm)
