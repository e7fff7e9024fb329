"""The news of a house as updates: texts that stream, plans, summaries, costs, what was missed."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.server.updates import (
    COMPACTED,
    UpdateTranslator,
    call_title,
    result_form,
    tool_call_form,
    tool_kind,
)
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.events import (
    PlanChanged,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from holdfast.domain.ids import CallId, SessionId
from holdfast.domain.messages import (
    Location,
    Notice,
    NoticeCode,
    Plan,
    PlanStep,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
)
from holdfast.domain.models import ModelRequest, Prices
from holdfast.domain.sessions import SessionContext, SessionRequest
from tests.acp.editor import Editor, chunk, editor_of, here, masked
from tests.houses import open_house, played, script
from tests.marks import each_case
from tests.stand_ins import Gate, GatedRuntime, an_answer, asked, streamed

pytestmark = pytest.mark.anyio

STEPS = (PlanStep(text="look", status="completed"), PlanStep(text="leap", priority="high"))
PLAN = {
    "sessionUpdate": "plan",
    "entries": [
        {"content": "look", "priority": "medium", "status": "completed"},
        {"content": "leap", "priority": "high", "status": "pending"},
    ],
}


def told(editor: Editor) -> list[str]:
    """Return the words that were told, and forget the frames."""
    return [each["content"]["text"] for each in editor.updates() if "messageId" in each]


async def load(editor: Editor, session: str, folder: Path) -> None:
    """Load a session."""
    await editor.call("session/load", sessionId=session, cwd=str(folder), mcpServers=[])


async def test_a_text_that_streams_while_it_is_loaded_is_told_whole(home: Path, desk: Path) -> None:
    gate = Gate()
    pieces = [(streamed(f"{number}", offset=number),) for number in range(4)]
    runtime = GatedRuntime([(asked(),), *pieces[:2], gate, *pieces[2:], an_answer("0123")])
    async with open_house(home, runtime, root=desk) as house:
        place = SessionContext(working_dir=str(desk))
        session = (await house.open(request=SessionRequest(context=place))).id
        await house.send(session, "count")
        await gate.reached()
        async with editor_of(house) as editor:
            await editor.meet()
            editor.frames.clear()
            await load(editor, session, desk)
            gate.open()
            await editor.until(lambda frame: "'text': '3'" in str(frame))
            assert told(editor) == ["count", "0", "1", "2", "3"]


async def test_every_plan_is_told_as_it_comes_and_the_last_one_when_it_is_loaded(
    home: Path, desk: Path
) -> None:
    plans = [
        (PlanChanged(steps=steps), MessageDraft(role=Role.SYSTEM, parts=(Plan(steps=steps),)))
        for steps in (STEPS[:1], STEPS)
    ]
    runtime = GatedRuntime([*plans, an_answer("done")])
    async with open_house(home, runtime, root=desk) as house, editor_of(house) as editor:
        await editor.meet()
        session = await editor.opened(desk)
        await editor.prompt(session, "go")
        live = [each for each in editor.updates() if each["sessionUpdate"] == "plan"]
        await load(editor, session, desk)
        loaded = [each for each in editor.updates() if each["sessionUpdate"] == "plan"]
    assert live == [PLAN | {"entries": PLAN["entries"][:1]}, PLAN]
    assert loaded == [PLAN]


async def test_a_summary_is_said_in_a_sentence(home: Path, desk: Path) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        for text in ("one", "two", "three"):
            await editor.prompt(session, text)
        editor.frames.clear()

        await house.compactions.compact(house.owner, SessionId(session))
        live = await editor.until(lambda frame: COMPACTED in str(frame))
        editor.frames.clear()
        await load(editor, session, desk)

        assert told(editor)[-1] == COMPACTED
        assert live["params"]["update"]["sessionUpdate"] == "agent_message_chunk"


async def test_a_row_that_nobody_streamed_is_told_from_the_record(home: Path, desk: Path) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        await editor.prompt(session, "hello")
        editor.frames.clear()

        draft = MessageDraft(role=Role.ASSISTANT, parts=(Text(text="from elsewhere"),))
        await house.messages.record(house.owner, SessionId(session), draft)
        await editor.until(lambda frame: "from elsewhere" in str(frame))

        assert masked(editor.updates()) == [chunk("from elsewhere")]


async def test_what_was_pruned_meanwhile_is_told_from_the_record(home: Path, desk: Path) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        await house.send(SessionId(session), "What is 2+3?")
        rows = await played(house, SessionId(session))
        assert await house.maintenance.prune(timedelta(0)) > 0
        editor.frames.clear()

        await editor.prompt(session, "What is 3+4?")

        assert [text[:12] for text in told(editor)] == [rows[0].text, rows[1].text[:12], "3+4 = 7"]


async def test_a_session_whose_news_were_all_forgotten_is_told_from_the_record(
    home: Path, desk: Path
) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        await house.send(SessionId(session), "What is 2+3?")
        await played(house, SessionId(session))
        await house.maintenance.forget(timedelta(0))
        editor.frames.clear()

        await editor.prompt(session, "What is 3+4?")

        assert [text[:7] for text in told(editor)] == ["What is", "2+3 = 5", "3+4 = 7"]


async def test_the_window_of_a_model_and_the_cost_are_told(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, {"text": "hi", "usage": {"input": 100, "output": 20}, "repeat": 2})
    async with here(home, desk, default_model=model) as (house, editor):
        prices = Prices(input=1_000_000_000, output=2_000_000_000)
        name = model.removeprefix("scripted:")
        wish = ModelRequest(provider="scripted", name=name, context_window=8_000, prices=prices)
        await house.models.add(wish)
        session = await editor.opened(desk)
        wanted = {"sessionId": session, "configId": "model", "value": model}
        await editor.call("session/set_config_option", **wanted)

        for amount in (0.0014, 0.0028):
            editor.frames.clear()
            await editor.prompt(session, "go")
            update = {
                "sessionUpdate": "usage_update",
                "used": 120,
                "size": 8_000,
                "cost": {"amount": amount, "currency": "USD"},
            }
            assert update in editor.updates()


async def test_a_model_that_is_not_known_yet_is_looked_up_and_one_without_a_price_costs_nothing(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, {"text": "hi", "usage": {"input": 1}})
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        name = model.removeprefix("scripted:")
        await house.models.add(ModelRequest(provider="scripted", name=name, context_window=10))
        await house.sessions.update(house.owner, SessionId(session), {"model": model})

        await editor.prompt(session, "go")

        updates = editor.updates()
        assert {"sessionUpdate": "usage_update", "used": 1, "size": 10} in updates
        assert [each["sessionUpdate"] for each in updates if "configOptions" in each] == [
            "config_option_update"
        ]


async def test_what_others_change_in_a_session_is_told_with_its_next_turn(
    home: Path, desk: Path
) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        await editor.prompt(session, "hello")
        editor.frames.clear()
        changes = {"title": "New", "approval": "deny"}
        await house.sessions.update(house.owner, SessionId(session), changes)

        await editor.prompt(session, "again")

        _, title, mode, options = editor.updates()
        assert title == {"sessionUpdate": "session_info_update", "title": "New"}
        assert mode == {"sessionUpdate": "current_mode_update", "currentModeId": "deny"}
        assert options["configOptions"][0]["currentValue"] == "deny"


async def test_a_notice_that_nobody_can_act_on_is_not_told(home: Path, desk: Path) -> None:
    notices = [
        (MessageDraft(role=Role.SYSTEM, parts=(Notice(code=code, text=code.value),)),)
        for code in (NoticeCode.INFORMATION, NoticeCode.BUDGET_WARNING)
    ]
    runtime = GatedRuntime([*notices, an_answer("done")])
    async with open_house(home, runtime, root=desk) as house, editor_of(house) as editor:
        await editor.meet()
        session = await editor.opened(desk)
        await editor.prompt(session, "go")
        assert told(editor) == ["budget_warning", "done"]


def ended(**more: Any) -> ToolEnded:
    """Return the end of a call."""
    fields = {"call_id": CallId("c"), "name": "read", "status": ResultStatus.OK}
    return ToolEnded(**fields | more)


def test_the_words_of_an_agent_behind_ours_pass_through() -> None:
    call = ToolCall(
        id=CallId("c"),
        name="whatever",
        arguments={"a": 1},
        title="Look around",
        kind="search",
        locations=(Location(path="/desk/a.py", line=3), Location(path="b.py")),
    )
    assert tool_call_form(call, "/desk") == {
        "title": "Look around",
        "kind": "search",
        "rawInput": {"a": 1},
        "locations": [{"path": "/desk/a.py", "line": 3}, {"path": "/desk/b.py"}],
    }


def test_a_call_that_no_row_told_of_is_shown_by_its_news() -> None:
    telling = UpdateTranslator("/desk")
    started = ToolStarted(call_id=CallId("c"), name="execute", arguments={})

    assert telling.of(started) == [
        {
            "sessionUpdate": "tool_call",
            "toolCallId": "c",
            "title": "execute",
            "kind": "execute",
            "rawInput": {},
            "status": "in_progress",
        }
    ]
    done = {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed"}
    assert telling.of(ended()) == [done]
    # Ended without a start, as a refused one is.
    assert [each["sessionUpdate"] for each in telling.of(ended())] == [
        "tool_call",
        "tool_call_update",
    ]


@each_case(
    ("status", "result", "error", "form"),
    [
        (ResultStatus.OK, None, None, {"status": "completed"}),
        (ResultStatus.OK, "text", None, ("completed", "text", "text")),
        (
            ResultStatus.OK,
            {"stdout": "a", "stderr": "b", "exit_code": 0},
            None,
            ("completed", {"stdout": "a", "stderr": "b", "exit_code": 0}, "a\nb"),
        ),
        (ResultStatus.OK, {"n": 1}, None, ("completed", {"n": 1}, '{"n":1}')),
        (ResultStatus.OK, {"content": ""}, None, ("completed", {"content": ""}, '{"content":""}')),
        (ResultStatus.OK, [1], None, ("completed", [1], "[1]")),
        (ResultStatus.ERROR, None, ToolError(code="failed", message="no"), ("failed", None, "no")),
        (
            ResultStatus.UNKNOWN,
            None,
            None,
            ("failed", None, "The outcome of this call is unknown."),
        ),
    ],
)
def test_a_result_is_shown_with_its_words(
    status: ResultStatus, result: Any, error: ToolError | None, form: Any
) -> None:
    shown = result_form(status, result, error)

    if isinstance(form, dict):
        assert shown == form
        return
    word, raw, text = form
    content = [{"type": "content", "content": {"type": "text", "text": text}}]
    assert shown == {"status": word, "content": content} | (
        {} if raw is None else {"rawOutput": raw}
    )


@each_case(
    ("name", "arguments", "kind", "title"),
    [
        ("list_directory", {}, "read", "List ."),
        ("find_text", {"pattern": "x"}, "search", "Find x in ."),
        ("edit_file", {"path": "a"}, "edit", "Edit a"),
        ("edit_file", {}, "edit", "edit_file"),
        ("git_status", {}, "read", "git status"),
        ("git_commit", {"message": "one\n\ntwo"}, "execute", "Commit: one"),
        ("run_command", {"command": "ls", "args": ["-l", "a b"]}, "execute", "ls -l 'a b'"),
        ("run_command", {"command": "x" * 300}, "execute", "x" * 199 + "…"),
        ("http_request", {"url": "https://a.example"}, "fetch", "GET https://a.example"),
        ("mcp_books_echo", {}, "other", "mcp_books_echo"),
        ("think", {}, "think", "think"),
    ],
)
def test_a_call_has_a_kind_and_a_title(
    name: str, arguments: dict[str, Any], kind: str, title: str
) -> None:
    assert (tool_kind(name), call_title(name, arguments)) == (kind, title)


def test_most_news_are_no_update() -> None:
    assert UpdateTranslator("/").of(TurnStarted()) == []
