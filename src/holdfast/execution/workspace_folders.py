"""Workspaces: a private folder for each session, below the home directory."""

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.domain.errors import (
    Code,
    HoldfastError,
    StorageFull,
    Unavailable,
    out_of_memory,
)
from holdfast.domain.ids import Owner, SessionId
from holdfast.store.sqlite.files import private_folder

_COPY: Final = ".copy"


class WorkspaceFolders:
    """Implements `FolderProvider`: private folders of sessions."""

    def __init__(self, home: Path) -> None:
        self._root = home / "workspaces"

    def of(self, owner: Owner, session_id: SessionId) -> str:
        """Return the folder of a session; creates it if it is missing."""
        try:
            private_folder(self._root)
            private_folder(self._of_owner(owner))
            return str(private_folder(self._of_owner(owner) / session_id))
        except MemoryError as error:
            raise out_of_memory() from error

    def remove(self, owner: Owner, session_id: SessionId) -> None:
        """Remove the folder of a session and the files beside it, if they exist."""
        folder = self._of_owner(owner) / session_id
        # Includes the homes of its MCP servers, which are siblings, out of reach of its commands.
        for each in (folder, folder.with_name(f"{folder.name}.servers")):
            shutil.rmtree(each, ignore_errors=True)
        # Tools write their attempt records beside the folder, to leave the session's files alone.
        for ending in (".attempt", ".attempt.new"):
            with suppress(OSError):
                folder.with_name(f"{folder.name}{ending}").unlink()
        # Left behind by a process that died during a copy.
        for copy in folder.parent.glob(f"{folder.name}.*{_COPY}"):
            self.discard(str(copy))

    def copied(self, owner: Owner, session_id: SessionId) -> str:
        """Copy the folder of a session; preserves symlinks and skips special files."""
        folder = Path(self.of(owner, session_id))
        copy = ""
        try:
            copy = tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=_COPY, dir=folder.parent)
            # Race: a tool may change the folder; files that vanish or cannot be read are skipped.
            with suppress(shutil.Error):
                shutil.copytree(
                    folder,
                    copy,
                    symlinks=True,
                    ignore=_special,
                    copy_function=_copy_file,
                    dirs_exist_ok=True,
                )
        except OSError as error:
            self.discard(copy)
            raise _refusal(error) from error
        except BaseException:
            self.discard(copy)
            raise
        return copy

    def adopt(self, copy: str, owner: Owner, session_id: SessionId) -> str:
        """Rename a copy to the folder of a session; idempotent."""
        folder = self._of_owner(owner) / session_id
        if os.path.isdir(copy):
            # Left behind by a session whose creation was never committed.
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(copy, folder)
        return self.of(owner, session_id)

    def discard(self, copy: str) -> None:
        """Remove a copy that was not adopted, if it exists."""
        if copy:
            shutil.rmtree(copy, ignore_errors=True)

    def _of_owner(self, owner: Owner) -> Path:
        # Hashed against path traversal (an owner named `..`) and because a file system may be
        # case-insensitive.
        return self._root / hashlib.sha256(owner.encode()).hexdigest()[:16]


def _special(folder: str, names: Sequence[str]) -> set[str]:
    """Return the names of pipes, sockets and devices, because reading one may block forever."""
    return {name for name in names if not _is_copyable(os.path.join(folder, name))}


def _is_copyable(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _copy_file(source: str, target: str) -> None:
    try:
        shutil.copy2(source, target, follow_symlinks=False)
    except OSError as error:
        # Not an `OSError`, because `copytree` collects those and skips the file.
        if error.errno in _WANTS:
            raise _refusal(error) from error
        raise


# Resource errors that would affect every other file as well.
_WANTS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def _refusal(error: OSError) -> HoldfastError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(
            Code.STORAGE_FULL,
            "There is not enough disk space to copy the session's folder; free some space.",
        )
    return Unavailable(
        Code.STORE_UNWRITABLE, f"The session's folder cannot be copied now: {error.strerror}."
    )
