"""Workspaces: a private folder for each session, below the home."""

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path

from holdfast.domain.ids import Owner, SessionId
from holdfast.storage.files import private_folder


class Workspaces:
    """Implements the `Folders` that sessions keep their own files in."""

    def __init__(self, home: Path) -> None:
        self._root = home / "workspaces"

    def of(self, owner: Owner, session_id: SessionId) -> str:
        """Return the folder of a session, made if it is missing."""
        private_folder(self._root)
        private_folder(self._of_owner(owner))
        return str(private_folder(self._of_owner(owner) / session_id))

    def remove(self, owner: Owner, session_id: SessionId) -> None:
        """Remove the folder of a session with all that is in it and beside it, if there is one."""
        folder = self._of_owner(owner) / session_id
        shutil.rmtree(folder, ignore_errors=True)
        # Tools note beside it what they are about to do, so that its own files stay its own.
        for ending in (".attempt", ".attempt.new"):
            with suppress(OSError):
                folder.with_name(f"{folder.name}{ending}").unlink()

    def _of_owner(self, owner: Owner) -> Path:
        # By its digest, because an owner may be called `..`, and a disk may not tell `a` from `A`.
        return self._root / hashlib.sha256(owner.encode()).hexdigest()[:16]
