"""Well-known agents over HTTP."""

from pathlib import Path

import pytest

from holdfast.domain.tokens import Scope
from tests.http.v1.client import Visitor, refusal

pytestmark = pytest.mark.anyio


async def test_a_program_that_is_there_comes_first_and_says_how_it_is_started(
    quiet_visitor: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "qwen"
    program.write_text("#!/bin/sh\necho 1.2.3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    answer = await quiet_visitor.get("/v1/programs")

    first, *others = answer.document["data"]
    options = {"install": "npm install -g @qwen-code/qwen-code", "preset": "qwen"}
    assert first == {
        "preset": "qwen",
        "title": "Qwen Code",
        "path": str(program),
        "version": "1.2.3",
        "install": "npm install -g @qwen-code/qwen-code",
        "runtime": {
            "type": "acp",
            "command": "qwen",
            "args": ["--acp"],
            "env_names": ["OPENAI_API_KEY"],
            "options": options,
        },
    }
    assert {each["path"] for each in others} == {None}
    assert all(each["install"] for each in others)


async def test_what_is_shown_makes_an_agent(quiet_visitor: Visitor) -> None:
    (found, *_) = (await quiet_visitor.get("/v1/programs")).document["data"]

    body = {"name": found["title"], "runtime": found["runtime"]}
    made = await quiet_visitor.post("/v1/agents", body)

    assert (made.status, made.document["runtime"]) == (201, found["runtime"])


async def test_only_who_looks_after_the_machine_sees_what_is_on_it(quiet_visitor: Visitor) -> None:
    mcp_handler = await quiet_visitor.as_(quiet_visitor.house.owner, Scope.WRITE)

    assert refusal(await mcp_handler.get("/v1/programs")) == (403, "forbidden")
