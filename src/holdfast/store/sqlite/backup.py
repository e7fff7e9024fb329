"""Online backup of a store into one file, and restore.

A backup is encrypted with the key of the store and does not contain the key, so back up the key as
well. Restore replaces the whole store and saves the previous one beside it.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from holdfast.domain.errors import (
    Code,
    Conflict,
    Denied,
    HoldfastError,
    Internal,
    Invalid,
    NotFound,
    StorageFull,
)
from holdfast.store.sqlite import checks as sqlite_checks
from holdfast.store.sqlite.connection import (
    APPLICATION_ID,
    Connection,
    cipher_of,
    connect,
    is_plain,
    set_key,
    translate_errors,
)
from holdfast.store.sqlite.files import exclusively, private_file, sync_file, sync_folder
from holdfast.store.sqlite.migrate import newest, up, version
from holdfast.store.sqlite.wal_anchor import SUFFIX


def back_up(store: Path, key: bytes | None, target: Path, *, force: bool = False) -> Path:
    """Write a consistent copy of the store to `target`, atomically.

    Writers are not blocked; the copy is one snapshot. It is verified before it is renamed to
    `target`.
    """
    with clean_failures(target):
        require_target(store, target, force=force)
        with draft_beside(target) as draft:
            _copy_store(store, key, draft)
            name_target(draft, target, force=force)
    return target


def name_target(draft: Path, target: Path, *, force: bool) -> None:
    """Fsync a complete draft, move it to `target` and fsync the folder."""
    sync_file(draft)
    if force:
        os.replace(draft, target)
    else:
        give_name(draft, target)
    sync_folder(target.parent)


def restore(backup: Path, key: bytes | None, store: Path, *, plain: bool = False) -> Path | None:
    """Replace the store with a backup; return the path of the previous store.

    Refused while another process has the store open, if the backup fails verification, and if an
    unencrypted backup would replace an encrypted store, unless `plain` is set.
    """
    require_file(backup)
    if not plain and is_sealed(store):
        require_sealed(backup)
    with clean_failures(store):
        if store.exists():
            with exclusively(store):
                pass
        with draft_beside(store) as draft:
            with backup.open("rb") as source, draft.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            with _of_the_backup():
                _require_restorable(draft, key)
            sync_file(draft)
            kept = _put_in_place(draft, key, store)
            sync_folder(store.parent)
    return kept


def _copy_store(store: Path, key: bytes | None, draft: Path) -> None:
    with translate_errors():
        source = connect(store, key)
        try:
            # Of the same cipher, because a copy by pages keeps what they reserve.
            with open_draft(draft, key, cipher=cipher_of(store)) as copy:
                # One step from one snapshot, because a concurrent write restarts a copy in several
                # steps.
                with copy.raw.backup("main", source.raw, "main") as work:
                    work.step(-1)
                to_single_file(copy)
                _require_sound(copy)
        finally:
            source.close()


@contextmanager
def open_draft(path: Path, key: bytes | None, *, cipher: str | None = None) -> Iterator[Connection]:
    """Open a draft with the key of the store and default settings."""
    connection = Connection(apsw.Connection(str(path)), is_sealed=key is not None)
    try:
        if key is not None:
            set_key(connection.raw, key, cipher=cipher)
        yield connection
    finally:
        connection.close()


def to_single_file(connection: Connection) -> None:
    """Switch the draft to a single file without a write-ahead log."""
    connection.pragma("journal_mode", "delete")
    connection.pragma("synchronous", "FULL")


def _require_sound(connection: Connection) -> None:
    faults = sqlite_checks.faults(connection)
    if faults:
        raise Internal(
            Code.CORRUPT_STORE,
            f"The store is damaged, so no backup was made: {faults[0]} Run `holdfast doctor`.",
            {"faults": faults},
        )


@contextmanager
def _of_the_backup() -> Iterator[None]:
    """Report corruption as a fault of the backup, because the store is untouched."""
    try:
        yield
    except Internal as error:
        if error.code is not Code.CORRUPT_STORE:
            raise
        raise Invalid(
            Code.BACKUP_INVALID,
            "The backup is damaged or cut off and was not restored; the store is unchanged.",
        ) from error


def _require_restorable(draft: Path, key: bytes | None) -> None:
    """Raise if a backup is not a Holdfast store, has a newer schema, or is damaged."""
    with translate_errors(), open_draft(draft, key) as copy:
        if copy.pragma("application_id") != APPLICATION_ID:
            raise Invalid(Code.BACKUP_INVALID, "The file is not a backup of a Holdfast store.")
        found = version(copy)
        if found > newest():
            raise Conflict(
                Code.SCHEMA_NEWER,
                f"The backup has schema {found}, this Holdfast knows {newest()}; install a newer "
                "one.",
                {"backup": found, "program": newest()},
            )
        to_single_file(copy)
        up(copy)
        faults = sqlite_checks.faults(copy)
        if faults:
            raise Invalid(
                Code.BACKUP_INVALID,
                f"The backup does not verify and was not restored: {faults[0]}",
                {"faults": faults},
            )


def _put_in_place(draft: Path, key: bytes | None, store: Path) -> Path | None:
    if not store.exists():
        clear_place(store)
        give_name(draft, store)
        return None
    log = _checkpoint_log(store, key, spare=Path(f"{draft}-log"))
    with exclusively(store):
        kept = free_name(store, "restore")
        # Link, then replace: the store exists at every moment, even after a crash.
        os.link(store, kept)
        with suppress(FileNotFoundError):
            os.rename(log, f"{kept}-wal")
        _remove_log(store)
        os.replace(draft, store)
        # After the replacement: the old store without its log must never verify as complete.
        with suppress(FileNotFoundError):
            os.rename(f"{store}{SUFFIX}", f"{kept}{SUFFIX}")
    return kept


def _checkpoint_log(store: Path, key: bytes | None, *, spare: Path) -> Path:
    """Checkpoint the log that a crash left into the store file; return the path of the log.

    If the store is unreadable, that path is a copy, because SQLite deletes a log it cannot use.
    """
    log = Path(f"{store}-wal")
    if log.exists():
        private_file(spare)
        shutil.copyfile(log, spare)
    try:
        connect(store, key).close()
    except HoldfastError:
        return spare
    return log


def clear_place(store: Path) -> None:
    """Remove the write-ahead log and the anchor of a store that was deleted."""
    _remove_log(store)
    Path(f"{store}{SUFFIX}").unlink(missing_ok=True)


def _remove_log(store: Path) -> None:
    # SQLite would replay a log of another database file into this one.
    for suffix in ("-wal", "-shm"):
        Path(f"{store}{suffix}").unlink(missing_ok=True)


def free_name(store: Path, before: str) -> Path:
    """Return a free path beside the store for its previous version."""
    number = 1
    while (kept := store.with_name(f"{store.name}.before-{before}-{number}")).exists():
        number += 1
    return kept


@contextmanager
def draft_beside(target: Path) -> Iterator[Path]:
    """Yield a private, empty file beside the target; removes it and its companions at the end."""
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    private_file(draft)
    try:
        yield draft
    finally:
        for suffix in ("", "-anchor", "-journal", "-log", "-shm", "-wal"):
            Path(f"{draft}{suffix}").unlink(missing_ok=True)


def give_name(draft: Path, target: Path) -> None:
    """Link the draft to its final name; raise if the name is taken."""
    try:
        os.link(draft, target)
    except FileExistsError:
        raise _exists_error(target) from None


def require_target(store: Path, target: Path, *, force: bool) -> None:
    """Raise if a target exists, or if a backup cannot be written there."""
    if not store.is_file():
        raise NotFound(Code.NOT_A_FILE, f"There is no store at {store} yet; nothing to back up.")
    if not target.parent.is_dir():
        raise Invalid(Code.NOT_A_FOLDER, f"{target.parent} is not a folder; create it first.")
    if target.is_dir():
        raise Invalid(Code.NOT_A_FILE, f"{target} is a folder; name a file in it.")
    # Replacing a device, pipe or symbolic link would break other users of it.
    if os.path.lexists(target) and not stat.S_ISREG(target.lstat().st_mode):
        raise Invalid(Code.NOT_A_FILE, f"{target} is not a file; choose another path.")
    if target.exists() and (not force or target.samefile(store)):
        raise _exists_error(target)
    # The folder also holds the key and the log, which a backup cannot restore.
    if target.exists() and target.parent.samefile(store.parent):
        raise Conflict(
            Code.FILE_EXISTS, f"{target} is in the store's own folder; choose another path."
        )


def require_file(backup: Path) -> None:
    """Raise if a path is not a regular file, or if the file is empty."""
    try:
        found = backup.stat()
    except OSError:
        raise NotFound(Code.BACKUP_INVALID, f"There is no {backup}.") from None
    if not stat.S_ISREG(found.st_mode):
        raise Invalid(Code.NOT_A_FILE, f"{backup} is not a file.")
    if not found.st_size:
        raise Invalid(Code.BACKUP_INVALID, f"{backup} is empty; a backup never is.")


def is_sealed(store: Path) -> bool:
    """Return whether an encrypted store exists at the path."""
    return store.is_file() and store.stat().st_size > 0 and not is_plain(store)


def require_sealed(backup: Path) -> None:
    """Raise if a backup is not encrypted."""
    if is_plain(backup):
        raise Conflict(
            Code.BACKUP_PLAIN,
            f"{backup} is not encrypted, so the restored store would not be either; add --plain to "
            "allow an unencrypted store.",
        )


def _exists_error(target: Path) -> Conflict:
    return Conflict(
        Code.FILE_EXISTS, f"{target} already exists; choose another name, or add --force."
    )


@contextmanager
def clean_failures(path: Path) -> Iterator[None]:
    """Translate errors of the file system."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageFull(
                Code.STORAGE_FULL, "The disk is full; nothing was changed. Free some space."
            ) from error
        raise Denied(
            Code.STORE_UNWRITABLE, f"{path} cannot be written: {error.strerror}."
        ) from error
