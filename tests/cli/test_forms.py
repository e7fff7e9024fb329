"""The JSON form of listings."""

import pytest

from holdfast.cli.forms import (
    STATUS,
    agent_form,
    instant,
    message_form,
    message_forms,
    repo_form,
    session_form,
    verification_form,
)
from holdfast.domain.agents import AcpRuntime, LlmRuntime, ModelChoice
from holdfast.domain.costs import Usage
from holdfast.domain.ids import MessageId, ModelId
from holdfast.domain.messages import (
    Compaction,
    Message,
    Notice,
    NoticeCode,
    Part,
    Plan,
    PlanStep,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolError,
)
from holdfast.domain.sessions import Budget, ForkPoint, Selection, Session, Status, StopReason
from holdfast.services.sessions import Verification
from tests.builders import (
    AGENT_ID,
    AT,
    MODEL_ID,
    REPO_ID,
    SESSION_ID,
    a_context,
    a_message,
    a_repo,
    a_session,
    a_tool,
    a_tool_call,
    a_tool_result,
    an_agent,
    an_id,
)

WHEN = "2026-01-02T03:04:05.678901Z"


def test_an_instant_has_six_digits_and_a_z() -> None:
    assert instant(AT.replace(microsecond=0)) == "2026-01-02T03:04:05.000000Z"
    assert instant(None) is None


def test_a_session_has_every_key() -> None:
    session = a_session(
        title="Tea",
        tags=("a",),
        context=a_context(selection=Selection(file="f", start_line=1, end_line=2)),
        budget=Budget(microcents=7),
        forked_from=ForkPoint(session_id=SESSION_ID, sequence=2),
        usage=Usage(input=1, output=2, cache_read=3, cache_write=4, reasoning=5),
        microcents=9,
        metadata={"k": "v"},
    )

    assert session_form(session, priced=False) == {
        "id": SESSION_ID,
        "agent_id": AGENT_ID,
        "title": "Tea",
        "tags": ["a"],
        "model_id": None,
        "status": "pending",
        "state": "pending",
        "turn": 0,
        "settled": 0,
        "last_stop": None,
        "reason": None,
        "repo_id": None,
        "forked_from": {"session_id": SESSION_ID, "sequence": 2},
        "turn_cap": 50,
        "approval": "ask",
        "context": {
            "working_dir": "/desk",
            "active_file": None,
            "selection": {"file": "f", "start_line": 1, "end_line": 2},
            "git_ref": None,
            "fs_scope_tier": "sandboxed",
            "variables": {},
        },
        "budget": {"microcents": 7, "on_exceed": "pause"},
        "usage": {
            "input_tokens": 5,
            "cached_input_tokens": 3,
            "output_tokens": 2,
            "reasoning_tokens": 5,
        },
        "cost": {"microcents": 9, "priced": False},
        "message_count": 0,
        "last_event": 0,
        "created_at": WHEN,
        "updated_at": WHEN,
        "started_at": None,
        "finished_at": None,
        "metadata": {"k": "v"},
    }


def test_every_status_has_a_word() -> None:
    assert set(STATUS) == set(Status)


@pytest.mark.parametrize(
    ("session", "status"),
    [
        (a_session(status=Status.IDLE, last_stop=StopReason.STOP), "completed"),
        (a_session(status=Status.IDLE, last_stop=StopReason.ERROR), "failed"),
        (a_session(status=Status.CANCELLED, last_stop=StopReason.ERROR), "completed"),
        (a_session(status=Status.RUNNING), "running"),
        (a_session(status=Status.FAILED), "failed"),
    ],
)
def test_an_idle_session_is_what_its_last_turn_was(session: Session, status: str) -> None:
    form = session_form(session, priced=True)

    assert (form["status"], form["state"]) == (status, session.status.value)


def test_a_users_message_is_its_text() -> None:
    assert message_form(a_message("hi\x1b[31m", sequence=1)) == {
        "id": an_id(1_001),
        "session_id": SESSION_ID,
        "sequence": 1,
        "turn": 1,
        "role": "user",
        "content": {"text": "hi\x1b[31m"},
        "tool_call_id": None,
        "model_id": None,
        "created_at": WHEN,
    }


