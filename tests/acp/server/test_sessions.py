"""Sessions of a client: opened in a folder, listed, loaded once, picked up, let go of, deleted."""

from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Role, Text
from holdfast.domain.sessions import Status
from tests.acp.editor import Editor, chunk, editor_of, here, house_for, masked, words
from tests.houses import raw, script

pytestmark = pytest.mark.anyio

MODES = ["deny", "ask", "edits", "auto"]


async def load(editor: Editor, session: str, folder: Path, how: str = "load") -> dict:
    """Pick a session up, and return the reply."""
    return await editor.call(f"session/{how}", sessionId=session, cwd=str(folder), mcpServers=[])


async def test_a_session_says_its_modes_and_its_models(home: Path, desk: Path) -> None:
    async with here(home, desk) as (_, editor):
        opened = (await editor.call("session/new", cwd=str(desk), mcpServers=[]))["result"]

        assert masked(opened.pop("sessionId")) == "#1"
        assert opened["modes"]["currentModeId"] == "ask"
        assert [each["id"] for each in opened["modes"]["availableModes"]] == MODES
        mode, model = opened["configOptions"]
        assert [each["value"] for each in mode.pop("options")] == MODES
        assert mode == {
            "id": "mode",
            "name": "Approvals",
            "category": "mode",
            "type": "select",
            "currentValue": "ask",
        }
        assert model == {
            "id": "model",
            "name": "Model",
            "category": "model",
            "type": "select",
            "currentValue": "offline:holdfast",
            "options": [{"value": "offline:holdfast", "name": "offline:holdfast"}],
        }


async def test_a_mode_that_the_configuration_keeps_closed_is_not_promised(
    home: Path, desk: Path
) -> None:
    async with here(home, desk) as (_, editor):
        opened = (await editor.call("session/new", cwd=str(desk), mcpServers=[]))["result"]

        told = {each["id"]: each["description"] for each in opened["modes"]["availableModes"]}
        assert told["auto"] == 'Same as Ask while the configuration sets approval = "ask".'
        assert told["deny"] == "Changes are denied without asking."


async def test_a_repository_is_registered_and_any_other_folder_is_only_worked_in(
    home: Path, desk: Path
) -> None:
    tree = desk / "tree"
    (tree / ".git").mkdir(parents=True)
    async with here(home, desk) as (house, editor):
        bound = await house.sessions.get(house.owner, SessionId(await editor.opened(tree)))
        plain = await house.sessions.get(house.owner, SessionId(await editor.opened(desk)))

        repos = await house.repos.list(house.owner)
        assert [repo.path for repo in repos] == [str(tree)]
        assert (bound.repo_id, bound.context.working_dir) == (repos[0].id, str(tree))
        assert (plain.repo_id, plain.context.working_dir) == (None, str(desk))


@pytest.mark.parametrize(
    ("folder", "code"),
    [
        ("relative", "invalid_input"),
        ("{desk}/none", "invalid_context"),
        ("{desk}/file", "invalid_context"),
        ("{desk}/link", "repo_outside_root"),
        ("{desk}/..", "repo_outside_root"),
        ("{desk}-beside", "repo_outside_root"),
        ("/", "repo_outside_root"),
    ],
)
async def test_a_folder_that_cannot_be_worked_in_is_refused(
    home: Path, desk: Path, folder: str, code: str
) -> None:
    (desk / "file").touch()
    (desk / "link").symlink_to("/")
    desk.with_name("desk-beside").mkdir()
    async with here(home, desk) as (_, editor):
        cwd = folder.format(desk=desk)
        error = (await editor.call("session/new", cwd=cwd, mcpServers=[]))["error"]

        assert (error["code"], error["data"]["code"]) == (-32602, code)
        listed = await editor.call("session/list")
        assert listed == {"result": {"sessions": []}}


