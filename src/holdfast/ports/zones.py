"""The table of zones: files by owner, zone and name, who sits at which desk, and marks."""

from typing import Protocol

from holdfast.domain.ids import Owner, SessionKey
from holdfast.zones.lines import LineCount
from holdfast.zones.model import ZoneFile


class ZoneTable(Protocol):
    """Files of zones; a zone is there as long as it has one."""

    async def file(self, owner: Owner, zone: str, name: str) -> ZoneFile | None:
        """Return what is known of a file."""

    async def files(self, owner: Owner, zone: str) -> tuple[ZoneFile, ...]:
        """Return the files of a zone by name."""

    async def names(self, owner: Owner, prefix: str) -> list[str]:
        """Return the names of the owner's zones that begin so, sorted."""

    async def everybodys(self) -> list[tuple[Owner, str]]:
        """Return every zone with its owner, sorted."""

    async def add(self, owner: Owner, file: ZoneFile) -> ZoneFile:
        """Add an empty file; that there is none of that name is the caller's business."""

    async def append(self, owner: Owner, file: ZoneFile, more: bytes, at: int) -> ZoneFile:
        """Put bytes behind the last one of a file; return the file as it is then."""

    async def empty(self, owner: Owner, file: ZoneFile) -> ZoneFile:
        """Take the content of a file away; its times and its generation are as they are given."""

    async def read(self, file: ZoneFile, start: int, end: int) -> bytes:
        """Return bytes of a file; what lies outside of it is not there."""

    async def part_before(self, file: ZoneFile, line: int) -> int:
        """Return the number of the last part that begins before a line does."""

    async def part(self, file: ZoneFile, number: int) -> tuple[LineCount, bytes]:
        """Return a part of a file, and the tally of all that stands before it."""

    async def place(self, owner: Owner, file: ZoneFile) -> None:
        """Put a file under the zone and with the times that it is given with."""

    async def copy(self, owner: Owner, source: ZoneFile, target: ZoneFile) -> ZoneFile:
        """Add a file with the content of another one."""

    async def remove(self, file: ZoneFile) -> None:
        """Take a file away."""

    async def remove_all(self, owner: Owner, zone: str) -> int:
        """Take all files of a zone away, damaged ones too; return how many went."""

    async def is_taken(self, owner: Owner, zone: str) -> bool:
        """Tell whether a zone has a file, damaged or not."""

    async def seated(self, owner: Owner, zone: str) -> SessionKey | None:
        """Return the session that sits at a desk."""

    async def desk_of(self, key: SessionKey) -> tuple[Owner, str] | None:
        """Return the desk that a session sits at."""

    async def seat(self, owner: Owner, zone: str, key: SessionKey) -> None:
        """Seat a session at a desk, in the place of whoever sat there."""

    async def unseat(self, key: SessionKey) -> None:
        """Let a session leave its desk."""

    async def repoint(self, owner: Owner, before: str, after: str) -> int:
        """File the sessions of one agent under another one; return how many."""

    async def is_marked(self, name: str) -> bool:
        """Tell whether work of that name was done."""

    async def mark(self, name: str, at: int) -> None:
        """Remember that work of that name is done."""
