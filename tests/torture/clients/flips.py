"""Swaps directories and files for links, and moves directories away and back, until killed."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

_HERE = -100
_EXCHANGE = 2


async def main(inside: str, outside: str, elsewhere: str, ready: str) -> None:
    """Flip everything in turn; `ready` is touched as soon as it begins."""
    swap = _swapper()
    top = Path(inside)
    pairs = [(top / "flip", top / ".flip"), (top / "deep/flip", top / "deep/.flip")]
    for _, link in pairs:
        link.symlink_to(outside)
    os.mknod(ready)
    parent = os.getppid()
    # A run that was killed must not leave this one spinning.
    while os.getppid() == parent:
        for one, other in pairs:
            swap(str(one), str(other))
        _replace_leaf(top, f"{outside}/file.txt")
        os.rename(f"{inside}/walk/inner", f"{elsewhere}/inner")
        os.rename(f"{elsewhere}/inner", f"{inside}/walk/inner")


def _replace_leaf(top: Path, target: str) -> None:
    """Make the file a link for a moment; made anew, because a tool may have replaced either."""
    (top / ".link").symlink_to(target)
    os.rename(top / ".link", top / "leaf.txt")
    (top / ".file").write_text("inside, in place\n")
    os.rename(top / ".file", top / "leaf.txt")


def _swapper() -> Callable[[str, str], None]:
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)

    def at_once(one: str, other: str) -> None:
        exchange(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE)

    def by_steps(one: str, other: str) -> None:
        os.rename(one, f"{one}.away")
        os.rename(other, one)
        os.rename(f"{one}.away", other)

    return by_steps if exchange is None else at_once
