"""A program that is started again takes its conversation up by the first rung that holds."""

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.agent_processes import ProcessState
from holdfast.domain.messages import NoticeCode, Role
from holdfast.domain.sessions import SessionContext
from tests.acp.harness import END, Aboard, aboard, codes, hasty, stands

pytestmark = pytest.mark.anyio

REPLAY = [
    {"update": {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "one"}}},
    {"text": "ok"},
    {"reply": {}},
]
RESUME = {"sessionCapabilities": {"resume": {}}}
LOAD = {"loadSession": True}
NO = {"error": {"code": -32601, "message": "no"}}
BROKEN = {"error": {"code": -32603, "message": "broken"}}


class Case:
    """What an agent offers and does, and the rungs that are tried because of it."""

    def __init__(
        self, offered: dict[str, Any], on: dict[str, Any], tried: list[str], told: list[str]
    ) -> None:
        self.offered = offered
        self.on = on
        self.tried = tried
        self.told = told


CASES = {
    "resume": Case(RESUME, {"session/resume": [{"reply": {}}]}, ["resume"], []),
    "resume that replays": Case(RESUME, {"session/resume": REPLAY}, ["resume"], []),
    "resume refused, load": Case(
        RESUME | LOAD,
        {"session/resume": [NO], "session/load": REPLAY},
        ["resume", "load"],
        [NoticeCode.AGENT_RESTARTED],
    ),
    "load": Case(LOAD, {"session/load": REPLAY}, ["load"], [NoticeCode.AGENT_RESTARTED]),
    "load broken, new": Case(
        LOAD, {"session/load": [BROKEN]}, ["load", "new"], [NoticeCode.AGENT_RESTARTED]
    ),
    "load that lost it, new": Case(
        LOAD, {"session/load": [{"reply": {}}]}, ["load", "new"], [NoticeCode.AGENT_RESTARTED]
    ),
    "resume without an answer, load": Case(
        RESUME | LOAD,
        {"session/resume": [], "session/load": REPLAY},
        ["resume", "load"],
        [NoticeCode.AGENT_RESTARTED],
    ),
    "dies of resume, load": Case(
        RESUME | LOAD,
        {"session/resume": [{"exit": 1}], "session/load": REPLAY},
        ["resume", "load"],
        [NoticeCode.AGENT_RESTARTED],
    ),
    "nothing offered": Case({}, {}, ["new"], [NoticeCode.AGENT_RESTARTED]),
}


async def _killed(ship: Aboard, session: Any) -> None:
    os.kill(ship.peer.log("start")[-1]["pid"], 9)
    await ship.until(session, stands(ProcessState.EXITED))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
