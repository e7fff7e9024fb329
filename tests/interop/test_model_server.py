"""The fake model server: four forms, the words that decide, and what it keeps."""

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.interop.model_server import ModelServer, a_model_server
from tests.marks import each_case

pytestmark = pytest.mark.anyio

SHELL: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "description": {"type": "string"}},
    "required": ["command", "description"],
}
GIVEN = {"command": "touch here", "description": "as asked"}


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    """Serve for one test."""
    async with a_model_server() as served:
        yield served


@pytest.fixture
async def client(model: ModelServer) -> AsyncIterator[httpx.AsyncClient]:
    """Ask it."""
    async with httpx.AsyncClient(base_url=model.url, timeout=20, trust_env=False) as opened:
        yield opened


def chat(prompt: str, *more: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return a request for chat completions."""
    tools = [{"type": "function", "function": {"name": "bash", "parameters": SHELL}}]
    messages = [{"role": "system", "content": "use tool"}, {"role": "user", "content": prompt}]
    return {"messages": [*messages, *more], "tools": tools, "stream": True, **others}


async def events(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the JSON of each event of a streamed answer."""
    answer = await client.post(path, json=body)
    assert answer.headers["content-type"] == "text/event-stream"
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if "data: " in line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat_text(chunks: list[Any]) -> str:
    """Return what was said in chunks."""
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
    )


async def test_plain_words_are_answered_in_five_pieces_with_usage(
    client: httpx.AsyncClient,
) -> None:
    chunks = await events(client, "/v1/chat/completions", chat("hello"))

    said = [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]]
    assert [each for each in said if each] == ["One, ", "two, ", "three, ", "four, ", "five."]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 14


async def test_a_tool_is_called_once_and_its_result_may_stand_anywhere_behind(
    client: httpx.AsyncClient,
) -> None:
    first = await events(client, "/v1/chat/completions", chat("use tool: touch here"))
    result = {"role": "tool", "tool_call_id": "x", "content": "done"}
    noted = {"role": "assistant", "content": "noted"}
    after = await events(
        client, "/v1/chat/completions", chat("use tool: touch here", result, noted)
    )

    pieces = [
        call["function"].get("arguments", "")
        for chunk in first
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    assert json.loads("".join(pieces)) == GIVEN
    assert chat_text(after) == "The tool was used."


async def test_a_tool_that_is_not_offered_is_not_called(client: httpx.AsyncClient) -> None:
    told = await events(client, "/v1/chat/completions", chat("use tool", tools=[]))

    assert chat_text(told) == "No such tool is offered."


async def test_every_answer_has_ids_of_its_own(client: httpx.AsyncClient) -> None:
    body = chat("use tool")

    first, second = [await events(client, "/v1/chat/completions", body) for _ in range(2)]

    assert first[0]["id"] != second[0]["id"]
    assert _calls(first) != _calls(second)


def _calls(chunks: list[Any]) -> list[str]:
    return [
        call["id"]
        for chunk in chunks
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
        if "id" in call
    ]


async def test_responses_are_numbered_and_end_with_all_their_items(
    client: httpx.AsyncClient,
) -> None:
    shell = {"type": "function", "name": "shell", "parameters": _listed()}
    said = {"role": "user", "content": [{"type": "input_text", "text": "use tool: touch here"}]}

    told = await events(
        client, "/v1/responses", {"input": [said], "tools": [shell], "stream": True}
    )
    whole = await client.post("/v1/responses", json={"input": "hello"})

    kinds = [each["type"] for each in told]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    output = told[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call"]
    assert json.loads(output[1]["arguments"])["command"] == ["bash", "-lc", "touch here"]
    assert whole.json()["output"][0]["content"][0]["text"] == "One, two, three, four, five."


def _listed() -> dict[str, Any]:
    command = {"type": "array", "items": {"type": "string"}}
    return {"type": "object", "properties": {"command": command}, "required": ["command"]}


async def test_messages_hide_what_the_program_puts_beside_the_words(
    client: httpx.AsyncClient,
) -> None:
    aside = "<system-reminder>use tool</system-reminder>"
    said = {"role": "user", "content": [{"type": "text", "text": aside}, _text("think of it")]}
    tools = [{"name": "Bash", "input_schema": SHELL}]
    body = {"messages": [said], "tools": tools}

    told = await events(client, "/v1/messages?beta=true", {**body, "stream": True})
    whole = (await client.post("/v1/messages", json=body)).json()
    counted = await client.post("/v1/messages/count_tokens", json=body)

    deltas = [each["delta"] for each in told if each["type"] == "content_block_delta"]
    assert [each["type"] for each in deltas] == [
        "thinking_delta",
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "text_delta",
        "text_delta",
    ]
    assert whole["content"] == [{"type": "text", "text": "Thought about it."}]
    assert counted.json()["input_tokens"] == 9


async def test_messages_call_a_tool_until_its_result_is_there(client: httpx.AsyncClient) -> None:
    said = {"role": "user", "content": [_text("use tool: touch here")]}
    tools = [{"name": "Bash", "input_schema": SHELL}]
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "x", "content": ""}, _text("a note")],
    }

    first = (await client.post("/v1/messages", json={"messages": [said], "tools": tools})).json()
    after = (
        await client.post("/v1/messages", json={"messages": [said, result], "tools": tools})
    ).json()

    assert first["content"][1]["input"] == GIVEN
    assert (first["stop_reason"], after["stop_reason"]) == ("tool_use", "end_turn")


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


