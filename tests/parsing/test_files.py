"""Files of strangers: text of a size, or a reason why not."""

import os
from pathlib import Path

import pytest

from holdfast.parsing.files import FileError, read_text


def test_a_file_is_read_whole_and_without_its_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9fe\r\n")

    assert read_text(file, largest=12) == "grüße\r\n"


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("here")
    (tmp_path / "b").symlink_to("a")

    assert read_text(tmp_path / "b", largest=4) == "here"


@pytest.mark.parametrize("name", ["missing", "file/below", "dangling"])
def test_a_file_that_is_not_there_is_told_as_missing(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")

    with pytest.raises(FileError) as refused:
        read_text(tmp_path / name, largest=10)

    assert (refused.value.problem, refused.value.is_missing) == ("the file does not exist", True)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("large", "it is larger than 10 bytes"),
        ("latin", "it is not UTF-8 at byte 3"),
        ("folder", "it is not a file"),
        ("pipe", "it is not a file"),
        ("loop", "it cannot be opened (Too many levels of symbolic links)"),
        ("x" * 300, "it cannot be opened (File name too long)"),
        ("nul\x00", "it cannot be opened (invalid name)"),
    ],
)
def test_what_is_no_text_of_a_size_is_refused_at_once(
    tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "large").write_bytes(b"x" * 11)
    (tmp_path / "latin").write_bytes(b"ab\xe4")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(FileError) as refused:
        read_text(tmp_path / name, largest=10)

    assert (refused.value.problem, refused.value.is_missing) == (problem, False)


def test_a_file_that_fails_while_it_is_read_is_refused() -> None:
    # The one file on every Linux that opens as a plain file and refuses to be read.
    with pytest.raises(FileError, match=r"it cannot be read \("):
        read_text(Path("/proc/self/mem"), largest=10)
