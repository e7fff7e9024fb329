"""Every verb of the client, against a real house on a real socket."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import holdfast.client
from holdfast import Holdfast, open_holdfast
from holdfast.client import (
    AgentPatch,
    AgentPost,
    AgentsQuery,
    AnswerPost,
    ApprovalsQuery,
    ApprovalState,
    AssistantPost,
    CallsQuery,
    CallState,
    Client,
    ClosePost,
    CostGroup,
    CostsQuery,
    DeletionQuery,
    ExportFormat,
    ExportQuery,
    ForkPost,
    MessagesQuery,
    ModelPost,
    SessionPatch,
    SessionPost,
    SessionsQuery,
    TextContent,
    UserPost,
)
from holdfast.domain.agents import AgentStatus
from holdfast.domain.errors import Code, Conflict, Denied, NotFound
from tests.client.servers import QUICK, serving
from tests.http.v1.client import a_repository
from tests.tooled import a_config, asks, call, says

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(holdfast: Holdfast) -> AsyncIterator[Client]:
    """Talk to a house whose turns are played by the offline model."""
    async with serving(holdfast) as at, Client(at.url, at.secret, timeouts=QUICK) as somebody:
        yield somebody


async def settled(client: Client, session_id: str) -> None:
    """Wait until no turn runs or waits."""
    async for _ in client.follow(session_id, until_settled=True):
        pass


async def test_agents_are_made_read_changed_listed_and_archived(client: Client) -> None:
    made = await client.agents.create(AgentPost(name="Ada", system_prompt="Be terse."))
    again = await client.agents.create(AgentPost(id=made.id, name="Ada", system_prompt="Be terse."))
    changed = await client.agents.update(made.slug, AgentPatch(name="Ada L.", description=None))
    await client.agents.archive(made.id)
    listed = await client.agents.list(AgentsQuery(status="all")).all()

    assert again == made
    assert (changed.id, changed.name, changed.system_prompt) == (made.id, "Ada L.", "Be terse.")
    assert [(each.id, each.status) for each in listed] == [(made.id, AgentStatus.ARCHIVED)]
    assert await client.agents.list().all() == []
    assert (await client.agents.get("ada")).status is AgentStatus.ARCHIVED


async def test_a_listing_goes_over_all_its_pages(client: Client) -> None:
    made = [
        await client.agents.create(AgentPost(name=f"Agent {number}", system_prompt=""))
        for number in range(5)
    ]
    listing = client.agents.list(AgentsQuery(limit=2))

    first = await listing.page()
    second = await listing.page(first.next_cursor)

    assert [agent.slug async for agent in listing] == [each.slug for each in reversed(made)]
    assert [each.slug for each in (*first.data, *second.data)] == [
        each.slug for each in reversed(made[1:])
    ]


async def test_a_session_lives_its_whole_life(client: Client) -> None:
    opened = await client.sessions.open("holdfast", SessionPost(title="Sums", tags=("demo",)))
    same = await client.sessions.open(
        "holdfast", SessionPost(id=opened.id, title="Sums", tags=("demo",))
    )
    said = await client.messages.send(opened.id, "What is 2+3?")
    await settled(client, opened.id)
    renamed = await client.sessions.update(opened.id, SessionPatch(title="Better sums"))
    fork = await client.sessions.fork(opened.id, ForkPost(at=1, title="Another way"))
    stopped = await client.sessions.interrupt(opened.id)
    closed = await client.sessions.close(opened.id, ClosePost(ending="cancelled", reason="done"))
    resumed = await client.sessions.resume(opened.id)
    with pytest.raises(Conflict) as refused:
        await client.sessions.delete(opened.id)
    await client.sessions.delete(opened.id, forks=DeletionQuery(cascade=True))

    assert (same.id, opened.agent.slug) == (opened.id, "holdfast")
    assert (said.sequence, said.role, said.content) == (1, "user", {"text": "What is 2+3?"})
    assert (renamed.title, renamed.status, renamed.message_count) == ("Better sums", "completed", 2)
    assert fork.forked_from is not None
    assert (fork.forked_from.session_id, fork.forked_from.sequence) == (opened.id, 1)
    assert (stopped.interrupted, stopped.turn) == (False, None)
    assert (closed.state, closed.reason, resumed.state) == ("cancelled", "done", "idle")
    assert refused.value.code is Code.SESSION_HAS_FORKS
    for each in (opened.id, fork.id):
        with pytest.raises(NotFound):
            await client.sessions.get(each)


async def test_messages_are_sent_once_listed_read_and_recorded(client: Client) -> None:
    session = await client.sessions.open("holdfast")
    told = AssistantPost(content=TextContent(text="From before."))
    recorded = await client.messages.record(session.id, told)
    body = UserPost(id="0192f0c1-0000-7000-8000-000000000007", content=TextContent(text="Hello"))
    first = await client.messages.send(session.id, body)
    again = await client.messages.send(session.id, body)
    await settled(client, session.id)

    rows = await client.messages.list(session.id, MessagesQuery(limit=1)).all()
    whole = await client.messages.list(session.id, MessagesQuery(parts="all", turn=1)).all()

    assert first == again
    assert first.id == body.id
    assert [row.role for row in rows] == ["assistant", "user", "assistant"]
    assert rows[0] == recorded
    assert await client.messages.get(session.id, first.id) == rows[1]
    assert all(row.parts for row in whole)
    exported = await client.sessions.export(session.id, ExportQuery(format=ExportFormat.JSONL))
    assert [json.loads(line)["id"] for line in exported.splitlines()] == [row.id for row in rows]
    jsonl = ExportQuery(format=ExportFormat.JSONL)
    pieces = [piece async for piece in client.sessions.export_pieces(session.id, jsonl)]
    assert b"".join(pieces) == exported


async def test_an_export_in_pieces_is_refused_like_a_whole_one(client: Client) -> None:
    with pytest.raises(NotFound):
        await anext(client.sessions.export_pieces("0192f0c1-0000-7000-8000-00000000dead"))


async def test_sessions_are_listed_by_agent_and_over_all(client: Client) -> None:
    await client.agents.create(AgentPost(name="Ada", system_prompt=""))
    mine = await client.sessions.open("ada", SessionPost(tags=("demo",)))
    other = await client.sessions.open("holdfast")

    assert await client.sessions.list(agent="ada").all() == [mine]
    assert await client.sessions.list().all() == [other, mine]
    assert await client.sessions.list(SessionsQuery(tag=("demo",))).all() == [mine]
    assert await client.sessions.list(SessionsQuery(begins=mine.id[:13])).all() == [mine]
    assert await client.sessions.list(SessionsQuery(state="idle")).all() == []


async def test_models_are_listed_and_added(client: Client) -> None:
    added = await client.models.add(ModelPost(provider="openai", name="gpt-next"))

    assert added in await client.models.list()
    assert await client.models.get("openai:gpt-next") == added


async def test_repositories_are_registered_and_forgotten(home: Path, tmp_path: Path) -> None:
    desk = await asyncio.to_thread(a_repository, tmp_path / "desk")
    async with (
        open_holdfast(config=a_config(home, workspace_root=tmp_path)) as house,
        serving(house) as at,
        Client(at.url, at.secret, timeouts=QUICK) as client,
    ):
        repo = await client.repos.add(str(desk), name="Desk")
        listed = await client.repos.list()
        await client.repos.remove(repo.id)
        after = await client.repos.list()

    assert (repo.name, repo.path) == ("Desk", str(desk))
    assert (listed, after) == ((repo,), ())


async def test_a_question_is_found_answered_and_its_call_seen(home: Path) -> None:
    steps = (asks(call("write_file", "c1", path="a.txt", content="hold")), says("Done."))
    async with (
        open_holdfast(config=a_config(home, *steps)) as house,
        serving(house) as at,
        Client(at.url, at.secret, timeouts=QUICK) as client,
    ):
        session = await client.sessions.open("holdfast")
        await client.messages.send(session.id, "go")
        async for item in client.follow(session.id):
            if getattr(item, "event_type", "") == "tool.approval_requested":
                break
        (waiting,) = await client.approvals.list(
            query=ApprovalsQuery(state=ApprovalState.WAITING)
        ).all()
        found = await client.approvals.get(session.id, waiting.id)
        answer = AnswerPost(decision="allow", digest=waiting.digest)
        answered = await client.approvals.answer(session.id, waiting.id, answer)
        revoked = await client.approvals.revoke(session.id, waiting.id)
        await settled(client, session.id)
        (done,) = await client.calls.list(session.id, CallsQuery(state=CallState.FINISHED)).all()
        same = await client.calls.get(session.id, "c1")
        costs = await client.costs.report(CostsQuery(group_by=CostGroup.SESSION))
        folder = (await client.sessions.get(session.id)).context.working_dir

    assert (found, waiting.tool, waiting.tool_class) == (waiting, "write_file", "write")
    assert (answered.state, answered.answered_by, revoked.scope) == ("allowed", "http", "once")
    assert (done.id, done.name, done.state) == ("c1", "write_file", "finished")
    assert same == done
    assert [(each.key, each.requests) for each in costs.data] == [(session.id, 2)]
    assert await asyncio.to_thread(Path(folder, "a.txt").read_text) == "hold"


async def test_a_wrong_token_is_denied(holdfast: Holdfast) -> None:
    async with serving(holdfast) as at, Client(at.url, "hf_wrong", timeouts=QUICK) as client:
        with pytest.raises(Denied) as refused:
            await client.sessions.get("x")

    assert refused.value.code is Code.UNAUTHENTICATED


def test_the_client_loads_nothing_of_the_server() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import sys, holdfast.client; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout

    loaded = {name.partition(".")[0] for name in told.split()}
    servers = {"apsw", "h2", "mcp", "rich", "starlette", "typer", "uvicorn"}
    # Imported with the first request: commands that need only an id from here start quickly.
    assert loaded & {*servers, "anyio", "httpcore2", "httpx2"} == set()
    ours = {name for name in told.split() if name.startswith("holdfast.")}
    assert {name.split(".")[1] for name in ours} == {
        *("client", "domain", "ports", "services", "wire"),
        # The values of features, which the client's verbs take and return.
        *("observations", "search", "workflows", "zones"),
    }


def test_the_names_of_the_client_are_sorted_and_there() -> None:
    assert holdfast.client.__all__ == sorted(set(holdfast.client.__all__))
    assert [name for name in holdfast.client.__all__ if not hasattr(holdfast.client, name)] == []
