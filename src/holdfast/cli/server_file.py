"""`server.json` in the home folder: how other programs find a running server."""

import asyncio
import fcntl
import json
import os
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from holdfast import __version__
from holdfast.store.sqlite.files import alone_in

SERVER_FILE: Final = "server.json"
SERVER_FILE_LARGEST: Final = 64 << 10
# How often a second server checks whether it can write the file.
RECHECK_SECONDS: Final = 2.0

Form = dict[str, Any]


class ServerFile:
    """This server's file. It is locked while the process lives, so a stale file is detected."""

    def __init__(self, home: Path, url: str) -> None:
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.form: Form = {
            "url": url,
            "pid": os.getpid(),
            "started_at": at,
            "version": __version__,
        }
        self._path = home / SERVER_FILE
        self._file: int | None = None

    def claim(self) -> Form | None:
        """Write the file atomically; if a live server's file exists, return its content instead."""
        with alone_in(self._path.parent):
            other = _read_live(self._path)
            if other == self.form:
                return None
            if other is None:
                self._write()
            return other

    async def keep(self) -> None:
        """Write the file as soon as no other live server's file exists."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            # The disk may be full; the next attempt may succeed.
            with suppress(OSError):
                self.claim()

    def withdraw(self) -> None:
        """Remove our file; a file of another server stays."""
        with suppress(OSError), alone_in(self._path.parent):
            if _parse(self._path.read_bytes()) == self.form:
                self._path.unlink()
        self._let_go()

    def _write(self) -> None:
        draft = self._path.with_name(f".{SERVER_FILE}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(draft, flags, 0o600)
        try:
            # Locked before the rename: otherwise another process could take it for a stale file
            # (race).
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(file, f"{json.dumps(self.form)}\n".encode())
            os.replace(draft, self._path)
        except OSError:
            os.close(file)
            draft.unlink(missing_ok=True)
            raise
        self._let_go()
        self._file = file

    def _let_go(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_server_file(home: Path) -> Form | None:
    """Return the content of the file of the server that runs in a home."""
    return _read_live(home / SERVER_FILE)


def _read_live(path: Path) -> Form | None:
    """Return the content of a file whose server is alive."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    form: Form = {}
    try:
        form = _parse(os.read(file, SERVER_FILE_LARGEST))
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return form
    except OSError:
        return None
    finally:
        os.close(file)
    # A file without a version is from a server without the lock; there the pid is checked.
    return None if "version" in form or not _is_alive(form.get("pid")) else form


def _parse(content: bytes) -> Form:
    try:
        form = json.loads(content)
    except ValueError:
        return {}
    return form if isinstance(form, dict) else {}


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0 or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        # The process belongs to another user, and is alive.
        return True
    return True