async def test_each_rung_is_tried_once_and_nothing_is_stored_twice(
    tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    async with aboard(
        tmp_path, config_acp=hasty(session=0.5), capabilities=case.offered, on=case.on
    ) as ship:
        session = await ship.open()
        await ship.tell(session, "one")
        await _killed(ship, session)
        rows = await ship.tell(session, "two")

    methods = [each["method"].partition("/")[2] for each in ship.peer.got() if "method" in each]
    climbed = methods[methods.index("prompt") + 1 : -1]
    assert [each for each in climbed if each] == case.tried
    said = [row.text for row in rows if row.role in {Role.USER, Role.ASSISTANT}]
    assert said == ["one", "ok", "two", "ok"]
    assert codes(rows) == case.told
    prompt = ship.peer.got("session/prompt")[-1]["params"]["prompt"]
    has_record = case.tried[-1] == "new"
    assert len(prompt) == (2 if has_record else 1)
    if has_record:
        assert "User: one" in prompt[0]["text"]
        assert "Assistant: ok" in prompt[0]["text"]
    assert prompt[-1]["text"] == "two"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("code", [-32002, -32602, -32603])
async def test_a_session_that_the_program_does_not_know_any_more_is_begun_anew(
    tmp_path: Path, code: int
) -> None:
    lost = {"error": {"code": code, "message": "unknown session"}}
    on = {
        "session/resume": [{"reply": {}}],
        "session/prompt": [[{"text": "first"}, END], [lost], [{"text": "second"}, END]],
    }
    runs = [{}, {"on": {**on, "session/prompt": [[lost], [{"text": "second"}, END]]}}]
    async with aboard(tmp_path, capabilities=RESUME, on=on, runs=runs) as ship:
        session = await ship.open()
        await ship.tell(session, "one")
        await _killed(ship, session)
        rows = await ship.tell(session, "two")

    assert rows[-1].text == "second"
    assert codes(rows) == [NoticeCode.AGENT_RESTARTED]
    assert len(ship.peer.got("session/new")) == 2


async def test_a_session_that_stays_unknown_ends_the_turn_only(tmp_path: Path) -> None:
    lost = {"error": {"code": -32002, "message": "unknown session"}}
    async with aboard(tmp_path, on={"session/prompt": [lost]}) as ship:
        session = await ship.open()
        await ship.tell(session, "one")
        now = await ship.now(session)

    assert now.status == "idle"
    assert len(ship.peer.got("session/prompt")) == 2


async def test_the_system_prompt_comes_first_and_once(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        agent = await ship.house.agents.get(ship.house.owner, "peer")
        await ship.house.agents.update(
            ship.house.owner, agent.id, {"system_prompt": "You are terse."}
        )
        session = await ship.open()
        await ship.tell(session, "one")
        await ship.tell(session, "two")

    prompts = [each["params"]["prompt"] for each in ship.peer.got("session/prompt")]
    assert [[block["text"] for block in each] for each in prompts] == [
        ["You are terse.", "one"],
        ["two"],
    ]


async def test_the_first_prompt_says_what_is_open_in_the_editor(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        folder = ship.repo.path
        session = await ship.open(
            context=SessionContext(working_dir=folder, active_file="src/app.py")
        )
        await ship.tell(session, "one")
        await ship.tell(session, "two")

    prompts = [each["params"]["prompt"] for each in ship.peer.got("session/prompt")]
    assert [[block["text"] for block in each] for each in prompts] == [
        ["(In the user's editor the active file is src/app.py.)", "one"],
        ["two"],
    ]


LOCKED = {"error": {"code": -32000, "message": "sign in"}}
OPENED = {"reply": {"sessionId": "s"}}
SIGN_INS: dict[str, tuple[dict[str, Any], str]] = {
    "a wrong way": ({"authenticate": [BROKEN]}, "agent_auth_required"),
    "no answer": ({"authenticate": []}, "agent_auth_required"),
    "locked all the same": ({"authenticate": [{"reply": {}}]}, "agent_auth_required"),
    "another trouble then": (
        {"authenticate": [{"reply": {}}], "session/new": [[LOCKED], [BROKEN]]},
        "agent_error",
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", SIGN_INS)
async def test_a_sign_in_that_does_not_help_loses_the_session(tmp_path: Path, case: str) -> None:
    script, code = SIGN_INS[case]
    on = {"session/new": [LOCKED], **script}
    config = hasty(start=0.5)
    async with aboard(tmp_path, config_acp=config, options={"auth_method": "k"}, on=on) as ship:
        session = await ship.open()
        await ship.tell(session)
        now = await ship.now(session)

    assert (now.status, now.reason) == ("failed", code)


async def test_a_mode_among_the_options_is_set_as_one_of_them(tmp_path: Path) -> None:
    opened = {
        "modes": {"currentModeId": "ask", "availableModes": [{"id": "ask"}]},
        "configOptions": [{"id": "how", "category": "mode", "type": "select"}],
    }
    on: dict[str, Any] = {"session/set_config_option": []}
    config = hasty(option=0.3)
    async with aboard(
        tmp_path, config_acp=config, options={"mode": "plan"}, session=opened, on=on
    ) as ship:
        rows = await ship.tell(await ship.open())

    asked = [each["params"] for each in ship.peer.got("session/set_config_option")]
    assert asked == [{"sessionId": "peer-session-1", "configId": "how", "value": "plan"}]
    assert codes(rows) == [NoticeCode.AGENT_OPTION_REFUSED]


async def test_a_program_that_dies_of_an_option_loses_the_session(tmp_path: Path) -> None:
    opened = {"modes": {"currentModeId": "a", "availableModes": [{"id": "b"}]}}
    async with aboard(
        tmp_path, options={"mode": "b"}, session=opened, on={"session/set_mode": [{"exit": 2}]}
    ) as ship:
        session = await ship.open()
        await ship.tell(session)
        now = await ship.now(session)

    assert (now.status, now.reason) == ("failed", "agent_died")


async def test_a_program_that_dies_when_it_begins_anew_loses_the_session(tmp_path: Path) -> None:
    lost = {"error": {"code": -32002, "message": "unknown session"}}
    on = {"session/prompt": [lost], "session/new": [[OPENED], [{"exit": 2}]]}
    async with aboard(tmp_path, on=on) as ship:
        session = await ship.open()
        await ship.tell(session)
        now = await ship.now(session)

    assert (now.status, now.reason) == ("failed", "agent_died")


async def test_a_mode_and_settings_are_set_once_in_a_conversation(tmp_path: Path) -> None:
    opened = {
        "modes": {"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "plan"}]},
        "configOptions": [{"id": "model", "type": "select"}, {"id": "fast", "type": "boolean"}],
    }
    on = {
        "session/set_mode": [{"reply": {}}],
        "session/set_config_option": [
            {"reply": {"configOptions": []}},
            {"error": {"code": -1, "message": "no"}},
        ],
    }
    options = {"mode": "plan", "settings": {"model": "big", "fast": True}}
    async with aboard(tmp_path, options=options, session=opened, on=on) as ship:
        session = await ship.open()
        await ship.tell(session, "one")
        rows = await ship.tell(session, "two")

    assert [each["params"] for each in ship.peer.got("session/set_mode")] == [
        {"sessionId": "peer-session-1", "modeId": "plan"}
    ]
    asked = [each["params"] for each in ship.peer.got("session/set_config_option")]
    assert next((each["configId"], each["value"], each.get("type")) for each in asked) == (
        "model",
        "big",
        None,
    )
    assert rows[-1].text == "ok"
