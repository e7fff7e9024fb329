"""Files that are none, or not what they seem: each is made in a folder and tried by its path."""

import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

Maker = Callable[[Path, Path], Iterator[str]]


def oddities(inside: Path, target: Path) -> Iterator[str]:
    """Make everything odd in a folder, and yield the paths at which it can be met.

    What leads anywhere leads to the target, which must not be reached.
    """
    for maker in (_links, _chains, _other_kinds, _sizes, _names, _depths, _permissions):
        yield from maker(inside, target)


def _links(inside: Path, target: Path) -> Iterator[str]:
    relative = os.path.relpath(target, inside)
    targets = {
        "to-file": f"{relative}/canary.txt",
        "to-file-absolute": f"{target}/canary.txt",
        "to-folder": relative,
        "to-folder-absolute": str(target),
        "to-new": f"{relative}/new.txt",
        "to-slashes": f"//{target}/canary.txt",
        "by-process": f"/proc/self/root{target}/canary.txt",
        "by-cwd": "/proc/self/cwd",
        "by-descriptor": "/dev/fd/0",
        "to-environment": "/proc/self/environ",
        "to-device": "/dev/zero",
        "to-space": " ",
        "to-self": ".",
        "to-above": "..",
    }
    for name, where in targets.items():
        (inside / name).symlink_to(where)
        yield name
    yield from ("to-folder/canary.txt", "to-folder-absolute/canary.txt", "to-folder/new.txt")
    yield from ("to-self/" * 20 + "to-file", f"to-above/{target.name}/canary.txt")
    os.link(target / "canary.txt", inside / "hard")
    yield "hard"


def _chains(inside: Path, target: Path) -> Iterator[str]:
    (inside / "loop").symlink_to("loop")
    (inside / "one").symlink_to("two")
    (inside / "two").symlink_to("one")
    (inside / "chain-0").symlink_to(target / "canary.txt")
    for number in range(1, 45):
        (inside / f"chain-{number}").symlink_to(f"chain-{number - 1}")
    yield from ("loop", "loop/x", "one", "two/x", "chain-1", "chain-39", "chain-44")


def _other_kinds(inside: Path, _: Path) -> Iterator[str]:
    os.mkfifo(inside / "pipe")
    (inside / "to-pipe").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.open(inside, os.O_RDONLY)
        # By a short name, because an address has little room.
        server.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
    yield from ("pipe", "to-pipe", "socket", "pipe/x")
    if os.geteuid() == 0:
        os.mknod(inside / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        os.mknod(inside / "block", stat.S_IFBLK | 0o666, os.makedev(7, 0))
        yield from ("zero", "block")


def _sizes(inside: Path, _: Path) -> Iterator[str]:
    for name, size in (("empty", 0), ("sparse", 1 << 40), ("zeros", 1 << 20)):
        (inside / name).touch()
        os.truncate(inside / name, size)
        yield name
    (inside / "one-line").write_text("x" * (8 << 20))
    yield "one-line"


def _names(inside: Path, _: Path) -> Iterator[str]:
    for name in (
        *("caf\u00e9", "cafe\u0301", "txt.\u202egnp", "zero\u200bwidth", "line\nfeed", "\x1b[2J"),
        *("x" * 255, "dot.", "space ", "colon:stream", "-rf", "*", "%00", "\\", "con", "~"),
        "\U0001f600" * 63,
    ):
        (inside / name).write_text("inside\n")
        yield name
    os.close(os.open(os.fsencode(inside) + b"/not\xfftext", os.O_CREAT, 0o600))
    yield from ("not\ufffdtext", "x" * 256, "x/" * 2000 + "x", "." * 200, " ")


def _depths(inside: Path, _: Path) -> Iterator[str]:
    deep = "/".join(["deep"] * 200)
    (inside / deep).mkdir(parents=True)
    (inside / deep / "file").write_text("inside\n")
    (inside / deep / "up").symlink_to("../" * 300)
    yield from (f"{deep}/file", f"{deep}/up", "deep/../" * 200 + f"{deep}/file", deep)
    (inside / "many").mkdir()
    for number in range(3000):
        (inside / "many" / f"{number}").touch()
    yield "many"


def _permissions(inside: Path, _: Path) -> Iterator[str]:
    for name, mode in (("none", 0o000), ("only-written", 0o200), ("as-owner", 0o6755)):
        (inside / name).write_text("inside\n")
        (inside / name).chmod(mode)
        yield name
    (inside / "closed").mkdir()
    (inside / "closed" / "file").write_text("inside\n")
    (inside / "closed").chmod(0o000)
    yield from ("closed", "closed/file")
