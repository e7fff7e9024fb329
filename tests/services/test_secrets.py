"""Secrets: where they are looked for, who gets to know them, and what is shown of them."""

import pytest

from holdfast.domain.errors import Code, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.domain.secrets import Secret
from holdfast.services.secrets import Secrets, StoredSecret, whole_account
from tests.marks import demands, each_case

pytestmark = pytest.mark.anyio

VARIABLES = {"openai": "OPENAI_API_KEY", "google": "GEMINI_API_KEY"}


class MemoryKeychain:
    """A keychain of the test's own, which can be locked."""

    def __init__(self, **entries: str) -> None:
        self.entries = {name.replace("__", ":"): value for name, value in entries.items()}
        self.is_locked = False

    def read(self, account: str) -> str | None:
        return None if self.is_locked else self.entries.get(account)

    def write(self, account: str, secret: str) -> bool:
        if not self.is_locked:
            self.entries[account] = secret
        return not self.is_locked

    def remove(self, account: str) -> bool:
        if account.endswith("stuck"):
            return False
        return self.entries.pop(account, None) is not None


def opened(secret: Secret | None) -> str | None:
    """Return what a secret hides."""
    return secret.reveal() if secret is not None else None


@demands("S0-275")
async def test_a_key_comes_from_the_keychain_our_variable_or_the_customary_one() -> None:
    keychain = MemoryKeychain(openai__default="from-keychain")
    environment = {"HOLDFAST_OPENAI_API_KEY": "from-ours ", "OPENAI_API_KEY": "from-theirs"}
    secrets = Secrets(keychain, environment, VARIABLES)

    assert opened(await secrets.key_of("openai")) == "from-keychain"
    keychain.is_locked = True
    assert opened(await secrets.key_of("openai")) == "from-ours"
    environment["HOLDFAST_OPENAI_API_KEY"] = " "
    assert opened(await secrets.key_of("openai")) == "from-theirs"
    del environment["OPENAI_API_KEY"]
    assert await secrets.key_of("openai") is None


async def test_each_provider_has_its_customary_variable() -> None:
    environment = {"GEMINI_API_KEY": "of-google", "NEW_ONE_API_KEY": "of-a-new-one"}
    secrets = Secrets(MemoryKeychain(), environment, VARIABLES)

    assert opened(await secrets.key_of("google")) == "of-google"
    assert opened(await secrets.key_of("new-one")) == "of-a-new-one"
    assert await secrets.key_of("gemini") is not None


async def test_a_key_is_asked_for_anew_with_each_request() -> None:
    keychain = MemoryKeychain(openai__default="first-key")
    secrets = Secrets(keychain, {})
    await secrets.key_of("openai")
    keychain.entries["openai:default"] = "second-key"

    assert opened(await secrets.key_of("openai")) == "second-key"


async def test_hosts_and_servers_and_other_keys_have_accounts_of_their_own() -> None:
    keychain = MemoryKeychain(
        openai__work="for-work", host__example="for-host", mcp__notes="for-notes"
    )
    secrets = Secrets(keychain, {"OPENAI_API_KEY": "customary"}, VARIABLES)

    assert opened(await secrets.key_of("openai", "work")) == "for-work"
    assert opened(await secrets.of_host("example")) == "for-host"
    assert opened(await secrets.of_server("notes")) == "for-notes"
    assert (await secrets.of_host("notes"), await secrets.of_server("example")) == (None, None)


async def test_the_scrubber_knows_the_environment_from_the_start() -> None:
    environment = {
        "OPENAI_API_KEY": "openai-key-1\n",
        "UNHEARD_OF_API_KEY": "unheard-key-1",
        "HOLDFAST_KEY": "ab" * 32,
        "HOME": "/home/somebody",
        "EMPTY_API_KEY": " ",
    }
    secrets = Secrets(MemoryKeychain(), environment, VARIABLES)

    cleaned = secrets.scrubber.redact_text(" ".join(environment.values()))

    assert cleaned.split() == [
        "[secret:OPENAI_API_KEY]",
        "[secret:UNHEARD_OF_API_KEY]",
        "[secret:HOLDFAST_KEY]",
        "/home/somebody",
    ]


