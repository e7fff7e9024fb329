"""Folder and files of the store: permissions, locks, fsync and file system type.

Checks only the file system, not the content of the files.
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

# Types as in /proc/self/mountinfo. Network file systems break SQLite's shared memory and locks; a
# RAM file system is lost at reboot, so nothing on it is durable.
UNSUITABLE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph", "glusterfs", "lustre"}
    | {"tmpfs", "ramfs", "devtmpfs", "autofs"}
)
MOUNTS: Final = Path("/proc/self/mountinfo")

# Byte range of SQLite's shared lock, which every open connection in WAL mode holds.
_LOCK_START: Final = 0x4000_0002
_LOCK_LENGTH: Final = 510


def private_folder(path: Path) -> Path:
    """Return the folder with mode 0700; creates it if missing."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise Invalid(Code.NOT_A_FOLDER, f"{path} must be a folder, and not a link to one.")
        # Set at every start, because an older umask or a copy may have widened the mode.
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
    """Return why a folder cannot be created or written, or None; leaves it unchanged."""
    nearest = next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
    try:
        if nearest == path and not stat.S_ISDIR(path.lstat().st_mode):
            return f"{path} must be a folder, not a symbolic link; choose another HOLDFAST_HOME."
        # Try a write, because mode bits do not show a read-only or full disk.
        os.rmdir(tempfile.mkdtemp(prefix=".holdfast-", dir=nearest))
    except OSError as error:
        return f"{path} cannot be used: {error.strerror}; choose another HOLDFAST_HOME."
    return None


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the folder, to make check-then-write atomic across processes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def private_file(path: Path) -> bool:
    """Create the file with mode 0600 if missing; return whether it was created.

    Call this before SQLite opens the file, because its companion files inherit the mode.
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
    """Raise for a symbolic link, because an attacker may redirect reads or writes with it."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise Invalid(Code.NOT_A_FILE, f"{path} must be a file, and not a link.")


@contextmanager
def exclusively(store: Path) -> Iterator[None]:
    """Lock every other process out of the store; raise if one has it open.

    Also works on an unreadable store. This process must not open the store inside the block,
    because closing any descriptor of the file releases the POSIX lock.
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
    """Fsync a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that new names in it are durable."""
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
    """Return the type of the file system that holds the path, or None if unknown."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    best: tuple[int, str | None] = (-1, None)
    target = f"{path.resolve()}/"
    for line in lines:
        before, _, after = line.partition(" - ")
        point = _unescape(before.split(" ")[4]).rstrip("/") + "/"
        # Of two mounts on one mount point, the later one is visible.
        if target.startswith(point) and len(point) >= best[0]:
            best = (len(point), after.split(" ")[0])
    return best[1]


def require_suitable(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise for a file system without durable fsync or reliable locks."""
    kind = file_system_of(path, mounts)
    if kind is not None and (kind in UNSUITABLE or kind.startswith("fuse.")):
        raise Denied(
            Code.UNSUITABLE_FILE_SYSTEM,
            f"{path} is on a {kind} file system, which cannot keep a store safe; "
            "put HOLDFAST_HOME on a local disk.",
            {"file_system": kind},
        )


def _unescape(text: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text
