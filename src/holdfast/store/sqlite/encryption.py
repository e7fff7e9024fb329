"""Encryption key of the store: lookup and creation.

Sources in order: `HOLDFAST_KEY`, the keychain, the file `key` beside the store. A missing key never
causes a new store to be created.
"""

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from holdfast.domain.errors import Code, Invalid, Unavailable
from holdfast.store.sqlite.files import require_plain_file

_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")

Reader = Callable[[str], str | None]
Keeper = Callable[[str, str], bool]


class StoreKey(Struct, frozen=True):
    """A key and its source; `repr` hides the key from logs and tracebacks."""

    source: str
    value: bytes | None

    def __repr__(self) -> str:
        return f"StoreKey(source={self.source!r})"


class KeySources(Struct, frozen=True, kw_only=True):
    """Possible sources of a store key."""

    environment: str | None
    read_keychain: Reader
    keep_in_keychain: Keeper
    encryption: str = "auto"


def load_store_key(home: Path, sources: KeySources, *, is_new: bool) -> StoreKey:
    """Return the key of the store in a home; creates one for a new store."""
    account = f"store:{home}"
    if sources.environment is not None:
        return StoreKey("environment", _parse(sources.environment, "HOLDFAST_KEY"))
    if sources.encryption == "off" and is_new:
        return StoreKey("off", None)
    kept = sources.read_keychain(account)
    if kept is not None:
        return StoreKey("keychain", _parse(kept, "the keychain's entry"))
    if sources.encryption == "keychain" and not is_new:
        raise _missing(home)
    file = home / "key"
    if os.path.lexists(file):
        return StoreKey("keyfile", _parse(_read(file), str(file)))
    if not is_new:
        raise _missing(home)
    return _create_key(file, account, sources)


def _create_key(file: Path, account: str, sources: KeySources) -> StoreKey:
    # A random raw key, because a passphrase would need key derivation at every open.
    value = secrets.token_bytes(32)
    if sources.keep_in_keychain(account, value.hex()):
        return StoreKey("keychain", value)
    if sources.encryption == "keychain":
        raise Unavailable(
            Code.KEYCHAIN_UNAVAILABLE,
            "There is no keychain for the store's key; set HOLDFAST_KEY or "
            '[store] encryption = "auto".',
        )
    return StoreKey("keyfile", _write_key_file(file, value))


def _write_key_file(file: Path, value: bytes) -> bytes:
    """Write the key file, or return the key that another process created concurrently."""
    draft = file.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(value.hex() + "\n")
            stream.flush()
            # Fsync, because losing the key in a power failure loses every session.
            os.fsync(stream.fileno())
        # A link never overwrites: the first process wins the race, with a complete file.
        os.link(draft, file)
    except FileExistsError:
        return _parse(_read(file), str(file))
    finally:
        draft.unlink()
    _sync_folder(file.parent)
    return value


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(file: Path) -> str:
    require_plain_file(file)
    file.chmod(0o600)
    return file.read_text(errors="replace").strip()


def _parse(text: str, where: str) -> bytes:
    if _HEX.fullmatch(text.strip()) is None:
        raise Invalid(
            Code.STORE_KEY_INVALID, f"{where} must hold the store's key as 64 hexadecimal digits."
        )
    return bytes.fromhex(text.strip())


def _missing(home: Path) -> Unavailable:
    return Unavailable(
        Code.STORE_KEY_MISSING,
        f"The key of the store in {home} is missing; set HOLDFAST_KEY, or bring back its `key` "
        "file or keychain entry.",
    )
