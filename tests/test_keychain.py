"""The keychain: only one that keeps secrets secret, and silence where it fails."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import RunScope, keychain, open_holdfast
from tests.keychains import Known, Unknown, using


@pytest.fixture(autouse=True)
def session_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be on a desktop."""
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")


@pytest.fixture
def backend() -> Iterator[Known]:
    """Use the keychain that we trust."""
    backend = Known()
    with using(backend):
        yield backend


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
        "the keychain could not be read",
        "the keychain did not store the secret",
    ]
    assert "secret" not in caplog.messages[0]


def test_what_is_removed_is_gone(backend: Known, caplog: pytest.LogCaptureFixture) -> None:
    keychain.write("openai:default", "s3cr3t")

    backend.is_locked = True
    assert not keychain.remove("openai:default")
    backend.is_locked = False
    assert keychain.remove("openai:default")
    assert not keychain.remove("openai:default")

    assert backend.entries == {}
    assert caplog.messages == ["the keychain did not delete the secret"] * 2
    assert "s3cr3t" not in caplog.text


def test_an_unknown_keychain_is_not_trusted() -> None:
    backend = Unknown()

    with using(backend):
        assert not keychain.is_available()
        assert (keychain.read("a"), keychain.write("a", "b")) == (None, False)
        assert not keychain.remove("a")

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
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await house.open()
        assert house.key_source == "keychain"

    assert "key" not in os.listdir(home)
    assert list(backend.entries) == [("holdfast", f"store:{home}")]
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        assert await house.read(session.id) == ()
