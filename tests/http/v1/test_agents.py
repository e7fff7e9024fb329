"""Agents over HTTP: made, listed, changed and archived, in the contract's own words."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast, tool
from holdfast.domain.models import model_of
from tests.http.v1.client import A_STRANGER, Visitor, refusal, visiting
from tests.marks import demands, each_case
from tests.stand_ins import PATIENCE, SettableClock

pytestmark = pytest.mark.anyio

OFFLINE = model_of("offline:holdfast").id
AT = "2026-01-02T03:04:05.678901Z"


@demands("S2-022", "S2-020g", "S2-009b")
async def test_an_agent_is_made_with_its_defaults(visitor: Visitor) -> None:
    answer = await visitor.post("/v1/agents", {"name": "Code assistant", "system_prompt": ""})

    id_ = answer.document["id"]
    assert answer.status == 201
    assert answer.headers["location"] == f"/v1/agents/{id_}"
    assert answer.document == {
        "id": id_,
        "slug": "code-assistant",
        "name": "Code assistant",
        "description": None,
        "system_prompt": "",
        "default_model_id": None,
        "fallback_model_ids": [],
        "temperature": None,
        "max_tokens": None,
        "tools": [],
        "tags": [],
        "runtime": {"type": "llm"},
        "grant": {"fs": "sandboxed", "commands": [], "command_globs": [], "domains": []},
        "recovery": "stop",
        "status": "active",
        "created_at": AT,
        "updated_at": AT,
    }
    assert (await visitor.get(f"/v1/agents/{id_}")).document == answer.document


@demands("S2-020g", "S2-035", "S2-026b")
async def test_every_field_is_kept_as_it_was_given(visitor: Visitor) -> None:
    given: dict[str, Any] = {
        "slug": "Terse_1",
        "name": "Terse",
        "description": "Says little.",
        "system_prompt": "Be terse.",
        "fallback_model_ids": [],
        "temperature": 0.2,
        "max_tokens": 100,
        "tools": ["read_file", {"name": "lookup", "description": "Looks up.", "approval": "ask"}],
        "tags": ["b", "a"],
        "grant": {"fs": "project", "commands": ["ls"], "command_globs": [], "domains": ["a.b"]},
        "recovery": "continue",
        "status": "archived",
    }

    made = await visitor.agent(**given, default_model_id="offline:holdfast")

    assert {name: made[name] for name in given} == given
    assert made["default_model_id"] == OFFLINE
    assert (await visitor.get("/v1/agents/Terse_1")).document == made


@demands("S0-440")
async def test_schemas_are_set_changed_one_by_one_and_removed(visitor: Visitor) -> None:
    words, number = {"type": "string"}, {"type": "integer"}
    made = await visitor.agent(slug="one", input_schema=words, output_schema=number)
    changed = await visitor.patch("/v1/agents/one", {"output_schema": words, "tags": ["a"]})
    refused = await visitor.patch("/v1/agents/one", {"input_schema": {"type": "oops"}})
    outside = await visitor.patch("/v1/agents/one", {"input_schema": {"$ref": "http://a/"}})
    removed = await visitor.patch("/v1/agents/one", {"input_schema": None})

    assert (made["input_schema"], made["output_schema"]) == (words, number)
    assert (changed.document["input_schema"], changed.document["output_schema"]) == (words, words)
    assert [refusal(refused), refusal(outside)] == [(400, "agent_invalid")] * 2
    assert "input_schema" not in removed.document
    assert "extra" not in removed.document
    assert removed.document["output_schema"] == words
    session = await visitor.session("one")
    assert (await visitor.get(f"/v1/sessions/{session['id']}")).status == 200


async def test_a_program_of_its_own_needs_no_prompt_and_takes_no_model(visitor: Visitor) -> None:
    runtime = {
        "type": "acp",
        "command": "claude",
        "args": ["--acp"],
        "env_names": ["ANTHROPIC_API_KEY"],
        "options": {"mode": "plan"},
    }
    answer = await visitor.post("/v1/agents", {"name": "Claude", "runtime": runtime})
    refused = await visitor.post("/v1/agents", {"name": "C", "runtime": runtime, "temperature": 1})

    assert (answer.status, answer.document["runtime"]) == (201, runtime)
    assert refusal(refused) == (400, "invalid_body")


@each_case(
    ("changes", "path"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 256}, "name"),
        ({"name": None}, "name"),
        ({"slug": "a b"}, "slug"),
        ({"temperature": 2.1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{"description": "no name"}]}, "tools[0]"),
        ({"tags": ["x" * 65]}, "tags[0]"),
        ({"status": "gone"}, "status"),
        ({"id": "not a uuid"}, "id"),
        ({"system_prompt": 1}, "system_prompt"),
        ({"runtime": {"type": "other"}}, "runtime.type"),
        ({"fallback_model_ids": ["offline:holdfast"]}, "fallback_model_ids"),
        ({"colour": "red"}, ""),
    ],
)
async def test_a_body_that_is_not_right_is_refused_with_its_place(
    visitor: Visitor, changes: dict[str, Any], path: str
) -> None:
    body = {"name": "Helper", "system_prompt": "", **changes}
    answer = await visitor.post("/v1/agents", body)

    assert refusal(answer) == (400, "invalid_body")
    assert answer.document["details"]["path"] == path
    assert (await visitor.get("/v1/agents?status=all")).document["data"] == []


@pytest.mark.parametrize(
    "tool",
    [
        "read_file",
        {"name": "read_file"},
        {"name": "fetch", "strict": True, "x-team": {"owner": ["a", None]}},
        {
            "name": "fetch",
            "description": "Fetches.",
            "parameters": {"type": "object"},
            "approval": "ask",
            "extra": {"name": 1},
            "type": "function",
        },
    ],
)
async def test_a_tool_is_kept_and_shown_as_given(visitor: Visitor, tool: Any) -> None:
    made = await visitor.agent(tools=[tool], slug="one")
    changed = await visitor.patch("/v1/agents/one", {"name": "Other"})

    assert made["tools"] == [tool]
    assert changed.document["tools"] == [tool]
    session = await visitor.session("one")
    assert (await visitor.get(f"/v1/sessions/{session['id']}")).status == 200


@each_case(
    ("tool", "path"),
    [
        ({"description": "no name"}, "tools[1]"),
        ({"name": ""}, "tools[1].name"),
        ({"name": "x" * 256}, "tools[1].name"),
        ({"name": "x", "approval": "perhaps"}, "tools[1].approval"),
        ({"name": "x", "parameters": []}, "tools[1].parameters"),
        ({"name": "x", "description": 1}, "tools[1].description"),
    ],
)
async def test_what_we_read_of_a_tool_must_be_right(
    visitor: Visitor, tool: dict[str, Any], path: str
) -> None:
    body = {"name": "Helper", "system_prompt": "", "tools": ["read_file", tool]}
    answer = await visitor.post("/v1/agents", body)

    assert refusal(answer) == (400, "invalid_body")
    assert answer.document["details"]["path"] == path


@pytest.mark.parametrize(
    ("field", "largest"), [("description", 10 << 10), ("system_prompt", 1 << 20)]
)
async def test_long_texts_are_measured_in_bytes(visitor: Visitor, field: str, largest: int) -> None:
    made = await visitor.agent(**{field: "é" * (largest // 2)})
    body = {"name": "Helper", "system_prompt": "", field: "é" * (largest // 2) + "x"}
    answer = await visitor.post("/v1/agents", body)

    assert len(made[field].encode()) == largest
    assert refusal(answer) == (400, "invalid_text")
    assert answer.document["details"] == {"field": field, "bytes": largest + 1}


async def test_a_language_model_needs_a_prompt(visitor: Visitor) -> None:
    answer = await visitor.post("/v1/agents", {"name": "Helper"})

    assert refusal(answer) == (400, "invalid_body")
    assert answer.document["details"]["path"] == "system_prompt"


@demands("S2-035")
async def test_an_unknown_model_is_a_fault_of_the_body(visitor: Visitor) -> None:
    body = {"name": "Helper", "system_prompt": ""}

    for ref in (A_STRANGER, "nobody:nothing", "offline:other", "nonsense"):
        answer = await visitor.post("/v1/agents", {**body, "default_model_id": ref})
        assert refusal(answer) == (400, "model_not_found"), ref
    session = await visitor.session()
    answer = await visitor.patch(f"/v1/sessions/{session['id']}", {"model_id": "nobody:nothing"})
    assert refusal(answer) == (400, "model_not_found")


async def test_a_slug_is_taken_once(visitor: Visitor) -> None:
    await visitor.agent(slug="one")
    body = {"name": "Two", "system_prompt": "", "slug": "one"}

    assert refusal(await visitor.post("/v1/agents", body)) == (409, "slug_taken")


@each_case("path", [A_STRANGER, "nobody", "no body", "%00", "ä"])
async def test_whom_there_is_not_is_not_found(visitor: Visitor, path: str) -> None:
    assert refusal(await visitor.get(f"/v1/agents/{path}")) == (404, "agent_not_found")


@demands("S2-026", "S2-020k")
async def test_agents_are_listed_newest_first_and_filtered(
    visitor: Visitor, clock: SettableClock
) -> None:
    for name, tags in (("One", ["a"]), ("Two", ["a", "b"]), ("Three", [])):
        await visitor.agent(name=name, tags=tags)
        clock.advance(seconds=1)
    await visitor.delete("/v1/agents/three")

    async def names(query: str) -> list[str]:
        found = (await visitor.get(f"/v1/agents?{query}")).document
        assert found["next_cursor"] is None
        return [agent["name"] for agent in found["data"]]

    assert await names("") == ["Two", "One"]
    assert await names("status=archived") == ["Three"]
    assert await names("status=all") == ["Three", "Two", "One"]
    assert await names("tag=a&tag=b") == ["Two"]
    assert await names("q=ON") == ["One"]


async def test_agents_that_come_while_somebody_pages_shift_nothing(
    visitor: Visitor, clock: SettableClock
) -> None:
    for number in range(5):
        await visitor.agent(name=f"N{number}")
        clock.advance(seconds=1)
    first = (await visitor.get("/v1/agents?limit=2")).document
    await visitor.agent(name="Late")
    second = (await visitor.get(f"/v1/agents?limit=2&cursor={first['next_cursor']}")).document
    third = (await visitor.get(f"/v1/agents?limit=2&cursor={second['next_cursor']}")).document

    shown = [agent["name"] for page in (first, second, third) for agent in page["data"]]
    assert shown == ["N4", "N3", "N2", "N1", "N0"]
    assert third["next_cursor"] is None


@each_case("query", ["limit=0", "limit=1001", "limit=x", "status=gone", "colour=red", "cursor=x"])
async def test_a_query_that_is_not_right_is_refused(visitor: Visitor, query: str) -> None:
    assert refusal(await visitor.get(f"/v1/agents?{query}")) == (400, "invalid_query")


async def test_a_cursor_is_good_for_its_own_listing_only(visitor: Visitor) -> None:
    await visitor.agent(name="One")
    await visitor.agent(name="Two")
    cursor = (await visitor.get("/v1/agents?limit=1")).document["next_cursor"]
    other = await visitor.as_("somebody")

    for asker, query in ((visitor, "status=all&"), (other, "")):
        answer = await asker.get(f"/v1/agents?{query}limit=1&cursor={cursor}")
        assert refusal(answer) == (400, "invalid_query")
    assert refusal(await visitor.get(f"/v1/sessions?cursor={cursor}")) == (400, "invalid_query")


@demands("S2-027")
async def test_a_change_keeps_what_it_does_not_name(visitor: Visitor, clock: SettableClock) -> None:
    made = await visitor.agent(
        description="d", temperature=1.0, default_model_id="offline:holdfast", tags=["a"]
    )
    clock.advance(seconds=1)

    answer = await visitor.patch(
        f"/v1/agents/{made['id']}", {"description": None, "max_tokens": 5, "tags": ["b", "c"]}
    )

    assert answer.status == 200
    assert answer.document == {
        **made,
        "description": None,
        "max_tokens": 5,
        "tags": ["b", "c"],
        "updated_at": "2026-01-02T03:04:06.678901Z",
    }


async def test_an_empty_change_changes_nothing(visitor: Visitor, clock: SettableClock) -> None:
    made = await visitor.agent(default_model_id="offline:holdfast")
    clock.advance(seconds=1)

    assert (await visitor.patch(f"/v1/agents/{made['id']}", {})).document == made


@each_case("changes", [{"id": A_STRANGER}, {"created_at": AT}, {"name": None}, {"tags": None}])
async def test_what_cannot_be_changed_or_cleared_is_refused(
    visitor: Visitor, changes: dict[str, Any]
) -> None:
    made = await visitor.agent()

    answer = await visitor.patch(f"/v1/agents/{made['id']}", changes)

    assert refusal(answer) == (400, "invalid_body")
    assert (await visitor.get(f"/v1/agents/{made['id']}")).document == made


async def test_the_first_model_and_the_others_change_apart(visitor: Visitor) -> None:
    first, second, third = "offline:holdfast", "openai:gpt-5", "anthropic:claude-opus-4-5"
    made = await visitor.agent(default_model_id=first, fallback_model_ids=[second])
    path = f"/v1/agents/{made['id']}"

    changed = (await visitor.patch(path, {"default_model_id": third})).document
    assert changed["default_model_id"] == model_of(third).id
    assert changed["fallback_model_ids"] == [model_of(second).id]
    changed = (await visitor.patch(path, {"fallback_model_ids": [first]})).document
    assert changed["default_model_id"] == model_of(third).id
    assert changed["fallback_model_ids"] == [OFFLINE]
    assert refusal(await visitor.patch(path, {"default_model_id": None})) == (400, "invalid_body")


async def test_changes_at_the_same_time_are_all_made(visitor: Visitor) -> None:
    made = await visitor.agent()
    path = f"/v1/agents/{made['id']}"

    await asyncio.gather(
        visitor.patch(path, {"temperature": 1.5}),
        visitor.patch(path, {"max_tokens": 7}),
        visitor.patch(path, {"name": "Other"}),
        visitor.patch(path, {"default_model_id": "offline:holdfast"}),
    )

    agent = (await visitor.get(path)).document
    shown = (agent["temperature"], agent["max_tokens"], agent["name"], agent["default_model_id"])
    assert shown == (1.5, 7, "Other", OFFLINE)


async def test_a_change_may_ask_for_the_state_that_was_read(visitor: Visitor) -> None:
    made = await visitor.agent()
    path = f"/v1/agents/{made['id']}"
    tag = (await visitor.get(path)).headers["etag"]

    changed = await visitor.patch(path, {"name": "Other"}, if_match=tag)
    again = await visitor.patch(path, {"name": "Third"}, if_match=tag)

    assert changed.status == 200
    assert changed.headers["etag"] != tag
    assert refusal(again) == (409, "stale_etag")
    assert (await visitor.get(path)).document["name"] == "Other"


async def test_who_has_the_present_state_is_not_sent_it_again(visitor: Visitor) -> None:
    made = await visitor.agent()
    path = f"/v1/agents/{made['id']}"
    tag = (await visitor.get(path)).headers["etag"]

    same = await visitor.get(path, if_none_match=tag)
    other = await visitor.get(path, if_none_match='"other"')

    assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag)
    assert other.status == 200
    assert other.headers["cache-control"] == "no-store"


@demands("S2-029")
async def test_a_deleted_agent_is_archived_and_can_come_back(visitor: Visitor) -> None:
    made = await visitor.agent(slug="one")
    session = await visitor.session("one")

    for _ in range(2):
        answer = await visitor.delete("/v1/agents/one")
        assert (answer.status, answer.body) == (204, b"")

    assert (await visitor.get("/v1/agents/one")).document["status"] == "archived"
    assert (await visitor.get("/v1/agents")).document["data"] == []
    refused = await visitor.post("/v1/agents/one/sessions", {})
    assert refusal(refused) == (409, "agent_archived")
    assert len(await visitor.told(session, "hello")) == 2
    back = await visitor.patch(f"/v1/agents/{made['id']}", {"status": "active"})
    assert (back.status, back.document["status"]) == (200, "active")
    assert (await visitor.session("one"))["agent_id"] == made["id"]


async def test_a_repeated_request_gets_the_first_answer(visitor: Visitor) -> None:
    body = {"id": A_STRANGER, "name": "Helper", "system_prompt": "", "tags": ["a"]}
    first = await visitor.post("/v1/agents", body)
    again = await visitor.post("/v1/agents", body)
    by_key = await visitor.post(
        "/v1/agents", {**body, "id": None}, idempotency_key=A_STRANGER.upper()
    )
    other = await visitor.post("/v1/agents", {**body, "name": "Other"})

    assert (first.status, first.document["id"]) == (201, A_STRANGER)
    assert "idempotency-replayed" not in first.headers
    for answer in (again, by_key):
        assert (answer.status, answer.document) == (200, first.document)
        assert answer.headers["idempotency-replayed"] == "true"
    assert refusal(other) == (409, "id_reused")


@each_case("key", ["x", "", "0192f0c1-0000-7000-8000-00000000beef"])
async def test_a_key_that_is_no_id_or_another_one_is_refused(visitor: Visitor, key: str) -> None:
    body = {"id": A_STRANGER, "name": "Helper", "system_prompt": ""}

    answer = await visitor.post("/v1/agents", body, idempotency_key=key)

    assert refusal(answer) == (400, "invalid_body")
    assert (await visitor.get("/v1/agents")).document["data"] == []


async def test_another_owner_sees_nothing_of_an_agent(visitor: Visitor) -> None:
    made = await visitor.agent(slug="mine")
    other = await visitor.as_("somebody")

    for path in (f"/v1/agents/{made['id']}", "/v1/agents/mine", f"/v1/agents/{A_STRANGER}"):
        assert refusal(await other.get(path)) == (404, "agent_not_found")
        assert refusal(await other.patch(path, {"name": "Mine"})) == (404, "agent_not_found")
        assert refusal(await other.delete(path)) == (404, "agent_not_found")
    assert (await other.get("/v1/agents?status=all")).document["data"] == []
    assert (await visitor.get("/v1/agents/mine")).document == made


async def test_a_function_that_another_process_has_gets_no_warning(home: Path) -> None:
    @tool
    def telescope() -> None:
        """Look far."""

    body = {"name": "Far", "system_prompt": "", "tools": ["telescope"]}
    async with open_holdfast(home) as house, visiting(house) as visitor:
        alone = await visitor.post("/v1/agents", body)
        async with asyncio.timeout(PATIENCE), open_holdfast(home, tools=[telescope]):
            while not await house.workers.list(house.owner):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            made = await visitor.post("/v1/agents", body | {"name": "Farther"})

    assert len(alone.document["warnings"]) == 1
    assert "warnings" not in made.document


async def test_a_name_that_no_tool_has_is_stored_with_a_warning(visitor: Visitor) -> None:
    body = {"name": "Odd", "system_prompt": "", "tools": ["read_file", "read_fille"]}
    made = await visitor.post("/v1/agents", body)
    shown = await visitor.get("/v1/agents/odd")
    opened = await visitor.post("/v1/agents/odd/sessions", {})
    names = ["read_file", "web_search", "mcp_books_find"]
    plain = await visitor.agent(slug="even", tools=names)
    changed = await visitor.patch("/v1/agents/even", {"tools": ["telescope"]})

    assert made.document["tools"] == ["read_file", "read_fille"]
    assert made.document["warnings"] == [
        "There is no tool read_fille (did you mean read_file or edit_file or write_file?). "
        "If it is a function, sessions open once a process has registered it."
    ]
    assert "warnings" not in shown.document
    assert refusal(opened) == (400, "unknown_tool")
    assert "warnings" not in plain
    assert changed.document["tools"] == ["telescope"]
