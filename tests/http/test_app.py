"""The application: what is there, what is not, and what stands before both."""

import asyncio
import logging
from typing import Any

import pytest
from starlette.types import Message

from holdfast import Holdfast
from holdfast.domain.errors import Code, HoldfastError, StorageFull, Unavailable
from holdfast.http import system_routes
from holdfast.http.app import AppOptions, create_app
from tests.http.asgi import Answer, ask
from tests.http.v1.client import A_STRANGER, HOST, Visitor, refusal
from tests.marks import each_case

pytestmark = pytest.mark.anyio

HARDENED = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


async def well() -> None:
    """Be a store that can be written."""


async def health(house: Holdfast, probe: system_routes.Probe) -> Answer:
    """Ask a house whose store is as the probe says."""
    return await ask(create_app(house, probe, AppOptions(port=8765)), "/healthz")


async def test_a_store_that_can_be_written_is_healthy(quiet: Holdfast) -> None:
    answer = await health(quiet, well)

    assert (answer.status, answer.body) == (200, b'{"status":"ok"}')
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "error",
    [
        StorageFull(Code.STORAGE_FULL, "The disk is full."),
        Unavailable(Code.STORE_BUSY, "Somebody else writes."),
    ],
)
async def test_a_store_that_refuses_is_unavailable(quiet: Holdfast, error: HoldfastError) -> None:
    async def refuse() -> None:
        raise error

    answer = await health(quiet, refuse)

    assert (answer.status, answer.document) == (503, {"status": "unavailable"})


async def test_a_store_that_does_not_answer_is_unavailable(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_routes, "HEALTH_SECONDS", 0.01)

    answer = await health(quiet, asyncio.Event().wait)

    assert answer.status == 503


