"""The language models of all providers behind one verb: keys, connections, and how they end."""

import asyncio
import gc
import subprocess
import sys
import threading

import pytest
from msgspec.structs import replace

from holdfast.domain.secrets import Secret
from holdfast.llm.provider_models import ProviderModels
from holdfast.llm.providers import PROVIDERS
from holdfast.ports.llm import Failed, FailureKind, LlmTextDelta, LlmTool, StepStop, Stopped
from tests.llm.builders import a_request, heard, said
from tests.llm.dialects import CANDIDATES, CHAT, MESSAGES, RESPONSES, Dialect, Saying
from tests.llm.fake_providers import FakeProvider, Reply, a_provider
from tests.llm.provider_requests import KEY, a_key, answer, asking
from tests.marks import each_case

pytestmark = pytest.mark.anyio

HELLO = Saying(text=("Good ", "day"))
HEARD = [
    LlmTextDelta(text="Good "),
    LlmTextDelta(text="day"),
    Stopped(reason=StepStop.STOP, usage=HELLO.usage),
]


# Where the limit goes by another name; an unknown field would be ignored, and the limit with it.
LIMIT_FIELDS = {
    "openai": "max_completion_tokens",
    "openai-responses": "max_output_tokens",
    "azure": "max_completion_tokens",
    "cerebras": "max_completion_tokens",
    "groq": "max_completion_tokens",
    "meta": "max_output_tokens",
    "xai": "max_completion_tokens",
    "google": "maxOutputTokens",
    "gemini": "maxOutputTokens",
}


@each_case("name", sorted(PROVIDERS))
async def test_every_provider_answers_by_its_name_and_is_sent_the_output_limit_as_it_knows_it(
    fake: FakeProvider, name: str
) -> None:
    spoken = {"anthropic": MESSAGES, "google": CANDIDATES, "gemini": CANDIDATES}
    # The only one of the others that is asked as OpenAI's newer models are.
    spoken |= {"openai-responses": RESPONSES, "meta": RESPONSES}
    dialect = spoken.get(name, CHAT)
    fake.replies.append(dialect.reply(HELLO))
    vendors = ProviderModels(a_key, {PROVIDERS[name].name: fake.url + dialect.prefix})
    request = replace(a_request(said("Hi"), model=f"{name}:some/model"), max_tokens=1_234)

    deltas = await heard(vendors, request)
    await vendors.aclose()

    assert deltas == HEARD
    body = fake.received[-1].body
    settings = body.get("generationConfig", body)
    assert {field: limit for field, limit in settings.items() if limit == 1_234} == {
        LIMIT_FIELDS.get(name, "max_tokens"): 1_234
    }


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_connections_are_used_again(fake: FakeProvider, dialect: Dialect) -> None:
    fake.replies += [dialect.reply(HELLO), dialect.reply(HELLO)]

    async with asking(fake, dialect) as vendors:
        for ordinal in (1, 2):
            await heard(vendors, a_request(said("Hi"), model=dialect.model, ordinal=ordinal))

    assert (len(fake.received), fake.connections) == (2, 1)


async def test_closing_the_stream_ends_the_request_at_once(
    fake: FakeProvider, dialect: Dialect
) -> None:
    never = asyncio.Event()
    fake.replies.append(Reply(dialect.stream(HELLO), gate=never))

    async with asking(fake, dialect) as vendors:
        stream = vendors.stream(a_request(said("Hi"), model=dialect.model))
        assert await anext(stream) == LlmTextDelta(text="Good ")
        await stream.aclose()
        # The garbage collector is not what ends it.
        gc.disable()
        try:
            await asyncio.wait_for(fake.left.wait(), timeout=5)
        finally:
            gc.enable()

    assert fake.left.is_set()


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_cancelling_whoever_listens_ends_the_request_at_once(
    fake: FakeProvider, dialect: Dialect
) -> None:
    never = asyncio.Event()
    fake.replies.append(Reply(dialect.stream(HELLO), gate=never))

    async with asking(fake, dialect) as vendors:
        listening = asyncio.create_task(heard(vendors, a_request(said("Hi"), model=dialect.model)))
        await fake.arrived.wait()
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening
        await asyncio.wait_for(fake.left.wait(), timeout=5)

    assert fake.left.is_set()


async def test_several_requests_at_a_time_do_not_get_in_each_others_way(
    fake: FakeProvider,
) -> None:
    fake.replies += [CHAT.reply(HELLO)] * 20
    request = a_request(said("Hi"), model=CHAT.model)

    async with asking(fake, CHAT) as vendors:
        answers = await asyncio.gather(*(heard(vendors, request) for _ in range(20)))

    assert answers == [HEARD] * 20


