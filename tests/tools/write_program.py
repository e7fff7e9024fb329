"""Calls that are idempotent, killed at every step of their way to the disk and made again.

    python -m tests.tools.write_program FOLDER

Prints, as one line of JSON for each call and each step: what was called, the step, how it came out
the second time, whether that was what was agreed to the first time, and what was left behind.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ports.tools import PlannedCall, RequestedCall, Slice
from tests.tools.file_fixture import Workshop

# Everything that changes something on a disk.
STEPS = ("fsync", "ftruncate", "link", "mkdir", "rename", "unlink", "write")
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "create": ("write_file", {"path": "new.txt", "content": "new\n", "mode": "create"}),
    "create below": (
        "write_file",
        {"path": "a/b/new.txt", "content": "new\n", "mode": "create", "create_dirs": True},
    ),
    "replace": ("write_file", {"path": "old.txt", "content": "new\n"}),
    "replace by the same": ("write_file", {"path": "old.txt", "content": "old\n"}),
    "replace nothing": ("write_file", {"path": "new.txt", "content": "new\n"}),
}


class ShelfOnDisk:
    """Keeps contents in a folder, for whoever comes after us."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        handle = hashlib.sha256(content).hexdigest()
        (self._folder / handle).write_bytes(content)
        return handle

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> Slice | None:
        try:
            content = (self._folder / handle).read_bytes()
        except FileNotFoundError:
            return None
        return Slice(content=content[start:end], start=start, total=len(content))


def killing(step: int) -> Callable[[], None]:
    """Have this process die at a step; return what is one step more."""
    left = step

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any, **more: Any) -> Any:
            count()
            return real(*given, **more)

        return act

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))
    return count


def in_a_process(work: Callable[[], Any]) -> Any:
    """Return what the work says in a process of its own; nothing when that was killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        told = json.dumps(work()).encode()
        with open(writing, "wb") as file:
            file.write(told)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        told = file.read()
    os.waitpid(pid, 0)
    return json.loads(told) if told else None


def called(folder: Path, name: str, step: int | None) -> Any:
    """Make the call; with a step it is killed there."""
    tool, arguments = CALLS[name]
    shop = Workshop(folder)
    shelf = folder / "shelf"
    shelf.mkdir(exist_ok=True)
    place = msgspec.structs.replace(shop.place, shelf=ShelfOnDisk(shelf))
    asked = RequestedCall(id="c1", name=tool, arguments=arguments, idempotency_key="s1:c1")

    async def whole() -> Any:
        planned = await shop.toolbox.plan(place, asked)
        if not isinstance(planned, PlannedCall):
            return msgspec.to_builtins(planned)
        digest = folder / "digest"
        if not digest.exists():
            digest.write_text(planned.digest)
        one_more = killing(step) if step is not None else lambda: None
        done = await shop.toolbox.run(place, planned)
        # The last moment: all is done, and nobody has heard of it.
        one_more()
        is_same = planned.digest == digest.read_text()
        return {"is_same": is_same, "done": msgspec.to_builtins(done)}

    return in_a_process(lambda: asyncio.run(whole()))


def left(folder: Path) -> dict[str, str]:
    """Return the files that are there for everybody."""
    inside = folder / "inside"
    files = sorted(path for path in inside.rglob("*") if path.is_file())
    return {str(path.relative_to(inside)): path.read_text() for path in files}


def prepared(folder: Path) -> Path:
    """Return a folder with a file that is there already."""
    (folder / "inside").mkdir(parents=True)
    (folder / "inside" / "old.txt").write_text("old\n")
    return folder


def main(root: Path) -> None:
    for name in CALLS:
        step = 0
        while True:
            folder = prepared(root / name / str(step))
            # Without a step to die at: what has to come out every time.
            first = called(folder, name, step or None)
            again = called(folder, name, None) if step else first
            undo = again.get("done", {}).get("result", {}).get("undo")
            kept = (folder / "shelf" / undo).read_text() if undo else None
            told = [name, step, again, kept, left(folder)]
            print(json.dumps(told), flush=True)
            if step and first is not None:
                break
            step += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
