"""R53: a file system on which "saved" would not be true is refused, with a line that says why."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from holdfast import Denied, open_holdfast
from holdfast.store.sqlite.files import require_suitable
from tests.marks import proves
from tests.torture.clients.house import settings
from tests.torture.conftest import Tell

pytestmark = pytest.mark.slow

UNSUITABLE = ("nfs4", "9p", "virtiofs", "fuse.sshfs", "tmpfs", "cifs")
SUITABLE = ("ext4", "xfs", "btrfs", "overlay", "zfs")


@proves("R53")
@pytest.mark.parametrize("kind", UNSUITABLE)
def test_data_on_a_file_system_that_cannot_keep_it_is_refused(
    tmp_path: Path, tell: Tell, kind: str
) -> None:
    with pytest.raises(Denied) as refused:
        require_suitable(tmp_path / "home", mounts=mount_table(tmp_path, kind))

    tell(f"{kind} refused")
    assert refused.value.details == {"file_system": kind}
    assert kind in refused.value.message
    assert "HOLDFAST_HOME" in refused.value.message


@proves("R53")
@pytest.mark.parametrize("kind", SUITABLE)
def test_data_on_a_local_disk_is_taken(tmp_path: Path, kind: str) -> None:
    require_suitable(tmp_path / "home", mounts=mount_table(tmp_path, kind))


@proves("R53")
def test_a_true_file_system_in_memory_is_refused_before_anything_is_made(
    tmp_path: Path, tell: Tell
) -> None:
    if os.geteuid() != 0:
        tell("the true tmpfs needs root; the table of mounts was faked")
        return
    memory = tmp_path / "memory"
    memory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(memory)], check=True)
    try:
        with pytest.raises(Denied) as refused:
            asyncio.run(_opened(memory / "home"))
        left = [path.name for path in (memory / "home").rglob("*") if path.is_file()]
    finally:
        subprocess.run(["umount", str(memory)], check=True)

    assert refused.value.details == {"file_system": "tmpfs"}
    # Neither a store nor its key was put where the next boot forgets it.
    assert left == []


async def _opened(home: Path) -> None:
    async with open_holdfast(config=settings(home)):
        pass


def mount_table(folder: Path, kind: str) -> Path:
    """Write a table of mounts in which a folder is on a file system of that kind."""
    table = folder / "mountinfo"
    table.write_text(
        "22 1 254:1 / / rw,relatime - ext4 /dev/root rw\n"
        f"36 22 0:31 / {folder} rw,relatime shared:1 - {kind} source rw\n"
        f"37 22 0:32 / {folder}-beside rw,relatime - ext4 /dev/beside rw\n"
    )
    return table
