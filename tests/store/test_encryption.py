"""Where the key of a store comes from, and that none is ever made for a store that has one."""

import secrets
import stat
from pathlib import Path

import pytest

from holdfast.domain.errors import Code, HoldfastError, Invalid, Unavailable
from holdfast.store.sqlite.encryption import KeySources, StoreKey, load_store_key
from tests.marks import each_case

HEX = "0123456789abcdef" * 4


class Keychain:
    """A keychain of our making; a locked one takes nothing."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.entries: dict[str, str] = {}
        self._is_open = is_open

    def read(self, account: str) -> str | None:
        return self.entries.get(account)

    def keep(self, account: str, secret: str) -> bool:
        if self._is_open:
            self.entries[account] = secret
        return self._is_open


def _sources(
    chain: Keychain, *, environment: str | None = None, encryption: str = "auto"
) -> KeySources:
    return KeySources(
        environment=environment,
        read_keychain=chain.read,
        keep_in_keychain=chain.keep,
        encryption=encryption,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a home."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@each_case("is_new", [True, False])
@each_case("encryption", ["auto", "keychain", "off"])
@each_case("text", [HEX, HEX.upper(), f" {HEX}\n"])
def test_the_environment_comes_first(
    folder: Path, text: str, encryption: str, is_new: bool
) -> None:
    chain = Keychain()
    chain.entries[f"store:{folder}"] = "ff" * 32
    (folder / "key").write_text("ee" * 32)
    sources = _sources(chain, environment=text, encryption=encryption)

    key = load_store_key(folder, sources, is_new=is_new)

    assert key == StoreKey("environment", bytes.fromhex(HEX))


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("encryption", ["auto", "keychain"])
def test_the_keychain_comes_before_the_file(folder: Path, is_new: bool, encryption: str) -> None:
    chain = Keychain()
    chain.entries[f"store:{folder}"] = HEX
    (folder / "key").write_text("ee" * 32)

    key = load_store_key(folder, _sources(chain, encryption=encryption), is_new=is_new)

    assert key == StoreKey("keychain", bytes.fromhex(HEX))


def test_the_file_comes_last_and_is_locked(folder: Path) -> None:
    (folder / "key").write_text(HEX + "\n")
    (folder / "key").chmod(0o644)

    key = load_store_key(folder, _sources(Keychain()), is_new=False)

    assert key == StoreKey("keyfile", bytes.fromhex(HEX))
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600


def test_a_new_key_goes_into_the_keychain_where_there_is_one(folder: Path) -> None:
    chain = Keychain()

    key = load_store_key(folder, _sources(chain), is_new=True)

    assert key.source == "keychain"
    assert chain.entries == {f"store:{folder}": (key.value or b"").hex()}
    assert list(folder.iterdir()) == []


def test_without_a_keychain_a_new_key_goes_into_a_private_file(folder: Path) -> None:
    locked = Keychain(is_open=False)

    key = load_store_key(folder, _sources(locked), is_new=True)

    file = folder / "key"
    assert (key.source, file.read_text()) == ("keyfile", f"{(key.value or b'').hex()}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(folder.iterdir()) == [file]
    assert load_store_key(folder, _sources(locked), is_new=False) == key


def test_new_keys_differ(tmp_path: Path) -> None:
    keys = set()
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        keys.add(load_store_key(tmp_path / name, _sources(Keychain()), is_new=True).value)

    assert {len(key or b"") for key in keys} == {32}
    assert len(keys) == 3


def test_the_first_of_two_that_make_a_key_at_once_wins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process writes its key between our look for one and our own writing."""

    def meanwhile(count: int) -> bytes:
        (folder / "key").write_text(HEX)
        return b"\xff" * count

    monkeypatch.setattr(secrets, "token_bytes", meanwhile)

    key = load_store_key(folder, _sources(Keychain(is_open=False)), is_new=True)

    assert key == StoreKey("keyfile", bytes.fromhex(HEX))
    assert [path.name for path in folder.iterdir()] == ["key"]


def test_a_new_store_may_be_plain(folder: Path) -> None:
    chain = Keychain()

    assert load_store_key(folder, _sources(chain, encryption="off"), is_new=True) == StoreKey(
        "off", None
    )
    assert (chain.entries, list(folder.iterdir())) == ({}, [])


@pytest.mark.parametrize("encryption", ["auto", "keychain", "off"])
def test_a_store_whose_key_is_missing_gets_no_new_one(folder: Path, encryption: str) -> None:
    chain = Keychain()

    with pytest.raises(Unavailable) as caught:
        load_store_key(folder, _sources(chain, encryption=encryption), is_new=False)

    assert caught.value.code is Code.STORE_KEY_MISSING
    assert (chain.entries, list(folder.iterdir())) == ({}, [])


def test_who_wants_the_keychain_gets_no_file(folder: Path) -> None:
    locked = Keychain(is_open=False)

    with pytest.raises(Unavailable) as made:
        load_store_key(folder, _sources(locked, encryption="keychain"), is_new=True)
    (folder / "key").write_text(HEX)
    with pytest.raises(Unavailable) as found:
        load_store_key(folder, _sources(locked, encryption="keychain"), is_new=False)

    assert made.value.code is Code.KEYCHAIN_UNAVAILABLE
    assert found.value.code is Code.STORE_KEY_MISSING


@each_case("text", ["", "zz", HEX[:-1], HEX + "0", "g" * 64, "ä" * 32])
@each_case("where", ["environment", "keychain", "file"])
def test_a_key_that_is_none_is_refused_without_showing_it(
    folder: Path, where: str, text: str
) -> None:
    chain = Keychain()
    if where == "keychain":
        chain.entries[f"store:{folder}"] = text
    if where == "file":
        (folder / "key").write_text(text)
    sources = _sources(chain, environment=text if where == "environment" else None)

    with pytest.raises(Invalid) as caught:
        load_store_key(folder, sources, is_new=False)

    assert caught.value.code is Code.STORE_KEY_INVALID
    assert not text or text not in str(caught.value.body())


@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_link_in_the_place_of_the_key_is_refused(folder: Path, is_dangling: bool) -> None:
    target = folder.with_name("target")
    if not is_dangling:
        target.write_text(HEX)
        target.chmod(0o644)
    (folder / "key").symlink_to(target)

    for is_new in (True, False):
        with pytest.raises(HoldfastError) as caught:
            load_store_key(folder, _sources(Keychain(is_open=False)), is_new=is_new)
        assert caught.value.code is Code.NOT_A_FILE
    assert is_dangling or stat.S_IMODE(target.stat().st_mode) == 0o644


def test_a_key_shows_itself_nowhere() -> None:
    assert repr(StoreKey("keyfile", bytes.fromhex(HEX))) == "StoreKey(source='keyfile')"
