"""How a program is started: what it is told and given, and every way in which that goes wrong."""

import logging
import stat
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from holdfast.config import Acp
from holdfast.domain.agent_processes import ProcessState
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.events import FailureCode
from holdfast.domain.messages import NoticeCode
from holdfast.domain.sessions import SessionRequest, Status
from tests.acp.harness import Aboard, aboard, codes, hasty, notices, stands
from tests.marks import demands
from tests.tools.process_fixture import known_means

pytestmark = pytest.mark.anyio

AUTH = {"error": {"code": -32000, "message": "sign in first"}}
METHODS = [{"id": "key", "name": "API key"}, {"id": "web", "name": "Browser"}]
OPENED = {"reply": {"sessionId": "s"}}


def _version(answer: Any) -> dict[str, Any]:
    return {"on": {"initialize": [{"reply": {"protocolVersion": answer}}]}}


FAILURES: dict[str, tuple[dict[str, Any], FailureCode, str]] = {
    "version 0": (_version(0), FailureCode.AGENT_VERSION, "offered 0"),
    "version 2": (_version(2), FailureCode.AGENT_VERSION, "offered 2"),
    "version 99": (_version(99), FailureCode.AGENT_VERSION, "offered 99"),
    "version as text": (_version("1"), FailureCode.AGENT_VERSION, "offered '1'"),
    "version as truth": (_version(True), FailureCode.AGENT_VERSION, "offered True"),
    "version refused": (
        {"on": {"initialize": [{"error": {"code": -32022, "message": "no"}}]}},
        FailureCode.AGENT_VERSION,
        "-32022",
    ),
    "exit in the handshake": (
        {"start": [{"stderr": "no licence\n"}, {"exit": 4}]},
        FailureCode.AGENT_DIED,
        "no licence",
    ),
    "never answers": ({"on": {"initialize": []}}, FailureCode.AGENT_START_TIMEOUT, "1 s"),
    "opens no session": ({"on": {"session/new": []}}, FailureCode.AGENT_START_TIMEOUT, "1 s"),
    "refuses a session": (
        {"on": {"session/new": [{"error": {"code": -32603, "message": "broken"}}]}},
        FailureCode.AGENT_ERROR,
        "broken",
    ),
    "a session without a name": (
        {"on": {"session/new": [{"reply": {}}]}},
        FailureCode.AGENT_PROTOCOL,
        "without an id",
    ),
    "banner without end": (
        {"start": [{"raw": "Welcome!\n", "times": 200}]},
        FailureCode.AGENT_PROTOCOL,
        "does not use the Agent Client Protocol",
    ),
    "wants a sign-in": (
        {
            "on": {
                "initialize": [{"reply": {"protocolVersion": 1, "authMethods": METHODS}}],
                "session/new": [AUTH],
            }
        },
        FailureCode.AGENT_AUTH_REQUIRED,
        "key (API key), web (Browser)",
    ),
}


@pytest.mark.sampled(4)
@demands("S1-023")
@pytest.mark.parametrize("case", FAILURES)
async def test_a_start_that_cannot_be_made_loses_the_session_and_says_why(
    tmp_path: Path, case: str
) -> None:
    script, code, words = FAILURES[case]
    async with aboard(tmp_path, config_acp=hasty(start=1, session=1), **script) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        now = await ship.now(session)

    assert (now.status, now.reason) == (Status.FAILED, code)
    assert codes(rows) == [NoticeCode.ERROR, NoticeCode.AGENT_FAILED]
    assert words in notices(rows)[-1][1]
    assert now.program is not None
    assert now.program.state is ProcessState.EXITED
    assert ship.peer.got("session/prompt") == []
    assert _living(ship) == []


async def test_a_banner_before_the_handshake_is_passed_over(tmp_path: Path) -> None:
    start = [{"raw": "Loading…\n"}, {"raw": "[1, 2]\n"}, {"raw": "ready\n"}]
    async with aboard(tmp_path, start=start) as ship:
        rows = await ship.tell(await ship.open())

    assert rows[-1].text == "ok"


async def test_whoever_names_a_way_to_sign_in_is_signed_in_once(tmp_path: Path) -> None:
    script = {"session/new": [[AUTH], [OPENED]], "authenticate": [{"reply": {}}]}
    async with aboard(tmp_path, options={"auth_method": "key"}, on=script) as ship:
        rows = await ship.tell(await ship.open())

    assert rows[-1].text == "ok"
    assert [each["params"] for each in ship.peer.got("authenticate")] == [{"methodId": "key"}]
    assert len(ship.peer.got("session/new")) == 2


async def test_ways_to_sign_in_alone_trigger_nothing(tmp_path: Path) -> None:
    reply = {"reply": {"protocolVersion": 1, "authMethods": METHODS}}
    async with aboard(tmp_path, options={"auth_method": "key"}, on={"initialize": [reply]}) as ship:
        await ship.tell(await ship.open())

    assert ship.peer.got("authenticate") == []


