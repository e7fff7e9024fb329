"""Resources: every session and its transcript has an address; what is not there has none."""

import json

import pytest

from holdfast import Holdfast, SessionRequest
from holdfast.mcp import resources
from tests.builders import an_id
from tests.houses import played
from tests.marks import each_case
from tests.mcp.clients import Client, Line, line_to
from tests.mcp.payloads import COMPLETE

pytestmark = pytest.mark.anyio


async def test_sessions_are_listed_in_pages(
    quiet: Holdfast, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "PAGE", 2)
    sessions = [
        await quiet.open(request=SessionRequest(title=f"Work {number}")) for number in range(3)
    ]
    first = (await client.call("resources/list"))["result"]
    second = (await client.call("resources/list", cursor=first["nextCursor"]))["result"]
    listed = [*first["resources"], *second["resources"]]

    assert [each["uri"] for each in listed] == [
        f"holdfast://sessions/{session.id}{end}"
        for session in sorted(sessions, key=lambda each: each.id, reverse=True)
        for end in ("", "/transcript")
    ]
    assert {each["mimeType"] for each in listed} == {"application/json", "text/markdown"}
    assert {each["title"] for each in listed[::2]} == {"Work 0", "Work 1", "Work 2"}
    assert "nextCursor" not in second
    wrong = await client.call("resources/list", cursor="x")
    assert (wrong["error"]["code"], wrong["error"]["data"]["error"]) == (-32602, "invalid_cursor")


async def test_templates_tell_how_addresses_are_made(client: Client) -> None:
    told = (await client.call("resources/templates/list"))["result"]["resourceTemplates"]

    assert [each["uriTemplate"] for each in told] == [
        "holdfast://sessions/{session_id}",
        "holdfast://sessions/{session_id}/transcript",
        "holdfast://history/{session_id}",
    ]
    assert all(each["description"] and each["mimeType"] for each in told)


async def test_a_session_and_its_transcript_are_read(holdfast: Holdfast) -> None:
    session = await holdfast.open()
    await holdfast.send(session.id, "Remember the harbour")
    await played(holdfast, session.id)
    address = f"holdfast://sessions/{session.id}"
    async with line_to(holdfast) as line:
        (standing,) = (await line.call("resources/read", uri=address))["result"]["contents"]
        read = await line.call("resources/read", uri=f"{address}/transcript")
        (transcript,) = read["result"]["contents"]

    assert (standing["uri"], standing["mimeType"]) == (address, "application/json")
    assert json.loads(standing["text"])["session"]["id"] == session.id
    assert transcript["mimeType"] == "text/markdown"
    assert "Remember the harbour" in transcript["text"]


async def test_observed_history_is_read_by_whatever_id_it_has(client: Client) -> None:
    name = "séance/1 ?#%"
    await client.tool("submit_agent_session", **(COMPLETE | {"session_id": name}))
    read = await client.call("resources/read", uri=resources.history_uri(name))

    (content,) = read["result"]["contents"]
    assert json.loads(content["text"])["snapshot"]["session_id"] == name


async def test_a_long_transcript_says_that_it_was_cut(
    quiet: Holdfast, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "TRANSCRIPT_LARGEST", 200)
    session = await quiet.open()
    await quiet.send(session.id, "é" * 400)
    read = await line.call("resources/read", uri=f"holdfast://sessions/{session.id}/transcript")

    (content,) = read["result"]["contents"]
    assert content["text"].endswith(
        "(Truncated here; get_session returns all messages, page by page.)\n"
    )


@each_case(
    "uri",
    [
        f"holdfast://sessions/{an_id(7)}",
        f"holdfast://sessions/{an_id(7)}/transcript",
        "holdfast://sessions/../../etc/passwd",
        "holdfast://sessions/",
        "holdfast://sessions/%ff",
        "holdfast://history/never",
        "holdfast://elsewhere/x",
        "file:///etc/passwd",
    ],
)
async def test_what_is_not_there_is_told_in_the_protocols_number(client: Client, uri: str) -> None:
    error = (await client.call("resources/read", uri=uri))["error"]

    assert error["code"] == -32002
    assert error["data"]["uri"] == uri


async def test_ids_are_completed_from_their_beginning(quiet: Holdfast, client: Client) -> None:
    session = await quiet.open()
    template = {"type": "ref/resource", "uri": "holdfast://sessions/{session_id}"}

    async def completed(ref: object, name: str, value: str) -> list[str]:
        told = await client.call(
            "completion/complete", ref=ref, argument={"name": name, "value": value}
        )
        values: list[str] = told["result"]["completion"]["values"]
        return values

    assert await completed(template, "session_id", session.id[:9]) == [session.id]
    assert await completed(template, "session_id", "zzzz") == []
    assert await completed({"type": "ref/prompt", "name": "x"}, "other", "a") == []
