"""The zone table: files by owner, zone and name, the session of each active zone, and markers."""

from typing import Protocol

from holdfast.domain.ids import Owner, SessionKey
from holdfast.zones.lines import LineCount
from holdfast.zones.model import ZoneFile


class ZoneTable(Protocol):
    """Files of zones; a zone exists as long as it has a file."""

    async def file(self, owner: Owner, zone: str, name: str) -> ZoneFile | None:
        """Return the metadata of a file."""

    async def files(self, owner: Owner, zone: str) -> tuple[ZoneFile, ...]:
        """Return the files of a zone by name."""

    async def names(self, owner: Owner, prefix: str) -> list[str]:
        """Return the names of the owner's zones that start with the prefix, sorted."""

    async def everybodys(self) -> list[tuple[Owner, str]]:
        """Return every zone with its owner, sorted."""

    async def add(self, owner: Owner, file: ZoneFile) -> ZoneFile:
        """Add an empty file; the caller must have checked that the name is free."""

    async def append(self, owner: Owner, file: ZoneFile, more: bytes, at: int) -> ZoneFile:
        """Append bytes to a file; return the updated file."""

    async def empty(self, owner: Owner, file: ZoneFile) -> ZoneFile:
        """Truncate a file; its times and generation are taken from the argument."""

    async def read(self, file: ZoneFile, start: int, end: int) -> bytes:
        """Return bytes of a file; the range is cut at the end of the file."""

    async def part_before(self, file: ZoneFile, line: int) -> int:
        """Return the number of the last part that starts before a line."""

    async def part(self, file: ZoneFile, number: int) -> tuple[LineCount, bytes]:
        """Return a part of a file, and the line count of everything before it."""

    async def place(self, owner: Owner, file: ZoneFile) -> None:
        """Move a file to the zone and set the times given in the argument."""

    async def copy(self, owner: Owner, source: ZoneFile, target: ZoneFile) -> ZoneFile:
        """Add a file with the content of another one."""

    async def remove(self, file: ZoneFile) -> None:
        """Remove a file."""

    async def remove_all(self, owner: Owner, zone: str) -> int:
        """Remove all files of a zone, including damaged ones; return how many."""

    async def is_taken(self, owner: Owner, zone: str) -> bool:
        """Return whether a zone has a file, damaged or not."""

    async def seated(self, owner: Owner, zone: str) -> SessionKey | None:
        """Return the session bound to an active zone."""

    async def zone_of_session(self, key: SessionKey) -> tuple[Owner, str] | None:
        """Return the active zone that a session is bound to."""

    async def seat(self, owner: Owner, zone: str, key: SessionKey) -> None:
        """Bind a session to an active zone, replacing the previous session."""

    async def unseat(self, key: SessionKey) -> None:
        """Unbind a session from its active zone."""

    async def repoint(self, owner: Owner, before: str, after: str) -> int:
        """Assign the sessions of one agent to another agent; return how many."""

    async def is_marked(self, name: str) -> bool:
        """Return whether one-time work of that name was done."""

    async def mark(self, name: str, at: int) -> None:
        """Record that one-time work of that name is done."""
