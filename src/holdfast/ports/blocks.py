"""What an importer needs of the folder that another program kept its zones in, block by block."""

from collections.abc import Iterator
from typing import Any, Protocol

from msgspec import Struct


class Block(Struct, frozen=True, kw_only=True):
    """One block of a page: its id, and what is said about it."""

    oid: str
    meta: dict[str, Any]


class BlockFile(Struct, frozen=True, kw_only=True):
    """A file in the zone of a block; times are Unix milliseconds, 0 where nobody knows."""

    size: int
    created_ms: int
    modified_ms: int


class BlockSource(Protocol):
    """Blocks and their files; nothing here is ever changed. What cannot be read is `Unavailable`.

    The verbs do not wait for a loop: they read files, and are called where that is no harm.
    """

    @property
    def path(self) -> str:
        """Return the real path of the folder."""

    def blocks(self) -> list[Block] | None:
        """Return every block; nothing where the folder holds none of what is looked for."""

    def stat(self, zone: str, name: str) -> BlockFile | None:
        """Return what is known of a file."""

    def pieces(self, zone: str, name: str) -> Iterator[bytes]:
        """Yield the content of a file, piece by piece."""