async def test_without_a_key_nothing_is_sent(dialect: Dialect) -> None:
    async def none(_: str) -> Secret | None:
        return None

    name = {"openai-responses": "openai"}.get(dialect.provider, dialect.provider)
    variable = {"google": "GEMINI_API_KEY"}.get(name, f"{name.upper()}_API_KEY")

    assert await heard(ProviderModels(none), a_request(said("Hi"), model=dialect.model)) == [
        Failed(
            kind=FailureKind.AUTH,
            message=f"There is no key for {name}; run holdfast key set {name}, or set {variable}.",
            sent=False,
        )
    ]


async def test_a_look_up_that_fails_is_told_without_what_it_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(_: str) -> Secret | None:
        raise RuntimeError(f"the keychain says {KEY}")

    assert await heard(ProviderModels(broken), a_request(said("Hi"), model=CHAT.model)) == [
        Failed(
            kind=FailureKind.AUTH,
            message="The key for openai could not be read; "
            "run holdfast key set openai, or set OPENAI_API_KEY.",
            sent=False,
        )
    ]
    assert caplog.text == ""


@each_case("value", ["", " ", "two words", "a\nline", "schlüssel", "\x7f"])
async def test_a_key_that_cannot_be_one_is_not_sent(value: str) -> None:
    async def odd(_: str) -> Secret | None:
        return Secret(value)

    assert await heard(ProviderModels(odd), a_request(said("Hi"), model=CHAT.model)) == [
        Failed(
            kind=FailureKind.AUTH,
            message="The key for openai contains invalid characters; "
            "run holdfast key set openai, or set OPENAI_API_KEY.",
            sent=False,
        )
    ]


async def test_whose_key_is_looked_up(fake: FakeProvider) -> None:
    asked = []

    async def noting(provider: str) -> Secret | None:
        asked.append(provider)
        return None

    for model in ("openai:a", "openai-responses:a", "gemini:a", "google:a", "anthropic:a"):
        await heard(ProviderModels(noting), a_request(said("Hi"), model=model))

    assert asked == ["openai", "openai", "google", "google", "anthropic"]


async def test_a_key_is_looked_up_for_each_request(fake: FakeProvider) -> None:
    keys = iter(["first", "second"])

    async def changing(_: str) -> Secret | None:
        return Secret(next(keys))

    fake.replies += [CHAT.reply(HELLO), CHAT.reply(HELLO)]
    vendors = ProviderModels(changing, {"openai": fake.url + CHAT.prefix})
    for _ in range(2):
        await heard(vendors, a_request(said("Hi"), model=CHAT.model))
    await vendors.aclose()

    assert [each.headers["authorization"] for each in fake.received] == [
        "Bearer first",
        "Bearer second",
    ]


async def test_a_local_model_needs_no_key(fake: FakeProvider) -> None:
    async def none(_: str) -> Secret | None:
        return None

    fake.replies.append(CHAT.reply(HELLO))
    vendors = ProviderModels(none, {"ollama": f"{fake.url}/v1"})

    deltas = await heard(vendors, a_request(said("Hi"), model="ollama:qwen3:8b"))
    await vendors.aclose()

    assert deltas == HEARD
    assert fake.received[0].body["model"] == "qwen3:8b"


async def test_a_package_that_is_not_installed_is_told_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Python's own way to say that there is none.
    monkeypatch.setitem(sys.modules, "pydantic_ai.providers.anthropic", None)
    vendors = ProviderModels(a_key)

    deltas = await heard(vendors, a_request(said("Hi"), model=MESSAGES.model))
    await vendors.aclose()

    assert deltas == [
        Failed(
            kind=FailureKind.BAD_REQUEST,
            message="The package for anthropic is not installed; install holdfast[anthropic].",
            sent=False,
        )
    ]


async def test_azure_has_to_be_told_where_it_is() -> None:
    assert await heard(ProviderModels(a_key), a_request(said("Hi"), model="azure:mine")) == [
        Failed(
            kind=FailureKind.BAD_REQUEST,
            message="There is no base URL for azure; set AZURE_OPENAI_ENDPOINT.",
            sent=False,
        )
    ]


