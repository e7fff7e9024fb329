"""The file `token` of a home, the local token's secret, and `home-id`, which identifies the home.

All checks use the open file descriptor and not the path, which prevents TOCTOU races.
"""

import asyncio
import errno
import os
import re
import secrets
import socket
import stat
from pathlib import Path
from typing import Final

from holdfast.domain.errors import Code, Denied, HoldfastError, StorageFull
from holdfast.domain.tokens import is_secret
from holdfast.store.sqlite.files import alone_in, sync_folder

FILE_NAME: Final = "token"
ID_NAME: Final = "home-id"
_LARGEST: Final = 1 << 10
_OTHERS: Final = 0o077
_READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ID: Final = re.compile(r"[a-z0-9-]{1,64}")
_MAKING: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SecretFile:
    """Token file of a home; written atomically, and never read through a symbolic link."""

    def __init__(self, home: Path, *, is_shared: bool = False) -> None:
        """`is_shared` is true if other homes may use the same store."""
        self._is_shared = is_shared
        self._path = home / FILE_NAME
        self._draft = home / f".{FILE_NAME}.new"

    async def read(self) -> str | None:
        return await asyncio.to_thread(self._read)

    async def home_id(self) -> str:
        return await asyncio.to_thread(self._home_id) if self._is_shared else ""

    async def put(self, secret: str, *, instead_of: str | None) -> str:
        return await asyncio.to_thread(self._put, secret, instead_of)

    def _read(self) -> str | None:
        text = self._text(self._path)
        if text is not None and not is_secret(text):
            raise _unsafe(self._path, "does not hold a token")
        return text

    def _home_id(self) -> str:
        path = self._path.with_name(ID_NAME)
        try:
            # Under a lock, so that all processes of a home use the same id.
            with alone_in(path.parent):
                text = self._text(path)
                if text is None:
                    text = _new_home_id()
                    self._write(text)
                    os.replace(self._draft, path)
                    sync_folder(path.parent)
        except OSError as error:
            raise _write_error(path, error) from error
        if _ID.fullmatch(text) is None:
            raise _unsafe(path, "does not hold the id of a home")
        return text

    def _text(self, path: Path) -> str | None:
        """Return the content of a private file; raise for a symbolic link or a permissive mode."""
        try:
            descriptor = os.open(path, _READING)
        except FileNotFoundError:
            return None
        except OSError as error:
            # O_NOFOLLOW reports a symbolic link with one of these codes.
            is_link = error.errno in {errno.ELOOP, errno.EMLINK}
            problem = "is a link" if is_link else f"cannot be read: {error.strerror}"
            raise _unsafe(path, problem) from error
        try:
            _judge(path, os.fstat(descriptor))
            content = os.read(descriptor, _LARGEST)
        finally:
            os.close(descriptor)
        return content.decode("ascii", "replace").strip()

    def _put(self, secret: str, instead_of: str | None) -> str:
        try:
            with alone_in(self._path.parent):
                held = self._read()
                if held is not None and held != instead_of:
                    return held
                self._write(secret)
                # Replaces a symbolic link instead of following it.
                os.replace(self._draft, self._path)
                sync_folder(self._path.parent)
        except OSError as error:
            raise _write_error(self._path, error) from error
        return secret

    def _write(self, secret: str) -> None:
        # Left by a process that crashed here; the lock excludes live processes.
        self._draft.unlink(missing_ok=True)
        descriptor = os.open(self._draft, _MAKING, 0o600)
        try:
            # Set explicitly, because the mode of `open` depends on the umask.
            os.fchmod(descriptor, 0o600)
            os.write(descriptor, f"{secret}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _judge(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise _unsafe(path, "is not a file")
    if status.st_uid != os.geteuid():
        raise _unsafe(path, "belongs to another user")
    if mode & _OTHERS:
        # Not repaired, because other users may have read the secret already.
        raise _unsafe(path, f"could be read by others (its mode is {mode:04o})")


def _new_home_id() -> str:
    """Return a unique id that starts with the host name for readability."""
    machine = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().partition(".")[0].lower())
    return f"{machine[:32]}-{secrets.token_hex(8)}".lstrip("-")


def _unsafe(path: Path, problem: str) -> Denied:
    content = "token" if path.name == FILE_NAME else "id"
    return Denied(
        Code.TOKEN_FILE_UNSAFE,
        f"{path} {problem}, so its {content} is not used; remove it, and the next start of "
        "the server makes a new one.",
        {"path": str(path)},
    )


def _write_error(path: Path, error: OSError) -> HoldfastError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFull(Code.STORAGE_FULL, "The disk is full; free some space and try again.")
    return Denied(Code.STORE_UNWRITABLE, f"{path} cannot be written: {error.strerror}.")
