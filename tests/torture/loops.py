"""A disk of our own with a true power switch: ext4 on a loop device; needs root."""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.torture.crew import wait_until

SHUTDOWN = 0x8004587D
WITHOUT_LOG_FLUSH = 2
TOOLS = ("mkfs.ext4", "losetup", "mount", "umount")


class LoopDisk:
    """A file system that can lose its power at any moment."""

    def __init__(self, image: Path, mount: Path) -> None:
        self._image = image
        self._device = ""
        self.mount = mount

    def cut(self) -> None:
        """Fail the power: nothing that was not synced reaches the disk any more."""
        folder = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(folder, SHUTDOWN, struct.pack("I", WITHOUT_LOG_FLUSH))
        finally:
            os.close(folder)

    def restart(self) -> None:
        """Bring the power back; all who used the disk must be gone."""
        self.leave()
        # A copy on a device of its own: whoever made a namespace meanwhile has the mount in it,
        # and as long as he lives the file system that was cut off would be mounted again.
        again = self._image.with_suffix(".again")
        _run("cp", "--sparse=always", str(self._image), str(again))
        again.replace(self._image)
        self.enter()

    def enter(self) -> None:
        """Mount the disk."""
        self._device = _run("losetup", "--find", "--show", str(self._image)).strip()
        _run("mount", "-t", "ext4", self._device, str(self.mount))

    def leave(self) -> None:
        """Unmount the disk, when the last user has gone."""
        wait_until(self._is_left)
        # Where somebody still has the mount, the device goes with him.
        _run("losetup", "--detach", self._device)

    def _is_left(self) -> bool:
        done = subprocess.run(["umount", str(self.mount)], capture_output=True, check=False)
        return done.returncode == 0


def missing_means() -> str:
    """Return what this machine lacks for a loop device; empty when it has everything."""
    if os.geteuid() != 0:
        return "root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return ", ".join(absent)
    return "" if Path("/dev/loop-control").exists() else "loop devices"


@contextmanager
def loop_disk(folder: Path, *, megabytes: int = 96) -> Iterator[LoopDisk]:
    """Make a disk in a file, mount it, and take everything away afterwards."""
    image, mount = folder / "disk.img", folder / "mnt"
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    # Nothing is kept back for root, who would otherwise never see the disk full.
    _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
    mount.mkdir()
    disk = LoopDisk(image, mount)
    disk.enter()
    try:
        yield disk
    finally:
        disk.leave()


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
