"""Backups: a whole store in one file, made while others write; and bringing one back.

A backup is encrypted with the store's own key, which is not in it: keep the key too. Restoring
takes the whole store back to the instant of the backup and keeps what was there before.
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
    connect,
    is_plain,
    translate_errors,
)
from holdfast.store.sqlite.files import exclusively, private_file, sync_file, sync_folder
from holdfast.store.sqlite.migrate import newest, up, version
from holdfast.store.sqlite.wal_anchor import SUFFIX


def back_up(store: Path, key: bytes | None, target: Path, *, force: bool = False) -> Path:
    """Write a consistent copy of the store to a file that is there whole, or not at all.

    Writers go on meanwhile; the copy is the store as it was at one instant. It is checked
    before it gets its name.
    """
    with clean_failures(target):
        require_target(store, target, force=force)
        with draft_beside(target) as draft:
            _copy_store(store, key, draft)
            name_target(draft, target, force=force)
    return target


def name_target(draft: Path, target: Path, *, force: bool) -> None:
    """Give a draft that is complete the name of the target, on disk."""
    sync_file(draft)
    if force:
        os.replace(draft, target)
    else:
        give_name(draft, target)
    sync_folder(target.parent)


def restore(backup: Path, key: bytes | None, store: Path, *, plain: bool = False) -> Path | None:
    """Put a backup in the place of the store; return where the store that was there is kept.

    Refused while another process has the store open, when the backup does not verify, and where
    an encrypted store would become one that anybody can read, unless `plain` says that it may.
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
            with open_draft(draft, key) as copy:
                # In one step, from one snapshot: in several, a busy writer would restart it.
                with copy.raw.backup("main", source.raw, "main") as work:
                    work.step(-1)
                settle(copy)
                _require_sound(copy)
        finally:
            source.close()


@contextmanager
def open_draft(path: Path, key: bytes | None) -> Iterator[Connection]:
    """Open a draft with the store's key and nothing else set."""
    connection = Connection(apsw.Connection(str(path)))
    try:
        if key is not None:
            connection.pragma("key", f"raw:{key.hex()}")
        yield connection
    finally:
        connection.close()


def settle(connection: Connection) -> None:
    """Make the draft a single file that needs no log beside it."""
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
    """Say of the backup what would otherwise be said of the store, which is untouched."""
    try:
        yield
    except Internal as error:
        if error.code is not Code.CORRUPT_STORE:
            raise
        raise Invalid(
            Code.BACKUP_INVALID,
            "The backup is damaged or cut off and was not restored; the store is as it was.",
        ) from error


def _require_restorable(draft: Path, key: bytes | None) -> None:
    """Refuse a backup that is not one of ours, is newer than this program, or is damaged."""
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
        settle(copy)
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
    log = _folded_log(store, key, spare=Path(f"{draft}-log"))
    with exclusively(store):
        kept = free_name(store, "restore")
        # A link first and a replacement then: at no moment is there no store.
        os.link(store, kept)
        with suppress(FileNotFoundError):
            os.rename(log, f"{kept}-wal")
        _remove_log(store)
        os.replace(draft, store)
        # Behind the replacement: the old store without its log must never pass for whole.
        with suppress(FileNotFoundError):
            os.rename(f"{store}{SUFFIX}", f"{kept}{SUFFIX}")
    return kept


def _folded_log(store: Path, key: bytes | None, *, spare: Path) -> Path:
    """Move what a crash left in the log into the store's file; return where the log is then.

    Where the store cannot be read that is a copy, because SQLite throws a log away that it
    cannot use.
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
    """Remove what a store that is gone left behind: its log, and the anchor of that."""
    _remove_log(store)
    Path(f"{store}{SUFFIX}").unlink(missing_ok=True)


def _remove_log(store: Path) -> None:
    # A log beside another file than its own would be played into it.
    for suffix in ("-wal", "-shm"):
        Path(f"{store}{suffix}").unlink(missing_ok=True)


def free_name(store: Path, before: str) -> Path:
    """Return where the store of before a change is kept: beside it, by the next free number."""
    number = 1
    while (kept := store.with_name(f"{store.name}.before-{before}-{number}")).exists():
        number += 1
    return kept


@contextmanager
def draft_beside(target: Path) -> Iterator[Path]:
    """Yield a private, empty file in the folder of the target; nothing of it is left behind."""
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    private_file(draft)
    try:
        yield draft
    finally:
        for suffix in ("", "-anchor", "-journal", "-log", "-shm", "-wal"):
            Path(f"{draft}{suffix}").unlink(missing_ok=True)


def give_name(draft: Path, target: Path) -> None:
    """Give the draft its name, unless somebody else has taken it meanwhile."""
    try:
        os.link(draft, target)
    except FileExistsError:
        raise _taken(target) from None


def require_target(store: Path, target: Path, *, force: bool) -> None:
    """Refuse a target that is taken, or where no backup can be written."""
    if not store.is_file():
        raise NotFound(Code.NOT_A_FILE, f"There is no store at {store} yet; nothing to back up.")
    if not target.parent.is_dir():
        raise Invalid(Code.NOT_A_FOLDER, f"{target.parent} is not a folder; make it first.")
    if target.is_dir():
        raise Invalid(Code.NOT_A_FILE, f"{target} is a folder; name a file in it.")
    # Replacing would take a device, a pipe or a link away from whoever works with it.
    if os.path.lexists(target) and not stat.S_ISREG(target.lstat().st_mode):
        raise Invalid(Code.NOT_A_FILE, f"{target} is not a file; name another place.")
    if target.exists() and (not force or target.samefile(store)):
        raise _taken(target)
    # The key and the log lie there too, and nothing brings them back.
    if target.exists() and target.parent.samefile(store.parent):
        raise Conflict(
            Code.FILE_EXISTS, f"{target} lies in the store's own folder; name another place."
        )


def require_file(backup: Path) -> None:
    """Refuse a path that is not a file, and a file with nothing in it."""
    try:
        found = backup.stat()
    except OSError:
        raise NotFound(Code.BACKUP_INVALID, f"There is no {backup}.") from None
    if not stat.S_ISREG(found.st_mode):
        raise Invalid(Code.NOT_A_FILE, f"{backup} is not a file.")
    if not found.st_size:
        raise Invalid(Code.BACKUP_INVALID, f"{backup} is empty; a backup never is.")


def is_sealed(store: Path) -> bool:
    """Tell whether there is a store that only its key opens."""
    return store.is_file() and store.stat().st_size > 0 and not is_plain(store)


def require_sealed(backup: Path) -> None:
    """Refuse a backup that anybody can read."""
    if is_plain(backup):
        raise Conflict(
            Code.BACKUP_PLAIN,
            f"{backup} is not encrypted, and the store would not be either; add --plain if it may "
            "be read by anybody who has the file.",
        )


def _taken(target: Path) -> Conflict:
    return Conflict(
        Code.FILE_EXISTS, f"{target} is there already; choose another name, or add --force."
    )


@contextmanager
def clean_failures(path: Path) -> Iterator[None]:
    """Say what a refusal of the file system means."""
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