def test_a_call_and_its_result_have_their_own_content() -> None:
    call = message_form(a_message(role=Role.TOOL_CALL, parts=(a_tool_call(),)))
    result = message_form(a_message(role=Role.TOOL_RESULT, parts=(a_tool_result(result={"a": 1}),)))

    assert call["content"] == {
        "id": "call-1",
        "name": "read_file",
        "arguments": {"path": "a.txt"},
    }
    assert result["content"] == {"result": {"a": 1}, "error": None}
    assert (result["tool_call_id"], result["result_status"]) == ("call-1", "ok")
    assert "parts" not in call


def test_an_unknown_outcome_has_an_error_and_no_result() -> None:
    error = ToolError(code="unknown", message="outcome unknown: cut off")
    part = a_tool_result(status=ResultStatus.UNKNOWN, result=None, error=error)

    form = message_form(a_message(role=Role.TOOL_RESULT, parts=(part,)))

    assert form["content"] == {"result": None, "error": "outcome unknown: cut off"}
    assert form["result_status"] == "unknown"


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (Text(text="plain"), "plain"),
        (Notice(code=NoticeCode.ABORTED, text="stopped"), "stopped"),
        (Compaction(summary="in short", dropped_through=3), "in short"),
        (
            Plan(steps=(PlanStep(text="look"), PlanStep(text="go"))),
            "- look (pending)\n- go (pending)",
        ),
    ],
)
def test_what_a_system_row_says_is_text(part: Part, text: str) -> None:
    form = message_form(a_message(role=Role.SYSTEM, parts=(part,)))

    assert form["content"] == {"text": text}
    assert ("parts" in form) is not isinstance(part, Text)


def test_thoughts_are_parts_and_not_text() -> None:
    row = a_message(role=Role.ASSISTANT, parts=(Reasoning(text="hm"), Text(text="yes")))

    form = message_form(row)

    assert form["content"] == {"text": "yes"}
    assert form["parts"] == [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "yes"}]


def test_an_answer_that_was_cut_off_says_so() -> None:
    rows = (
        row(1, Role.ASSISTANT, Text(text="first"), turn=1),
        row(2, Role.ASSISTANT, Text(text="before a tool"), turn=2),
        row(3, Role.ASSISTANT, Text(text="half an ans"), turn=2),
    )
    closing = row(4, Role.SYSTEM, Notice(code=NoticeCode.ABORTED, text="stopped"), turn=2)

    forms = message_forms(rows, [closing])

    assert [form.get("interrupted") for form in forms] == [None, None, True]


def test_an_agent_has_every_key() -> None:
    agent = an_agent(
        tools=(a_tool(),),
        tags=("t",),
        runtime=LlmRuntime(
            models=(ModelChoice(model_id=MODEL_ID), ModelChoice(model_id=ModelId(an_id(9)))),
            temperature=0.5,
            max_tokens=9,
        ),
    )

    assert agent_form(agent) == {
        "id": AGENT_ID,
        "slug": agent.slug,
        "name": agent.name,
        "description": None,
        "system_prompt": agent.system_prompt,
        "default_model_id": MODEL_ID,
        "fallback_model_ids": [an_id(9)],
        "temperature": 0.5,
        "max_tokens": 9,
        "tools": ["read_file"],
        "tags": ["t"],
        "runtime": {"type": "llm"},
        "grant": {"fs": "sandboxed", "commands": [], "command_globs": [], "domains": []},
        "recovery": "stop",
        "status": "active",
        "created_at": WHEN,
        "updated_at": WHEN,
    }


def test_an_agent_with_a_program_shows_it() -> None:
    form = agent_form(an_agent(runtime=AcpRuntime(command="gemini", args=("--acp",))))

    assert form["runtime"] == {
        "type": "acp",
        "command": "gemini",
        "args": ["--acp"],
        "env_names": [],
        "options": {},
    }
    assert form["default_model_id"] is None


def test_a_repository_has_every_key() -> None:
    repo = a_repo()

    assert repo_form(repo) == {
        "id": REPO_ID,
        "name": repo.name,
        "path": repo.path,
        "created_at": WHEN,
    }


def test_a_check_shows_its_faults() -> None:
    found = Verification(session_id=SESSION_ID, messages=2, head="ab", faults=("one",))

    assert verification_form(found) == {
        "session_id": SESSION_ID,
        "messages": 2,
        "head": "ab",
        "faults": ["one"],
    }


def row(sequence: int, role: Role, part: Part, *, turn: int) -> Message:
    """Return a row of a turn."""
    return a_message(
        role=role, parts=(part,), sequence=sequence, turn=turn, id=MessageId(an_id(sequence))
    )
