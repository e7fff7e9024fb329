"""`server.json` in the home: where a running server is found by other programs."""

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
# How long a home may be without a card while a second server runs in it.
RECHECK_SECONDS: Final = 2.0

Form = dict[str, Any]


class ServerFile:
    """Our own card. Its file is locked as long as we live, so a dead server's is known as such."""

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
        """Show our card, whole or not at all, unless another server's is there; return that one."""
        with alone_in(self._path.parent):
            other = _read_live(self._path)
            if other == self.form:
                return None
            if other is None:
                self._write()
            return other

    async def keep(self) -> None:
        """Show our card as soon as no other server's is there any more."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            # Perhaps the disk is full; the next time it may not be.
            with suppress(OSError):
                self.claim()

    def withdraw(self) -> None:
        """Take our card away; what others put there stays."""
        with suppress(OSError), alone_in(self._path.parent):
            if _parse(self._path.read_bytes()) == self.form:
                self._path.unlink()
        self._let_go()

    def _write(self) -> None:
        draft = self._path.with_name(f".{SERVER_FILE}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(draft, flags, 0o600)
        try:
            # Locked before it has its name: nobody can take it for a dead server's.
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
    """Return the card of the server that runs in a home."""
    return _read_live(home / SERVER_FILE)


def _read_live(path: Path) -> Form | None:
    """Return the card of a server that lives."""
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
    # One without a version is of a server that knew no lock; there the process has to tell.
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
        # Somebody else's, and alive.
        return True
    return True
