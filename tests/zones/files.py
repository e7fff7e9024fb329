"""Files of zones, each operation in a transaction of its own."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.api import Holdfast
from holdfast.domain.ids import Owner
from holdfast.ports.store import Tx
from holdfast.zones import files
from holdfast.zones.binding import stamp_of
from holdfast.zones.files import ZoneStamp
from holdfast.zones.model import ZoneFile

T = TypeVar("T")


class Files:
    """The files of an owner's zones; at a time of its own, if one is given."""

    def __init__(self, house: Holdfast, at: int | None = None, owner: Owner | None = None) -> None:
        self._house = house
        self._owner = owner or house.owner
        now = stamp_of(house.zones.stamping)
        self._stamp = ZoneStamp(at=now.at if at is None else at, generation=now.generation)

    async def ensure(self, zone: str, name: str) -> ZoneFile:
        return await self._run(
            lambda tx: files.ensure_file(tx, self._owner, zone, name, stamp=self._stamp)
        )

    async def write(self, zone: str, name: str, content: bytes) -> ZoneFile:
        return await self._run(
            lambda tx: files.write_file(tx, self._owner, zone, name, content, stamp=self._stamp)
        )

    async def append(self, zone: str, name: str, more: bytes) -> ZoneFile:
        async def work(tx: Tx) -> ZoneFile:
            file = await files.ensure_file(tx, self._owner, zone, name, stamp=self._stamp)
            return await tx.zones.append(self._owner, file, more, self._stamp.at)

        return await self._run(work)

    async def stat(self, zone: str, name: str) -> ZoneFile | None:
        return await self._run(lambda tx: tx.zones.file(self._owner, zone, name))

    async def of(self, zone: str) -> tuple[ZoneFile, ...]:
        return await self._run(lambda tx: tx.zones.files(self._owner, zone))

    async def read(self, zone: str, name: str, start: int = 0, end: int = 1 << 40) -> bytes:
        async def work(tx: Tx) -> bytes:
            file = await tx.zones.file(self._owner, zone, name)
            assert file is not None
            return await tx.zones.read(file, start, end)

        return await self._run(work)

    async def copy_zone(self, source: str, target: str) -> None:
        await self._run(
            lambda tx: files.copy_zone(tx, self._owner, source, target, stamp=self._stamp)
        )

    async def remove(self, file: ZoneFile) -> None:
        await self._run(lambda tx: tx.zones.remove(file))

    async def remove_all(self, zone: str) -> int:
        return await self._run(lambda tx: tx.zones.remove_all(self._owner, zone))

    async def names(self, prefix: str = "") -> list[str]:
        return await self._run(lambda tx: tx.zones.names(self._owner, prefix))

    async def _run(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        return await self._house.store.write(work)
