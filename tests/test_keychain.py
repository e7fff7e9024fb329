"""The keychain: only one that keeps secrets secret, and silence where it fails."""

import os
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import KeyringError, PasswordSetError

from holdfast import Scope, keychain, open_holdfast


class Unknown(KeyringBackend):
    """A keychain in memory that can be locked, of a kind that nobody knows."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[tuple[str, str], str] = {}
        self.is_locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.is_locked:
            raise KeyringError("locked")
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        if self.is_locked:
            raise PasswordSetError("locked")
        self.entries[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.entries[service, username]


class Known(Unknown):
    """The same, under the name of one that keeps secrets secret."""

    __module__ = "keyring.backends.SecretService"
    __qualname__ = "Keyring"


@pytest.fixture(autouse=True)
def session_bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be on a desktop, and leave its keychain as it was."""
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    before = keyring.get_keyring()
    yield
    keyring.set_keyring(before)


@pytest.fixture
def backend() -> Known:
    """Use the keychain that we trust."""
    backend = Known()
    keyring.set_keyring(backend)
    return backend


def test_what_is_kept_is_read_again(backend: Known) -> None:
    assert keychain.is_available()
    assert keychain.read("store:/home") is None

    assert keychain.write("store:/home", "secret")

    assert keychain.read("store:/home") == "secret"
    assert backend.entries == {("holdfast", "store:/home"): "secret"}


def test_a_locked_keychain_is_like_none(backend: Known, caplog: pytest.LogCaptureFixture) -> None:
    backend.is_locked = True

    assert (keychain.read("store:/home"), keychain.write("store:/home", "secret")) == (None, False)
    assert caplog.messages == [
        "the keychain did not answer",
        "the keychain did not take the secret",
    ]
    assert "secret" not in caplog.messages[0]


def test_an_unknown_keychain_is_not_trusted() -> None:
    backend = Unknown()
    keyring.set_keyring(backend)

    assert not keychain.is_available()
    assert (keychain.read("a"), keychain.write("a", "b")) == (None, False)
    assert backend.entries == {}


def test_without_a_session_bus_there_is_none(
    backend: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS")

    assert not keychain.is_available()
    assert (keychain.read("a"), keychain.write("a", "b")) == (None, False)


@pytest.mark.anyio
async def test_the_key_of_a_new_store_goes_into_the_keychain(home: Path, backend: Known) -> None:
    async with open_holdfast(home, scope=Scope.NONE) as house:
        session = await house.open()
        assert house.key_source == "keychain"

    assert "key" not in os.listdir(home)
    assert list(backend.entries) == [("holdfast", f"store:{home}")]
    async with open_holdfast(home, scope=Scope.NONE) as house:
        assert await house.read(session.id) == ()
