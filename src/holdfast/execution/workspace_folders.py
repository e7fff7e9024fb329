"""Workspaces: a private folder for each session, below the home."""

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
    """Implements the `Folders` that sessions keep their own files in."""

    def __init__(self, home: Path) -> None:
        self._root = home / "workspaces"

    def of(self, owner: Owner, session_id: SessionId) -> str:
        """Return the folder of a session, made if it is missing."""
        try:
            private_folder(self._root)
            private_folder(self._of_owner(owner))
            return str(private_folder(self._of_owner(owner) / session_id))
        except MemoryError as error:
            raise out_of_memory() from error

    def remove(self, owner: Owner, session_id: SessionId) -> None:
        """Remove the folder of a session with all that is in it and beside it, if there is one."""
        folder = self._of_owner(owner) / session_id
        # With the homes of its servers, which lie beside it, out of reach for its commands.
        for each in (folder, folder.with_name(f"{folder.name}.servers")):
            shutil.rmtree(each, ignore_errors=True)
        # Tools note beside it what they are about to do, so that its own files stay its own.
        for ending in (".attempt", ".attempt.new"):
            with suppress(OSError):
                folder.with_name(f"{folder.name}{ending}").unlink()
        # Left by a process that died while it copied.
        for copy in folder.parent.glob(f"{folder.name}.*{_COPY}"):
            self.discard(str(copy))

    def copied(self, owner: Owner, session_id: SessionId) -> str:
        """Copy the folder of a session aside; links stay links, and what is no file is left out."""
        folder = Path(self.of(owner, session_id))
        copy = ""
        try:
            copy = tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=_COPY, dir=folder.parent)
            # A tool may work in the folder meanwhile: what vanishes or cannot be read is left out.
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
        """Make a copy the folder of a session; may be repeated."""
        folder = self._of_owner(owner) / session_id
        if os.path.isdir(copy):
            # Of an opening that was never written down.
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(copy, folder)
        return self.of(owner, session_id)

    def discard(self, copy: str) -> None:
        """Remove a copy that nobody has adopted, if it is there."""
        if copy:
            shutil.rmtree(copy, ignore_errors=True)

    def _of_owner(self, owner: Owner) -> Path:
        # By its digest, because an owner may be called `..`, and a disk may not tell `a` from `A`.
        return self._root / hashlib.sha256(owner.encode()).hexdigest()[:16]


def _special(folder: str, names: Sequence[str]) -> set[str]:
    """Return the names of pipes, sockets and devices: to read one may never end."""
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
        # No `OSError`, because those are the files that are left out.
        if error.errno in _WANTS:
            raise _refusal(error) from error
        raise


# What is missing here is missing for every other file as well.
_WANTS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def _refusal(error: OSError) -> HoldfastError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(
            Code.STORAGE_FULL, "The disk is too full to copy the session's folder; make room."
        )
    return Unavailable(
        Code.STORE_UNWRITABLE, f"The session's folder cannot be copied now: {error.strerror}."
    )
