"""Read access to another program's folder of zones, block by block, for the importer."""

from collections.abc import Iterator
from typing import Any, Protocol

from msgspec import Struct


class Block(Struct, frozen=True, kw_only=True):
    """One block of a page: its id and its metadata."""

    oid: str
    meta: dict[str, Any]


class BlockFile(Struct, frozen=True, kw_only=True):
    """A file in the zone of a block; times are Unix milliseconds, 0 if unknown."""

    size: int
    created_ms: int
    modified_ms: int


class BlockSource(Protocol):
    """Blocks and their files, read-only. A read error is raised as `Unavailable`.

    The methods do blocking file I/O, so call them in a worker thread, not in the event loop.
    """

    @property
    def path(self) -> str:
        """Return the real path of the folder."""

    def blocks(self) -> list[Block] | None:
        """Return every block; `None` if the folder contains no block data."""

    def stat(self, zone: str, name: str) -> BlockFile | None:
        """Return the metadata of a file."""

    def pieces(self, zone: str, name: str) -> Iterator[bytes]:
        """Yield the content of a file in chunks."""
