"""Reading what was sent, within its limits."""

import asyncio

import pytest
from starlette.types import Message

from holdfast.http import requests
from tests.http.asgi import ask
from tests.http.test_app import bearer
from tests.http.v1.client import Visitor, refusal
from tests.marks import each_case

pytestmark = pytest.mark.anyio


@each_case("length", ["x", "-1", "1e3", "²", "", "1, 1", "9" * 30])
async def test_a_length_that_is_no_number_is_refused(quiet_visitor: Visitor, length: str) -> None:
    answer = await quiet_visitor.post("/v1/agents", b"{}", content_length=length)

    assert refusal(answer) == (400, "invalid_body")


@pytest.mark.parametrize("path", ["/v1/sessions?q=%00", "/v1/search?q=a&tool=b%00"])
async def test_a_nul_in_the_query_is_refused_by_its_name(quiet_visitor: Visitor, path: str) -> None:
    answer = await quiet_visitor.get(path)

    assert refusal(answer) == (400, "invalid_query")
    name = path.rpartition("=")[0].rpartition("&")[2].rpartition("?")[2]
    assert answer.document["details"] == {
        "parameter": name,
        "rule": "the text contains a NUL character",
    }


async def test_a_body_that_never_ends_is_refused_when_it_is_too_large(
    quiet_visitor: Visitor,
) -> None:
    piece: Message = {"type": "http.request", "body": b" " * (1 << 20), "more_body": True}

    answer = await ask(
        quiet_visitor.app,
        "/v1/agents",
        method="POST",
        headers=bearer(quiet_visitor.secret),
        body=[piece] * 9,
    )

    assert answer.document["details"]["rule"] == "it is larger than 8 MiB"


async def test_a_body_that_comes_too_slowly_is_refused(
    quiet_visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.01)
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/agents",
        "query_string": b"",
        "headers": bearer(quiet_visitor.secret),
    }
    await quiet_visitor.app(scope, receive, send)

    assert sent[0]["status"] == 400


@pytest.mark.parametrize(
    ("headers", "rule"),
    [
        ({"content_type": "text/plain"}, "the content type must be application/json"),
        ({"content_encoding": "gzip"}, "it must not be compressed"),
    ],
)
async def test_a_body_is_plain_json(
    quiet_visitor: Visitor, headers: dict[str, str], rule: str
) -> None:
    answer = await quiet_visitor.post("/v1/agents", b"{}", **headers)

    assert refusal(answer) == (400, "invalid_body")
    assert answer.document["details"]["rule"] == rule


async def test_a_long_name_is_not_told_back_at_length(quiet_visitor: Visitor) -> None:
    body = await quiet_visitor.post("/v1/agents", {"x" * 100_000: 1})
    query = await quiet_visitor.get(f"/v1/agents?{'x' * 10_000}=1")

    assert refusal(body) == (400, "invalid_body")
    assert refusal(query) == (400, "invalid_query")
    assert max(len(body.body), len(query.body)) < 2_000


@each_case(
    ("target", "parameter"),
    [
        ("/v1/sessions?limit=x", "limit"),
        ("/v1/sessions?limit=0", "limit"),
        ("/v1/sessions?order=sideways", "order"),
        ("/v1/sessions?limit=null", "limit"),
        ("/v1/sessions?begins=x&limit=1", "begins"),
        ("/api/sessions?limit=x", "limit"),
        ("/api/sessions?limit=101", "limit"),
        ("/api/sessions?limit=1&offset=-1", "offset"),
    ],
)
async def test_a_value_that_is_refused_is_told_by_its_parameter(
    quiet_visitor: Visitor, target: str, parameter: str
) -> None:
    answer = await quiet_visitor.get(target)

    assert refusal(answer) == (400, "invalid_query")
    assert answer.document["details"]["parameter"] == parameter


async def test_a_query_that_is_not_ascii_is_refused(quiet_visitor: Visitor) -> None:
    headers = bearer(quiet_visitor.secret)

    answer = await ask(quiet_visitor.app, "/v1/agents?q=é", headers=headers)

    assert refusal(answer) == (400, "invalid_query")
