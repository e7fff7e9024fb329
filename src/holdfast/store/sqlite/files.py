"""The folder and the files of the store: who may read them, and whether the disk keeps promises.

Only the file system is judged here; what stands in the files is not.
"""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.domain.errors import Code, Conflict, Denied, Invalid

# Names as in /proc/self/mountinfo. A network file system breaks SQLite's shared memory and locks;
# memory forgets everything at the next boot, so nothing on it may be called saved.
UNSUITABLE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph", "glusterfs", "lustre"}
    | {"tmpfs", "ramfs", "devtmpfs", "autofs"}
)
MOUNTS: Final = Path("/proc/self/mountinfo")

# Where SQLite keeps its shared locks: every open connection holds one while it is in WAL mode.
_LOCK_START: Final = 0x4000_0002
_LOCK_LENGTH: Final = 510


def private_folder(path: Path) -> Path:
    """Return the folder, made if it is missing, readable by its owner only."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise Invalid(Code.NOT_A_FOLDER, f"{path} must be a folder, and not a link to one.")
        # Set at every start, because an older umask or a copy may have opened it.
        path.chmod(0o700)
    except FileExistsError:
        raise Invalid(Code.NOT_A_FOLDER, f"{path} is not a folder.") from None
    except PermissionError as error:
        raise Denied(
            Code.STORE_UNWRITABLE, f"{path} cannot be written; choose another HOLDFAST_HOME."
        ) from error
    except OSError as error:
        raise Denied(
            Code.STORE_UNWRITABLE, f"{path} cannot be used: {error.strerror}; choose another."
        ) from error
    return path


def unusable_path_error(path: Path) -> str | None:
    """Return what would keep a folder from being made, or written in; it is left as it was."""
    nearest = next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
    try:
        if nearest == path and not stat.S_ISDIR(path.lstat().st_mode):
            return f"{path} must be a folder, and no link to one; choose another HOLDFAST_HOME."
        # Asked of the disk itself: permissions alone do not say what it lets itself be written.
        os.rmdir(tempfile.mkdtemp(prefix=".holdfast-", dir=nearest))
    except OSError as error:
        return f"{path} cannot be used: {error.strerror}; choose another HOLDFAST_HOME."
    return None


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from looking and writing at the same moment."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def private_file(path: Path) -> bool:
    """See to it that a private file exists; tell whether it was made just now.

    The file is made before SQLite sees it, because its companions inherit this mode.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(path, flags, 0o600))
        is_new = True
    except FileExistsError:
        is_new = False
    except OSError as error:
        raise Denied(Code.STORE_UNWRITABLE, f"{path} cannot be made: {error.strerror}.") from error
    for suffix in ("", "-wal", "-shm", "-reserve", "-anchor"):
        _lock_down(Path(f"{path}{suffix}"))
    return is_new


def require_plain_file(path: Path) -> None:
    """Refuse a link: somebody may have planted it, to have us write or read elsewhere."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise Invalid(Code.NOT_A_FILE, f"{path} must be a file, and not a link.")


@contextmanager
def exclusively(store: Path) -> Iterator[None]:
    """Keep every other process out of the store; refused while one has it open.

    Works on a file that cannot be read, too. Nothing in this process may open the store inside
    the block: closing it would let go of the lock.
    """
    try:
        descriptor = os.open(store, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise _unusable(store, error) from error
    try:
        _lock(store, descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock(store: Path, descriptor: int) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCK_LENGTH, _LOCK_START)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EAGAIN}:
            raise _unusable(store, error) from error
        raise Conflict(
            Code.STORE_IN_USE,
            "Another process has the store open; stop the server and leave every chat first.",
        ) from None


def _unusable(store: Path, error: OSError) -> Denied:
    return Denied(Code.STORE_UNWRITABLE, f"{store} cannot be opened: {error.strerror}.")


def sync_file(path: Path) -> None:
    """See to it that what was written is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """See to it that the names in the folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_down(name: Path) -> None:
    try:
        require_plain_file(name)
        name.chmod(0o600)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Denied(
            Code.STORE_UNWRITABLE, f"{name} cannot be made private: {error.strerror}."
        ) from error


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the file system that holds the path, where the system tells."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    best: tuple[int, str | None] = (-1, None)
    target = path.resolve().parts
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        point = Path(_unescaped(fields[4])).parts
        # The later of two mounts on one point is the visible one.
        if target[: len(point)] == point and len(point) >= best[0]:
            best = (len(point), after.split(" ")[0])
    return best[1]


def require_suitable(path: Path, mounts: Path = MOUNTS) -> None:
    """Refuse a file system on which "saved" would not be true."""
    kind = file_system_of(path, mounts)
    if kind is not None and (kind in UNSUITABLE or kind.startswith("fuse.")):
        raise Denied(
            Code.UNSUITABLE_FILE_SYSTEM,
            f"{path} is on a {kind} file system, which cannot keep a store safe; "
            "put HOLDFAST_HOME on a local disk.",
            {"file_system": kind},
        )


def _unescaped(text: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text
