"""Files that commands write: whole, for their owner, and over nothing unasked."""

import errno
import os
from pathlib import Path

import pytest

from holdfast.cli.files import write_file
from holdfast.domain.errors import Code, Conflict, Invalid
from tests.marks import each_case


def test_a_file_is_written_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "c"

    write_file(file, b"x", force=False)

    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"x", 0o600)
    assert [each.name for each in file.parent.iterdir()] == ["c"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"kept")
    link = tmp_path / "link"
    link.symlink_to("target")

    with pytest.raises(Conflict):
        write_file(link, b"x", force=False)
    write_file(link, b"x", force=True)

    assert (tmp_path / "target").read_bytes() == b"kept"
    assert not link.is_symlink()


def test_a_file_that_comes_in_between_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"theirs")
    monkeypatch.setattr(os.path, "lexists", lambda _: False)

    with pytest.raises(Conflict) as refused:
        write_file(file, b"x", force=False)

    assert refused.value.code is Code.FILE_EXISTS
    assert (file.read_bytes(), len(list(tmp_path.iterdir()))) == (b"theirs", 1)


def test_a_file_system_without_links_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)

    write_file(tmp_path / "a", b"x", force=False)

    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_is_told_as_such_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", refuse)

    with pytest.raises(OSError, match="full"):
        write_file(tmp_path / "a", b"x", force=True)
    assert list(tmp_path.iterdir()) == []


@each_case(
    ("name", "code"),
    [
        ("file/x", Code.NOT_A_FOLDER),
        ("nowhere/x", Code.NOT_A_FOLDER),
        ("x" * 300, Code.INVALID_INPUT),
    ],
)
def test_a_place_that_there_cannot_be_is_refused(tmp_path: Path, name: str, code: Code) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(Invalid) as refused:
        write_file(tmp_path / name, b"x", force=False)

    assert refused.value.code is code
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
