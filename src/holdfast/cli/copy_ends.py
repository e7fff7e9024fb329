"""Both ends of `holdfast copy`: which database a configuration and a word on the line mean."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.cli.places import named_path

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.store.transfer.run import TransferEnd

# Whatever else is named is a folder, because a home is one.
_FILE: Final = ".db"


@asynccontextmanager
async def source_of(config: "Config") -> "AsyncIterator[TransferEnd]":
    """Open the store of a configuration, to be read."""
    if config.database_url is not None:
        _require_driver()
        from holdfast.store.transfer.postgres import from_database

        async with from_database(config.database_url) as database:
            yield database
        return
    from holdfast.app import STORE_NAME, store_key
    from holdfast.store.transfer.files import from_file, require_there

    path = config.home / STORE_NAME
    require_there(path)
    with from_file(path, store_key(config, path).value) as file:
        yield file


@asynccontextmanager
async def target_of(
    config: "Config", to: str, *, is_kept: bool
) -> "AsyncIterator[TransferEnd | None]":
    """Open a database to be filled; nothing where it is a file and no copy is to be kept."""
    if is_address(to):
        _require_another(config, to)
        _require_driver()
        from holdfast.store.transfer.postgres import into_database

        async with into_database(to, is_kept=is_kept) as database:
            yield database
        return
    from holdfast.store.transfer.files import into_file

    path = file_of(to)
    _require_room(path)
    if not is_kept:
        yield None
        return
    with into_file(path, _new_key(config, path)) as file:
        yield file


def is_address(to: str) -> bool:
    """Tell whether a database is meant, and no file."""
    return "://" in to


def file_of(to: str) -> Path:
    """Return the file that is meant: itself, or the store of a folder."""
    from holdfast.app import STORE_NAME

    path = named_path(Path(to))
    return path if path.suffix == _FILE else path / STORE_NAME


def _require_driver() -> None:
    from holdfast.open_store import require_driver

    require_driver()


def _require_another(config: "Config", to: str) -> None:
    from holdfast.domain.errors import Code, Invalid

    if to == config.database_url:
        raise Invalid(Code.INVALID_INPUT, "--to names the store itself.", {"field": "to"})


def _require_room(path: Path) -> None:
    """Refuse a file that is there, or cannot be made; nothing is made yet."""
    from holdfast.domain.errors import Code, Denied, Invalid
    from holdfast.store.sqlite.files import unusable_path_error
    from holdfast.store.transfer.files import require_absent

    require_absent(path)
    if not _is_home(path) and not path.parent.is_dir():
        raise Invalid(Code.NOT_A_FOLDER, f"{path.parent} is not a folder; make it first.")
    if (why := unusable_path_error(path.parent)) is not None:
        raise Denied(Code.STORE_UNWRITABLE, why)


def _is_home(path: Path) -> bool:
    from holdfast.app import STORE_NAME

    return path.name == STORE_NAME


def _new_key(config: "Config", path: Path) -> bytes | None:
    """Return the key of a new store: a home has its own, any other file that of our home."""
    from msgspec.structs import replace

    from holdfast.app import store_key
    from holdfast.store.sqlite.files import private_folder, require_suitable

    home = private_folder(path.parent if _is_home(path) else config.home)
    require_suitable(path.parent)
    return store_key(replace(config, home=home), path).value
