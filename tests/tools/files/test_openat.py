"""What the kernel opens for us, and what is said where it cannot."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.tools.files import openat as kernels
from holdfast.tools.files.openat import PATH_ONLY, KernelSupport, probe_kernel, real_path
from holdfast.tools.files.tools import file_weaknesses
from tests.marks import each_case


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    """Open a directory with a tree and some links in it."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "a" / "out").symlink_to("/")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@each_case("names", [[], ["a"], ["a", "b"]])
def test_directories_below_are_opened(folder: int, kernel: KernelSupport, names: list[str]) -> None:
    opened = kernel.open_folder(folder, names, PATH_ONLY)

    try:
        expected = os.path.join(real_path(folder) or "", *names)
        assert (real_path(opened) or "").rstrip("/") == expected
        assert not os.get_inheritable(opened)
    finally:
        os.close(opened)


@each_case("names", [["link"], ["link", "b"], ["a", "out"], ["a", "file"], ["no"]])
def test_links_files_and_nothing_are_not_opened(
    folder: int, kernel: KernelSupport, names: list[str]
) -> None:
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError, match=r"."):
        kernel.open_folder(folder, names, PATH_ONLY)

    assert len(os.listdir("/proc/self/fd")) == before


def test_the_kernel_refuses_to_leave_a_directory(folder: int) -> None:
    with pytest.raises(OSError, match="Invalid cross-device link"):
        probe_kernel().open_folder(folder, [".."], PATH_ONLY)


def test_the_kernels_own_files_are_told_from_others(folder: int) -> None:
    speaks = probe_kernel().speaks
    process = os.open("/proc/self", os.O_RDONLY)

    assert (speaks(process), speaks(folder)) == (True, False)
    os.close(process)
    # What cannot be asked about is not trusted.
    assert speaks(process)


def test_nothing_is_weaker_on_a_recent_linux() -> None:
    assert file_weaknesses() == probe_kernel().weaknesses == ()


def test_a_kernel_without_the_call_is_walked_name_by_name(
    folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_OPENAT2", 4095)

    asked = probe_kernel()

    assert asked.open_folder is kernels.walk_beneath
    assert asked.weaknesses == (
        "Paths are resolved one component at a time: the kernel has no openat2.",
    )


def test_another_system_is_walked_name_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "freebsd")

    asked = probe_kernel()

    assert asked.open_folder is kernels.walk_beneath
    assert asked.speaks(0) is False


def test_where_nothing_names_what_is_open_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmounted(path: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "readlink", unmounted)

    assert probe_kernel().weaknesses == (
        "Real paths cannot be read: protected files are recognized by name only.",
    )


def test_where_nothing_can_be_opened_in_a_directory_there_are_no_file_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from holdfast.tools.files.tools import FileSettings, file_tools

    monkeypatch.setattr(os, "supports_dir_fd", set())

    assert file_tools(FileSettings(protected=())) == ()
    assert file_weaknesses() == (
        "File tools are not available: this system cannot open files relative to a directory.",
    )


def test_the_call_is_taken_up_again_after_a_signal(
    folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    interrupted = iter([4, 0])
    monkeypatch.setattr(ctypes, "get_errno", lambda: next(interrupted))
    opener = kernels._beneath(library)

    assert opener is not None
    with pytest.raises(OSError, match=r"\[Errno 0\]"):
        opener(folder, ["no"], PATH_ONLY)
