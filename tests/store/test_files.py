"""Folders and files that only their owner reads, on a disk that keeps its promises."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domain.errors import Code, Denied, Invalid
from holdfast.store.sqlite.files import (
    file_system_of,
    private_file,
    private_folder,
    require_suitable,
)
from holdfast.store.sqlite.store import SqliteStore
from tests.marks import each_case, skip_row
from tests.store.conftest import KEY


@pytest.fixture
def open_mask() -> Iterator[None]:
    """Let every new file be readable by everyone, unless its maker says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_folder_is_made_for_its_owner_only(tmp_path: Path, open_mask: None) -> None:
    folder = tmp_path / "a" / "b"

    assert private_folder(folder) == folder
    assert _mode(folder) == 0o700


def test_a_folder_that_others_could_read_is_locked(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)

    private_folder(folder)

    assert _mode(folder) == 0o700


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_what_is_no_folder_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "home"
    if kind == "file":
        path.write_text("")
    else:
        target = tmp_path / "target"
        if kind == "link":
            target.mkdir(mode=0o755)
        path.symlink_to(target)

    with pytest.raises(Invalid) as caught:
        private_folder(path)

    assert caught.value.code is Code.NOT_A_FOLDER
    if kind == "link":
        assert _mode(tmp_path / "target") == 0o755


@each_case("path", ["/proc/nothing/home", "/dev/null/home"])
def test_a_folder_that_cannot_be_made_is_refused_with_its_name(path: str) -> None:
    with pytest.raises(Denied) as caught:
        private_folder(Path(path))

    assert caught.value.code is Code.STORE_UNWRITABLE
    assert path in caught.value.message


def test_a_file_is_made_once_and_for_its_owner_only(tmp_path: Path, open_mask: None) -> None:
    path = tmp_path / "history.db"

    assert (private_file(path), private_file(path)) == (True, False)
    assert _mode(path) == 0o600


def test_files_that_others_could_read_are_locked(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    files = [path, *(Path(f"{path}{suffix}") for suffix in ("-wal", "-shm"))]
    for file in files:
        file.write_text("")
        file.chmod(0o644)

    private_file(path)

    assert [_mode(file) for file in files] == [0o600] * 3


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-reserve", "-anchor"])
@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_planted_link_is_refused_and_its_target_left_alone(
    tmp_path: Path, suffix: str, is_dangling: bool
) -> None:
    target = tmp_path / "target"
    if not is_dangling:
        target.write_text("precious")
        target.chmod(0o644)
    Path(f"{tmp_path / 'history.db'}{suffix}").symlink_to(target)

    with pytest.raises(Invalid) as caught:
        SqliteStore(tmp_path / "history.db", KEY)

    assert caught.value.code is Code.NOT_A_FILE
    assert target.exists() is not is_dangling
    if not is_dangling:
        assert (target.read_text(), _mode(target)) == ("precious", 0o644)


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history.db").mkdir()

    with pytest.raises(Invalid) as caught:
        private_file(tmp_path / "history.db")

    assert caught.value.code is Code.NOT_A_FILE


def test_a_file_that_cannot_be_made_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(Denied) as caught:
        private_file(tmp_path / "missing" / "history.db")

    assert caught.value.code is Code.STORE_UNWRITABLE


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /srv rw - nfs4 server:/srv rw
24 23 0:22 / /srv/local rw - xfs /dev/vdb rw
25 22 0:23 / /run rw - tmpfs tmpfs rw
26 22 0:24 / /mnt/with\\040blank rw - fuse.sshfs host:/ rw
27 22 0:25 / /over rw - ext4 /dev/vdc rw
28 27 0:26 / /over rw - cifs //server/share rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    """Write what the kernel would say about mounts."""
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS)
    return file


@each_case(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/ada", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/ada", "nfs4"),
        ("/srv/local/ada", "xfs"),
        ("/srvother", "ext4"),
        ("/run/user/0", "tmpfs"),
        ("/mnt/with blank/x", "fuse.sshfs"),
        ("/over/x", "cifs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(
    mounts: Path, path: str, kind: str
) -> None:
    assert file_system_of(Path(path), mounts) == kind


@each_case(
    ("path", "kind"),
    [
        ("/srv/ada", "nfs4"),
        ("/run/x", "tmpfs"),
        ("/mnt/with blank", "fuse.sshfs"),
        ("/over", "cifs"),
    ],
)
def test_a_file_system_on_which_saved_would_not_be_true_is_refused(
    mounts: Path, path: str, kind: str
) -> None:
    with pytest.raises(Denied) as caught:
        require_suitable(Path(path), mounts)

    assert caught.value.code is Code.UNSUITABLE_FILE_SYSTEM
    assert caught.value.details == {"file_system": kind}


def test_a_local_disk_is_suitable(mounts: Path) -> None:
    require_suitable(Path("/home/ada"), mounts)
    require_suitable(Path("/srv/local"), mounts)


def test_where_the_system_does_not_tell_nothing_is_refused(tmp_path: Path) -> None:
    silent = tmp_path / "missing"

    assert file_system_of(Path("/"), silent) is None
    require_suitable(Path("/"), silent)


def test_memory_is_no_place_for_a_store() -> None:
    if file_system_of(Path("/dev/shm")) != "tmpfs":
        skip_row("R53", "a memory file system at /dev/shm")

    with pytest.raises(Denied) as caught:
        SqliteStore(Path("/dev/shm/holdfast-test.db"), KEY)

    assert caught.value.code is Code.UNSUITABLE_FILE_SYSTEM
    assert not Path("/dev/shm/holdfast-test.db").exists()
