"""Secrets: read on demand, passed to the code that sends them, and registered for redaction.

Provider keys and the secrets of MCP servers and hosts. The store's own key is handled elsewhere.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from msgspec import Struct

from holdfast.domain.errors import Code, Invalid, NotFound, Unavailable
from holdfast.domain.secrets import Scrubber, Secret
from holdfast.domain.text import did_you_mean

LARGEST: Final = 16 << 10
USUAL_KEY: Final = "default"
# Index of accounts, because a keychain cannot list them.
_INDEX: Final = "accounts"
_PROVIDER: Final = re.compile(r"(?!(?:mcp|host|store)\Z)[a-z0-9][a-z0-9_.-]{0,63}")
# The store's key cannot be set here, because the store would become unreadable.
_ACCOUNT: Final = re.compile(r"(?!store:)[a-z0-9][a-z0-9_.-]{0,63}:[A-Za-z0-9_.:-]{1,253}")
# From this length on, showing the last four characters does not reveal the rest.
_LONG_ENOUGH: Final = 12


class Keychain(Protocol):
    """The operating system's keychain; every method may block until the user unlocks it."""

    def read(self, account: str) -> str | None:
        """Return a secret; `None` if it does not exist, or the keychain is locked or missing."""
        ...

    def write(self, account: str, secret: str) -> bool:
        """Store a secret; `False` if no keychain accepts it."""
        ...

    def remove(self, account: str) -> bool:
        """Delete a secret; `False` if the keychain refuses."""
        ...


class StoredSecret(Struct, frozen=True, kw_only=True):
    """Where a secret is stored, and its last characters; empty for a short secret."""

    account: str
    origin: str
    ending: str


