"""Keychains for tests, in memory or in a file: of a kind that nobody knows, or of one we trust.

A process of its own uses one when `PYTHON_KEYRING_BACKEND` names it.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import keyring
from keyring.backend import KeyringBackend
from keyring.errors import KeyringError, PasswordSetError

ENTRIES = "HOLDFAST_TEST_KEYCHAIN"


class Unknown(KeyringBackend):
    """A keychain in memory that can be locked, of a kind that nobody knows."""

    # Below every other, so that none is chosen unless a test says so.
    priority = -1

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
        if self.is_locked:
            raise OSError("what a desktop's bus says, about s3cr3t")
        del self.entries[service, username]


class Known(Unknown):
    """The same, under the name of one that keeps secrets secret."""

    __module__ = "keyring.backends.SecretService"
    __qualname__ = "Keyring"


class Filled(Known):
    """A trusted one for a process of its own, filled from the file that its environment names."""

    __module__ = "keyring.backends.SecretService"
    __qualname__ = "Keyring"

    def __init__(self) -> None:
        super().__init__()
        # The library makes one of each kind that it knows, in other tests, too.
        if file := os.environ.get(ENTRIES):
            kept = json.loads(Path(file).read_text("utf-8"))
            self.entries = {("holdfast", account): secret for account, secret in kept.items()}


@contextmanager
def using(backend: KeyringBackend) -> Iterator[None]:
    """Have this process use a keychain, and leave everything as it was."""
    before = keyring.get_keyring()
    keyring.set_keyring(backend)
    try:
        yield
    finally:
        keyring.set_keyring(before)
