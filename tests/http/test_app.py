"""The application: what is there, what is not, and what stands before both."""

import asyncio

import pytest
from starlette.types import Message

from holdfast.domain.errors import Code, HoldfastError, StorageFull, Unavailable
from holdfast.http.app import application
from holdfast.http.errors import STATUSES, error_response
from tests.http.asgi import ask

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


async def test_a_store_that_can_be_written_is_healthy() -> None:
    answer = await ask(application(well), "/healthz")

    assert (answer.status, answer.body) == (200, b'{"status":"ok"}')
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "error",
    [
        StorageFull(Code.STORAGE_FULL, "The disk is full."),
        Unavailable(Code.STORE_BUSY, "Somebody else writes."),
    ],
)
async def test_a_store_that_refuses_is_unavailable(error: HoldfastError) -> None:
    async def refuse() -> None:
        raise error

    answer = await ask(application(refuse), "/healthz")

    assert (answer.status, answer.document) == (503, {"status": "unavailable"})


async def test_a_store_that_does_not_answer_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.http.app.HEALTH_SECONDS", 0.01)

    answer = await ask(application(asyncio.Event().wait), "/healthz")

    assert answer.status == 503


@pytest.mark.parametrize("path", ["/", "/v1/agents", "/healthz/", "/healthz/x", "/../etc/passwd"])
async def test_every_other_path_is_not_found(path: str) -> None:
    answer = await ask(application(well), path)

    assert answer.status == 404
    assert answer.document == {
        "error": "path_not_found",
        "message": "There is nothing at this path; try GET /healthz.",
        "details": {},
    }


async def test_another_method_is_not_allowed_and_the_right_one_is_named() -> None:
    answer = await ask(application(well), "/healthz", method="POST")

    assert (answer.status, answer.document["error"]) == (405, "method_not_allowed")
    assert "GET" in answer.headers["allow"]


async def test_a_fault_of_ours_is_told_without_its_text() -> None:
    async def broken() -> None:
        raise RuntimeError("a secret")

    with pytest.raises(RuntimeError):
        await ask(application(broken), "/healthz")


@pytest.mark.parametrize("path", ["/healthz", "/nothing"])
async def test_every_answer_carries_the_security_headers(path: str) -> None:
    answer = await ask(application(well), path)

    assert HARDENED.items() <= answer.headers.items()
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    "host", [b"127.0.0.1", b"127.0.0.1:8765", b"localhost:1", b"LOCALHOST", b"[::1]", b"[::1]:80"]
)
async def test_this_machine_may_be_asked_for_by_its_names(host: bytes) -> None:
    answer = await ask(application(well), "/healthz", headers=((b"host", host),))

    assert answer.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        ((b"host", b"evil.example"),),
        ((b"host", b"127.0.0.1.evil.example:8765"),),
        ((b"host", b"localhost@evil"),),
        ((b"host", b"127.0.0.1:x"),),
        ((b"host", b""),),
        ((b"host", b"localhost"), (b"host", b"evil.example")),
        (),
    ],
)
async def test_a_request_for_another_host_is_refused(
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    answer = await ask(application(well), "/healthz", headers=headers)

    assert (answer.status, answer.document["error"]) == (403, "not_loopback")
    assert HARDENED.items() <= answer.headers.items()


async def test_what_is_no_request_passes_the_guard() -> None:
    told = []

    async def receive() -> Message:
        return {"type": "lifespan.startup" if not told else "lifespan.shutdown"}

    async def send(message: Message) -> None:
        told.append(message["type"])

    await application(well)({"type": "lifespan"}, receive, send)

    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_every_class_of_errors_has_a_status() -> None:
    assert {kind.__name__: status for kind, status in STATUSES.items()} == {
        "Invalid": 400,
        "Denied": 403,
        "NotFound": 404,
        "Conflict": 409,
        "LimitReached": 429,
        "Unavailable": 503,
        "StorageFull": 507,
        "Internal": 500,
    }
    assert set(STATUSES) == set(HoldfastError.__subclasses__())


def test_an_error_has_the_status_of_its_class() -> None:
    response = error_response(StorageFull(Code.STORAGE_FULL, "The disk is full."))

    assert (response.status_code, response.media_type) == (507, "application/json")
