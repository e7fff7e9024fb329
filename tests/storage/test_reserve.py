"""The reserve of disk space, on file systems of either kind."""

import errno
import os
from pathlib import Path

import pytest

from holdfast.storage.reserve import SIZE, Reserve


def test_the_space_is_really_taken(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve")

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
    reserve = Reserve(tmp_path / "reserve")

    assert reserve.take()
    assert (tmp_path / "reserve").read_bytes() == bytes(SIZE)


def test_a_full_disk_gives_no_reserve_and_keeps_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    reserve = Reserve(tmp_path / "reserve")

    assert not reserve.take()
    assert not (tmp_path / "reserve").exists()
