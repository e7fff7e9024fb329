"""`holdfast migrate|backup|restore|copy`: manage the store, a SQLite file or Postgres."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from msgspec.structs import replace

from holdfast.app import STORE_NAME, store_key
from holdfast.cli.command import add_group, command
from holdfast.cli.errors import FINDINGS
from holdfast.cli.options import argument, flag, option
from holdfast.cli.output import Printer
from holdfast.cli.workspace import absolute_path
from holdfast.config import Config
from holdfast.domain.errors import Code, Conflict, Denied, Invalid, NotFound
from holdfast.domain.messages import to_exported_message
from holdfast.open_store import require_driver
from holdfast.store.database_url import shown_url
from holdfast.store.sqlite import backup as backups
from holdfast.store.sqlite import migrate as sqlite_migrate
from holdfast.store.sqlite.backup import back_up, clean_failures, free_name
from holdfast.store.sqlite.checks import is_filled
from holdfast.store.sqlite.connection import Connection, connect
from holdfast.store.sqlite.files import (
    exclusively,
    private_file,
    private_folder,
    require_suitable,
    unusable_path_error,
)
from holdfast.store.sqlite.migrate import Migration, migrations, newest, require_known, version
from holdfast.store.sqlite.salvage import Salvaged
from holdfast.store.sqlite.salvage import salvage as recover
from holdfast.store.transfer import run as transfer_run
from holdfast.store.transfer.files import from_file, into_file, require_absent, require_there
from holdfast.store.transfer.run import CopiedTable, TransferEnd

if TYPE_CHECKING:
    from holdfast.store.postgres.migrate import DatabaseSchema

app = typer.Typer()
group = add_group(app, "migrate")


# Any other name is a folder, because a home is one.
_FILE: Final = ".db"


@asynccontextmanager
async def source_of(config: Config) -> AsyncIterator[TransferEnd]:
    """Open the configured store for reading."""
    if config.database_url is not None:
        _require_driver()
        from holdfast.store.transfer.postgres import from_database

        async with from_database(config.database_url) as database:
            yield database
        return
    path = config.home / STORE_NAME
    require_there(path)
    with from_file(path, store_key(config, path).value) as file:
        yield file


@asynccontextmanager
async def target_of(config: Config, to: str, *, is_kept: bool) -> AsyncIterator[TransferEnd | None]:
    """Open a database to be filled; None for a file in a dry run."""
    if is_address(to):
        _require_another(config, to)
        _require_driver()
        from holdfast.store.transfer.postgres import into_database

        async with into_database(to, is_kept=is_kept) as database:
            yield database
        return
    path = file_of(to)
    _require_room(path)
    if not is_kept:
        yield None
        return
    with into_file(path, _new_key(config, path)) as file:
        yield file


def is_address(to: str) -> bool:
    """Return whether a target is a database URL and not a file."""
    return "://" in to


def file_of(to: str) -> Path:
    """Return the target file: itself, or the store inside a folder."""
    path = absolute_path(Path(to))
    return path if path.suffix == _FILE else path / STORE_NAME


def _require_driver() -> None:
    require_driver()


def _require_another(config: Config, to: str) -> None:
    if to == config.database_url:
        raise Invalid(
            Code.INVALID_INPUT,
            "--to names the configured store itself; choose another target.",
            {"field": "to"},
        )


def _require_room(path: Path) -> None:
    """Refuse a file that exists or cannot be created; creates nothing yet."""
    require_absent(path)
    if not _is_home(path) and not path.parent.is_dir():
        raise Invalid(Code.NOT_A_FOLDER, f"{path.parent} is not a folder; create it first.")
    if (why := unusable_path_error(path.parent)) is not None:
        raise Denied(Code.STORE_UNWRITABLE, why)


def _is_home(path: Path) -> bool:
    return path.name == STORE_NAME


def _new_key(config: Config, path: Path) -> bytes | None:
    """Return the key of a new store: a home has its own, any other file uses that of our home."""
    home = private_folder(path.parent if _is_home(path) else config.home)
    require_suitable(path.parent)
    return store_key(replace(config, home=home), path).value


@command(app, "copy", only_here=True)
async def copy(
    printer: Printer,
    *,
    to: Annotated[
        str,
        option(
            "URL|FOLDER|FILE.db",
            "An empty database (postgresql://…), a folder for a new home, or a file.",
            show_default=False,
        ),
    ],
    dry_run: Annotated[
        bool, flag("Check both databases and count rows; change nothing.", "--dry-run")
    ] = False,
) -> None:
    """Copy the whole store into another database.

    Copies the configured store into Postgres or into a file. Writes are blocked while it runs, so
    stop all servers first. Row counts, row hashes and hash chains are verified in both databases;
    if a check fails, the target stays empty.
    """

    def tell(each: CopiedTable) -> None:
        printer.remark(f"{each.table}: {each.rows} rows")

    config = printer.settings.load()
    is_kept = not dry_run
    async with source_of(config) as source:
        await transfer_run.require_idle(source)
        async with target_of(config, to, is_kept=is_kept) as target:
            if target is not None:
                await transfer_run.require_empty(target)
            if is_kept and target is not None:
                tables = await transfer_run.copy(source, target, tell)
            else:
                tables = await transfer_run.count_rows(source)
    url = config.database_url
    target_name = shown_url(to) if is_address(to) else str(file_of(to))
    rows = sum(each.rows for each in tables)
    form = {
        "from": str(_path(config)) if url is None else shown_url(url),
        "to": target_name,
        "dry_run": dry_run,
        "rows": rows,
        "tables": {each.table: {"rows": each.rows, "hash": each.hash} for each in tables},
    }
    message = "would be copied to" if dry_run else "copied and verified in"
    printer.done(form, f"{rows} rows of {len(tables)} tables {message} {target_name}.")


def schema_of(config: Config) -> "DatabaseSchema | None":
    """Return the schema of the configured database; None if the store is a file."""
    if config.database_url is None:
        return None
    require_driver()
    from holdfast.store.postgres.migrate import DatabaseSchema

    return DatabaseSchema(config.database_url)


def require_sqlite(config: Config, *, instead: str) -> None:
    """Refuse a file operation if the store is a database."""
    if config.database_url is not None:
        raise Invalid(
            Code.CONFIG_INVALID,
            f"The store is in Postgres (HOLDFAST_DATABASE_URL); use {instead}.",
            {"key": "store.database_url"},
        )


def require_empty(schema: "DatabaseSchema", *, force: bool) -> None:
    """Refuse to downgrade a database that has rows without `force`, because rows may be lost."""
    if not force and schema.is_filled():
        raise Conflict(
            Code.STORE_NOT_EMPTY,
            "The database has agents or sessions, and an older schema may not be able to "
            "store all of their data; back it up with pg_dump and add --force.",
        )


@command(group, "status", only_here=True)
def status(printer: Printer) -> None:
    """Show which migrations are applied."""
    found = _version(printer.settings.load())
    steps = [
        {"number": each.number, "name": each.name, "applied": each.number <= found}
        for each in migrations()
    ]
    if printer.is_json:
        printer.document({"store": found, "program": newest(), "migrations": steps})
        return
    rows = [
        (str(each["number"]), str(each["name"]), "applied" if each["applied"] else "waiting")
        for each in steps
    ]
    printer.table(("NUMBER", "NAME", "STATE"), rows)


@command(group, "up", only_here=True)
def up(printer: Printer) -> None:
    """Apply all pending migrations."""
    config = printer.settings.load()
    if (schema := schema_of(config)) is not None:
        done, now = schema.up(), schema.version()
    else:
        with _connect(config) as connection:
            done = sqlite_migrate.up(connection)
            now = sqlite_migrate.version(connection)
    printer.done({"store": now, "done": _names(done)}, _summary(done, now))


def _version(config: Config) -> int:
    """Return the schema version of a store; 0 if there is none."""
    if (schema := schema_of(config)) is not None:
        return schema.version()
    if not _path(config).exists():
        return 0
    with _connect(config) as connection:
        return version(connection)


def migrate_forward(config: Config) -> list[str]:
    """Migrate an existing store to this version, and return the applied migrations."""
    if (schema := schema_of(config)) is not None:
        return _names(schema.up())
    if not _path(config).exists():
        return []
    with _connect(config) as connection:
        return _names(sqlite_migrate.up(connection))


@command(group, "down", only_here=True)
def down(
    printer: Printer,
    *,
    to: Annotated[int | None, option("N", "The last migration to keep; 0 reverts all.")] = None,
    steps: Annotated[int | None, option("N", "Revert this many migrations.")] = None,
    force: Annotated[
        bool, flag("Revert even if data is lost; a backup is written first.", "--force")
    ] = False,
) -> None:
    """Revert migrations.

    Data added by these migrations is lost, so a store with data requires --force, and is backed up
    first.
    """
    config = printer.settings.load()
    # Validated before the store is opened: a wrong number must not cost a backup or a row.
    last = _last_to_keep(config, to, steps)
    if (schema := schema_of(config)) is not None:
        sqlite_migrate.require_not_above(schema.version(), last)
        if schema.version() > last:
            require_empty(schema, force=force)
        done, now = schema.down(last), schema.version()
        printer.done({"store": now, "done": _names(done), "kept": None}, _summary(done, now))
        return
    path = _path(config)
    if not path.exists():
        raise NotFound(Code.NOT_A_FILE, f"There is no store at {path} yet.")
    # Only a check: a lock held here would be released when we open and close the file ourselves.
    with exclusively(path):
        pass
    with _connect(config) as connection:
        sqlite_migrate.require_below(connection, last)
        changes = sqlite_migrate.version(connection) > last
        kept = _backup_before_down(config, connection, force=force) if changes else None
        done = sqlite_migrate.down(connection, last)
        now = sqlite_migrate.version(connection)
    if kept is not None:
        printer.remark(f"A backup of the previous store is in {kept}.")
    form = {"store": now, "done": _names(done), "kept": str(kept) if kept else None}
    printer.done(form, _summary(done, now))


def _last_to_keep(config: Config, to: int | None, steps: int | None) -> int:
    """Return the number of the last migration that stays applied."""
    if (to is None) is (steps is None):
        raise Invalid(Code.INVALID_INPUT, "Choose one of --to N and --steps N.")
    if to is not None:
        require_known(to)
        return to
    applied = _version(config)
    if steps is None or not 1 <= steps <= applied:
        message = f"--steps must be 1 to {applied}, the number of applied migrations."
        raise Invalid(Code.INVALID_INPUT, message, {"field": "--steps"})
    return applied - steps


def _backup_before_down(config: Config, connection: Connection, *, force: bool) -> Path | None:
    """Back up a store that has data, if `force` allows losing the data."""
    if not is_filled(connection):
        return None
    if not force:
        raise Conflict(
            Code.STORE_NOT_EMPTY,
            "The store has agents or sessions, and an older schema may not be able to "
            "store all of their data; add --force to continue. A backup is written first.",
        )
    path = _path(config)
    return back_up(path, store_key(config, path).value, free_name(path, "down"))


@command(app, "backup", only_here=True)
def backup(
    printer: Printer,
    *,
    file: Annotated[Path, argument("FILE", "The file to write.")],
    force: Annotated[bool, flag("Replace the file if it exists.", "--force")] = False,
) -> None:
    """Back up the whole store to a file.

    The backup is consistent even while the store is in use. It is encrypted with the key of the
    store, which is not included: back up the key too.
    """
    config = printer.settings.load()
    require_sqlite(config, instead="pg_dump, or the backups of your Postgres server")
    target = absolute_path(file)
    path = _path(config)
    # Only if a store exists, because for a new one a key would be created.
    key = store_key(config, path).value if path.exists() else None
    back_up(path, key, target, force=force)
    size = target.stat().st_size
    printer.done({"file": str(target), "bytes": size}, f"Wrote {target} ({size} bytes).")


@command(app, "restore", only_here=True)
def restore(
    printer: Printer,
    *,
    file: Annotated[Path, argument("FILE", "A file written by `backup`.")],
    plain: Annotated[
        bool, flag("Allow replacing an encrypted store with an unencrypted backup.", "--plain")
    ] = False,
) -> None:
    """Replace the store with a backup.

    The previous store is renamed and kept. Refused while another process has the store open, if the
    backup fails verification, or if the backup is not encrypted but the store is.
    """
    config = printer.settings.load()
    require_sqlite(config, instead="pg_restore, or the backups of your Postgres server")
    source = absolute_path(file)
    # Before the key is read: a missing file would be treated as a new store.
    backups.require_file(source)
    store = _path(config)
    # A new store would be encrypted; restoring a backup must not silently change that.
    if not plain and not store.exists() and config.encryption != "off":
        backups.require_sealed(source)
    require_suitable(private_folder(config.home))
    key = store_key(config, source)
    kept = backups.restore(source, key.value, store, plain=plain)
    message = f"Restored the store from {source}."
    if kept is not None:
        message += f" The previous store is kept as {kept}."
    printer.done({"file": str(source), "kept": str(kept) if kept else None}, message)


@command(app, "salvage", only_here=True)
def salvage(
    printer: Printer,
    *,
    file: Annotated[Path, argument("FILE", "The file to write, for `restore`.")],
    messages: Annotated[
        Path | None,
        option(
            "FILE",
            "Write messages after the damage, which cannot be part of the store, as JSON "
            "lines; not encrypted.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, flag("Replace the file if it exists.", "--force")] = False,
) -> int:
    """Recover a store with a damaged log.

    Writes all intact data to a file for `restore`, and lists what is lost. The store is not
    changed. Refused while another process has the store open. Exits with 1 if data is lost.
    """
    config = printer.settings.load()
    require_sqlite(config, instead="the backups of your Postgres server")
    path, target = _path(config), absolute_path(file)
    if not path.exists():
        raise NotFound(Code.NOT_A_FILE, f"There is no store at {path} yet.")
    apart = absolute_path(messages) if messages is not None else None
    if apart is not None and apart.exists():
        raise Conflict(Code.FILE_EXISTS, f"{apart} exists; choose another name.")
    done = recover(path, store_key(config, path).value, target, force=force)
    if apart is not None:
        _write_messages(apart, done)
    form = {
        "file": str(target),
        "bytes": target.stat().st_size,
        "frames": done.frames,
        "lost_frames": done.lost_frames,
        "lost": [
            {"session_id": each.session_id, "first": each.first, "last": each.last}
            for each in done.lost
        ],
        "apart": [
            {"session_id": each.session_id, "sequence": each.sequence} for each in done.apart
        ],
        "messages": str(apart) if apart else None,
    }
    printer.done(form, _salvage_report(form))
    return FINDINGS if done.is_incomplete else 0


def _salvage_report(form: dict[str, Any]) -> str:
    """Return what was recovered and what was lost, for a person."""
    lines = [f"Wrote {form['file']} with {form['frames']} frames of the log."]
    if form["lost_frames"]:
        lines.append(f"Damaged or missing frames: {form['lost_frames']}.")
    for each in form["lost"]:
        numbers = f"{each['first']} to {each['last']}"
        lines.append(f"Lost: session {each['session_id']}, messages {numbers}.")
    for each in form["apart"]:
        where = form["messages"] or "nowhere; name a file with --messages"
        lines.append(
            f"Not in the store: session {each['session_id']}, message {each['sequence']} "
            f"(saved in {where})."
        )
    if form["lost_frames"] and not form["lost"] and not form["apart"]:
        lines.append("No known message is lost.")
    return "\n".join([*lines, f"Run `holdfast restore {form['file']}` to use it."])


def _write_messages(path: Path, done: Salvaged) -> None:
    """Write messages as JSON lines into a private file."""
    with clean_failures(path):
        private_file(path)
        lines = [msgspec.json.encode(to_exported_message(each)) for each in done.apart]
        path.write_bytes(b"".join(line + b"\n" for line in lines))


def _path(config: Config) -> Path:
    return config.home / STORE_NAME


@contextmanager
def _connect(config: Config) -> Iterator[Connection]:
    """Open the store's file, whatever its schema version is."""
    path = private_folder(config.home) / _path(config).name
    key = store_key(config, path)
    # After the key is read, so that a missing key leaves no empty store behind.
    private_file(path)
    connection = connect(path, key.value)
    try:
        yield connection
    finally:
        connection.close()


def _names(done: list[Migration]) -> list[str]:
    return [f"{each.number:04d}_{each.name}" for each in done]


def _summary(done: list[Migration], now: int) -> str:
    if not done:
        return f"The store has schema {now}; nothing to do."
    verb = "made" if done[-1].number == now else "reverted"
    return f"The store has schema {now}; {verb}: {', '.join(_names(done))}."