async def test_a_fault_of_ours_is_told_without_its_text(
    quiet: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> None:
        raise RuntimeError("a secret")

    answer = await health(quiet, broken)

    assert refusal(answer) == (500, "internal")
    assert b"secret" not in answer.body
    assert "a secret" in caplog.text


async def test_a_lack_of_memory_is_no_fault_of_ours_and_may_be_over_soon(quiet: Holdfast) -> None:
    async def starved() -> None:
        raise MemoryError

    assert refusal(await health(quiet, starved)) == (503, "out_of_memory")


async def test_an_answer_that_has_no_form_is_a_fault_and_not_a_broken_connection(
    quiet_visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counted(*_: Any, **__: Any) -> Any:
        return [object()]

    monkeypatch.setattr(type(quiet_visitor.house.repos), "list", counted)

    assert refusal(await quiet_visitor.get("/api/repos")) == (500, "internal")


async def test_a_request_that_the_end_of_the_server_cuts_off_says_so(quiet: Holdfast) -> None:
    begun = asyncio.Event()

    async def waiting() -> None:
        begun.set()
        await asyncio.Event().wait()

    asking = asyncio.create_task(health(quiet, waiting))
    await begun.wait()
    asking.cancel()
    answer = await asking

    assert refusal(answer) == (503, "store_closed")
    assert answer.headers["retry-after"] == "1"


@each_case(
    "path",
    [
        "//",
        "//v1/agents",
        "/v1",
        "/v1/",
        "/v1/agents/",
        "/v1//agents",
        "/v1/./agents",
        "/v1/x/../agents",
        "/v1%2Fagents",
        "/v1/%61gents",
        "/V1/agents",
        "/healthz/",
        "/healthz/x",
        "/healthz%00",
        "/../etc/passwd",
        "/v1/agents/%ff",
        "/v1/agents/%C0%AF",
    ],
)
async def test_a_path_has_one_spelling(quiet_visitor: Visitor, path: str) -> None:
    answer = await quiet_visitor.asked("GET", path)

    assert answer.status == 404
    assert answer.document == {
        "error": "path_not_found",
        "message": "There is no route at this path; GET /openapi.json lists all routes.",
        "details": {},
    }


async def test_a_slash_in_a_value_is_written_as_one_and_leads_no_further(
    quiet_visitor: Visitor,
) -> None:
    made = await quiet_visitor.post("/v1/models", {"provider": "openai", "name": "meta/llama"})

    found = await quiet_visitor.asked("GET", "/v1/models/openai%3Ameta%2Fllama")
    lost = await quiet_visitor.asked("GET", "/v1/models/openai:meta/llama")

    assert (found.status, found.body) == (200, made.body)
    assert refusal(lost) == (404, "path_not_found")


@each_case(
    ("path", "allowed"),
    [
        ("/", "GET, HEAD"),
        ("/healthz", "GET, HEAD"),
        ("/sign-in?code=x", "GET"),
        ("/v1/agents", "GET, HEAD, POST"),
        (f"/v1/agents/{A_STRANGER}", "DELETE, GET, HEAD, PATCH"),
    ],
)
async def test_another_method_is_not_allowed_and_the_right_ones_are_named(
    quiet_visitor: Visitor, path: str, allowed: str
) -> None:
    for method in ("OPTIONS", "PUT", "TRACE", "PROPFIND"):
        answer = await quiet_visitor.ask(method, path)

        assert refusal(answer) == (405, "method_not_allowed")
        assert answer.headers["allow"] == allowed


async def test_head_is_get_without_its_body(quiet_visitor: Visitor) -> None:
    get = await quiet_visitor.get("/openapi.json")
    head = await quiet_visitor.ask("HEAD", "/openapi.json")

    for answer in (get, head):
        answer.headers.pop("x-request-id")
    assert (head.status, head.headers, head.body) == (200, get.headers, b"")
    assert len(get.body) == int(head.headers["content-length"])


@each_case("path", ["/healthz", "/nothing", "/v1/agents"])
async def test_every_answer_carries_the_security_headers(quiet_visitor: Visitor, path: str) -> None:
    answer = await quiet_visitor.get(path)

    assert HARDENED.items() <= answer.headers.items()
    assert "server" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_caller_may_name_the_request(quiet_visitor: Visitor) -> None:
    named = await quiet_visitor.get("/healthz", x_request_id="mine-1")
    forged = await quiet_visitor.get("/healthz", x_request_id="mine 1\x00")

    assert named.headers["x-request-id"] == "mine-1"
    assert forged.headers["x-request-id"].startswith("request-")


async def test_what_was_asked_is_told_to_the_log_and_to_the_metrics(
    quiet_visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.access")

    await quiet_visitor.get("/v1/agents?q=private", x_request_id="mine")
    metrics = await quiet_visitor.get("/metrics")

    fields = caplog.records[0].fields  # type: ignore[attr-defined]
    token = (await quiet_visitor.house.tokens.list_all())[0]
    assert fields.pop("milliseconds") > 0
    assert fields == {
        "method": "GET",
        "path": "/v1/agents",
        "route": "agents.list",
        "status": 200,
        "bytes": 30,
        "request_id": "mine",
        "token_id": token.id,
    }
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert (
        samples(metrics.body.decode())['holdfast_requests_total{route="agents.list",status="200"}']
        == 1
    )


async def test_a_caller_that_hangs_up_is_written_down_as_gone(
    quiet_visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.access")
    gone: list[Message] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    with pytest.raises(ValueError, match="not enough values"):
        await ask(
            quiet_visitor.app,
            "/v1/agents",
            method="POST",
            headers=bearer(quiet_visitor.secret),
            body=gone,
        )

    assert caplog.records[0].fields["status"] == 499  # type: ignore[attr-defined]


@each_case("action", ["verify", "export"])
async def test_a_read_whose_caller_hangs_up_is_not_worked_off(
    quiet_visitor: Visitor, caplog: pytest.LogCaptureFixture, action: str
) -> None:
    session = await quiet_visitor.session()
    path = f"/v1/sessions/{session['id']}/{action}"
    whole = await quiet_visitor.get(path)
    caplog.clear()
    caplog.set_level(logging.INFO, "holdfast.access")
    gone: list[Message] = [
        {"type": "http.request", "body": b"", "more_body": False},
        {"type": "http.disconnect"},
    ]

    with pytest.raises(ValueError, match="not enough values"):
        await ask(quiet_visitor.app, path, headers=bearer(quiet_visitor.secret), body=gone)

    assert whole.status == 200
    assert caplog.records[0].fields["status"] == 499  # type: ignore[attr-defined]


def bearer(secret: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request with a JSON body."""
    return [
        (b"host", HOST.encode()),
        (b"authorization", f"Bearer {secret}".encode()),
        (b"content-type", b"application/json"),
    ]


def samples(text: str) -> dict[str, float]:
    """Return the samples of a Prometheus text, as a scraper would read them."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found
