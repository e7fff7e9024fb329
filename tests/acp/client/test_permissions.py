"""Permission requests of a program: who decides, how it is shown, what is answered and kept."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.acp.client.content import FileEdit
from holdfast.acp.client.turn_context import _matches_edits
from holdfast.app import Environment
from holdfast.domain.approvals import ApprovalMode, ApprovalState, Decision
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.messages import ResultStatus, Role, ToolResult
from holdfast.domain.sessions import Session, StopReason
from holdfast.domain.tools import ToolClass
from tests.acp.harness import Aboard, aboard, parts
from tests.acp.session_updates import a_translator
from tests.acp.steps import (
    ALL,
    ALWAYS,
    CANCELLED,
    EVER,
    NAY,
    NEVER,
    NO,
    ONCE,
    YES,
    asking,
    beside,
    chosen,
    command,
    does,
    prompt,
    turns,
    write,
)
from tests.houses import head_of

pytestmark = pytest.mark.anyio

FREE = {"config_approval": ApprovalMode.AUTO}
MODES: dict[ApprovalMode, dict[str, str]] = {
    ApprovalMode.DENY: {"read": "yes", "edit": "no", "execute": "no", "think": "yes",
                        "fetch": "no", "own_word": "no"},
    ApprovalMode.ASK: {"search": "yes"},
    ApprovalMode.EDITS: {"edit": "yes", "delete": "yes", "move": "yes"},
    ApprovalMode.AUTO: {"execute": "yes", "fetch": "yes", "switch_mode": "yes", "other": "yes"},
}  # fmt: skip


def results(ship: Aboard) -> dict[str, Any]:
    """Return the answers that were no error, by the name of the question."""
    return {name: each.get("result") for name, each in ship.peer.answers().items()}


async def switch(ship: Aboard, session: Session, mode: ApprovalMode) -> None:
    """Change the mode of a session."""
    await ship.house.sessions.update(ship.house.owner, session.id, {"approval": mode})


async def test_a_mode_decides_by_kind_and_leaves_a_row(tmp_path: Path) -> None:
    steps = [
        [asking(name=f"{mode}/{kind}", kind=kind, rawInput={"mode": mode}) for kind in kinds]
        for mode, kinds in MODES.items()
    ]
    async with aboard(tmp_path, on=turns(*steps), **FREE) as ship:
        session = await ship.open()
        for mode in MODES:
            await switch(ship, session, mode)
            await ship.tell(session)
        rows = await ship.approvals(session)

    expected = {f"{mode}/{kind}": option for mode, kinds in MODES.items() for kind, option in
                kinds.items()}  # fmt: skip
    assert results(ship) == {name: chosen(option) for name, option in expected.items()}
    assert [(row.question.call_id, row.state, row.answered_by) for row in rows] == [
        (
            f"call-{name}",
            ApprovalState.ALLOWED if option == "yes" else ApprovalState.DENIED,
            f"policy:{name.partition('/')[0]}",
        )
        for name, option in expected.items()
    ]


SECOND = {**ONCE, "optionId": "second"}
NAMED = replace(YES, choice="second")
ANSWERS: dict[str, tuple[list[dict[str, Any]], Decision, dict[str, Any]]] = {
    "allowed once": (ALL, YES, chosen("yes")),
    "allowed for the session": (ALL, EVER, chosen("ever")),
    "for the session, where only once is offered": ([ONCE, NO], EVER, chosen("yes")),
    "denied": (ALL, NAY, chosen("no")),
    "denied, where only never is offered": ([ONCE, NEVER], NAY, chosen("never")),
    "denied, where no is not offered": ([ONCE], NAY, CANCELLED),
    "the first of two of one kind": ([ONCE, SECOND, NO], YES, chosen("yes")),
    "the one that was named": ([ONCE, SECOND, NO], NAMED, chosen("second")),
}


async def test_an_answer_becomes_the_option_that_means_it(tmp_path: Path) -> None:
    steps = [[asking(options, name=name, rawInput={"case": name})]
             for name, (options, _, _) in ANSWERS.items()]  # fmt: skip
    # What was allowed for the session is not asked again.
    steps[2].append(asking([ONCE, NO], name="again", rawInput=steps[2][0]["ask"]["params"][
        "toolCall"]["rawInput"]))  # fmt: skip
    async with aboard(tmp_path, on=turns(*steps)) as ship:
        session = await ship.open()
        for name, (_, answer, _) in ANSWERS.items():
            await ship.house.send(session.id, "go")
            await ship.waiting(session)
            assert name not in ship.peer.answers()
            await ship.answer(session, answer)
            await ship.settled(session)

    expected = {name: outcome for name, (_, _, outcome) in ANSWERS.items()}
    assert results(ship) == expected | {"again": chosen("yes")}


REFUSED: dict[str, tuple[list[dict[str, Any]], Decision]] = {
    "once is never widened": ([ALWAYS, NO], YES),
    "no yes is offered": ([NO], YES),
    "unknown option": (ALL, replace(YES, choice="other")),
}


async def test_what_is_not_offered_cannot_be_answered_and_nothing_twice(tmp_path: Path) -> None:
    steps = [[asking(options, name=name)] for name, (options, _) in REFUSED.items()]
    async with aboard(tmp_path, on=turns(*steps)) as ship:
        session, approvals = await ship.open(), ship.house.approvals
        for _, answer in REFUSED.values():
            await ship.house.send(session.id, "go")
            (asked,) = await ship.waiting(session)
            with pytest.raises(Conflict) as caught:
                await approvals.answer(ship.house.owner, session.id, asked.id, answer)
            assert caught.value.code is Code.OPTION_NOT_OFFERED
            await ship.answer(session, NAY)
            with pytest.raises(Conflict):
                await approvals.answer(ship.house.owner, session.id, asked.id, EVER)
            await ship.settled(session)

    assert results(ship) == dict.fromkeys(REFUSED, chosen("no"))


async def test_a_policy_does_not_widen_a_yes_and_who_offers_no_answer_is_denied(
    tmp_path: Path,
) -> None:
    none = {"nothing": [], "neither": [{"name": "neither id nor kind"}]}
    asks = [asking(options, name=name, rawInput={}) for name, options in none.items()]
    steps = [[*asks, asking([ALWAYS, NO], name="widened")], asks]
    async with aboard(tmp_path, on=turns(*steps), **FREE) as ship:
        session = await ship.open(approval=ApprovalMode.AUTO)
        await ship.tell(session)
        await switch(ship, session, ApprovalMode.ASK)
        await ship.tell(session)
        rows = await ship.answered(session)

    assert results(ship) == dict.fromkeys(none, CANCELLED) | {"widened": chosen("no")}
    denied = ("execute", "denied", "option_not_offered")
    assert rows == [denied, denied, ("execute", "denied", "policy:auto"), denied, denied]


async def test_several_wait_at_once_and_keep_nothing_else_waiting(tmp_path: Path) -> None:
    script = prompt(
        beside(asking(name="one")),
        beside(asking(name="two", rawInput={"command": "test"})),
        {"text": "meanwhile "},
        {"mark": "said"},
        {"await": "one"},
        {"await": "two"},
        {"text": "done"},
    )
    async with aboard(tmp_path, on=script) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        first, second = await ship.waiting(session, 2)
        await ship.logged("mark", name="said")
        for asked in (second, first):
            await ship.house.approvals.answer(ship.house.owner, session.id, asked.id, YES)
        rows = await ship.settled(session)

    assert results(ship) == {"one": chosen("yes"), "two": chosen("yes")}
    assert "".join(row.text for row in rows if row.role is Role.ASSISTANT) == "meanwhile done"


async def test_two_sessions_wait_each_for_its_own_answer_and_take_no_place(
    tmp_path: Path,
) -> None:
    settings = {"config_approvals_pause_after": timedelta(), "config_turns_at_a_time": 1}
    async with aboard(tmp_path, on=prompt(asking(name="$prompt")), **settings) as ship:
        sessions = [await ship.open(), await ship.open()]
        for session, word in zip(sessions, ("one", "two"), strict=True):
            await ship.house.send(session.id, word)
            await ship.waiting(session)
        heads = [await head_of(ship.house, session) for session in sessions]
        # The one that was asked last is answered first.
        for session, answer in zip(sessions[::-1], (YES, NAY), strict=True):
            await ship.answer(session, answer)
            await ship.settled(session)
        after = [await ship.now(session) for session in sessions]

    assert results(ship) == {"one": chosen("no"), "two": chosen("yes")}
    assert [head.until > 0 for head in heads] == [True, True]
    assert [session.last_stop for session in after] == [StopReason.STOP] * 2


# What a flag names, calls by name and kind, and who has answered them.
UNATTENDED, FLAG = ("denied", "unattended"), ("allowed", "flag")
FLAGS: list[tuple[set[str], dict[tuple[str, str], tuple[str, str]]]] = [
    (
        {"fetch", "terminal.create", "write_file"},
        {
            ("fetch", "execute"): UNATTENDED,
            ("terminal.create", "execute"): UNATTENDED,
            ("x", "write_file"): UNATTENDED,
            ("x", "fetch"): FLAG,
        },
    ),
    ({"other", "execute"}, {("x", "unheard of"): FLAG, ("fetch", "execute"): FLAG}),
]


@pytest.mark.parametrize("case", [0, 1])
async def test_a_flag_knows_a_foreign_call_by_its_kind_and_ours_by_its_name(
    tmp_path: Path, case: int
) -> None:
    flags, calls = FLAGS[case]
    outside = Environment(is_attended=False, yes_to=frozenset(flags))
    steps = [asking(name=f"{name} {kind}", kind=kind) for name, kind in calls]
    for step, (name, _) in zip(steps, calls, strict=True):
        step["ask"]["params"]["toolCall"]["name"] = name
    async with aboard(tmp_path, outside=outside, on=prompt(*steps, command("run", "true"))) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.tell(session)
        *rows, ours = await ship.answered(session)

    assert [row[1:] for row in rows] == list(calls.values())
    assert ours == ("terminal.create", *(FLAG if "terminal.create" in flags else UNATTENDED))


async def test_time_answers_no_when_nobody_does(tmp_path: Path) -> None:
    brief = timedelta(seconds=0.3)
    async with aboard(tmp_path, config_approvals_expire_after=brief, on=prompt(asking())) as ship:
        session = await ship.open()
        await ship.tell(session)
        rows = await ship.answered(session)

    assert (results(ship), rows) == ({"asked": chosen("no")}, [("execute", "expired", "time")])


async def test_an_interrupt_answers_what_waits_with_cancelled(tmp_path: Path) -> None:
    async with aboard(tmp_path, on=prompt(asking())) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        await ship.waiting(session)
        await ship.house.sessions.interrupt(ship.house.owner, session.id)
        await ship.logged("cancelled")
        rows = await ship.settled(session)
        now = await ship.now(session)
        (row,) = await ship.approvals(session)

    answers = [each["message"] for each in ship.peer.log("got") if "result" in each["message"]]
    assert answers[-1]["result"] == CANCELLED
    # The answer comes before the cancel.
    assert [each.get("method") for each in ship.peer.got()][-2:] == [None, "session/cancel"]
    assert (now.last_stop, row.state) == (StopReason.ABORTED, ApprovalState.EXPIRED)
    assert [each.status for each in parts(rows, ToolResult)] == [ResultStatus.UNKNOWN]


async def test_variables_are_shown_and_choose_no_program(tmp_path: Path) -> None:
    evil = tmp_path / "tree" / "evil"
    evil.mkdir(parents=True)
    (evil / "sh").write_text(f"#!/bin/sh\n: > {tmp_path}/loot\n")
    (evil / "sh").chmod(0o755)
    variables = [{"name": "PATH", "value": f"{evil}:/usr/bin:/bin"}, {"name": "A", "value": "b"}]
    steps = (
        command("t", "sh", "-c", "echo $A", env=variables),
        does("terminal/wait_for_exit", "ended", terminalId="$t"),
        does("terminal/output", "shown", terminalId="$t"),
    )
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        (asked,) = await ship.asked(await ship.open(approval=ApprovalMode.ASK), YES)

    assert asked.question.arguments["env"] == {"PATH": f"{evil}:/usr/bin:/bin", "A": "b"}
    assert f"{evil}:/usr/bin:/bin" in asked.question.question
    assert results(ship)["shown"]["output"] == "b\n"
    assert not (tmp_path / "loot").exists()


async def test_a_write_is_asked_about_with_what_it_changes(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    file, raced, large = (tree / f"{name}.txt" for name in ("a", "raced", "large"))
    tree.mkdir()
    file.write_text("one\ntwo\n")
    much = "x" * (1 << 20)
    steps = [[write(file, "one\n2\n")], [write(raced, "ours", "raced")],
             [write(large, much)], [write(large, much)]]  # fmt: skip
    async with aboard(tmp_path, on=turns(*steps), **FREE) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        (asked,) = await ship.asked(session, YES)
        await ship.house.send(session.id, "go")
        await ship.waiting(session)
        raced.write_text("theirs")
        await ship.answer(session, YES)
        rows = await ship.settled(session)
        await ship.tell(session)
        was_written = large.exists()
        await switch(ship, session, ApprovalMode.EDITS)
        await ship.tell(session)
        *_, too_large, unasked = await ship.approvals(session)

    assert asked.question.question == f"{file} (change)\n@@ -1,2 +1,2 @@\n one\n-two\n+2"
    assert (asked.question.preview, file.read_text()) == ({"path": str(file)}, "one\n2\n")
    # It changed while somebody was asked, so it is not written.
    assert [each.status for each in parts(rows, ToolResult)] == [
        ResultStatus.OK,
        ResultStatus.ERROR,
    ]
    assert (raced.read_text(), ship.peer.answers()["raced"]["error"]["code"]) == ("theirs", -32603)
    # Nobody can be shown it, so it is not asked about; where nobody is asked, little is kept.
    assert (too_large.state, too_large.answered_by, was_written) == (
        ApprovalState.DENIED, "too_large", False)  # fmt: skip
    assert unasked.question.question == f"{large} (new file)\n[1048606 bytes not shown]"
    assert large.stat().st_size == 1 << 20


async def test_what_is_not_wanted_any_more_is_not_asked_any_more(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    acts = {
        "permission": asking([ONCE, NO], name="permission", toolCallId="same"),
        "write": write(tree / "a.txt", name="write"),
        "command": command("command", "true"),
    }

    def taken_back(name: str, step: dict[str, Any]) -> list[Any]:
        ask = {"ask": {**step["ask"], "id": f"unwanted {name}", "wait": False}}
        params = {"requestId": f"unwanted {name}"}
        cancel = {"notify": {"method": "$/cancel_request", "params": params}}
        return [ask, {"wait_file": str(tmp_path / name)}, cancel, {"await": name}, {"text": "on"}]

    again = asking([ONCE, NO], name="again", toolCallId="same")
    steps = [taken_back(name, step) for name, step in acts.items()]
    async with aboard(tmp_path, on=turns(*steps, [again])) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        for name in acts:
            await ship.house.send(session.id, "go")
            await ship.waiting(session)
            (tmp_path / name).touch()
            rows = await ship.settled(session)
        await ship.asked(session, YES)
        asked = await ship.answered(session)

    codes = {name: each["error"]["code"] for name, each in ship.peer.answers().items()
             if "error" in each}  # fmt: skip
    assert codes == dict.fromkeys(acts, -32800)
    assert [row[1:] for row in asked] == [*[("expired", "agent")] * 3, ("allowed", "me")]
    assert [each.status for each in parts(rows, ToolResult)] == [
        ResultStatus.OK,
        ResultStatus.ERROR,
        ResultStatus.ERROR,
    ]
    assert (results(ship)["again"], (tree / "a.txt").exists()) == (chosen("yes"), False)


NEW = "".join(f"line {number}\n" for number in range(3))
NEW_LINES = ["+line 0", "+line 1", "+line 2"]


def diff(path: object, new: object, old: object = None) -> dict[str, Any]:
    """Return a change as the content of a call shows it."""
    return {"type": "diff", "path": str(path), "oldText": old, "newText": new}


def editing(*diffs: dict[str, Any], name: str = "asked", **call: Any) -> dict[str, Any]:
    """Return the step that asks for a change and shows it."""
    told = {"title": "Write it", "kind": "edit", "rawInput": {}, "content": list(diffs), **call}
    return asking(name=name, **told)


async def test_the_change_is_in_the_question_line_by_line(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    file, hook = tree / "a.txt", tree / ".git" / "hooks" / "pre-commit"
    change = diff(file, "one\ntwo \u202e\n", "one\n")
    shown = editing(change, diff(tree / "b.txt", NEW), locations=[{"path": str(file)}])
    call = {"sessionUpdate": "tool_call", "toolCallId": "call-early", "kind": "edit",
            "title": "Write it", "status": "pending", "content": [diff(file, NEW)]}  # fmt: skip
    bare = asking(kind="edit", name="early")
    del bare["ask"]["params"]["toolCall"]["title"]
    places = [{"path": f"/at/{number}\nnot a line"} for number in range(101)]
    other = tmp_path / "elsewhere.txt"
    same = [editing(diff(other, text), name=f"{number}") for number, text in enumerate("aab")]
    steps = [[shown, {"update": call}, bare, asking(name="places", locations=places), *same],
             [editing(diff(file, NEW), kind="read", name="read")],
             [editing(diff(hook, "#!/bin/sh\n"), name="hook")]]  # fmt: skip
    async with aboard(tmp_path, on=turns(*steps)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        first, early, many, *asked = await ship.asked(session, YES, NAY, NAY, YES, YES, NAY)
        await switch(ship, session, ApprovalMode.DENY)
        await ship.tell(session)
        read = (await ship.approvals(session))[-1]
        await switch(ship, session, ApprovalMode.EDITS)
        (delicate,) = await ship.asked(session, NAY)

    assert first.question.question.splitlines() == [
        "Write it",
        f"{tree}/a.txt",
        f"{tree}/b.txt",
        f"{tree}/a.txt (change)",
        "@@ -1 +1,2 @@",
        " one",
        "+two \\u202e",
        f"{tree}/b.txt (new file)",
        *NEW_LINES,
    ]
    assert (first.question.tool_class, first.question.preview["path"]) == (
        ToolClass.WRITE, str(file))  # fmt: skip
    # An earlier update has shown it.
    assert early.question.question.endswith("\n".join([f"{file} (new file)", *NEW_LINES]))
    expected = [line for number in range(101) for line in (f"/at/{number}", "  not a line")]
    assert many.question.question.splitlines()[1:203] == expected
    # The answer is for this change and for no other.
    digests = [each.question.digest for each in asked]
    assert digests[0] == digests[1] != digests[2]
    assert asked[0].question.tool_class is ToolClass.SENSITIVE_WRITE
    # A change is no reading whatever it is called, and a delicate file is known by it alone.
    assert (read.state, read.question.tool_class) == (ApprovalState.DENIED, ToolClass.WRITE)
    assert delicate.question.tool_class is ToolClass.SENSITIVE_WRITE


DEEP: dict[str, Any] = {}
for _ in range(70):
    DEEP = {"more": DEEP}
TOO_MUCH: dict[str, dict[str, Any]] = {
    "a change": {"content": [diff("/a", "x" * (1 << 20))]},
    "an input": {"rawInput": "x" * ((1 << 20) + 1)},
    "an input with too many levels": {"rawInput": DEEP},
    "a title that is all there is": {"rawInput": None, "title": "x" * 1_001},
    "places": {"locations": [{"path": f"/{number}"} for number in range(1_001)]},
}


async def test_what_cannot_be_shown_whole_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    steps = [editing(name=what, **call) for what, call in TOO_MUCH.items()]
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.tell(session)
        rows = await ship.answered(session)

    assert results(ship) == dict.fromkeys(TOO_MUCH, chosen("no"))
    assert rows == [("edit", "denied", "too_large")] * len(TOO_MUCH)


def test_a_long_title_beside_an_input_hides_nothing() -> None:
    call = {"toolCallId": "c", "title": "x" * 2_000, "rawInput": {"command": "make"}}

    assert not a_translator().request(call, now=0.0).is_cut


async def test_a_yes_to_a_change_covers_that_change_and_no_other(tmp_path: Path) -> None:
    file, new = (tmp_path / "tree" / name for name in ("a.txt", "new.txt"))
    file.parent.mkdir()
    file.write_text("one\ntwo\n")
    steps = [
        editing(diff(file, "2\n", "two\n"), name="piece"),
        write(file, "one\n2\n", "same"),
        editing(diff(file, "3\n", "2\n"), name="again"),
        write(file, "all gone\n", "other"),
        editing(diff(new, NEW), name="whole"),
        write(new, NEW, "made"),
    ]
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        asked = await ship.asked(await ship.open(approval=ApprovalMode.ASK), *[YES] * 4)

    assert [each.question.tool for each in asked] == ["edit", "edit", "fs.write_text_file", "edit"]
    assert [results(ship)[name] for name in ("same", "other", "made")] == [{}, {}, {}]
    assert (file.read_text(), new.read_text()) == ("all gone\n", NEW)


AGREE: list[tuple[tuple[tuple[str, str | None, str], ...], str, str, bool]] = [
    ((), "x", "anything", True),
    ((("/other", None, "b"),), "x", "anything", True),
    ((("/a", "x", "y"),), "x x", "y x", True),
    ((("/a", "x", "y"),), "x x", "y y", True),
    ((("/a", "x", "y"),), "x x", "x y", False),
    ((("/a", "x", "y"), ("/a", "y", "z")), "x", "z", True),
    ((("/a", None, "new"),), "old", "other", False),
    ((("/a", "x", "y"),) * 9, "x", "y!", False),
]


def test_a_text_is_what_the_changes_make_of_the_one_before() -> None:
    for edits, before, content, is_shown in AGREE:
        shown = [FileEdit(path=path, old=old, new=new) for path, old, new in edits]
        assert _matches_edits(shown, "/a", before, content) is is_shown, (edits, content)