async def test_contents_are_generated_in_pieces_whole_and_by_a_schema(
    client: httpx.AsyncClient,
) -> None:
    said = {"role": "user", "parts": [{"text": "write: /srv/a file"}]}
    writing = {
        "name": "write_file",
        "parameters": {
            "type": "OBJECT",
            "properties": {"file_path": {"type": "STRING"}, "content": {"type": "STRING"}},
            "required": ["file_path", "content"],
        },
    }
    schema = {
        "type": "OBJECT",
        "properties": {
            "choice": {"type": "STRING", "enum": ["flash", "pro"]},
            "sure": {"type": "BOOLEAN"},
        },
        "required": ["choice", "sure"],
    }
    body: dict[str, Any] = {"contents": [said], "tools": [{"functionDeclarations": [writing]}]}
    wish = {"responseMimeType": "application/json", "responseSchema": schema}

    told = await events(client, "/v1beta/models/m:streamGenerateContent?alt=sse", body)
    whole = (await client.post("/v1beta/models/m:generateContent", json=body)).json()
    judged = await client.post(
        "/v1beta/models/m:generateContent", json={**body, "generationConfig": wish}
    )
    counted = await client.post("/v1beta/models/m:countTokens", json=body)

    parts = [part for each in told for part in each["candidates"][0]["content"]["parts"]]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    given = {"file_path": "/srv/a", "content": "written by a tool\n"}
    assert [(call["name"], call["args"]) for call in calls] == [("write_file", given)]
    assert whole["candidates"][0]["content"]["parts"][1]["functionCall"]["args"] == given
    text = judged.json()["candidates"][0]["content"]["parts"][0]["text"]
    assert json.loads(text) == {"choice": "flash", "sure": False}
    assert counted.json()["totalTokens"] == 9


@each_case("status", [401, 429, 500])
async def test_an_error_is_given_as_asked(client: httpx.AsyncClient, status: int) -> None:
    answer = await client.post("/v1/chat/completions", json=chat(f"error {status} please"))

    assert answer.status_code == status


async def test_a_stream_breaks_where_it_is_asked_to(client: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post("/v1/chat/completions", json=chat("break now"))


async def test_a_stream_hangs_where_it_is_asked_to(client: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await client.post("/v1/chat/completions", json=chat("hang now"), timeout=0.3)


async def test_a_piece_can_be_huge(client: httpx.AsyncClient) -> None:
    told = await events(client, "/v1/chat/completions", chat("something huge"))

    assert len(chat_text(told)) == 1 << 20


async def test_a_slow_answer_ends_when_the_one_who_asked_has_gone(
    client: httpx.AsyncClient, model: ModelServer
) -> None:
    body = chat("slow please")
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if "piece 1" in line:
                break

    assert model.received[-1].body == body


async def test_bodies_may_be_packed_or_come_in_pieces(client: httpx.AsyncClient) -> None:
    body = chat("hello", stream=False)
    packed = gzip.compress(json.dumps(body).encode())

    async def pieces() -> AsyncIterator[bytes]:
        yield json.dumps(body)[:20].encode()
        yield json.dumps(body)[20:].encode()

    headers = {"content-encoding": "gzip"}
    first = await client.post("/v1/chat/completions", content=packed, headers=headers)
    second = await client.post("/v1/chat/completions", content=pieces())

    assert [each.json()["choices"][0]["message"]["content"] for each in (first, second)] == [
        "One, two, three, four, five."
    ] * 2


async def test_models_are_listed_heads_answered_and_requests_kept(
    client: httpx.AsyncClient,
) -> None:
    models = (await client.get("/v1/models")).json()
    one = (await client.get("/v1/models/fake-model")).json()
    head = await client.head("/")
    lost = await client.post("/nowhere", json={})
    kept = (await client.get("/requests")).json()

    assert models["data"][0]["id"] == one["id"] == "fake-model"
    assert models["models"][0]["name"] == "models/fake-model"
    assert (head.status_code, head.content, lost.status_code) == (200, b"", 404)
    assert [each["target"] for each in kept][:2] == ["/v1/models", "/v1/models/fake-model"]
