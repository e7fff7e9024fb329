"""Changes that a program shows when it asks: seen whole, and bound to the answer."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.client.content import FileEdit, read_edits
from holdfast.acp.client.turn_context import _matches_edits
from holdfast.domain.approvals import ApprovalMode, ApprovalState
from holdfast.domain.tools import ToolClass
from tests.acp.client.test_agent_requests import does
from tests.acp.client.test_approval_reuse import NAY, YES, settle
from tests.acp.client.test_permissions import ALL, asking, asks, chosen
from tests.acp.harness import Aboard, aboard
from tests.acp.session_updates import a_translator

pytestmark = pytest.mark.anyio

NEW = "".join(f"line {number}\n" for number in range(3))


def diff(path: object, new: object, old: object = None) -> dict[str, Any]:
    """Return a change as the content of a call shows it."""
    return {"type": "diff", "path": str(path), "oldText": old, "newText": new}


def editing(*diffs: dict[str, Any], name: str = "asked", **call: Any) -> dict[str, Any]:
    """Return the step that asks for a change and shows it."""
    told = {"title": "Write it", "kind": "edit", "rawInput": {}, "content": list(diffs), **call}
    return asking(ALL, name=name, **told)


async def test_the_change_is_in_the_question_line_by_line(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    change = diff(tree / "a.txt", "one\ntwo \u202e\n", "one\n")
    script = asks(editing(change, diff(tree / "b.txt", NEW), locations=[{"path": f"{tree}/a.txt"}]))
    async with aboard(tmp_path, on=script) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        asked = await settle(ship, session, YES)
        await ship.settled(session)

    assert asked.question.question.splitlines() == [
        "Write it",
        f"{tree}/a.txt",
        f"{tree}/b.txt",
        f"{tree}/a.txt (change)",
        "@@ -1 +1,2 @@",
        " one",
        "+two \\u202e",
        f"{tree}/b.txt (new file)",
        "+line 0",
        "+line 1",
        "+line 2",
    ]
    assert (asked.question.tool_class, asked.question.preview["path"]) == (
        ToolClass.WRITE,
        f"{tree}/a.txt",
    )


async def test_a_change_that_an_earlier_update_has_shown_is_in_it_too(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "a.txt"
    call = {"sessionUpdate": "tool_call", "toolCallId": "call-asked", "kind": "edit",
            "title": "Write it", "status": "pending", "content": [diff(file, NEW)]}  # fmt: skip
    bare = asking(ALL, kind="edit")
    del bare["ask"]["params"]["toolCall"]["title"]
    async with aboard(tmp_path, on=asks({"update": call}, bare)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        asked = await settle(ship, session, NAY)
        await ship.settled(session)

    assert asked.question.question.endswith(f"{file} (new file)\n+line 0\n+line 1\n+line 2")


async def test_the_answer_is_for_this_change_and_for_no_other(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.txt"
    steps = [editing(diff(file, text), name=name) for name, text in
             (("one", "a"), ("two", "a"), ("three", "b"))]  # fmt: skip
    async with aboard(tmp_path, on=asks(*steps)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        asked = [await settle(ship, session, answer) for answer in (YES, YES, NAY)]
        await ship.settled(session)

    digests = [each.question.digest for each in asked]
    assert digests[0] == digests[1] != digests[2]
    assert asked[0].question.tool_class is ToolClass.SENSITIVE_WRITE


async def test_a_change_is_no_reading_whatever_it_is_called(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "a.txt"
    async with aboard(tmp_path, on=asks(editing(diff(file, NEW), kind="read"))) as ship:
        session = await ship.open(approval=ApprovalMode.DENY)
        await ship.tell(session)
        (row,) = (await ship.house.approvals.list(ship.house.owner, session.id)).items

    assert (row.state, row.question.tool_class) == (ApprovalState.DENIED, ToolClass.WRITE)
    assert ship.peer.answers()["asked"]["result"] == chosen("no")


async def test_a_delicate_file_is_known_by_the_change_alone(tmp_path: Path) -> None:
    hook = tmp_path / "tree" / ".git" / "hooks" / "pre-commit"
    async with aboard(tmp_path, on=asks(editing(diff(hook, "#!/bin/sh\n")))) as ship:
        session = await ship.open(approval=ApprovalMode.EDITS)
        await ship.house.send(session.id, "go")
        asked = await settle(ship, session, NAY)
        await ship.settled(session)

    assert asked.question.tool_class is ToolClass.SENSITIVE_WRITE


TOO_MUCH: dict[str, dict[str, Any]] = {
    "a change": {"content": [diff("/a", "x" * (1 << 20))]},
    "an input": {"rawInput": "x" * ((1 << 20) + 1)},
    "an input with too many levels": {"rawInput": {}},
    "a title that is all there is": {"rawInput": None, "title": "x" * 1_001},
    "places": {"locations": [{"path": f"/{number}"} for number in range(1_001)]},
}
DEEP: dict[str, Any] = TOO_MUCH["an input with too many levels"]["rawInput"]
for _ in range(70):
    DEEP["more"] = DEEP = {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", TOO_MUCH)
async def test_what_cannot_be_shown_whole_is_refused_and_nobody_is_asked(
    tmp_path: Path, what: str
) -> None:
    async with aboard(tmp_path, on=asks(editing(**TOO_MUCH[what]))) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.tell(session)
        (row,) = (await ship.house.approvals.list(ship.house.owner, session.id)).items

    assert (row.state, row.answered_by) == (ApprovalState.DENIED, "too_large")
    assert ship.peer.answers()["asked"]["result"] == chosen("no")


async def test_a_hundred_places_and_one_are_all_shown(tmp_path: Path) -> None:
    places = [{"path": f"/at/{number}\nnot a line"} for number in range(101)]
    async with aboard(tmp_path, on=asks(asking(ALL, locations=places))) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        asked = await settle(ship, session, NAY)
        await ship.settled(session)

    shown = asked.question.question.splitlines()
    expected = [line for number in range(101) for line in (f"/at/{number}", "  not a line")]
    assert shown[1:203] == expected


async def _written(ship: Aboard, answers: int) -> tuple[list[Any], dict[str, Any]]:
    session = await ship.open(approval=ApprovalMode.ASK)
    await ship.house.send(session.id, "go")
    asked = [await settle(ship, session, YES) for _ in range(answers)]
    await ship.settled(session)
    return asked, ship.peer.answers()


async def test_a_yes_to_a_change_covers_that_change_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "a.txt"
    file.parent.mkdir()
    file.write_text("one\ntwo\n")
    write = does("fs/write_text_file", "same", path=str(file), content="one\n2\n")
    other = does("fs/write_text_file", "other", path=str(file), content="all gone\n")
    steps = [
        editing(diff(file, "2\n", "two\n"), name="piece"),
        write,
        editing(diff(file, "3\n", "2\n"), name="again"),
        other,
    ]
    async with aboard(tmp_path, on=asks(*steps)) as ship:
        asked, answers = await _written(ship, 3)

    assert [each.question.tool for each in asked] == ["edit", "edit", "fs.write_text_file"]
    assert (answers["same"]["result"], answers["other"]["result"]) == ({}, {})
    assert file.read_text() == "all gone\n"


async def test_a_yes_to_a_new_file_covers_it(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "new.txt"
    write = does("fs/write_text_file", "made", path=str(file), content=NEW)
    async with aboard(tmp_path, on=asks(editing(diff(file, NEW)), write)) as ship:
        asked, answers = await _written(ship, 1)

    assert (len(asked), answers["made"]["result"], file.read_text()) == (1, {}, NEW)


AGREE = [
    ((), "x", "anything", True),
    ((("/other", None, "b"),), "x", "anything", True),
    ((("/a", "x", "y"),), "x x", "y x", True),
    ((("/a", "x", "y"),), "x x", "y y", True),
    ((("/a", "x", "y"),), "x x", "x y", False),
    ((("/a", "x", "y"), ("/a", "y", "z")), "x", "z", True),
    ((("/a", None, "new"),), "old", "other", False),
    ((("/a", "x", "y"),) * 9, "x", "y!", False),
]


@pytest.mark.parametrize(("edits", "before", "content", "is_shown"), AGREE)
def test_a_text_is_what_the_changes_make_of_the_one_before(
    edits: tuple[tuple[str, str | None, str], ...], before: str, content: str, is_shown: bool
) -> None:
    shown = [FileEdit(path=path, old=old, new=new) for path, old, new in edits]

    assert _matches_edits(shown, "/a", before, content) is is_shown


def test_what_is_no_change_shows_none() -> None:
    odd = [
        {"type": "diff", "path": 1, "newText": "x"},
        {"type": "diff", "path": "/a"},
        {"type": "content", "path": "/a", "newText": "x"},
        diff("/a", "x", 7),
        None,
    ]

    assert read_edits(odd) == (FileEdit(path="/a", new="x"),)


def test_a_long_title_beside_an_input_hides_nothing() -> None:
    call = {"toolCallId": "c", "title": "x" * 2_000, "rawInput": {"command": "make"}}

    assert not a_translator().asked(call, now=0.0).is_cut
