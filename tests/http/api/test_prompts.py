"""Prompts: on disk before they are acknowledged, repeatable, and refused where nobody listens."""

from pathlib import Path

import pytest

from tests.http.api.client import Client, playing
from tests.http.v1.client import refusal
from tests.marks import demands, each_case
from tests.stand_ins import Gate, an_answer, asked

pytestmark = pytest.mark.anyio

CHOSEN = "0192f0c1-0000-7000-8000-000000000abc"


@demands("S1-065", "S1-065c", "S1-065d", "S1-020b")
async def test_a_prompt_is_stored_untrimmed_and_acknowledged_at_once(quiet_client: Client) -> None:
    session = await quiet_client.opened()

    answer = await quiet_client.prompt(session, text=" hello\n", colour="red")

    rows = await quiet_client.rows(session)
    assert (answer.status, answer.document) == (
        202,
        {"accepted": True, "messageId": rows[0]["id"], "sequence": 1, "turn": 1},
    )
    assert [row["content"]["text"] for row in rows] == [" hello\n"]


@each_case(
    ("body", "told"),
    [
        ({}, "invalid_body"),
        ({"text": 1}, "invalid_body"),
        ({"text": "x", "id": "mine"}, "invalid_body"),
        ({"text": "x", "onBusy": "wait"}, "invalid_body"),
        ({"text": ""}, "message_empty"),
        ({"text": " \n\t"}, "message_empty"),
        ({"text": "x" * ((1 << 20) + 1)}, "message_too_large"),
        ({"text": "a\x00b"}, "invalid_text"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_what_is_no_prompt_is_refused_and_not_stored(
    quiet_client: Client, body: dict[str, object], told: str
) -> None:
    session = await quiet_client.opened()

    answer = await quiet_client.prompt(session, **body)

    assert refusal(answer) == (400, told)
    assert await quiet_client.rows(session) == []


@each_case("text", ["\\u0000", "\\\\u0000 \\", "\u2400", "\x01\x7f\u0085\ufeff\U0010ffff"])
async def test_what_only_looks_like_nul_comes_back_as_it_was(
    quiet_client: Client, text: str
) -> None:
    session = await quiet_client.opened()

    await quiet_client.prompted(session, text)

    assert [row["content"]["text"] for row in await quiet_client.rows(session)] == [text]


async def test_the_longest_prompt_is_taken(quiet_client: Client) -> None:
    session = await quiet_client.opened()
    text = "ä" * (1 << 19)

    await quiet_client.prompted(session, text)

    assert (await quiet_client.rows(session))[0]["content"]["text"] == text


async def test_a_prompt_with_an_id_may_be_repeated(quiet_client: Client) -> None:
    session = await quiet_client.opened()

    first = await quiet_client.prompted(session, "hello", id=CHOSEN.upper())
    again = await quiet_client.prompted(session, "hello", id=CHOSEN)
    other = await quiet_client.prompt(session, text="bye", id=CHOSEN)

    assert first == {"accepted": True, "messageId": CHOSEN, "sequence": 1, "turn": 1}
    assert again == first
    assert refusal(other) == (409, "message_id_reused")
    assert len(await quiet_client.rows(session)) == 1


async def test_a_prompt_to_a_busy_session_waits_or_is_refused_or_stops_it(tmp_path: Path) -> None:
    gate = Gate()
    async with playing(tmp_path, (asked(),), gate, an_answer("never")) as (client, session):
        await gate.reached()
        refused = await client.prompt(session, text="two", onBusy="reject")
        queued = await client.prompted(session, "three")
        stopping = await client.prompted(session, "four", onBusy="interrupt")
        await client.settled(session)
        rows = await client.rows(session)

    assert refusal(refused) == (409, "turn_running")
    assert (queued["sequence"], queued["turn"]) == (2, 2)
    assert (stopping["sequence"], stopping["turn"]) == (4, 2)
    assert [row["content"].get("text") for row in rows if row["role"] == "user"] == [
        "go",
        "three",
        "four",
    ]
    assert "never" not in [row["content"].get("text") for row in rows]
    assert rows[-1]["content"] == {"type": "text", "text": "done", "partial": False}


@demands("S1-067", "S1-021b")
@pytest.mark.parametrize(("how", "status"), [("complete", "completed"), ("", "cancelled")])
async def test_a_prompt_to_an_ended_session_is_refused_unless_it_is_a_repeat(
    quiet_client: Client, how: str, status: str
) -> None:
    session = await quiet_client.opened()
    first = await quiet_client.prompted(session, "hello", id=CHOSEN)
    path = f"/api/sessions/{session['id']}"
    if how:
        await quiet_client.post(f"{path}/{how}")
    else:
        await quiet_client.delete(path)
    rows = await quiet_client.rows(session)

    refused = await quiet_client.prompt(session, text="more")
    again = await quiet_client.prompted(session, "hello", id=CHOSEN)

    assert refusal(refused) == (409, "session_not_active")
    assert refused.document["details"] == {"status": status}
    assert "resume" in refused.document["message"]
    assert again == first
    assert await quiet_client.rows(session) == rows