async def test_a_model_without_tools_is_not_offered_any(fake: FakeProvider) -> None:
    tool = LlmTool(name="look", description="Looks.", parameters={"type": "object"})
    request = replace(a_request(said("Hi"), model="google:gemini-2.5-flash-image"), tools=(tool,))

    async with asking(fake, CANDIDATES) as vendors:
        deltas = await heard(vendors, request)

    assert deltas == [
        Failed(
            kind=FailureKind.BAD_REQUEST,
            message="This model of google does not support tools, and the agent needs them; "
            "choose another model.",
            sent=False,
        )
    ]
    assert fake.received == []


async def test_a_model_without_tools_answers_an_agent_that_has_only_a_checkpoint(
    fake: FakeProvider,
) -> None:
    tool = LlmTool(name="checkpoint", description="Marks.", parameters={"type": "object"})
    request = replace(a_request(said("Hi"), model="google:gemini-2.5-flash-image"), tools=(tool,))

    fake.replies.append(Reply(CANDIDATES.stream(Saying(text=("Hello",)))))
    async with asking(fake, CANDIDATES) as vendors:
        deltas = await heard(vendors, request)

    assert deltas[0] == LlmTextDelta(text="Hello")
    assert "tools" not in fake.received[0].body


@each_case(
    "base_url",
    ["no address", "api.openai.com", "ftp://x/v1", "http://[::1", "http:///v1", "http://\x00"],
)
async def test_an_address_that_is_none_is_told_before_anything_is_sent(base_url: str) -> None:
    vendors = ProviderModels(a_key, {"openai": base_url})

    assert await heard(vendors, a_request(said("Hi"), model=CHAT.model)) == [
        Failed(
            kind=FailureKind.BAD_REQUEST,
            message="The base URL for openai is not valid; check OPENAI_BASE_URL.",
            sent=False,
        )
    ]


async def test_what_nobody_has_foreseen_is_told_by_the_name_of_the_error(
    fake: FakeProvider,
) -> None:
    request = a_request(said("half of a character: \ud83d"), model=CHAT.model)

    async with asking(fake, CHAT) as vendors:
        deltas = await heard(vendors, request)

    assert deltas == [
        Failed(
            kind=FailureKind.UNKNOWN,
            message="The request to openai failed with an unknown error (UnicodeEncodeError).",
        )
    ]


async def test_base_urls_of_the_environment_are_not_looked_at(
    fake: FakeProvider, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_provider() as trap:
        for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
            monkeypatch.setenv(name, trap.url)
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
            monkeypatch.setenv(name, "of-the-environment")

        deltas = await answer(fake, dialect, dialect.reply(HELLO))

        assert deltas == HEARD
        assert trap.connections == 0
        assert "of-the-environment" not in str(fake.received)


def test_the_door_is_opened_without_the_vendors_packages() -> None:
    heavy = ("pydantic_ai", "pydantic", "genai_prices", "openai", "anthropic", "google", "httpx2")
    script = f"import sys, holdfast.llm.router; print([m for m in {heavy} if m in sys.modules])"

    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )

    assert run.stdout.strip() == "[]"


async def test_the_vendors_work_in_a_thread_that_ends_with_them(fake: FakeProvider) -> None:
    def theirs() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name == "holdfast-llm"]

    fake.replies.append(CHAT.reply(HELLO))

    async with asking(fake, CHAT) as vendors:
        before = theirs()
        await heard(vendors, a_request(said("Hi"), model=CHAT.model))
        during = theirs()

    assert (before, during, theirs()) == ([], ["holdfast-llm"], [])


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_several_answers_may_be_left_in_the_middle(
    fake: FakeProvider, dialect: Dialect
) -> None:
    never = asyncio.Event()
    fake.replies += [Reply(dialect.stream(HELLO), gate=never)] * 3
    request = a_request(said("Hi"), model=dialect.model)

    async with asking(fake, dialect) as vendors:
        streams = [vendors.stream(request) for _ in range(3)]
        firsts = [await anext(stream) for stream in streams]
        for stream in streams:
            await stream.aclose()

    assert firsts == [LlmTextDelta(text="Good ")] * 3


async def test_a_name_that_the_provider_cannot_have_is_told_before_anything_is_sent(
    fake: FakeProvider,
) -> None:
    vendors = ProviderModels(a_key, {"openrouter": f"{fake.url}/v1"})

    deltas = await heard(vendors, a_request(said("Hi"), model="openrouter:no-vendor-in-it"))
    await vendors.aclose()

    assert deltas == [
        Failed(
            kind=FailureKind.BAD_REQUEST,
            message="openrouter cannot process this request; check the name of the model, and "
            "the tools and settings of the agent.",
            sent=False,
        )
    ]