async def test_what_was_handed_out_is_known_for_good() -> None:
    keychain = MemoryKeychain(openai__default="first-key-1", mcp__notes="notes-key-1")
    secrets = Secrets(keychain, {})
    before = secrets.scrubber
    text = "first-key-1 second-key-1 notes-key-1 fourth-key-1"

    await secrets.key_of("openai")
    keychain.entries["openai:default"] = "second-key-1"
    await secrets.key_of("openai")
    await secrets.of_server("notes")
    secrets.remember("token", Secret("fourth-key-1"))
    secrets.remember("nothing", Secret(""))

    assert before.redact_text(text) == text
    assert secrets.scrubber.redact_text(text) == (
        "[secret:openai:default] [secret:openai:default] [secret:mcp:notes] [secret:token]"
    )


async def test_a_key_that_is_handed_out_again_costs_nothing() -> None:
    secrets = Secrets(MemoryKeychain(openai__default="first-key-1"), {})
    await secrets.key_of("openai")
    known = secrets.scrubber

    await secrets.key_of("openai")

    assert secrets.scrubber is known


async def test_a_key_is_kept_listed_and_removed() -> None:
    keychain = MemoryKeychain(google__default="put-there-by-hand")
    secrets = Secrets(keychain, {"OPENAI_API_KEY": "short"}, VARIABLES)

    assert await secrets.set("openai", Secret("sk-1234567890abcd")) == "openai:default"
    assert await secrets.set("openai:work", Secret("sk-work")) == "openai:work"
    assert await secrets.set("host:example.com:8080", Secret("zwei Wörter\n")) == (
        "host:example.com:8080"
    )

    assert await secrets.list() == (
        StoredSecret(account="google:default", origin="keychain", ending="hand"),
        StoredSecret(account="host:example.com:8080", origin="keychain", ending="ter\n"),
        StoredSecret(account="openai:default", origin="keychain", ending="abcd"),
        StoredSecret(account="openai:work", origin="keychain", ending=""),
        StoredSecret(account="openai:default", origin="OPENAI_API_KEY", ending=""),
    )
    assert opened(await secrets.key_of("openai", "work")) == "sk-work"
    assert await secrets.remove("openai") == "openai:default"
    assert opened(await secrets.key_of("openai")) == "short"
    assert [each.account for each in await secrets.list()] == [
        "google:default",
        "host:example.com:8080",
        "openai:work",
        "openai:default",
    ]


@demands("S0-275")
async def test_without_a_keychain_nothing_is_kept_anywhere() -> None:
    keychain = MemoryKeychain()
    keychain.is_locked = True
    secrets = Secrets(keychain, {}, VARIABLES)

    with pytest.raises(Unavailable) as refused:
        await secrets.set("google", Secret("sk-1234567890abcd"))

    assert refused.value.body() == {
        "error": "keychain_unavailable",
        "message": "No keychain can store the key; unlock it, or set the key in the "
        "environment: HOLDFAST_GOOGLE_API_KEY, GEMINI_API_KEY.",
        "details": {},
    }
    assert keychain.entries == {}
    assert await secrets.list() == ()


async def test_what_is_not_there_or_stuck_is_not_removed() -> None:
    secrets = Secrets(MemoryKeychain(openai__stuck="sk-1234567890abcd"), {})

    refusals: list[HoldfastError] = []
    for account in ("openai", "openai:stuck"):
        with pytest.raises(HoldfastError) as refused:
            await secrets.remove(account)
        refusals.append(refused.value)

    assert [(type(each), each.code) for each in refusals] == [
        (NotFound, Code.KEY_NOT_FOUND),
        (Unavailable, Code.KEYCHAIN_UNAVAILABLE),
    ]


@each_case("value", ["", "with blank", "line\nbreak", "nul\x00", "ümlaut", "x" * 16_385])
async def test_what_cannot_be_a_key_is_refused_without_being_shown(value: str) -> None:
    keychain = MemoryKeychain()

    with pytest.raises(Invalid) as refused:
        await Secrets(keychain, {}).set("openai", Secret(value))

    assert keychain.entries == {}
    assert not value or value not in str(refused.value.body())


@each_case(
    ("text", "account"),
    [
        ("openai", "openai:default"),
        ("my-own.provider_2", "my-own.provider_2:default"),
        ("openai:work", "openai:work"),
        ("mcp:github", "mcp:github"),
        ("host:api.example.com", "host:api.example.com"),
    ],
)
async def test_a_person_names_a_key_by_provider_server_or_host(text: str, account: str) -> None:
    assert whole_account(text) == account


@each_case(
    "text",
    [
        "",
        "mcp",
        "host",
        "store",
        "store:x",
        "store:/home",
        "OpenAI",
        "a b",
        "openai:",
        ":x",
        "openai:a b",
        "x\n",
    ],
)
async def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        whole_account(text)

    assert refused.value.details == {"field": "key"}
