"""How providers fail: told by kind, in our own sentences, with nothing of what they wrote."""

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from holdfast.llm.provider_models import LlmTimeouts
from holdfast.ports.llm import Failed, FailureKind, LlmTextDelta
from tests.llm.builders import a_request, heard, said
from tests.llm.dialects import (
    CANARY,
    CANDIDATES,
    CHAT,
    MESSAGES,
    RESPONSES,
    Dialect,
    Saying,
)
from tests.llm.fake_providers import FakeProvider, Reply, refusing
from tests.llm.provider_requests import KEY, answer, asking
from tests.marks import each_case

pytestmark = pytest.mark.anyio

VARIABLES = {
    "openai": "openai, or set OPENAI_API_KEY",
    "openai-responses": "openai, or set OPENAI_API_KEY",
    "anthropic": "anthropic, or set ANTHROPIC_API_KEY",
    "google": "google, or set GEMINI_API_KEY",
}


def bodies(dialect: Dialect, status: int) -> object:
    """Return an error as the provider words it, with a canary in it."""
    if dialect is CANDIDATES:
        return {"error": {"code": status, "message": CANARY, "status": "SOMETHING"}}
    if dialect is MESSAGES:
        return {"type": "error", "error": {"type": "some_error", "message": CANARY}}
    return {"error": {"message": CANARY, "type": "some_error", "code": None, "param": None}}


# By status: kind of failure, whether it may be billed, and the sentence.
STATUSES = {
    429: ("rate_limit", False, "{name} accepts no more requests for now (status 429)."),
    500: ("unavailable", False, "{name} cannot answer now (status 500)."),
    502: ("unavailable", True, "{name} cannot answer now (status 502)."),
    503: ("unavailable", False, "{name} cannot answer now (status 503)."),
    504: ("unavailable", True, "{name} cannot answer now (status 504)."),
    522: ("unavailable", True, "{name} cannot answer now (status 522)."),
    529: ("unavailable", False, "{name} cannot answer now (status 529)."),
    408: ("unavailable", False, "{name} cannot answer now (status 408)."),
    401: (
        "auth",
        False,
        "{name} does not accept the key (status 401); run holdfast key set {variable}.",
    ),
    402: (
        "auth",
        False,
        "{name} requires payment (status 402); check the credit of the account.",
    ),
    403: (
        "auth",
        False,
        "{name} does not accept the key (status 403); run holdfast key set {variable}.",
    ),
    404: (
        "bad_request",
        False,
        "{name} does not know this model (status 404); "
        "check its name, and the base URL if you have set one.",
    ),
    400: (
        "bad_request",
        False,
        "{name} rejected the request (status 400); check the model and the settings of the agent.",
    ),
    413: (
        "too_long",
        False,
        "The conversation is too long for this model of {name} (status 413).",
    ),
}


async def test_a_status_is_told_by_kind_and_the_request_is_not_repeated(
    fake: FakeProvider, dialect: Dialect
) -> None:
    name = dialect.provider
    fake.replies += [refusing(status, bodies(dialect, status)) for status in STATUSES]

    async with asking(fake, dialect) as vendors:
        request = a_request(said("Hi"), model=dialect.model)
        told = [await heard(vendors, request) for _ in STATUSES]

    assert told == [
        [
            Failed(
                kind=FailureKind(kind),
                message=message.format(name=name, variable=VARIABLES[name]),
                status=status,
                billed=billed,
            )
        ]
        for status, (kind, billed, message) in STATUSES.items()
    ]
    assert len(fake.received) == len(STATUSES)


async def test_a_conversation_that_is_too_long_is_told_as_such(
    fake: FakeProvider, dialect: Dialect
) -> None:
    name = dialect.provider

    assert await answer(fake, dialect, dialect.too_long) == [
        Failed(
            kind=FailureKind.TOO_LONG,
            message=f"The conversation is too long for this model of {name} (status 400).",
            status=400,
            billed=False,
        )
    ]


async def test_how_long_to_wait_may_be_told_in_seconds_or_as_a_date(fake: FakeProvider) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    found = []

    for held in ("7", later):
        reply = refusing(429, bodies(CHAT, 429), ("retry-after", held))
        [failed] = await answer(fake, CHAT, reply)
        assert isinstance(failed, Failed)
        found.append(failed.retry_after)

    assert found[0] == 7.0
    assert found[1] is not None
    assert 3_500 < found[1] <= 3_600


async def test_an_answer_that_breaks_in_the_middle_is_unavailable(
    fake: FakeProvider, dialect: Dialect
) -> None:
    pieces = dialect.stream(Saying(text=("Good ", "day")))

    for end in ("cut", "reset") if dialect is CHAT else ("cut",):
        deltas = await answer(fake, dialect, Reply(pieces[: len(pieces) - 3], end=end))
        assert deltas[-1] == Failed(
            kind=FailureKind.UNAVAILABLE, message=f"The connection to {dialect.provider} failed."
        )


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_an_answer_that_breaks_before_its_first_word_may_be_billed(
    fake: FakeProvider, dialect: Dialect
) -> None:
    [failed] = await answer(fake, dialect, Reply((), end="cut"))

    assert isinstance(failed, Failed)
    assert failed.billed


