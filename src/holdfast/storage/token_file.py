"""The file `token` beside the store: the local token's secret, for its owner's eyes only.

Every step is judged on the open file and not on its name, so that nothing can be put in its
place between a look and a read.
"""

import asyncio
import errno
import os
import stat
from pathlib import Path
from typing import Final

from holdfast.domain.errors import Code, Denied, HoldfastError, StorageFull
from holdfast.domain.tokens import is_secret
from holdfast.storage.files import alone_in, sync_folder

FILE_NAME: Final = "token"
_LARGEST: Final = 1 << 10
_OTHERS: Final = 0o077
_READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKING: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SecretFile:
    """The file in a home; whole or not there, and never reached through a link."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE_NAME
        self._draft = home / f".{FILE_NAME}.new"

    async def read(self) -> str | None:
        return await asyncio.to_thread(self._read)

    async def put(self, secret: str, *, instead_of: str | None) -> str:
        return await asyncio.to_thread(self._put, secret, instead_of)

    def _read(self) -> str | None:
        try:
            descriptor = os.open(self._path, _READING)
        except FileNotFoundError:
            return None
        except OSError as error:
            # What the system calls too many links is one that we do not follow.
            is_link = error.errno in {errno.ELOOP, errno.EMLINK}
            problem = "is a link" if is_link else f"cannot be read: {error.strerror}"
            raise self._unsafe(problem) from error
        try:
            self._judge(os.fstat(descriptor))
            content = os.read(descriptor, _LARGEST)
        finally:
            os.close(descriptor)
        text = content.decode("ascii", "replace").strip()
        if not is_secret(text):
            raise self._unsafe("does not hold a token")
        return text

    def _judge(self, found: os.stat_result) -> None:
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode):
            raise self._unsafe("is not a file")
        if found.st_uid != os.geteuid():
            raise self._unsafe("belongs to another user")
        if mode & _OTHERS:
            # Not mended: whoever could read it until now may have done so.
            raise self._unsafe(f"could be read by others (its mode is {mode:04o})")

    def _put(self, secret: str, instead_of: str | None) -> str:
        try:
            with alone_in(self._path.parent):
                held = self._read()
                if held is not None and held != instead_of:
                    return held
                self._write(secret)
                # Takes the place of a link, too, and does not follow it.
                os.replace(self._draft, self._path)
                sync_folder(self._path.parent)
        except OSError as error:
            raise self._unwritten(error) from error
        return secret

    def _write(self, secret: str) -> None:
        # Left by somebody who died here; nobody else is here now.
        self._draft.unlink(missing_ok=True)
        descriptor = os.open(self._draft, _MAKING, 0o600)
        try:
            # Whatever the umask took or left.
            os.fchmod(descriptor, 0o600)
            os.write(descriptor, f"{secret}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _unsafe(self, problem: str) -> Denied:
        return Denied(
            Code.TOKEN_FILE_UNSAFE,
            f"{self._path} {problem}, so its token is not used; remove it, and the next start of "
            "the server makes a new one.",
            {"path": str(self._path)},
        )

    def _unwritten(self, error: OSError) -> HoldfastError:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return StorageFull(
                Code.STORAGE_FULL, "The disk is full; free some space and try again."
            )
        return Denied(Code.STORE_UNWRITABLE, f"{self._path} cannot be written: {error.strerror}.")
