"""What a program is given in a variable: a key that is kept, or our own value; known ever after."""

import pytest

from holdfast.domain.secrets import Secret
from holdfast.services.secrets import Secrets
from tests.services.test_secrets import MemoryKeychain

pytestmark = pytest.mark.anyio

VARIABLES = {"google": "GEMINI_API_KEY"}


def a_secrets(keychain: MemoryKeychain, **environment: str) -> Secrets:
    """Return secrets of a keychain and an environment."""
    return Secrets(keychain, environment, VARIABLES)


async def test_a_key_that_is_kept_goes_before_the_environment() -> None:
    secrets = a_secrets(MemoryKeychain(), GEMINI_API_KEY="from-the-environment")
    before = await secrets.of_variable("GEMINI_API_KEY")
    await secrets.set("google", Secret("from-the-keychain"))
    after = await secrets.of_variable("GEMINI_API_KEY")

    assert before is not None
    assert after is not None
    assert (before.reveal(), after.reveal()) == ("from-the-environment", "from-the-keychain")


async def test_any_other_variable_is_our_own_and_is_masked_from_then_on() -> None:
    secrets = a_secrets(MemoryKeychain(), OWN_SETTING="not-to-be-told", EMPTY=" ")

    found = await secrets.of_variable("OWN_SETTING")

    assert found is not None
    assert found.reveal() == "not-to-be-told"
    assert secrets.scrubber.redact_text("it said not-to-be-told") == "it said [secret:OWN_SETTING]"
    assert await secrets.of_variable("EMPTY") is None
    assert await secrets.of_variable("NOWHERE") is None
