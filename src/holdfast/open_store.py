"""Opens the configured store, with its change notifier and the clock used for leases."""

import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast import keychain
from holdfast.config import Config
from holdfast.domain.errors import Code, Invalid
from holdfast.execution.system import SharedMachine
from holdfast.ports.store import Store
from holdfast.ports.system import Clock, Machine
from holdfast.store.sqlite.change_watch import StoreDoorbell
from holdfast.store.sqlite.connection import is_plain
from holdfast.store.sqlite.encryption import KeySources, StoreKey, load_store_key
from holdfast.store.sqlite.files import private_folder, require_suitable
from holdfast.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from holdfast.store.postgres.store import PostgresStore


STORE_NAME: Final = "history.db"
# With Postgres, the database operator decides about encryption at rest.
AT_POSTGRES: Final = "postgres"
DRIVER: Final = "asyncpg"


@dataclass(frozen=True, kw_only=True)
class OpenedStore:
    """An open store, its change notifier, and the clock and machine used for leases."""

    store: Store
    key_source: str
    doorbell: StoreDoorbell
    clock: Clock
    machine: Machine


async def open_configured_store(
    stack: AsyncExitStack, config: Config, clock: Clock, machine: Machine, vfs: str | None = None
) -> OpenedStore:
    """Open the configured store; the stack closes it."""
    source, store = await open_any_store(config, vfs=vfs)
    # Pushed first and so closed last, because releasing a lease still has to write.
    stack.push_async_callback(store.close)
    doorbell = await stack.enter_async_context(StoreDoorbell(store.version))
    if not isinstance(store, SqliteStore):
        store.tell(doorbell.ring)
        clock, machine = await store.clock(clock), SharedMachine(machine)
    return OpenedStore(
        store=store, key_source=source, doorbell=doorbell, clock=clock, machine=machine
    )


async def open_any_store(
    config: Config, *, vfs: str | None = None
) -> "tuple[str, SqliteStore | PostgresStore]":
    """Open the configured store; return it with the source of its key."""
    if config.database_url is None:
        key, embedded = open_store(config, vfs=vfs)
        return key.source, embedded
    # The home still holds the token file and the private folders of sessions.
    private_folder(config.home)
    return AT_POSTGRES, await open_database(config.database_url)


async def open_database(url: str) -> "PostgresStore":
    """Open a Postgres store."""
    require_driver()
    from holdfast.store.postgres.store import PostgresStore

    return await PostgresStore.open(url)


def require_driver() -> None:
    """Refuse to continue without the Postgres driver."""
    from importlib.util import find_spec

    if find_spec(DRIVER) is None:
        raise Invalid(
            Code.CONFIG_INVALID,
            "HOLDFAST_DATABASE_URL needs a package that is not installed: "
            "install holdfast[postgres].",
            {"key": "store.database_url"},
        )


def open_store(config: Config, *, vfs: str | None = None) -> tuple[StoreKey, SqliteStore]:
    """Open the SQLite store of a home; return it with its key."""
    path = private_folder(config.home) / STORE_NAME
    # Checked before a key is created, so that a refused home is left unchanged.
    require_suitable(config.home)
    key = store_key(config, path)
    return key, SqliteStore(path, key.value, vfs=vfs)


def store_key(config: Config, path: Path) -> StoreKey:
    """Return the key of the store at a path; an existing store stays plain or encrypted."""
    if path.is_dir():
        raise Invalid(Code.NOT_A_FILE, f"{path} must be a file; it is a folder.")
    is_new = not path.exists() or path.stat().st_size == 0
    # The file header decides for an existing store; the configuration only for a new one.
    if not is_new and is_plain(path):
        return StoreKey("off", None)
    sources = KeySources(
        environment=os.environ.get("HOLDFAST_KEY"),
        read_keychain=keychain.read,
        keep_in_keychain=keychain.write,
        encryption=config.encryption,
    )
    return load_store_key(config.home, sources, is_new=is_new)
