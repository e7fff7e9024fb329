"""Crash images: what a disk may hold after the power fails, drawn from what was written to it.

Everything that was synced is there; of the rest any part may be there, torn and in any order.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.torture.disks import Operation

SECTOR = 512
NAMES = {"db": "history.db", "wal": "history.db-wal", "journal": "history.db-journal"} | {
    "anchor": "history.db-anchor"
}
Files = dict[str, bytearray]


def images(
    log: Sequence[Operation], cuts: Sequence[int], luck: random.Random
) -> Iterator[tuple[int, Files]]:
    """Yield one image for each cut; a cut is a number of operations that were begun before it."""
    durable: Files = {}
    pending: dict[str, list[Operation]] = {}
    done = 0
    for cut in sorted(cuts):
        for operation in log[done:cut]:
            _advance(durable, pending, operation)
        done = cut
        yield cut, _torn(durable, pending, luck)


def write_image(home: Path, files: Files) -> None:
    """Put an image where a store is looked for."""
    for part, content in files.items():
        (home / NAMES[part]).write_bytes(content)


def _advance(durable: Files, pending: dict[str, list[Operation]], operation: Operation) -> None:
    if operation.kind == "delete":
        durable.pop(operation.file, None)
        pending.pop(operation.file, None)
    elif operation.kind == "failed sync":
        # The system calls such pages clean: no later sync brings them to the disk.
        pending.pop(operation.file, None)
    elif operation.kind == "sync":
        for each in pending.pop(operation.file, []):
            _apply(durable.setdefault(operation.file, bytearray()), each)
        durable.setdefault(operation.file, bytearray())
    else:
        pending.setdefault(operation.file, []).append(operation)


def _apply(content: bytearray, operation: Operation) -> None:
    if operation.kind == "truncate":
        del content[operation.offset :]
        return
    end = operation.offset + len(operation.content)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[operation.offset : end] = operation.content


def _torn(durable: Files, pending: dict[str, list[Operation]], luck: random.Random) -> Files:
    """Return what may be left: the durable part, and some of what was under way."""
    files = {part: bytearray(content) for part, content in durable.items()}
    for part, operations in pending.items():
        kept = _kept(operations, luck)
        if kept:
            content = files.setdefault(part, bytearray())
            for operation in kept:
                _apply(content, operation)
    return files


def _kept(operations: list[Operation], luck: random.Random) -> list[Operation]:
    match luck.choice(["none", "all", "first", "last", "some", "torn", "torn"]):
        case "none":
            return []
        case "all":
            return operations
        case "first":
            return operations[: luck.randrange(len(operations) + 1)]
        case "last":
            return operations[luck.randrange(len(operations) + 1) :]
        case "some":
            return [each for each in operations if luck.random() < 0.5]
        case _:
            return [piece for each in operations for piece in _sectors(each, luck)]


def _sectors(operation: Operation, luck: random.Random) -> Iterator[Operation]:
    """Cut a write where the disk may cut it, and keep some of the pieces."""
    if operation.kind != "write":
        yield operation
        return
    start = operation.offset
    end = start + len(operation.content)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        if luck.random() < 0.6:
            piece = operation.content[start - operation.offset : stop - operation.offset]
            yield Operation("write", operation.file, start, piece)
        start = stop