async def test_a_loaded_session_is_told_once_and_before_the_reply(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    calls = [{"name": "read_file", "arguments": {"path": "notes.txt", "start_line": 1}}]
    model = script(
        tmp_path,
        {"reasoning": "hm", "text": "I look.", "tool_calls": calls},
        {"text": "It says: hold fast."},
    )
    (desk / "notes.txt").write_text("hold fast\n")
    async with house_for(home, desk, default_model=model) as house:
        async with editor_of(house) as first:
            await first.meet()
            session = await first.opened(desk)
            await first.prompt(session, "What do the notes say?")
        async with editor_of(house) as second:
            await second.meet()
            second.frames.clear()

            loaded = await load(second, session, desk)

            assert loaded["result"]["modes"]["currentModeId"] == "ask"
            said, thought, text, call, result, last = masked(second.updates())
    assert said == chunk("What do the notes say?", kind="user_message_chunk")
    assert thought == chunk("hm", "#2", kind="agent_thought_chunk")
    assert text == chunk("I look.", "#2")
    assert call == {
        "sessionUpdate": "tool_call",
        "toolCallId": "call_1_1",
        "title": "Read notes.txt",
        "kind": "read",
        "rawInput": {"path": "notes.txt", "start_line": 1},
        "locations": [{"path": f"{desk}/notes.txt", "line": 1}],
        "status": "pending",
    }
    assert (result["toolCallId"], result["status"]) == ("call_1_1", "completed")
    assert last == chunk("It says: hold fast.", "#3")


async def test_a_long_past_is_told_whole(home: Path, desk: Path) -> None:
    async with here(home, desk, turn_cap=1_000) as (house, editor):
        session = await editor.opened(desk)
        for number in range(1_100):
            draft = MessageDraft(role=Role.ASSISTANT, parts=(Text(text=str(number)),))
            await house.messages.record(house.owner, SessionId(session), draft)
        editor.frames.clear()

        await load(editor, session, desk)

        told = [each["content"]["text"] for each in editor.updates()]
        assert told == [str(number) for number in range(1_100)]


async def test_a_session_that_runs_is_told_up_to_now_and_then_goes_on(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    """The text that streams is in no row yet: what was said of it comes again, and once."""
    model = script(
        tmp_path,
        {"text": "one", "tool_calls": [{"name": "write_file", "arguments": write("a.txt")}]},
        {"text": "two"},
    )
    async with house_for(home, desk, default_model=model) as house:
        async with editor_of(house, goes_on=True) as first:
            await first.meet()
            first.answer = lambda _: None
            session = await first.opened(desk)
            await first.begin("session/prompt", sessionId=session, prompt=words("go"))
            await first.until(lambda frame: frame.get("method") == "session/request_permission")
        async with editor_of(house) as second:
            await second.meet()
            second.frames.clear()
            await load(second, session, desk)
            # The question waits, and is asked as soon as somebody here wants to go on.
            asked = await second.begin("session/prompt", sessionId=session, prompt=words("on"))
            assert (await second.reply(asked))["error"]["code"] == -32603
            updates = masked(second.updates())
    told = [each["content"]["text"] for each in updates if each["sessionUpdate"].endswith("chunk")]
    assert told == ["go", "one", "two"]
    states = [each["status"] for each in updates if each["sessionUpdate"].startswith("tool")]
    assert states == ["pending", "in_progress", "completed"]


def write(path: str) -> dict[str, str]:
    """Return the arguments of a call that writes a file."""
    return {"path": path, "content": "hi\n"}


async def test_a_resumed_session_is_not_told_again(home: Path, desk: Path) -> None:
    async with here(home, desk) as (_, editor):
        session = await editor.opened(desk)
        await editor.prompt(session, "hello")
        editor.frames.clear()

        resumed = await load(editor, session, desk, "resume")

        assert list(resumed["result"]) == ["modes", "configOptions"]
        assert editor.updates() == []
        assert (await editor.prompt(session, "What is 2+3?"))["result"]["stopReason"] == "end_turn"


@pytest.mark.parametrize("how", ["load", "resume"])
async def test_a_session_that_is_not_there_is_not_found(home: Path, desk: Path, how: str) -> None:
    unknown = "0192f0c1-0000-7000-8000-000000000000"
    async with here(home, desk) as (_, editor):
        error = (await load(editor, unknown, desk, how))["error"]

        assert (error["code"], error["data"]["code"]) == (-32002, Code.SESSION_NOT_FOUND)


@pytest.mark.parametrize("how", ["load", "resume"])
async def test_a_session_of_somebody_else_is_not_there(home: Path, desk: Path, how: str) -> None:
    async with here(home, desk) as (house, editor):
        async with open_holdfast(
            config=house.config, owner="another", scope=RunScope.NONE
        ) as theirs:
            session = (await theirs.open()).id
        error = (await load(editor, session, desk, how))["error"]

        assert (error["code"], error["data"]["code"]) == (-32002, Code.SESSION_NOT_FOUND)


async def test_a_session_that_is_not_held_takes_nothing(home: Path, desk: Path) -> None:
    async with here(home, desk) as (house, editor):
        session = (await house.open()).id
        for method, params in (
            ("session/prompt", {"prompt": words("hi")}),
            ("session/set_mode", {"modeId": "deny"}),
            ("session/set_config_option", {"configId": "mode", "value": "deny"}),
        ):
            error = (await editor.call(method, sessionId=session, **params))["error"]
            assert error["code"] == -32602


async def test_a_session_whose_events_are_gone_is_loaded_from_its_messages(
    home: Path, desk: Path
) -> None:
    async with house_for(home, desk) as house:
        async with editor_of(house) as first:
            await first.meet()
            session = await first.opened(desk)
            await first.prompt(session, "What is 2+3?")
        with raw(home) as connection:
            connection.execute("DELETE FROM events")
            connection.execute("DELETE FROM deltas")
        async with editor_of(house) as second:
            await second.meet()
            second.frames.clear()

            loaded = await load(second, session, desk)

            said, answered, *_ = masked(second.updates())
            assert "result" in loaded
            assert said == chunk("What is 2+3?", kind="user_message_chunk")
            assert answered["content"]["text"].startswith("2+3 = 5")
            assert "result" in await second.prompt(session, "What is 4+4?")


async def test_a_session_that_is_loaded_with_another_folder_goes_on_there(
    home: Path, desk: Path
) -> None:
    other = desk / "other"
    other.mkdir()
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)

        await load(editor, session, other)

        found = await house.sessions.get(house.owner, SessionId(session))
        assert found.context.working_dir == str(other)


async def test_a_session_of_a_repository_stays_in_it(home: Path, desk: Path) -> None:
    tree = desk / "tree"
    (tree / ".git").mkdir(parents=True)
    async with here(home, desk) as (_, editor):
        session = await editor.opened(tree)

        error = (await load(editor, session, desk))["error"]

        assert (error["code"], error["data"]["code"]) == (-32602, "invalid_context")


async def test_a_session_is_not_loaded_while_its_prompt_runs(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, {"text": "late", "delay_ms": 3_600_000})
    async with here(home, desk, default_model=model) as (_, editor):
        session = await editor.opened(desk)
        await editor.begin("session/prompt", sessionId=session, prompt=words("go"))

        error = (await load(editor, session, desk))["error"]

        assert error["code"] == -32602


async def test_sessions_are_listed_by_folder_and_page(home: Path, desk: Path) -> None:
    other = desk / "other"
    other.mkdir()
    async with here(home, desk) as (house, editor):
        for _ in range(101):
            await house.open(request=None)
        session = await editor.opened(other)
        await editor.prompt(session, "hello")

        own = (await editor.call("session/list", cwd=str(other)))["result"]
        first = (await editor.call("session/list"))["result"]
        second = (await editor.call("session/list", cursor=first["nextCursor"]))["result"]

        found = await house.sessions.get(house.owner, SessionId(session))
        assert own == {
            "sessions": [
                {
                    "sessionId": session,
                    "cwd": str(other),
                    "updatedAt": found.updated_at.isoformat().replace("+00:00", "Z"),
                    "title": "hello",
                }
            ]
        }
        assert (len(first["sessions"]), len(second["sessions"])) == (100, 2)
        assert "nextCursor" not in second
        error = (await editor.call("session/list", cursor="nonsense"))["error"]
        assert (error["code"], error["data"]["code"]) == (-32602, "invalid_cursor")


async def test_a_folder_that_cannot_be_one_is_refused_wherever_it_is_named(
    home: Path, desk: Path
) -> None:
    folder = "/x\0y"
    async with here(home, desk) as (_, editor):
        session = await editor.opened(desk)
        replies = [
            await editor.call("session/list", cwd=folder),
            await editor.call("session/new", cwd=folder, mcpServers=[]),
            await editor.call("session/load", sessionId=session, cwd=folder, mcpServers=[]),
        ]

        assert [each["error"]["code"] for each in replies] == [-32602, -32602, -32602]


async def test_a_session_that_is_let_go_of_stays_as_it_is(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, {"text": "late", "delay_ms": 3_600_000})
    async with here(home, desk, default_model=model) as (house, editor):
        session = await editor.opened(desk)
        asked = await editor.begin("session/prompt", sessionId=session, prompt=words("go"))
        closing = await editor.begin("session/close", sessionId=session)

        assert (await editor.reply(asked))["result"]["stopReason"] == "cancelled"
        assert await editor.reply(closing) == {"result": {}}
        assert await editor.call("session/close", sessionId=session) == {"result": {}}
        found = await house.sessions.get(house.owner, SessionId(session))
        assert found.status in {Status.PENDING, Status.IDLE}


async def test_a_session_is_deleted_and_an_unknown_one_silently_so(home: Path, desk: Path) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        await editor.prompt(session, "hello")

        for _ in range(2):
            assert await editor.call("session/delete", sessionId=session) == {"result": {}}

        assert await editor.call("session/list") == {"result": {"sessions": []}}
        parent = await editor.opened(desk)
        await editor.prompt(parent, "hello")
        await house.sessions.fork(house.owner, SessionId(parent))
        error = (await editor.call("session/delete", sessionId=parent))["error"]
        assert (error["code"], error["data"]["code"]) == (-32603, "session_has_forks")
