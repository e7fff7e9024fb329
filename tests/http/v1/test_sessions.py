"""Sessions over HTTP: opened, listed, changed and deleted, in the contract's own words."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.domain.models import model_of
from tests.http.asgi import Answer
from tests.http.v1.client import A_STRANGER, Visitor, a_repository, refusal, visiting
from tests.marks import demands, each_case
from tests.stand_ins import SettableClock
from tests.tooled import a_config, says

pytestmark = pytest.mark.anyio

OFFLINE = model_of("offline:holdfast").id
AT = "2026-01-02T03:04:05.678901Z"
NO_TOKENS = {
    "input_tokens": 0,
    "cached_input_tokens": 0,
    "output_tokens": 0,
    "reasoning_tokens": 0,
}


@demands("S2-044", "S2-045b", "S2-040e", "S2-040f", "S2-009b")
async def test_a_session_opens_pending_with_its_defaults(visitor: Visitor, home: Path) -> None:
    agent = await visitor.agent()
    answer = await visitor.post(f"/v1/agents/{agent['slug']}/sessions")

    session = answer.document
    path = f"/v1/agents/{agent['id']}/sessions/{session['id']}"
    folder = session["context"]["working_dir"]
    # Writing it down takes a moment, even where the clock stands still.
    assert session["updated_at"] == "2026-01-02T03:04:05.678902Z"
    assert Path(folder).is_relative_to(home)
    assert answer.status == 201
    assert answer.headers["location"] == path
    assert session == {
        "id": session["id"],
        "agent_id": agent["id"],
        "title": None,
        "tags": [],
        "model_id": None,
        "status": "pending",
        "created_at": AT,
        "started_at": None,
        "finished_at": None,
        "updated_at": session["updated_at"],
        "state": "pending",
        "turn": 0,
        "settled": 0,
        "last_stop": None,
        "reason": None,
        "repo_id": None,
        "forked_from": None,
        "turn_cap": 50,
        "approval": "ask",
        "context": {
            "working_dir": folder,
            "active_file": None,
            "selection": None,
            "git_ref": None,
            "fs_scope_tier": "sandboxed",
            "variables": {},
        },
        "budget": None,
        "usage": NO_TOKENS,
        "cost": {"microcents": 0, "priced": True},
        "message_count": 0,
        "last_event": 1,
        "metadata": {},
        "waiting": None,
        "parent": None,
        "children": 0,
        "agent": {
            "slug": agent["slug"],
            "name": agent["name"],
            "runtime": "llm",
            "model_ids": [],
        },
    }
    for same in (path, f"/v1/sessions/{session['id']}"):
        assert (await visitor.get(same)).document == session


@demands("S2-040e", "S2-035b")
async def test_every_wish_is_kept(visitor: Visitor) -> None:
    given: dict[str, Any] = {
        "title": "Sums",
        "tags": ["b", "a"],
        "metadata": {"ticket": 7, "nested": {"a": [1, None]}},
        "turn_cap": 3,
        "budget": {"microcents": 1000, "on_exceed": "fail"},
        "approval": "deny",
    }

    session = await visitor.session(**given, model_id="offline:holdfast")

    assert {name: session[name] for name in given} == given
    assert session["model_id"] == OFFLINE


@demands("S2-035b")
@each_case(
    ("wish", "code"),
    [
        ({"title": ""}, "invalid_body"),
        ({"model_id": A_STRANGER}, "model_not_found"),
        ({"metadata": {"x": "y" * 20_000}}, "invalid_input"),
        ({"metadata": []}, "invalid_body"),
        ({"budget": {"microcents": -1}}, "invalid_body"),
        ({"approval": "maybe"}, "invalid_body"),
        ({"messages": []}, "invalid_body"),
        ({"status": "running"}, "invalid_body"),
    ],
)
async def test_a_wish_that_is_not_right_is_refused(
    visitor: Visitor, wish: dict[str, Any], code: str
) -> None:
    agent = await visitor.agent()

    answer = await visitor.post(f"/v1/agents/{agent['id']}/sessions", wish)

    assert refusal(answer) == (400, code)
    assert (await visitor.get("/v1/sessions")).document["data"] == []


async def test_a_wider_grant_than_the_agents_is_refused(visitor: Visitor) -> None:
    agent = await visitor.agent()

    answer = await visitor.post(
        f"/v1/agents/{agent['id']}/sessions", {"grant": {"commands": ["rm -rf /"]}}
    )

    assert refusal(answer) == (403, "grant_exceeded")


async def test_a_program_of_its_own_works_in_a_repository(visitor: Visitor) -> None:
    body = {"name": "Claude", "runtime": {"type": "acp", "command": "claude"}}
    agent = (await visitor.post("/v1/agents", body)).document
    path = f"/v1/agents/{agent['id']}/sessions"

    assert refusal(await visitor.post(path, {})) == (400, "repo_required")
    assert refusal(await visitor.post(path, {"repo_id": A_STRANGER})) == (404, "repo_not_found")


async def test_a_folder_given_over_the_network_lies_inside_the_root(
    home: Path, outside: Environment, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    repository = a_repository(root / "project")
    (root / "plain").mkdir()
    (root / "link").symlink_to(root / "plain")
    (root / "way-out").symlink_to(tmp_path)
    config = Config(home=home, workspace_root=root)
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        repo = await house.repos.add(house.owner, str(repository))
        path = f"/v1/agents/{(await visitor.agent())['id']}/sessions"

        async def opened(folder: object) -> Answer:
            return await visitor.post(path, {"context": {"working_dir": str(folder)}})

        bound = await visitor.post(path, {"repo_id": repo.id})
        named = [await opened(folder) for folder in (repository, root / "plain", root / "link")]
        outer = [
            await opened(folder) for folder in (tmp_path, f"{root}/..", root / "way-out", "/", home)
        ]
        wrong = [await opened(folder) for folder in (root / "missing", "relative", "")]
        session = named[1].document
        resume = f"/v1/sessions/{session['id']}/resume"
        moved = await visitor.post(resume, {"context": {"working_dir": str(root / "project")}})
        lost = await visitor.post(resume, {"context": {"working_dir": str(tmp_path)}})

    assert (bound.status, bound.document["repo_id"]) == (201, repo.id)
    shown = [(each.status, each.document["context"]["working_dir"]) for each in (bound, *named)]
    places = [repository, repository, root / "plain", root / "plain"]
    assert shown == [(201, str(place)) for place in places]
    assert [refusal(each) for each in outer] == [(403, "repo_outside_root")] * 5
    assert [refusal(each) for each in wrong] == [(400, "invalid_context")] * 3
    assert (moved.status, moved.document["context"]["working_dir"]) == (200, str(repository))
    assert refusal(lost) == (403, "repo_outside_root")


async def test_without_a_root_no_folder_is_named_over_the_network(
    visitor: Visitor, tmp_path: Path
) -> None:
    path = f"/v1/agents/{(await visitor.agent())['id']}/sessions"

    answer = await visitor.post(path, {"context": {"working_dir": str(tmp_path)}})

    assert refusal(answer) == (403, "workspace_root_unset")


@demands("S2-040f")
async def test_the_words_for_where_a_session_stands(home: Path, outside: Environment) -> None:
    steps = [says("4"), {"error": "auth"}]
    config = a_config(home, *steps)
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        path = f"/v1/sessions/{session['id']}"
        shown = []
        await visitor.told(session, "How much is 2+2?")
        shown.append((await visitor.get(path)).document)
        await visitor.told(session, "And now?")
        shown.append((await visitor.get(path)).document)
        shown.append((await visitor.post(f"{path}/close", {"as": "cancelled"})).document)

    words = [(one["status"], one["state"], one["last_stop"]) for one in shown]
    assert words == [
        ("completed", "idle", "stop"),
        ("failed", "idle", "error"),
        ("completed", "cancelled", "error"),
    ]
    assert len({one["started_at"] for one in shown}) == 1
    ends = [one["finished_at"] for one in shown]
    assert shown[0]["started_at"] < ends[0] < ends[1] < ends[2]


@demands("S2-045")
async def test_sessions_are_listed_newest_first_and_filtered(
    visitor: Visitor, clock: SettableClock
) -> None:
    agent = await visitor.agent(slug="one")
    other = await visitor.agent(slug="two")
    for of, title, tags in (("one", "Alpha", ["a"]), ("one", "Beta", []), ("two", "Gamma", ["a"])):
        await visitor.session(of, title=title, tags=tags)
        clock.advance(seconds=1)
    beta = (await visitor.get("/v1/sessions?q=bet")).document["data"][0]
    await visitor.told(beta, "hello")

    async def titles(path: str) -> list[str]:
        answer = await visitor.get(path)
        assert answer.status == 200, answer.body
        return [session["title"] for session in answer.document["data"]]

    assert await titles("/v1/sessions") == ["Gamma", "Beta", "Alpha"]
    assert await titles(f"/v1/agents/{agent['id']}/sessions") == ["Beta", "Alpha"]
    assert await titles(f"/v1/agents/{other['slug']}/sessions") == ["Gamma"]
    assert await titles("/v1/sessions?tag=a") == ["Gamma", "Alpha"]
    assert await titles("/v1/sessions?status=pending") == ["Gamma", "Alpha"]
    assert await titles("/v1/sessions?status=completed") == ["Beta"]
    assert await titles("/v1/sessions?status=running,failed") == []
    assert await titles("/v1/sessions?status=completed,pending") == ["Gamma", "Beta", "Alpha"]


async def test_a_failed_turn_is_listed_as_failed(home: Path, outside: Environment) -> None:
    config = a_config(home, {"error": "auth"})
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        await visitor.told(session, "hello")
        failed = (await visitor.get("/v1/sessions?status=failed")).document["data"]
        completed = (await visitor.get("/v1/sessions?status=completed")).document["data"]

    assert [one["id"] for one in failed] == [session["id"]]
    assert completed == []


async def test_the_turn_cap_can_be_changed(visitor: Visitor) -> None:
    path = f"/v1/sessions/{(await visitor.session())['id']}"

    changed = (await visitor.patch(path, {"turn_cap": 200})).document

    assert changed["turn_cap"] == (await visitor.get(path)).document["turn_cap"] == 200
    for wrong in (0, 1_000_001, None):
        refused = await visitor.patch(path, {"turn_cap": wrong})
        assert refusal(refused) == (400, "invalid_body")


@each_case("query", ["status=idle", "status=", "limit=0", "forked_from=x", "x=y"])
async def test_a_query_that_is_not_right_is_refused(visitor: Visitor, query: str) -> None:
    assert refusal(await visitor.get(f"/v1/sessions?{query}")) == (400, "invalid_query")


async def test_sessions_that_come_while_somebody_pages_shift_nothing(
    visitor: Visitor, clock: SettableClock
) -> None:
    agent = await visitor.agent()
    for number in range(3):
        await visitor.session(agent["id"], title=f"N{number}")
        clock.advance(seconds=1)
    first = (await visitor.get("/v1/sessions?limit=2")).document
    await visitor.session(agent["id"], title="Late")
    second = (await visitor.get(f"/v1/sessions?limit=2&cursor={first['next_cursor']}")).document

    shown = [one["title"] for page in (first, second) for one in page["data"]]
    assert shown == ["N2", "N1", "N0"]
    assert second["next_cursor"] is None


async def test_a_session_is_not_there_under_another_agent(visitor: Visitor) -> None:
    session = await visitor.session()
    other = await visitor.agent(name="Other")

    for path in ("", "/messages", "/events?format=json", "/calls", "/approvals"):
        answer = await visitor.get(f"/v1/agents/{other['id']}/sessions/{session['id']}{path}")
        assert refusal(answer) == (404, "session_not_found")


@each_case("id_", [A_STRANGER, "slug", "x y", "%F0%9F%92%A9"])
async def test_a_session_that_there_is_not_is_not_found(visitor: Visitor, id_: str) -> None:
    assert refusal(await visitor.get(f"/v1/sessions/{id_}")) == (404, "session_not_found")
    assert refusal(await visitor.delete(f"/v1/sessions/{id_}")) == (404, "session_not_found")


async def test_a_change_keeps_what_it_does_not_name(visitor: Visitor, clock: SettableClock) -> None:
    session = await visitor.session(title="One", tags=["a"], metadata={"a": 1})
    clock.advance(seconds=1)
    path = f"/v1/sessions/{session['id']}"

    changed = await visitor.patch(
        path, {"title": None, "model_id": "offline:holdfast", "approval": "auto"}
    )

    assert changed.status == 200
    assert changed.document == {
        **session,
        "title": None,
        "model_id": OFFLINE,
        "approval": "auto",
        "updated_at": "2026-01-02T03:04:06.678901Z",
    }
    assert (await visitor.patch(path, {})).document == changed.document
    cleared = await visitor.patch(path, {"model_id": None, "tags": [], "metadata": {}})
    shown = {name: cleared.document[name] for name in ("model_id", "tags", "metadata")}
    assert shown == {"model_id": None, "tags": [], "metadata": {}}


@each_case("changes", [{"tags": None}, {"status": "completed"}, {"metadata": 1}])
async def test_what_cannot_be_changed_is_refused(visitor: Visitor, changes: dict[str, Any]) -> None:
    session = await visitor.session()

    answer = await visitor.patch(f"/v1/sessions/{session['id']}", changes)

    assert refusal(answer) == (400, "invalid_body")


async def test_a_change_may_ask_for_the_state_that_was_read(visitor: Visitor) -> None:
    session = await visitor.session()
    path = f"/v1/sessions/{session['id']}"
    tag = (await visitor.get(path)).headers["etag"]
    assert (await visitor.get(path, if_none_match=tag)).status == 304

    changed = await visitor.patch(path, {"title": "New"}, if_match=tag)
    again = await visitor.patch(path, {"title": "Newer"}, if_match=tag)

    assert (changed.status, changed.document["title"]) == (200, "New")
    assert refusal(again) == (409, "stale_etag")


@demands("S2-047")
async def test_a_deleted_session_is_gone_and_its_id_is_not_used_again(visitor: Visitor) -> None:
    agent = await visitor.agent()
    session = await visitor.session(agent["id"], id=A_STRANGER)
    await visitor.told(session, "hello")
    path = f"/v1/sessions/{session['id']}"

    gone = await visitor.delete(path)

    assert (gone.status, gone.body) == (204, b"")
    for rest in ("", "/messages", "/events?format=json"):
        assert refusal(await visitor.get(path + rest)) == (404, "session_not_found")
    assert refusal(await visitor.delete(path)) == (404, "session_not_found")
    reused = await visitor.post(f"/v1/agents/{agent['id']}/sessions", {"id": A_STRANGER})
    assert refusal(reused) == (409, "id_reused")


async def test_what_becomes_of_forks_is_for_the_caller_to_say(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")
    path = f"/v1/sessions/{session['id']}"
    fork = (await visitor.post(f"{path}/fork", {})).document

    refused = await visitor.delete(path)
    both = await visitor.delete(f"{path}?cascade=true&detach=true")
    detached = await visitor.delete(f"{path}?detach=true")

    assert refusal(refused) == (409, "session_has_forks")
    assert refused.document["details"] == {"forks": [fork["id"]]}
    assert refusal(both) == (400, "invalid_query")
    assert detached.status == 204
    assert [row["role"] for row in await visitor.messages(fork)] == ["user", "assistant"]
    await visitor.post(f"/v1/sessions/{fork['id']}/fork", {})
    assert (await visitor.delete(f"/v1/sessions/{fork['id']}?cascade=true")).status == 204
    assert (await visitor.get("/v1/sessions")).document["data"] == []


async def test_a_repeated_opening_gets_the_session_as_it_is_now(visitor: Visitor) -> None:
    agent = await visitor.agent()
    path = f"/v1/agents/{agent['id']}/sessions"
    body = {"id": A_STRANGER, "title": "One"}
    first = await visitor.post(path, body)
    await visitor.told(first.document, "hello")
    again = await visitor.post(path, {"title": "One"}, idempotency_key=A_STRANGER)
    other = await visitor.post(path, {**body, "title": "Two"})

    assert first.status == 201
    assert (again.status, again.headers["idempotency-replayed"]) == (200, "true")
    assert again.document == (await visitor.get(f"{path}/{A_STRANGER}")).document
    assert again.document["message_count"] == 2
    assert refusal(other) == (409, "id_reused")


async def test_an_open_session_keeps_its_agent_as_it_was(home: Path, outside: Environment) -> None:
    async with (
        open_holdfast(config=a_config(home), outside=outside) as house,
        visiting(house) as visitor,
    ):
        agent = await visitor.agent(system_prompt="Old.")
        session = await visitor.session(agent["id"])
        await visitor.patch(f"/v1/agents/{agent['id']}", {"system_prompt": "New."})
        await visitor.told(session, "hello")
        kept = await house.sessions.get(house.owner, session["id"])

    assert kept.agent.system_prompt == "Old."