async def test_an_answer_without_an_end_is_unavailable(
    fake: FakeProvider, dialect: Dialect
) -> None:
    pieces = dialect.stream(Saying(text=("Good ", "day")))
    ends = {CHAT: 3, RESPONSES: 1, MESSAGES: 2, CANDIDATES: 1}

    deltas = await answer(fake, dialect, Reply(pieces[: -ends[dialect]]))

    assert deltas == [
        LlmTextDelta(text="Good "),
        LlmTextDelta(text="day"),
        Failed(
            kind=FailureKind.UNAVAILABLE,
            message=f"The answer of {dialect.provider} ended before it was complete.",
        ),
    ]


@each_case("pieces", [(), (b"data: {nonsense\n\n",), (b"<html>Hello</html>",)])
async def test_an_answer_that_is_none_is_unavailable(
    fake: FakeProvider, dialect: Dialect, pieces: tuple[bytes, ...]
) -> None:
    [failed] = await answer(fake, dialect, Reply(pieces))

    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.UNAVAILABLE


@each_case(
    ("dialect", "told", "kind", "status"),
    [
        (CHAT, {"error": {"message": CANARY, "type": "server_error"}}, "unavailable", 500),
        (CHAT, {"error": {"message": CANARY, "code": "rate_limit_exceeded"}}, "rate_limit", 429),
        (CHAT, {"error": {"message": CANARY}}, "unavailable", None),
        (
            RESPONSES,
            {"type": "error", "code": "server_error", "message": CANARY, "sequence_number": 9},
            "unavailable",
            500,
        ),
        (
            MESSAGES,
            {"type": "error", "error": {"type": "overloaded_error", "message": CANARY}},
            "unavailable",
            529,
        ),
        (
            MESSAGES,
            {"type": "error", "error": {"type": "rate_limit_error", "message": CANARY}},
            "rate_limit",
            429,
        ),
        (
            CANDIDATES,
            {"error": {"code": 503, "status": "UNAVAILABLE", "message": CANARY}},
            "unavailable",
            503,
        ),
    ],
)
async def test_a_failure_in_the_middle_of_an_answer_is_told_by_kind(
    fake: FakeProvider, dialect: Dialect, told: dict[str, object], kind: str, status: int | None
) -> None:
    pieces = dialect.stream(Saying(text=("Good ", "day")))
    name = f"event: {told['type']}\n" if "type" in told else ""
    broken = [*pieces[:-3], f"{name}data: {json.dumps(told)}\n\n".encode()]

    failed = (await answer(fake, dialect, Reply(broken)))[-1]

    assert isinstance(failed, Failed)
    assert (failed.kind, failed.status) == (FailureKind(kind), status)
    # The model has written something by then, whatever the status says.
    assert failed.billed
    assert CANARY not in failed.message


@each_case(
    ("dialect", "body"),
    [
        (
            MESSAGES,
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "Your credit balance is too low to access the API.",
                },
            },
        ),
        (
            CANDIDATES,
            {
                "error": {
                    "code": 400,
                    "status": "INVALID_ARGUMENT",
                    "message": "API key not valid.",
                    "details": [{"reason": "API_KEY_INVALID"}],
                }
            },
        ),
    ],
    ids=["an empty account", "a wrong key"],
)
async def test_what_is_wrong_with_the_account_is_not_the_fault_of_the_request(
    fake: FakeProvider, dialect: Dialect, body: object
) -> None:
    [failed] = await answer(fake, dialect, refusing(400, body))

    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.AUTH


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_a_provider_that_nobody_is_at_is_unavailable(
    fake: FakeProvider, dialect: Dialect
) -> None:
    away = FakeProvider(url="http://127.0.0.1:9")

    async with asking(away, dialect) as vendors:
        deltas = await heard(vendors, a_request(said("Hi"), model=dialect.model))

    assert deltas == [
        Failed(
            kind=FailureKind.UNAVAILABLE,
            message=f"The connection to {dialect.provider} failed.",
            billed=False,
        )
    ]


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_a_provider_that_falls_silent_is_not_waited_for(
    fake: FakeProvider, dialect: Dialect
) -> None:
    never = asyncio.Event()
    fake.replies.append(Reply(dialect.stream(Saying(text=("Good ", "day"))), gate=never))

    async with asking(fake, dialect, llm_timeouts=LlmTimeouts(silence=0.2)) as vendors:
        deltas = await heard(vendors, a_request(said("Hi"), model=dialect.model))

    assert deltas[-1] == Failed(
        kind=FailureKind.UNAVAILABLE, message=f"{dialect.provider} did not answer in time."
    )


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_a_redirection_is_not_followed(fake: FakeProvider, dialect: Dialect) -> None:
    away = Reply((b"{}",), status=307, headers=(("location", f"{fake.url}/elsewhere"),))

    [failed] = await answer(fake, dialect, away)

    assert isinstance(failed, Failed)
    assert len(fake.received) == 1


async def test_nothing_of_what_a_provider_wrote_or_was_sent_is_logged(
    fake: FakeProvider, dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    # From the root, as the command does: a level that is set there holds for everybody.
    caplog.set_level(logging.DEBUG)
    broken = Reply(dialect.stream(Saying(text=(CANARY, "day")))[:-3], end="cut")

    for reply in (refusing(400, bodies(dialect, 400)), dialect.too_long, broken):
        deltas = await answer(
            fake, dialect, reply, a_request(said("canary-of-the-user"), model=dialect.model)
        )
        assert CANARY not in str(deltas[-1])

    assert [each for each in (CANARY, KEY, "canary-of-the-user") if each in caplog.text] == []
