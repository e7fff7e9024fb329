"""Sessions of `/api`: opened in a repository, listed, read, completed and cancelled."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.agents import AcpRuntime
from holdfast.domain.ids import SessionId
from holdfast.domain.tokens import Scope
from tests.http.api.client import Client
from tests.http.v1.client import A_STRANGER, a_repository, refusal
from tests.marks import demands, each_case
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

AT = "2026-01-02T03:04:05.678901Z"
CHOSEN = "0192f0c1-0000-7000-8000-000000000abc"


@demands(
    "S1-010b", "S1-020", "S1-040", "S1-060", "S1-060b", "S1-060c", "S1-060d", "S1-031", "S1-010d"
)
async def test_a_session_opens_active_in_its_repository(quiet_client: Client) -> None:
    client = quiet_client
    answer = await client.post("/api/sessions", {"repoId": client.repo["id"], "colour": "red"})

    session = answer.document
    assert answer.status == 201
    assert answer.headers["location"] == f"/api/sessions/{session['id']}"
    assert session == {
        "id": session["id"],
        "repoId": client.repo["id"],
        "status": "active",
        "createdAt": AT,
        "updatedAt": "2026-01-02T03:04:05.678902Z",
        "title": None,
        "metadata": {},
        "process": {"state": "not_started", "exitCode": None},
        "turn": 0,
        "settled": 0,
        "lastSequence": 0,
    }
    opened = (await client.get(f"/v1/sessions/{session['id']}")).document
    assert (opened["repo_id"], opened["state"]) == (client.repo["id"], "pending")
    assert opened["context"]["working_dir"] == client.repo["path"]


async def test_of_many_who_open_one_id_in_one_repository_one_does_and_all_get_it(
    quiet_client: Client,
) -> None:
    body = {"repoId": quiet_client.repo["id"], "id": CHOSEN}

    answers = await asyncio.gather(
        *(quiet_client.post("/api/sessions", {**body, "title": f"t{n}"}) for n in range(10))
    )

    assert sorted(answer.status for answer in answers) == [200] * 9 + [201]
    assert len({answer.document["title"] for answer in answers}) == 1


async def test_a_session_is_read_at_one_moment(quiet_client: Client) -> None:
    client = quiet_client
    session = await client.opened()

    *_, seen = await asyncio.gather(
        *(client.prompted(session, f"p{number}") for number in range(30)),
        *(client.prompted(session, f"q{number}") for number in range(30)),
        asyncio.gather(*(client.whole(session) for _ in range(30))),
    )

    assert [len(each["messages"]) for each in seen] == [each["lastSequence"] for each in seen]


async def test_a_session_may_be_opened_with_an_agent_a_title_and_an_id(
    quiet_client: Client, root: Path
) -> None:
    client = quiet_client
    agent = await client.agent(slug="mine")
    body = {"repoId": client.repo["id"].upper(), "agentId": "mine", "title": "Sums", "id": CHOSEN}

    first = await client.post("/api/sessions", body)
    again = await client.post("/api/sessions", body)
    renamed = await client.post("/api/sessions", {**body, "title": "Others", "agentId": "none"})
    second = await client.post("/api/repos", {"path": str(a_repository(root / "second"))})
    other = await client.post("/api/sessions", {**body, "repoId": second.document["id"]})

    assert (first.status, first.document["id"], first.document["title"]) == (201, CHOSEN, "Sums")
    assert (again.status, again.document) == (200, first.document)
    assert (renamed.status, renamed.document) == (200, first.document)
    assert again.headers["location"] == f"/api/sessions/{CHOSEN}"
    assert refusal(other) == (409, "id_reused")
    assert (await client.get(f"/v1/sessions/{CHOSEN}")).document["agent_id"] == agent["id"]


@demands("S1-042", "S1-042c")
@each_case(
    ("body", "told"),
    [
        ({}, (400, "invalid_body")),
        ({"repoId": 1}, (400, "invalid_body")),
        ({"repoId": A_STRANGER}, (404, "repo_not_found")),
        ({"repoId": "nobody"}, (404, "repo_not_found")),
        ({"repoId": "{repo}", "agentId": "nobody"}, (404, "agent_not_found")),
        ({"repoId": "{repo}", "id": "mine"}, (400, "invalid_body")),
        ({"repoId": "{repo}", "title": ""}, (400, "invalid_body")),
    ],
)
async def test_a_refused_request_opens_nothing(
    quiet_client: Client, body: dict[str, Any], told: tuple[int, str]
) -> None:
    filled = {key: quiet_client.repo["id"] if v == "{repo}" else v for key, v in body.items()}

    assert refusal(await quiet_client.post("/api/sessions", filled)) == told
    assert (await quiet_client.get("/api/sessions")).document["total"] == 0


@demands("S1-042c")
async def test_a_repository_that_became_a_link_is_refused_when_a_session_opens(
    quiet_client: Client, root: Path
) -> None:
    tree = root / "tree"
    tree.rename(root.parent / "moved")
    tree.symlink_to(root.parent / "moved")

    answer = await quiet_client.post("/api/sessions", {"repoId": quiet_client.repo["id"]})

    assert refusal(answer) == (403, "repo_outside_root")
    assert (await quiet_client.get("/api/sessions")).document["total"] == 0


async def test_only_sessions_with_a_repository_exist_here(quiet_client: Client) -> None:
    client = quiet_client
    plain = await client.session()
    bound = await client.session(repo_id=client.repo["id"])

    listed = (await client.get("/api/sessions")).document["sessions"]
    missing = await client.get(f"/api/sessions/{A_STRANGER}")

    assert [each["id"] for each in listed] == [bound["id"]]
    for path in (plain["id"], "nobody", bound["id"].upper()):
        answer = await client.get(f"/api/sessions/{path}")
        assert (answer.status, answer.body) == (404, missing.body)
    assert refusal(missing) == (404, "session_not_found")


@demands("S1-064c")
@each_case(
    ("method", "path"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/messages"),
        ("POST", "/prompt"),
        ("POST", "/complete"),
    ],
)
async def test_what_belongs_to_somebody_else_is_not_there(
    quiet_client: Client, method: str, path: str
) -> None:
    session = await quiet_client.opened()
    other = await quiet_client.as_("somebody")
    body = {"text": "hi"} if path == "/prompt" else None

    theirs = await other.ask(method, f"/api/sessions/{session['id']}{path}", body)
    nobodys = await other.ask(method, f"/api/sessions/{A_STRANGER}{path}", body)

    assert refusal(theirs) == (404, "session_not_found")
    assert theirs.body == nobodys.body


@demands("S1-063", "S1-063b", "S1-063c", "S1-032")
async def test_sessions_are_listed_newest_first_and_page_by_page(
    quiet_client: Client, clock: SettableClock
) -> None:
    client = quiet_client
    made = [await opened_later(client, clock) for _ in range(23)]
    newest = [session["id"] for session in reversed(made)]

    first = (await client.get("/api/sessions")).document
    second = (await client.get("/api/sessions?offset=20")).document
    third = (await client.get("/api/sessions?offset=23&limit=1")).document

    assert {key: first[key] for key in ("total", "limit", "offset")} == {
        "total": 23,
        "limit": 20,
        "offset": 0,
    }
    assert [each["id"] for each in first["sessions"] + second["sessions"]] == newest
    assert first["sessions"][0] == made[-1]
    assert third == {"sessions": [], "total": 23, "limit": 1, "offset": 23}


async def test_pages_by_key_neither_repeat_nor_hide_what_is_opened_meanwhile(
    quiet_client: Client, clock: SettableClock
) -> None:
    client = quiet_client
    made = [(await opened_later(client, clock))["id"] for _ in range(5)]

    seen: list[str] = []
    query = "?limit=2"
    while page := (await client.get(f"/api/sessions{query}")).document["sessions"]:
        seen += [each["id"] for each in page]
        await opened_later(client, clock)
        query = f"?limit=2&before={seen[-1]}"

    assert seen == made[::-1]


@each_case(
    "query",
    [
        "limit=0",
        "limit=101",
        "limit=ten",
        "limit=",
        "offset=-1",
        "limit=null",
        "limit=1&limit=2",
        "status=",
        "status=open",
        "status=active,",
        "status=Active",
        "offset=1&before={id}",
    ],
)
async def test_a_query_that_is_not_right_is_told_by_its_parameter(
    quiet_client: Client, query: str
) -> None:
    session = await quiet_client.opened()

    answer = await quiet_client.get(f"/api/sessions?{query.format(id=session['id'])}")

    assert refusal(answer) == (400, "invalid_query")
    assert answer.document["details"]["parameter"] in query


async def test_behind_a_session_that_is_not_there_there_is_nothing(quiet_client: Client) -> None:
    answer = await quiet_client.get(f"/api/sessions?before={A_STRANGER}")

    assert refusal(answer) == (404, "session_not_found")


@demands("S1-034", "S1-034b", "S1-033", "S1-063", "S1-063b")
async def test_filters_by_status_and_repository_combine(quiet_client: Client, root: Path) -> None:
    client = quiet_client
    answer = await client.post("/api/repos", {"path": str(a_repository(root / "other"))})
    other = answer.document["id"]
    active, completed, cancelled = [await client.opened() for _ in range(3)]
    elsewhere = (await client.post("/api/sessions", {"repoId": other})).document
    await client.post(f"/api/sessions/{completed['id']}/complete")
    await client.delete(f"/api/sessions/{cancelled['id']}")

    async def found(query: str) -> set[str]:
        page = (await client.get(f"/api/sessions?{query}")).document
        assert page["total"] == len(page["sessions"])
        return {each["id"] for each in page["sessions"]}

    assert await found("status=active") == {active["id"], elsewhere["id"]}
    assert await found("status=active,%20cancelled,active") == {
        active["id"],
        elsewhere["id"],
        cancelled["id"],
    }
    assert await found("status=error") == set()
    assert await found(f"status=active&repoId={other}") == {elsewhere["id"]}
    listed = f"repoId={client.repo['id']}&status=active&limit=10&offset=0"
    assert await found(listed) == {active["id"]}
    assert await found(f"repoId={other.upper()}") == {elsewhere["id"]}
    assert await found(f"repoId={A_STRANGER}") == set()
    assert await found("repoId=nobody") == set()
    assert await found("repoId=") == set()


@demands("S1-014c", "S1-014d", "S1-064", "S1-064b", "S1-100h", "S1-031", "S1-031b")
async def test_one_session_comes_with_its_repository_and_all_messages(client: Client) -> None:
    session = await client.opened(title="Sums")
    await client.prompted(session, "hello")
    await client.settled(session)

    whole = await client.whole(session)
    messages, repo = whole.pop("messages"), whole.pop("repo")
    listed = (await client.get("/api/sessions")).document["sessions"]

    assert whole == listed[0]
    assert repo == client.repo
    assert messages == await client.rows(session)
    assert [row["role"] for row in messages] == ["user", "agent"]
    assert (whole["status"], whole["turn"], whole["settled"]) == ("active", 1, 1)
    assert whole["lastSequence"] == 2


async def test_a_session_is_read_again_only_if_it_has_changed(client: Client) -> None:
    session = await client.opened()
    path = f"/api/sessions/{session['id']}"
    first = await client.get(path)

    same = await client.get(path, if_none_match=first.headers["etag"])
    await client.prompted(session, "hello")
    other = await client.get(path, if_none_match=first.headers["etag"])

    assert (same.status, same.body) == (304, b"")
    assert other.status == 200


@demands("S1-021")
async def test_a_session_is_completed_on_request_and_stays_so(quiet_client: Client) -> None:
    client = quiet_client
    session = await client.opened()
    path = f"/api/sessions/{session['id']}"

    done = await client.post(f"{path}/complete")
    again = await client.post(f"{path}/complete")
    cancelled = await client.delete(path)

    assert done.status == 200
    assert done.document["status"] == "completed"
    assert done.document["metadata"] == {"reason": "user_request"}
    assert (again.status, again.document) == (200, done.document)
    assert (cancelled.status, cancelled.document) == (200, done.document)
    assert [row["content"] for row in await client.rows(session)] == [
        {"type": "text", "text": "Session completed: user_request", "code": "session_closed"}
    ]


@demands("S1-022", "S1-073c")
async def test_a_session_is_cancelled_once_however_many_ask(quiet_client: Client) -> None:
    client = quiet_client
    session = await client.opened()
    path = f"/api/sessions/{session['id']}"

    answers = await asyncio.gather(*(client.delete(path) for _ in range(5)))
    late = await client.delete(path)

    assert {answer.status for answer in (*answers, late)} == {200}
    assert {answer.document["status"] for answer in (*answers, late)} == {"cancelled"}
    assert late.document["metadata"] == {"reason": "user_request"}
    assert late.document["updatedAt"] > session["updatedAt"]
    assert [row["content"]["text"] for row in await client.rows(session)] == [
        "Session cancelled: user_request"
    ]


async def test_a_resumed_session_is_active_again_without_a_reason(quiet_client: Client) -> None:
    client = quiet_client
    session = await client.opened()
    await client.delete(f"/api/sessions/{session['id']}")

    await client.post(f"/v1/sessions/{session['id']}/resume")

    whole = await client.whole(session)
    assert (whole["status"], whole["metadata"]) == ("active", {})


@demands("S1-080b", "S1-080c", "S1-080d")
async def test_the_sixth_program_is_told_to_wait_and_how_to_free_a_slot(
    quiet_client: Client,
) -> None:
    client = quiet_client
    house = client.house
    await house.agents.create(house.owner, {"name": "Cli", "runtime": AcpRuntime(command="sh")})
    body = {"repoId": client.repo["id"], "agentId": "cli"}

    answers = await asyncio.gather(*(client.post("/api/sessions", body) for _ in range(20)))
    opened = [answer.document for answer in answers if answer.status == 201]
    refused = next(answer for answer in answers if answer.status == 429)

    assert sorted(answer.status for answer in answers) == [201] * 5 + [429] * 15
    assert refused.headers["retry-after"] == "60"
    assert refused.document == {
        "error": "session_limit",
        "message": "5 of 5 agent sessions are open. Wait for one to finish, or end one with "
        "DELETE /api/sessions/{id}.",
        "details": {"limit": 5, "active": 5, "retryAfter": 60},
    }
    await client.delete(f"/api/sessions/{opened[0]['id']}")
    assert (await client.post("/api/sessions", body)).status == 201
    assert (await client.opened())["status"] == "active"


async def test_a_reader_changes_nothing(quiet_client: Client) -> None:
    session = await quiet_client.opened()
    reader = await quiet_client.as_("local", Scope.READ)
    path = f"/api/sessions/{session['id']}"

    assert refusal(await reader.post("/api/sessions", {})) == (403, "forbidden")
    assert refusal(await reader.post(f"{path}/prompt", {"text": "hi"})) == (403, "forbidden")
    assert refusal(await reader.post(f"{path}/complete")) == (403, "forbidden")
    assert refusal(await reader.delete(path)) == (403, "forbidden")
    assert (await reader.get(path)).document["status"] == "active"


async def test_a_path_takes_its_methods_only_and_head_is_get_without_a_body(
    quiet_client: Client,
) -> None:
    session = await quiet_client.opened()
    path = f"/api/sessions/{session['id']}"

    wrong = await quiet_client.ask("PUT", path)
    head, whole = await quiet_client.ask("HEAD", path), await quiet_client.get(path)

    assert refusal(wrong) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "DELETE, GET, HEAD"
    assert (head.status, head.body) == (200, b"")
    assert head.headers["etag"] == whole.headers["etag"]
    assert whole.headers["cache-control"] == "no-store"


async def opened_later(client: Client, clock: SettableClock) -> dict[str, Any]:
    """Open a session at an instant of its own."""
    clock.advance(milliseconds=1)
    return await client.opened()


LONG = "so many words, " * 20


async def test_a_large_session_of_api_is_complete_and_has_a_tag(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.http.bodies.WHOLE_LARGEST", 1_000)
    monkeypatch.setattr("holdfast.services.messages.BATCH_BYTES", 700)
    session = await client.opened()
    for number in range(6):
        await client.house.messages.send(
            client.house.owner, SessionId(session["id"]), f"{number} {LONG}"
        )
    await client.settled(session)
    path = f"/api/sessions/{session['id']}"

    whole = await client.get(path)
    again = await client.get(path, if_none_match=whole.headers["etag"])
    rows = await client.get(f"{path}/messages?partial=false")

    said = [row for row in whole.document["messages"] if row["role"] == "user"]
    assert [row["content"]["text"][0] for row in said] == list("012345")
    assert [row for row in rows.document if row["role"] == "user"] == said
    assert again.status == 304
