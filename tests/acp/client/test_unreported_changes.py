"""Which changes of a repository a turn's calls have named, and which nobody has."""

import time
from typing import Any

import pytest

from holdfast.acp.client.unreported_changes import WorktreeWatch
from holdfast.domain.drafts import CallDetails, Draft, MessageDraft
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Location,
    Notice,
    NoticeCode,
    ResultStatus,
    Role,
    ToolCall,
    ToolResult,
)
from tests.marks import each_case

pytestmark = pytest.mark.anyio

ROOT = "/home/me/project"


def call(arguments: dict[str, Any], *paths: str) -> Draft:
    locations = tuple(Location(path=path) for path in paths)
    part = ToolCall(id=CallId("c"), name="other", arguments=arguments, locations=locations)
    return MessageDraft(role=Role.TOOL_CALL, parts=(part,))


def result(*paths: str) -> Draft:
    told = {"diffs": [{"path": path} for path in paths]}
    part = ToolResult(call_id=CallId("c"), name="other", status=ResultStatus.OK, result=told)
    return MessageDraft(role=Role.TOOL_RESULT, parts=(part,))


async def silent(changed: list[str], *drafts: Draft) -> list[str]:
    """Return which of some changes are told of, after a turn with these drafts."""
    looks = [{}, dict.fromkeys(changed, "?")]

    async def look() -> dict[str, str]:
        return looks.pop(0)

    tree = WorktreeWatch(ROOT, look)
    await tree.begin()
    tree.note(drafts)
    rows = await tree.notices()
    head = "The repository has changed in this turn without a reported tool call: "
    texts = [part.text for row in rows for part in row.parts if isinstance(part, Notice)]
    assert all(text.startswith(head) and text.endswith(".") for text in texts)
    return [path for text in texts for path in text[len(head) : -1].split(", ")]


@each_case(
    ("drafts", "told"),
    [
        pytest.param([], ["a.py"], id="nobody"),
        pytest.param([call({"path": "a.py"})], [], id="from the repository on"),
        pytest.param([call({"path": "./src/../a.py"})], [], id="in another spelling"),
        pytest.param([call({"deep": [{"path": f"{ROOT}/a.py"}]})], [], id="whole"),
        pytest.param([call({}, f"{ROOT}/a.py")], [], id="as a location"),
        pytest.param([result(f"{ROOT}/a.py")], [], id="in a change"),
        pytest.param([CallDetails(call_id=CallId("c"), arguments={"p": "a.py"})], [], id="later"),
        pytest.param([call({"command": "echo x>'a.py' && ls"})], [], id="in a command"),
        pytest.param([call({"path": "data.py"})], ["a.py"], id="one that ends like it"),
        pytest.param([call({"path": "a.pyc"})], ["a.py"], id="one that begins like it"),
        pytest.param([call({"path": "src/a.py"})], ["a.py"], id="one of another folder"),
        pytest.param([call({"path": "/etc/a.py"})], ["a.py"], id="one outside"),
        pytest.param([call({"path": f"{ROOT}2/a.py"})], ["a.py"], id="one of a neighbour"),
        pytest.param([call({"cwd": ROOT, "dot": "."})], ["a.py"], id="the repository itself"),
        pytest.param([call({"text": "x" * 4_096 + " a.py"})], ["a.py"], id="in a long text"),
    ],
)
async def test_a_change_is_told_unless_a_call_names_the_whole_path(
    drafts: list[Draft], told: list[str]
) -> None:
    assert await silent(["a.py"], *drafts) == told


async def test_a_path_with_spaces_is_a_path() -> None:
    assert await silent(["my notes.txt"], call({"path": "my notes.txt"})) == []


async def test_who_names_a_folder_names_what_is_in_it() -> None:
    changed = ["build/out/a.o", "builder.py"]

    assert await silent(changed, call({"command": "rm -rf build"})) == ["builder.py"]


async def test_a_new_folder_is_named_by_what_is_in_it() -> None:
    named = call({"path": "new/deep/a.py"})

    assert await silent(["new/", "newer/", "ne/"], named) == ["ne/", "newer/"]


async def test_many_changes_and_many_names_keep_nobody_waiting() -> None:
    changed = [f"folder/{number}/file" for number in range(10_000)]
    named = [
        call({"all": [f"other/{number}/{each}" for each in range(1_000)]}) for number in range(50)
    ]
    began = time.monotonic()

    told = await silent(changed, *named)

    assert len(told) == 50
    assert time.monotonic() - began < 3.0


async def test_the_notice_has_a_code_of_its_own() -> None:
    async def look() -> dict[str, str]:
        return dict.fromkeys(seen, "?")

    seen: list[str] = []
    tree = WorktreeWatch(ROOT, look)
    await tree.begin()
    seen.append("a.py")

    told = "The repository has changed in this turn without a reported tool call: a.py."
    notice = Notice(code=NoticeCode.WORKTREE_CHANGED, text=told)
    assert await tree.notices() == (MessageDraft(role=Role.SYSTEM, parts=(notice,)),)
