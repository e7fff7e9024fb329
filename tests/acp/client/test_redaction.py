"""Secrets that a program is given and says again: masked whole, wherever its words are cut."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.rpc.framing import (
    HEAD,
    JsonRpcError,
    JsonRpcNotification,
    JsonRpcReply,
    JsonRpcRequest,
    Junk,
    parse_line,
)
from holdfast.acp.rpc.redaction import LineRedactor
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.secrets import Scrubber, Secret
from holdfast.domain.sessions import SessionRequest
from holdfast.domain.tools import Grant
from tests.acp.harness import END, Aboard, aboard
from tests.acp.raw_peer import connected
from tests.acp.steps import does

pytestmark = pytest.mark.anyio

SECRET = "live-ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdef"
MARKED = "[secret:PEER_API_KEY]"
NO_COMMANDS = Grant(commands=())
# Cut in the middle of the secret, wherever that is shown of it.
_HALF = len(SECRET) // 2


def before(longest: int) -> str:
    """Return a text that a secret stands behind, to be cut in two."""
    return "z" * (longest - _HALF) + SECRET


def update(kind: str, **fields: Any) -> dict[str, Any]:
    return {"update": {"sessionUpdate": kind, **fields}}


CUT: dict[str, list[Any]] = {
    "complaints": [
        {"stderr": f"key={SECRET}\n" + "y" * (4096 - _HALF)},
        {"sleep": 0.2},
        {"exit": 3},
    ],
    "error": [{"error": {"code": -1, "message": before(1_000)}}],
    "stop reason": [{"reply": {"stopReason": before(1_000)}}],
    "title of the session": [update("session_info_update", title=before(255)), END],
    "title of a call": [
        update("tool_call", toolCallId="t", status="in_progress", title=before(1_000)),
        END,
    ],
    "arguments": [
        update(
            "tool_call",
            toolCallId="t",
            status="in_progress",
            rawInput=before((1 << 20) - 64) + "z" * 200,
        ),
        END,
    ],
    "result": [
        update(
            "tool_call",
            toolCallId="t",
            status="completed",
            rawOutput=before((4 << 20) - 64) + "z" * 200,
        ),
        END,
    ],
    "why a call failed": [
        update("tool_call", toolCallId="t", status="failed", rawOutput=before(4_000)),
        END,
    ],
    "question": [
        does(
            "session/request_permission",
            "asked",
            toolCall={"toolCallId": "t", "kind": "read", "title": before(1_000)},
            options=[{"optionId": "a", "name": "a", "kind": "allow_once"}],
        ),
        END,
    ],
    "plan": [update("plan", entries=[{"content": before(4_096)}]), END],
}


async def opened(ship: Aboard, grant: Grant = NO_COMMANDS, **request: Any) -> Any:
    """Open a session whose program gets the secret."""
    runtime = AcpRuntime(
        command=ship.peer.argv[0],
        args=ship.peer.argv[1:],
        env_names=("PEER_API_KEY",),
        options={"writable": [str(ship.peer.folder)]},
    )
    fields = {"name": "Keyed", "slug": "keyed", "runtime": runtime, "grant": grant}
    await ship.house.agents.create(ship.house.owner, fields)
    return await ship.house.open("keyed", SessionRequest(repo_id=ship.repo.id, **request))


def leaked(text: str) -> list[str]:
    """Return pieces of the secret in a text that are long enough to be told from others."""
    return [SECRET[at : at + 8] for at in range(len(SECRET) - 7) if SECRET[at : at + 8] in text]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", CUT)
async def test_no_part_of_a_secret_is_left_where_words_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("PEER_API_KEY", SECRET)
    async with aboard(tmp_path, on={"session/prompt": CUT[where]}) as ship:
        session = await opened(ship)
        rows = await ship.tell(session)
        told = repr(rows) + repr(await ship.ended(session)) + repr(await ship.now(session))

    assert leaked(told) == []
    assert "zzzz" in told or "yyyy" in told


async def test_no_part_of_a_secret_is_left_of_a_refusal_to_open_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEER_API_KEY", SECRET)
    refusal = {"error": {"code": -32603, "message": before(1_000)}}
    async with aboard(tmp_path, on={"session/new": [refusal]}) as ship:
        session = await opened(ship)
        rows = await ship.tell(session)
        told = repr(rows) + repr(await ship.ended(session))

    assert leaked(told) == []
    assert "zzzz" in told


@pytest.mark.sampled(1)
@pytest.mark.parametrize("act", ["file", "command", "environment"])
async def test_nothing_is_done_with_a_secret_that_a_question_could_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    monkeypatch.setenv("PEER_API_KEY", SECRET)
    file = tmp_path / "tree" / "settings"
    acts = {
        "file": does("fs/write_text_file", "done", path=str(file), content=f"key={SECRET}"),
        "command": does("terminal/create", "done", command="touch", args=[f"settings-{SECRET}"]),
        "environment": does(
            "terminal/create",
            "done",
            command="touch",
            args=["settings"],
            env=[{"name": "KEY", "value": SECRET}],
        ),
    }
    async with aboard(tmp_path, on={"session/prompt": [acts[act], END]}) as ship:
        rows = await ship.tell(await opened(ship, Grant(commands=("touch",))))

    assert ship.peer.answers()["done"]["error"]["code"] == -32602
    assert list((tmp_path / "tree").glob("settings*")) == []
    assert leaked(repr(rows)) == []


def a_call(**fields: Any) -> dict[str, Any]:
    return {"toolCallId": "t", "kind": "execute", "title": "Run it"} | fields


# How an agent tells of the secret in its own call: with the question, or before it.
CALLS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "arguments": ([], a_call(rawInput={"command": f"login --key {SECRET}"})),
    "title": ([], a_call(title=f"login --key {SECRET}")),
    "diff": (
        [],
        a_call(
            kind="edit",
            content=[{"type": "diff", "path": "settings", "oldText": "", "newText": SECRET}],
        ),
    ),
    "earlier": (
        [update("tool_call", toolCallId="t", rawInput={"command": f"login --key {SECRET}"})],
        a_call(),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", [ApprovalMode.ASK, ApprovalMode.AUTO])
@pytest.mark.parametrize("where", CALLS)
async def test_a_call_of_the_agent_that_holds_a_secret_is_denied_without_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, mode: ApprovalMode
) -> None:
    monkeypatch.setenv("PEER_API_KEY", SECRET)
    told, call = CALLS[where]
    options = [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ]
    asks = does("session/request_permission", "asked", toolCall=call, options=options)
    script = {"session/prompt": [*told, asks, END]}
    async with aboard(tmp_path, on=script, config_approval=mode) as ship:
        session = await opened(ship, approval=mode)
        rows = await ship.tell(session)
        known = await ship.house.approvals.list(ship.house.owner, session.id)

    answer = ship.peer.answers()["asked"]["result"]["outcome"]
    assert answer == {"outcome": "selected", "optionId": "no"}
    assert [each.answered_by for each in known.items] == ["managed_secret"]
    assert leaked(repr(rows) + repr(known)) == []


async def test_a_call_of_the_agent_without_a_secret_is_judged_by_the_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEER_API_KEY", SECRET)
    call = a_call(rawInput={"command": "login [secret:ANOTHER]"})
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    asks = does("session/request_permission", "asked", toolCall=call, options=options)
    script = {"session/prompt": [asks, END]}
    async with aboard(tmp_path, on=script, config_approval=ApprovalMode.AUTO) as ship:
        await ship.tell(await opened(ship, approval=ApprovalMode.AUTO))

    answer = ship.peer.answers()["asked"]["result"]["outcome"]
    assert answer == {"outcome": "selected", "optionId": "yes"}


async def test_no_part_of_a_secret_is_logged_of_a_line_that_is_no_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shown: list[bytes] = []
    redactor = a_censor()
    async with connected(redactor=redactor, on_line=shown.append) as (connection, far):
        await far.say_bytes(f"{before(HEAD)}\n".encode())
        await far.say({"method": "after"})
        await anext(connection.incoming())

    [told] = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert leaked(told) == []
    assert "zzzz" in told
    # Cleaned by whoever keeps it: this is what came.
    assert shown[0] == before(HEAD).encode()


async def test_no_part_of_a_secret_is_shown_of_a_line_that_is_too_long() -> None:
    from holdfast.acp.rpc.connection import ConnectionLimits

    shown: list[bytes] = []
    bounds = ConnectionLimits(line=1_000)
    async with connected(redactor=a_censor(), bounds=bounds, on_line=shown.append) as end:
        connection, far = end
        await far.say_bytes((before(HEAD) + "z" * 1_000 + "\n").encode())
        junk = await anext(connection.incoming())

    assert isinstance(junk, Junk)
    size = len(before(HEAD)) + 1_000
    assert junk == Junk(kind="too_long", head=cleaned_head(), size=size)
    assert shown == [cleaned_head()]


def cleaned_head() -> bytes:
    return (before(HEAD).replace(SECRET, MARKED) + "z" * 1_000).encode()[:HEAD]


def a_censor(*literal: str) -> LineRedactor:
    scrubber = Scrubber([("PEER_API_KEY", Secret(SECRET))])
    return LineRedactor(lambda: scrubber, frozenset(literal))


Line = dict[str, Any]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            {"method": "m", "params": {"a": [f"x{SECRET}y", 1, None, "z"]}},
            JsonRpcNotification(method="m", params={"a": [f"x{MARKED}y", 1, None, "z"]}),
        ),
        ({"id": 1, "result": [SECRET]}, JsonRpcReply(id=1, result=[MARKED])),
        (
            {"id": 1, "error": {"code": -1, "message": SECRET, "data": {SECRET: 1}}},
            JsonRpcReply(id=1, error=JsonRpcError(-1, MARKED, {MARKED: 1})),
        ),
        (
            {"id": 1, "error": {"code": -1, "message": "no"}},
            JsonRpcReply(id=1, error=JsonRpcError(-1, "no")),
        ),
    ],
)
@pytest.mark.parametrize("half", ["", "\ud800"])
def test_secrets_are_masked_also_beside_half_a_character(
    line: Line, expected: Any, half: str
) -> None:
    found = a_censor().read(json.dumps(line | {"beside": half}).encode())

    assert unsized(found) == expected


def unsized(found: Any) -> Any:
    if isinstance(found, JsonRpcNotification):
        return JsonRpcNotification(method=found.method, params=found.params)
    return found


def test_what_we_act_on_is_read_as_it_came() -> None:
    line = json.dumps({"id": 1, "method": "write", "params": SECRET}).encode()
    reads: list[Callable[[bytes], Any]] = [a_censor("write").read, a_censor().read, parse_line]

    found = [read(line) for read in reads]

    assert all(isinstance(each, JsonRpcRequest) for each in found)
    assert [each.params for each in found] == [SECRET, MARKED, SECRET]
    assert a_censor().read(b"[") == Junk(kind="not_json", head=b"[", size=1)
