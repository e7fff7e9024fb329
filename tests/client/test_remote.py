"""What `connect` yields beyond the journey of `tests/api`: refusals, retries, and what it loads."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, RemoteHoldfast, connect, open_holdfast
from holdfast.domain.agents import LlmRuntime, ModelChoice
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Denied, Invalid, NotFound, Unavailable
from holdfast.domain.ids import LOCAL_OWNER, ModelId, Owner, SessionId
from holdfast.domain.messages import Role, Text
from holdfast.domain.queries import SessionQuery
from holdfast.workflows.session_export import ExportFormat
from tests.cli.commands.test_history import SESSION
from tests.client.servers import QUICK, Call, answering, impostor, serving
from tests.http.openapi.render import DOCUMENT
from tests.http.v1.client import a_repository
from tests.marks import each_case
from tests.tooled import a_config

pytestmark = pytest.mark.anyio

GONE = SessionId("0192f0c1-0000-7000-8000-00000000dead")


@pytest.fixture
async def client(holdfast: Holdfast) -> AsyncIterator[RemoteHoldfast]:
    """Connect to a server whose turns are run by the offline model."""
    async with serving(holdfast) as at, connect(at.url, at.secret, timeouts=QUICK) as client:
        yield client


async def test_a_wrong_token_is_denied(holdfast: Holdfast) -> None:
    async with serving(holdfast) as at, connect(at.url, "hf_wrong", timeouts=QUICK) as client:
        with pytest.raises(Denied) as refused:
            await client.sessions.get(LOCAL_OWNER, GONE)

    assert refused.value.code is Code.UNAUTHENTICATED


@each_case(
    ("environment", "is_sent"),
    [
        ({"HOLDFAST_TOKEN": "SECRET"}, True),
        ({"HOLDFAST_TOKEN": "SECRET", "HOLDFAST_SERVER": "URL/"}, True),
        ({"HOLDFAST_TOKEN": "SECRET", "HOLDFAST_SERVER": "https://example.org"}, False),
        ({"HOLDFAST_TOKEN": "SECRET", "HOLDFAST_SERVER": "http://127.0.0.1:1"}, False),
        ({"HOLDFAST_TOKEN": "SECRET", "HOLDFAST_SERVER": "http://[::1"}, False),
        ({"HOLDFAST_TOKEN": ""}, False),
    ],
)
async def test_without_a_token_that_of_the_environment_is_sent_to_its_server(
    holdfast: Holdfast,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    is_sent: bool,
) -> None:
    async with serving(holdfast) as at:
        with monkeypatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value.replace("SECRET", at.secret).replace("URL", at.url))
            async with connect(at.url, timeouts=QUICK) as client:
                refused = pytest.raises(Denied, match="Send a valid token")
                with nullcontext() if is_sent else refused:
                    await client.defaults()


async def test_a_repeated_id_creates_nothing_new(client: RemoteHoldfast) -> None:
    ids = [f"0192f0c1-0000-7000-8000-00000000000{number}" for number in range(4)]
    for _ in range(2):
        await client.agents.create(client.owner, {"name": "Ada"}, id=ids[0])
        await client.open("ada", id=ids[1])
        await client.send(SessionId(ids[1]), "Hello", id=ids[2])
        await client.sessions.fork(client.owner, SessionId(ids[1]), at=1, id=ids[3])

    page = await client.sessions.list(SessionQuery(owner=client.owner))
    assert {each.id for each in page.items} == {ids[1], ids[3]}


async def test_an_export_in_pieces_is_the_whole_one(client: RemoteHoldfast) -> None:
    session, form = await client.open(), ExportFormat.JSONL
    await client.send(session.id, "What is 2+3?")
    _ = [item async for item in client.follow(session.id, until_settled=True)]
    whole = await client.exports.export(client.owner, session.id, form)
    stream = await client.exports.stream(client.owner, session.id, form)
    missing = await client.exports.stream(client.owner, GONE, form)

    assert b"".join([piece async for piece in stream.pieces]) == whole.content
    assert len(whole.content.splitlines()) == 2
    with pytest.raises(NotFound):
        await anext(missing.pieces)


async def test_repositories_are_registered_and_removed(home: Path, tmp_path: Path) -> None:
    desk = await asyncio.to_thread(a_repository, tmp_path / "desk")
    async with (
        open_holdfast(config=a_config(home, workspace_root=tmp_path)) as local,
        serving(local) as at,
        connect(at.url, at.secret, timeouts=QUICK) as client,
    ):
        repo = await client.repos.add(client.owner, str(desk), name="Desk")
        listed = await client.repos.list(client.owner)
        same = await local.repos.list(local.owner)
        await client.repos.remove(client.owner, repo.id)
        after = await client.repos.list(client.owner)

    assert (listed, same, after) == ([repo], [repo], [])


async def test_what_only_the_servers_machine_can_do_is_refused_with_a_remedy() -> None:
    chain = LlmRuntime(models=(ModelChoice(model_id=ModelId("m"), max_attempts=5),))
    parts = (Text(text="a"), Text(text="b"))
    async with impostor(answering(500, "")) as server, connect(server.url) as client:
        owner = client.owner
        for act, remedy in (
            (client.mcp_servers.attach(owner, GONE, ({"id": "mine"},)), "server's own"),
            (client.agents.create(owner, {"name": "A", "extra": {"a": 1}}), "without --server"),
            (client.calls.list(Owner(str(GONE))), r"hf\.owner"),
            (client.approvals.list(Owner(str(GONE))), r"hf\.owner"),
            (client.agents.update(owner, "a", {"runtime": chain}), "without --server"),
            (client.sessions.list(SessionQuery(owner=owner, is_bound=True)), "filtered by agent"),
            (
                client.messages.record(owner, GONE, MessageDraft(role=Role.ASSISTANT, parts=parts)),
                "separate message",
            ),
        ):
            with pytest.raises(Invalid, match=remedy):
                await act

    assert server.calls == []


@each_case(("turn", "settled", "is_settled"), [(2, 1, False), (2, 2, True), (None, 1, True)])
async def test_an_interrupted_turn_may_end_later(
    turn: int | None, settled: int, is_settled: bool
) -> None:
    schema = json.loads(DOCUMENT.read_text("utf-8"))["components"]["schemas"]["SessionForm"]
    session: dict[str, Any] = {**schema["examples"][0], "turn": 2, "settled": settled}
    form = {"session": session, "interrupted": turn is not None, "turn": turn}
    act = answering(200 if is_settled else 202, json.dumps(form))
    async with impostor(act) as server, connect(server.url, "t", timeouts=QUICK) as client:
        done = await client.sessions.interrupt(client.owner, SessionId(session["id"]))

    assert (done.turn, done.is_settled, done.session.settled) == (turn, is_settled, settled)


@each_case(("key", "tries"), [("k", 2), (None, 1)])
async def test_an_observation_is_sent_again_only_with_a_key(key: str | None, tries: int) -> None:
    sent: list[bytes] = []

    async def hang_up(call: Call) -> None:
        sent.append(call.body)

    async def answer(call: Call) -> None:
        sent.append(call.body)
        result = (
            '{"entity_id":"e","observation_id":"o","observation_count":1,'
            '"action":"created","deduplicated":false,"warnings":[]}'
        )
        await call.answer(201, result)

    async with (
        impostor(hang_up, answer) as server,
        connect(server.url, "x", timeouts=QUICK) as client,
    ):
        try:
            await client.observations.submit(client.owner, SESSION, idempotency_key=key)
            is_sent = True
        except Unavailable:
            is_sent = False

    assert (len(sent), is_sent) == (tries, key is not None)


def test_the_client_loads_nothing_of_the_server() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", "import sys, holdfast; holdfast.connect; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout

    loaded = {name.partition(".")[0] for name in printed.split()}
    servers = {"apsw", "h2", "mcp", "rich", "starlette", "typer", "uvicorn"}
    # Imported with the first request: commands that need only an id from here start quickly.
    assert loaded & {*servers, "anyio", "httpcore2", "httpx2"} == set()
    ours = {name for name in printed.split() if name.startswith("holdfast.")}
    assert {name.split(".")[1] for name in ours} == {
        *("api", "ask", "client", "domain", "own_loops", "ports", "services", "wire"),
        # The values of features, which the verbs take and return.
        *("children", "observations", "search", "workers", "workflows", "zones"),
    }
