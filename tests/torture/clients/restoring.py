"""A process that brings a backup back, as the command does, and says how that ended."""

from pathlib import Path

from holdfast import HoldfastError
from holdfast.store.sqlite.backup import restore
from tests.torture.notebooks import key_beside


async def main(home: str, backup: str) -> None:
    """Restore one backup."""
    try:
        restore(Path(backup), key_beside(Path(home)), Path(home) / "history.db")
    except HoldfastError as error:
        print(f"refused: {error.code}")
