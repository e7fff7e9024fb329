"""The reserve of disk space, on file systems of either kind."""

import errno
import os
from pathlib import Path

import pytest

from holdfast.domain.errors import StorageFull, Unavailable
from holdfast.store.sqlite.disk_reserve import MARGIN, SIZE, DiskReserve


def test_the_space_is_really_taken(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path / "reserve")

    assert reserve.take()
    found = (tmp_path / "reserve").stat()
    assert found.st_size == SIZE
    assert found.st_blocks * 512 >= SIZE


def test_where_space_cannot_be_taken_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", refused)
    reserve = DiskReserve(tmp_path / "reserve")

    assert reserve.take()
    assert (tmp_path / "reserve").read_bytes() == bytes(SIZE)


def test_a_full_disk_gives_no_reserve_and_keeps_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    reserve = DiskReserve(tmp_path / "reserve")

    assert not reserve.take()
    assert not (tmp_path / "reserve").exists()


def room(free: int, *, available: int = 0) -> os.statvfs_result:
    """Return what the system says of a disk with so many free blocks of 4 KiB."""
    return os.statvfs_result((4096, 4096, 1 << 20, free, available, 0, 0, 0, 0, 255))


@pytest.mark.parametrize(
    ("free", "is_held", "is_full"),
    [
        (0, True, True),
        (MARGIN // 4096 - 1, True, True),
        (MARGIN // 4096, True, False),
        (MARGIN // 4096, False, True),
        ((MARGIN + SIZE) // 4096, False, False),
    ],
)
def test_a_disk_without_room_beside_the_reserve_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_held: bool, is_full: bool
) -> None:
    reserve = DiskReserve(tmp_path / "reserve")
    if is_held:
        assert reserve.take()
    monkeypatch.setattr(os, "statvfs", lambda _: room(free, available=free))

    if is_full:
        with pytest.raises(StorageFull):
            reserve.require_room()
    else:
        reserve.require_room()


def test_a_reserve_that_another_process_has_released_is_not_counted_as_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = DiskReserve(tmp_path / "reserve")
    assert reserve.take()
    (tmp_path / "reserve").unlink()
    monkeypatch.setattr(os, "statvfs", lambda _: room(SIZE // 4096, available=SIZE // 4096))

    with pytest.raises(StorageFull):
        reserve.require_room()


@pytest.mark.parametrize(("user", "is_full"), [(0, False), (1000, True)])
def test_blocks_kept_back_for_root_are_room_for_root_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, is_full: bool
) -> None:
    reserve = DiskReserve(tmp_path / "reserve")
    monkeypatch.setattr(os, "statvfs", lambda _: room(1 << 20))
    monkeypatch.setattr(os, "geteuid", lambda: user)

    if is_full:
        with pytest.raises(StorageFull):
            reserve.require_room()
    else:
        reserve.require_room()


def test_a_folder_that_is_gone_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        DiskReserve(tmp_path / "gone" / "reserve").require_room()
