"""Messages over HTTP: sent, recorded and read, in the contract's own words."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from holdfast.app import Environment
from holdfast.domain.ids import SessionId
from holdfast.domain.models import model_of
from tests.http.v1.client import A_STRANGER, Visitor, refusal, visiting
from tests.marks import demands, each_case
from tests.tooled import a_config, asks, call, says

pytestmark = pytest.mark.anyio

AT = "2026-01-02T03:04:05.678901Z"
SUM = {"role": "user", "content": {"text": "How much is 2+2?"}}


@demands("S2-055", "S2-055b", "S2-055c", "S2-051", "S2-050e", "S2-059", "S2-070e", "S2-009b")
async def test_create_send_read(home: Path, outside: Environment) -> None:
    config = a_config(home, says("The answer is 4"))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        agent = await visitor.agent()
        session = await visitor.session(agent["id"])
        base = f"/v1/agents/{agent['id']}/sessions/{session['id']}"
        sent = await visitor.post(f"{base}/messages", SUM)
        await visitor.settled(session)
        read = await visitor.get(f"{base}/messages")
        after = await visitor.get(base)

    assert sent.status == 201
    question, answer = read.document["data"]
    assert sent.document == question
    assert sent.headers["location"] == f"/v1/sessions/{session['id']}/messages/{question['id']}"
    assert read.document["next_cursor"] is None
    assert question == {
        "id": question["id"],
        "session_id": session["id"],
        "sequence": 1,
        "role": "user",
        "content": {"text": "How much is 2+2?"},
        "tool_call_id": None,
        "created_at": question["created_at"],
        "turn": 1,
        "model_id": None,
    }
    assert answer == {
        **question,
        "id": answer["id"],
        "sequence": 2,
        "role": "assistant",
        "content": {"text": "The answer is 4"},
        "created_at": answer["created_at"],
        "model_id": answer["model_id"],
    }
    assert AT < question["created_at"] < answer["created_at"]
    assert after.document["status"] == "completed"
    assert after.document["title"] == "How much is 2+2?"


@demands("S2-020j")
async def test_a_description_without_parameters_is_kept_and_not_run(
    home: Path, outside: Environment
) -> None:
    own = {"name": "lookup", "description": "Looks up."}
    config = a_config(home, asks(call("lookup", "c1")), says("Done."))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        agent = await visitor.agent(tools=["list_directory", own])
        session = await visitor.session(agent["id"])
        notice, *rows = await visitor.told(session, "look")

    assert agent["tools"] == ["list_directory", own]
    assert notice["content"]["text"] == "These tools are not available: lookup."
    shown = [(row["role"], row.get("result_status")) for row in rows]
    assert shown == [
        ("user", None),
        ("tool_call", None),
        ("tool_result", "error"),
        ("assistant", None),
    ]


@demands("S2-051b", "S2-051c", "S2-050f", "S2-020")
async def test_calls_and_results_have_their_own_shapes(home: Path, outside: Environment) -> None:
    config = a_config(
        home,
        asks(call("list_directory", "call_abc123", path=".")),
        asks(call("read_file", "call_2", path="missing.txt")),
        says("Done.", reasoning="Nothing there."),
    )
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        agent = await visitor.agent(tools=["list_directory", "read_file"])
        session = await visitor.session(agent["id"])
        rows = await visitor.told(session, "look")

    shown = [(row["role"], row["tool_call_id"], row.get("result_status")) for row in rows]
    assert shown == [
        ("user", None, None),
        ("tool_call", None, None),
        ("tool_result", "call_abc123", "ok"),
        ("tool_call", None, None),
        ("tool_result", "call_2", "error"),
        ("assistant", None, None),
    ]
    assert rows[1]["content"] == {
        "id": "call_abc123",
        "name": "list_directory",
        "arguments": {"path": "."},
    }
    assert rows[2]["content"]["error"] is None
    assert rows[2]["content"]["result"] is not None
    assert rows[4]["content"]["result"] is None
    assert rows[4]["content"]["error"]
    assert rows[5]["content"] == {"text": "Done."}
    assert rows[5]["parts"] == [
        {"type": "reasoning", "text": "Nothing there."},
        {"type": "text", "text": "Done."},
    ]


@demands("S2-057", "S2-051")
async def test_other_roles_are_recorded_and_start_nothing(visitor: Visitor) -> None:
    session = await visitor.session()
    path = f"/v1/sessions/{session['id']}/messages"
    brought: list[dict[str, Any]] = [
        {"role": "system", "content": {"text": "Imported."}},
        {"role": "assistant", "content": {"text": "Hello."}},
        {"role": "tool_call", "content": {"id": "c1", "name": "search", "arguments": {"q": "x"}}},
        {"role": "tool_result", "tool_call_id": "c1", "content": {"result": [1], "error": None}},
    ]
    for body in brought:
        answer = await visitor.post(path, body)
        assert answer.status == 201, answer.body

    rows = await visitor.messages(session)
    assert [(row["role"], row["content"], row["turn"]) for row in rows] == [
        (body["role"], body["content"], 0) for body in brought
    ]
    assert rows[3]["tool_call_id"] == "c1"
    after = (await visitor.get(f"/v1/sessions/{session['id']}")).document
    assert (after["status"], after["turn"]) == ("pending", 0)
    again = await visitor.post(path, brought[3])
    assert refusal(again) == (409, "call_not_open")


@demands("S2-050d")
@each_case(
    ("body", "code"),
    [
        ({}, "invalid_body"),
        ({"role": "user"}, "invalid_body"),
        ({"role": "robot", "content": {"text": "x"}}, "invalid_body"),
        ({"role": "user", "content": "x"}, "invalid_body"),
        ({"role": "user", "content": {"text": 1}}, "invalid_body"),
        ({"role": "user", "content": {"text": "x", "more": 1}}, "invalid_body"),
        ({"role": "user", "content": {"text": "x"}, "parts": []}, "invalid_body"),
        ({"role": "user", "content": {"text": "x"}, "on_busy": "shout"}, "invalid_body"),
        ({"role": "user", "content": {"text": " \n"}}, "message_empty"),
        ({"role": "user", "content": {"text": "x" * ((1 << 20) + 1)}}, "message_too_large"),
        ({"role": "user", "content": {"text": "\u0000"}}, "invalid_text"),
        ({"role": "user", "parts": [{"type": "reasoning", "text": "x"}]}, "invalid_body"),
        (
            {
                "role": "user",
                "parts": [
                    {"type": "media", "mime_type": "image/png", "ref": f"media://sha256-{'0' * 64}"}
                ],
            },
            "media_not_found",
        ),
        ({"role": "assistant", "content": {"result": 1}}, "invalid_body"),
        ({"role": "assistant", "content": {"text": "x"}, "on_busy": "queue"}, "invalid_body"),
        ({"role": "tool_call", "content": {"id": "c", "name": "n"}}, "invalid_body"),
        ({"role": "tool_result", "content": {"result": 1}}, "invalid_body"),
        (
            {"role": "tool_result", "tool_call_id": "c", "content": {"result": 1, "error": "x"}},
            "invalid_body",
        ),
    ],
)
async def test_a_message_that_is_not_right_is_refused_and_not_stored(
    visitor: Visitor, body: dict[str, Any], code: str
) -> None:
    session = await visitor.session()

    answer = await visitor.post(f"/v1/sessions/{session['id']}/messages", body)

    assert refusal(answer) == (400, code)
    assert await visitor.messages(session) == []


async def test_a_fault_inside_the_content_is_named(visitor: Visitor) -> None:
    session = await visitor.session()
    body = {"role": "user", "content": {"text": 1}}

    answer = await visitor.post(f"/v1/sessions/{session['id']}/messages", body)

    assert answer.document["details"]["path"] == "content.text"


async def test_a_message_may_be_parts_with_media_the_session_holds(visitor: Visitor) -> None:
    session = await visitor.session()
    ref = await visitor.house.media.keep(
        visitor.house.owner, SessionId(session["id"]), b"\x89PNG", mime_type="image/png"
    )
    parts = [
        {"type": "text", "text": "Look: "},
        {"type": "media", "mime_type": "image/png", "ref": ref, "name": "a.png", "byte_length": 4},
    ]

    answer = await visitor.post(
        f"/v1/sessions/{session['id']}/messages", {"role": "user", "parts": parts}
    )

    assert answer.status == 201
    assert answer.document["content"] == {"text": "Look: "}
    assert answer.document["parts"] == parts


async def test_messages_are_cut_by_number_and_paged(quiet_visitor: Visitor) -> None:
    visitor = quiet_visitor
    session = await visitor.session()
    for number in range(1, 8):
        await visitor.say(session, f"m{number}")

    async def numbers(query: str) -> list[int]:
        return [row["sequence"] for row in await visitor.messages(session, query)]

    assert await numbers("") == [1, 2, 3, 4, 5, 6, 7]
    assert await numbers("?after=5") == [6, 7]
    assert await numbers("?before=3") == [1, 2]
    assert await numbers("?before=6&limit=2") == [4, 5]
    assert await numbers("?after=2&before=6") == [3, 4, 5]
    assert await numbers("?after=9007199254740991") == []
    assert await numbers("?role=assistant") == []
    assert await numbers("?role=assistant,user&turn=1&limit=2") == [1, 2]
    assert await numbers("?turn=7") == []
    path = f"/v1/sessions/{session['id']}/messages"
    first = (await visitor.get(f"{path}?limit=3")).document
    second = (await visitor.get(f"{path}?limit=4&cursor={first['next_cursor']}")).document
    assert [row["sequence"] for row in second["data"]] == [4, 5, 6, 7]
    assert second["next_cursor"] is None
    for other in ("after=1", "before=9", "turn=1"):
        moved = await visitor.get(f"{path}?{other}&cursor={first['next_cursor']}")
        assert refusal(moved) == (400, "invalid_query"), other
    begun = (await visitor.get(f"{path}?limit=1&after=1")).document["next_cursor"]
    on = (await visitor.get(f"{path}?limit=1&after=1&cursor={begun}")).document
    assert [row["sequence"] for row in on["data"]] == [3]
    foreign = await visitor.get(f"{path}?role=user&cursor={first['next_cursor']}")
    assert refusal(foreign) == (400, "invalid_query")


@each_case(
    "query", ["limit=0", "limit=1001", "after=-1", "before=0", "role=robot", "turn=x", "cursor=3"]
)
async def test_a_query_that_is_not_right_is_refused(visitor: Visitor, query: str) -> None:
    session = await visitor.session()

    answer = await visitor.get(f"/v1/sessions/{session['id']}/messages?{query}")

    assert refusal(answer) == (400, "invalid_query")


async def test_one_message_is_read_by_its_id(visitor: Visitor) -> None:
    session = await visitor.session()
    rows = await visitor.told(session, "hello")
    path = f"/v1/sessions/{session['id']}/messages"

    found = await visitor.get(f"{path}/{rows[1]['id']}")

    assert found.document == rows[1]
    assert (
        await visitor.get(f"{path}/{rows[1]['id']}", if_none_match=found.headers["etag"])
    ).status == 304
    for id_ in (A_STRANGER, "x"):
        assert refusal(await visitor.get(f"{path}/{id_}")) == (404, "message_not_found")


async def test_messages_are_never_changed(visitor: Visitor) -> None:
    session = await visitor.session()
    said = await visitor.say(session, "hello")
    path = f"/v1/sessions/{session['id']}/messages/{said['id']}"

    for method in ("PATCH", "DELETE", "POST"):
        answer = await visitor.ask(method, path, {})
        assert refusal(answer) == (405, "method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD"


@demands("S2-057")
async def test_a_repeated_message_starts_no_second_turn(visitor: Visitor) -> None:
    session = await visitor.session()
    path = f"/v1/sessions/{session['id']}/messages"
    first = await visitor.post(path, {**SUM, "id": A_STRANGER})
    await visitor.settled(session)
    again = await visitor.post(path, SUM, idempotency_key=A_STRANGER)
    other = await visitor.post(path, {"role": "user", "content": {"text": "x"}, "id": A_STRANGER})
    await visitor.settled(session)

    assert (first.status, again.status) == (201, 200)
    assert again.document == first.document
    assert again.headers["idempotency-replayed"] == "true"
    assert refusal(other) == (409, "message_id_reused")
    assert len(await visitor.messages(session)) == 2


async def test_a_message_to_a_closed_session_opens_it_again(visitor: Visitor) -> None:
    session = await visitor.session()
    path = f"/v1/sessions/{session['id']}"
    await visitor.post(f"{path}/close", {"as": "completed", "reason": "done"})

    await visitor.told(session, "One more.")

    after = (await visitor.get(path)).document
    assert (after["status"], after["state"], after["reason"]) == ("completed", "idle", None)


async def test_fifty_posters_at_once_get_dense_numbers(quiet_visitor: Visitor) -> None:
    visitor = quiet_visitor
    session = await visitor.session()

    sent = await asyncio.gather(*(visitor.say(session, f"m{number}") for number in range(50)))

    assert sorted(message["sequence"] for message in sent) == list(range(1, 51))
    assert {message["turn"] for message in sent} == {1}


async def test_another_owner_can_neither_read_nor_write(visitor: Visitor) -> None:
    session = await visitor.session()
    said = await visitor.say(session, "secret")
    other = await visitor.as_("somebody")
    path = f"/v1/sessions/{session['id']}/messages"

    for answer in (
        await other.get(path),
        await other.get(f"{path}/{said['id']}"),
        await other.post(path, SUM),
    ):
        assert refusal(answer) == (404, "session_not_found")


async def test_the_model_of_an_answer_is_named(visitor: Visitor) -> None:
    session = await visitor.session(model_id="offline:holdfast")

    rows = await visitor.told(session, "hello")

    assert [row["model_id"] for row in rows] == [None, model_of("offline:holdfast").id]


TURNS = [
    {"id": A_STRANGER, "role": "user", "parts": [{"type": "text", "text": "2+2?"}], "at": AT},
    {
        "role": "tool_call",
        "parts": [{"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 2}}],
        "effect": "pure",
    },
    {
        "role": "assistant",
        "parts": [{"type": "text", "text": "4"}],
        "model": "openai:gpt-next",
        "usage": {"input": 3, "output": 1},
    },
]


async def test_whole_turns_are_recorded_and_repeated(home: Path, outside: Environment) -> None:
    async with open_holdfast(config=a_config(home)) as house, visiting(house) as visitor:
        agent = await visitor.agent()
        session = await visitor.session(agent["id"])
        path = f"/v1/agents/{agent['id']}/sessions/{session['id']}/record"
        first = await visitor.post(path, {"messages": TURNS[:1]})
        again = await visitor.post(path, {"messages": TURNS[:1]})
        whole = await visitor.post(path, {"messages": TURNS})
        other = [{**TURNS[0], "parts": [{"type": "text", "text": "3+3?"}]}]
        taken = await visitor.post(path, {"messages": other})

    assert (first.status, again.status, whole.status) == (201, 200, 201)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.document == {**first.document, "is_new": False}
    assert first.document["turns"] == [1]
    assert [row["role"] for row in whole.document["data"]] == ["user", "tool_call", "assistant"]
    assert whole.document["data"][0]["created_at"] == AT
    assert refusal(taken) == (409, "message_id_reused")


@each_case(
    ("change", "status"),
    [
        ({"messages": []}, 400),
        ({"messages": [{"role": "user", "parts": []}]}, 400),
        ({"messages": [{"role": "user", "parts": [{"type": "plan", "steps": []}]}]}, 400),
        ({"messages": [{**TURNS[0], "at": "2026-01-02"}]}, 400),
        ({"messages": [{**TURNS[0], "at": "9999-01-02T00:00:00Z"}]}, 400),
        ({"messages": TURNS, "on_open_calls": "reject"}, 400),
        ({"messages": [{**TURNS[2], "usage": {"input": -1}}]}, 400),
    ],
)
async def test_a_recording_that_is_wrong_is_refused_whole(
    home: Path, change: dict[str, Any], status: int
) -> None:
    async with open_holdfast(config=a_config(home)) as house, visiting(house) as visitor:
        agent = await visitor.agent()
        session = await visitor.session(agent["id"])
        base = f"/v1/agents/{agent['id']}/sessions/{session['id']}"
        refused = await visitor.post(f"{base}/record", change)
        read = await visitor.get(f"{base}/messages")

    assert (refused.status, read.document["data"]) == (status, [])