NOT_OFFERED: list[dict[str, Any]] = [
    {},
    {"loadSession": None, "sessionCapabilities": None},
    {"loadSession": False, "sessionCapabilities": {"resume": None, "close": None, "delete": None}},
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("capability", NOT_OFFERED)
@pytest.mark.parametrize("end", ["close", "delete"])
async def test_nothing_that_is_not_offered_is_called(
    tmp_path: Path, capability: dict[str, Any], end: str
) -> None:
    options = {"mode": "plan", "settings": {"model": "big"}}
    steps = [{"text": "ok"}, {"reply": {"stopReason": "end_turn"}}]
    runs = [{"on": {"session/prompt": [*steps, {"exit": 0}]}}, {"on": {"session/prompt": steps}}]
    async with aboard(tmp_path, options=options, capabilities=capability, runs=runs) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        await ship.until(session, stands(ProcessState.EXITED))
        again = await ship.tell(session, "again")
        await getattr(ship.house.sessions, end)(ship.house.owner, session.id)

    methods = [each["method"] for each in ship.peer.got()]
    assert methods == ["initialize", "session/new", "session/prompt"] * 2
    assert codes(rows) == [NoticeCode.AGENT_OPTION_REFUSED] * 2
    assert again[-1].text == "ok"


async def test_a_start_that_may_pass_is_tried_twice_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.acp.client.launcher.RETRY_DELAYS", (0.01, 0.02))
    runs = [{"start": [{"signal": "KILL"}]}, {"start": [{"signal": "SEGV"}]}, {"start": []}]
    async with aboard(tmp_path, runs=runs) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        now = await ship.now(session)

    assert (rows[-1].text, now.status) == ("ok", Status.IDLE)
    assert len(ship.peer.log("start")) == 3


async def test_an_exit_by_itself_is_not_tried_again(tmp_path: Path) -> None:
    async with aboard(tmp_path, start=[{"exit": 1}]) as ship:
        await ship.tell(await ship.open())

    assert len(ship.peer.log("start")) == 1


@demands("S1-048c", "S1-049")
async def test_a_program_is_told_where_it_works_and_given_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "a-secret-key-1234567890")
    monkeypatch.setenv("HOLDFAST_SOMETHING", "ours")
    monkeypatch.setenv("UNNAMED", "ours, too")
    config = Acp(workspace_flag="--workspace")
    async with aboard(tmp_path, config_acp=config) as ship:
        argv = (*ship.peer.argv[1:], "--in={workspace}", "{session_id}", "{workspace}/{session_id}")
        runtime = AcpRuntime(
            command=ship.peer.argv[0],
            args=argv,
            env_names=("GEMINI_API_KEY", "NOT_THERE"),
            options={
                "environment": {"MODE": "test"},
                "limits": {"nice": 3},
                "writable": [str(ship.peer.folder)],
            },
        )
        fields = {"name": "Second", "slug": "second", "runtime": runtime}
        await ship.house.agents.create(ship.house.owner, fields)
        with caplog.at_level(logging.INFO):
            request = SessionRequest(repo_id=ship.repo.id)
            session = await ship.house.open("second", request)
            await ship.tell(session)

    (start,) = ship.peer.log("start")
    tree = str(ship.tree)
    assert start["argv"][-5:] == [
        f"--in={tree}",
        session.id,
        f"{tree}/{session.id}",
        "--workspace",
        tree,
    ]
    assert start["cwd"] == tree
    env = start["env"]
    assert (env["GEMINI_API_KEY"], env["MODE"]) == ("a-secret-key-1234567890", "test")
    assert (env["HOLDFAST_SESSION_ID"], env["NO_COLOR"]) == (session.id, "1")
    assert not {"HOLDFAST_SOMETHING", "UNNAMED", "NOT_THERE"} & set(env)
    told = [vars(each)["fields"] for each in caplog.records if each.msg == "agent.spawned"]
    assert told == [
        {
            "session_id": session.id,
            "agent": "second",
            "cwd": tree,
            "pid": start["pid"],
            "argv0": sys.executable,
            "sandbox": "confined" if known_means().mounts else ANY,
        }
    ]
    assert "a-secret-key" not in caplog.text


async def test_a_program_that_cannot_be_found_opens_no_session(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        runtime = AcpRuntime(command="no-such-agent", options={"install": "get it somewhere"})
        await ship.house.agents.create(ship.house.owner, {"name": "Lost", "runtime": runtime})

        with pytest.raises(Unavailable) as caught:
            await ship.house.open("lost", SessionRequest(repo_id=ship.repo.id))

    assert caught.value.code is Code.AGENT_UNAVAILABLE
    assert "no-such-agent" in caught.value.message
    assert "get it somewhere" in caught.value.message


@pytest.mark.parametrize("fault", ["gone", "not executable"])
async def test_a_program_that_went_away_after_the_opening_loses_the_session(
    tmp_path: Path, fault: str
) -> None:
    async with aboard(tmp_path) as ship:
        program = tmp_path / "agent"
        program.write_text(f"#!{sys.executable}\n")
        program.chmod(0o755)
        runtime = AcpRuntime(command=str(program))
        await ship.house.agents.create(ship.house.owner, {"name": "Brief", "runtime": runtime})
        session = await ship.house.open("brief", SessionRequest(repo_id=ship.repo.id))
        if fault == "gone":
            program.unlink()
        else:
            program.chmod(stat.S_IRUSR)
        await ship.tell(session)
        now = await ship.now(session)

    assert (now.status, now.reason) == (Status.FAILED, FailureCode.AGENT_UNAVAILABLE)


@demands("S1-048b")
async def test_a_repository_that_became_a_link_is_never_worked_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with aboard(tmp_path) as ship:
        session = await ship.open()
        ship.tree.rename(tmp_path / "elsewhere")
        ship.tree.symlink_to(tmp_path / "elsewhere")
        await ship.tell(session)
        now = await ship.now(session)

    assert (now.status, now.reason) == (Status.FAILED, FailureCode.AGENT_UNAVAILABLE)
    refused = [vars(each)["fields"] for each in caplog.records if each.msg == REFUSED]
    assert [(each["surface"], each["given"]) for each in refused] == [("start", str(ship.tree))]
    assert ship.peer.log("start") == []


REFUSED = "security.path_refused"


def _living(ship: Aboard) -> list[int]:
    return [each["pid"] for each in ship.peer.log("start") if Path(f"/proc/{each['pid']}").exists()]