class Secrets:
    """The secrets of this process; callers reveal one only to send it."""

    def __init__(
        self,
        keychain: Keychain,
        environment: Mapping[str, str],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`variables` maps providers to the customary environment variable of their key."""
        self._keychain = keychain
        self._environment = environment
        self._variables = variables or {}
        self._known: dict[str, tuple[str, Secret]] = {}
        # The redactor of all secrets known so far; do not cache it.
        self.scrubber = Scrubber()
        for name in self._secret_variables():
            self.remember(name, Secret(environment[name].strip()))

    def remember(self, name: str, secret: Secret) -> None:
        """Register a secret with the scrubber."""
        value = secret.reveal()
        # Never removed, because a secret that was sent may appear in a response, an error or a log
        # line long after the request.
        if value and value not in self._known:
            self._known[value] = (name, secret)
            self.scrubber = Scrubber(self._known.values())

    async def key_of(self, provider: str, key_id: str = USUAL_KEY) -> Secret | None:
        """Return a provider's key from the keychain, our own variable or the customary variable."""
        account = f"{provider}:{key_id}"
        kept = await self._from_keychain(account)
        if kept is not None:
            return kept
        for variable in self._variables_of(provider):
            if value := self._environment.get(variable, "").strip():
                return self._register(variable, value)
        return None

    async def of_variable(self, name: str) -> Secret | None:
        """Return a program's variable: the stored key, else the value of this process."""
        for provider, variable in self._variables.items():
            kept = (
                await self._from_keychain(f"{provider}:{USUAL_KEY}") if variable == name else None
            )
            if kept is not None:
                return kept
        value = self._environment.get(name, "")
        return self._register(name, value) if value.strip() else None

    async def of_host(self, host: str) -> Secret | None:
        """Return the credential that is bound to an exact host."""
        return await self._from_keychain(f"host:{host}")

    async def of_server(self, name: str) -> Secret | None:
        """Return the secret of an MCP server."""
        return await self._from_keychain(f"mcp:{name}")

    async def set(self, account: str, secret: Secret) -> str:
        """Store a secret in the keychain; return the full account name."""
        name = self.account_to_set(account)
        _require_usable(name, secret.reveal())
        self.remember(name, secret)
        if not await asyncio.to_thread(self._write, name, secret):
            raise Unavailable(
                Code.KEYCHAIN_UNAVAILABLE,
                "No keychain can store the key; unlock it, or set the key in the "
                f"environment: {', '.join(self._variables_of(name.partition(':')[0]))}.",
            )
        return name

    def account_to_set(self, text: str) -> str:
        """Return the full account name; refuses one that no provider, server or host can use."""
        name = whole_account(text)
        kind = name.partition(":")[0]
        if self._variables and kind not in {*self._variables, "mcp", "host"}:
            raise Invalid(
                Code.INVALID_INPUT,
                f"No provider uses a key of that name{did_you_mean(kind, self._variables)}; keys "
                f"are for {', '.join(sorted(self._variables))}, mcp:NAME and host:NAME.",
                {"field": "key"},
            )
        return name

    async def remove(self, account: str) -> str:
        """Delete a secret from the keychain; return the full account name."""
        name = whole_account(account)
        if await asyncio.to_thread(self._keychain.read, name) is None:
            raise NotFound(
                Code.KEY_NOT_FOUND, "The keychain has no such key; `holdfast key list` shows all."
            )
        if not await asyncio.to_thread(self._keychain.remove, name):
            raise Unavailable(Code.KEYCHAIN_UNAVAILABLE, "The keychain denies access; unlock it.")
        return name

    async def list(self) -> tuple[StoredSecret, ...]:
        """Return all secrets that can be found, those of the keychain first."""
        kept = await asyncio.to_thread(self._read_all)
        found = [
            StoredSecret(account=account, origin="keychain", ending=_ending(value))
            for account, value in kept
        ]
        for provider in sorted(self._variables):
            for variable in self._variables_of(provider):
                if value := self._environment.get(variable, "").strip():
                    account = f"{provider}:{USUAL_KEY}"
                    found.append(
                        StoredSecret(account=account, origin=variable, ending=_ending(value))
                    )
        return tuple(found)

    async def _from_keychain(self, account: str) -> Secret | None:
        value = await asyncio.to_thread(self._keychain.read, account)
        return self._register(account, value) if value else None

    def _register(self, name: str, value: str) -> Secret:
        secret = Secret(value)
        self.remember(name, secret)
        return secret

    def _variables_of(self, provider: str) -> tuple[str, str]:
        usual = f"{re.sub('[^A-Za-z0-9]', '_', provider).upper()}_API_KEY"
        return f"HOLDFAST_{usual}", self._variables.get(provider, usual)

    def _secret_variables(self) -> Iterable[str]:
        customary = {*self._variables.values(), "HOLDFAST_KEY"}
        # Also of unknown providers, because a variable with this suffix holds a key.
        return [
            name
            for name, value in self._environment.items()
            if value.strip() and (name in customary or name.endswith("_API_KEY"))
        ]

    def _write(self, account: str, secret: Secret) -> bool:
        if not self._keychain.write(account, secret.reveal()):
            return False
        accounts = {*self._accounts(), account}
        self._keychain.write(_INDEX, "\n".join(sorted(accounts)))
        return True

    def _accounts(self) -> Iterable[str]:
        return (self._keychain.read(_INDEX) or "").split()

    def _read_all(self) -> Iterable[tuple[str, str]]:
        # Also accounts missing from the index, because other programs can store a key there.
        usual = (f"{provider}:{USUAL_KEY}" for provider in self._variables)
        names = sorted({*self._accounts(), *usual})
        return [(name, value) for name in names if (value := self._keychain.read(name))]


def whole_account(text: str) -> str:
    """Return the full account name; a provider alone means its default key."""
    account = f"{text}:{USUAL_KEY}" if _PROVIDER.fullmatch(text) else text
    if _ACCOUNT.fullmatch(account) is None:
        raise Invalid(
            Code.INVALID_INPUT,
            "Name a key by its provider (openai), provider and key (openai:work), MCP "
            "server (mcp:NAME) or host (host:NAME).",
            {"field": "key"},
        )
    return account


def _require_usable(account: str, value: str) -> None:
    is_for_provider = not account.startswith(("mcp:", "host:"))
    # A key is sent in a header, where a blank or a line break would end it (header injection).
    fits = value.isascii() and value.isprintable() and " " not in value if is_for_provider else True
    if not value or "\x00" in value or len(value.encode("utf-8", "replace")) > LARGEST or not fits:
        raise Invalid(
            Code.INVALID_INPUT,
            "This is not a valid key: it is empty, longer than 16 KiB, or has an invalid "
            "character. Copy it again, without spaces and line breaks.",
            {"field": "secret"},
        )


def _ending(value: str) -> str:
    return value[-4:] if len(value) >= _LONG_ENOUGH else ""
