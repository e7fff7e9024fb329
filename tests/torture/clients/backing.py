"""A process that backs a store up, as the command does, and may be killed meanwhile."""

from pathlib import Path

from holdfast.store.sqlite.backup import back_up
from tests.torture.notebooks import key_beside


async def main(home: str, target: str) -> None:
    """Write one backup."""
    back_up(Path(home) / "history.db", key_beside(Path(home)), Path(target))
