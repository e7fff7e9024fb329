"""Archives of every kind, filled to do harm where somebody unpacks them."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

AGENT: Final = b"id: packed\nmodel: holdfast\nprovider: offline\nsystem_prompt: Hello.\n"
CLAIM: Final = b'{"session_id":"packed","started_at":"2025-01-01T00:00:00Z","actions":[]}'
ESCAPED: Final = "escaped-from-an-archive"

# What a member is called, and what is in it; a link has a target instead.
Member = tuple[str, bytes]
CONTENTS: Final[dict[str, list[Member]]] = {
    "an agent": [("packed.agent.yaml", AGENT)],
    "a workflow": [("packed.relavium.yaml", b"schema_version: '1.0'\n")],
    "a session": [("sessions/packed.json", CLAIM)],
    "the folder above": [(f"../{ESCAPED}", b"x")],
    "far above": [("../" * 30 + ESCAPED, b"x")],
    "an absolute name": [(f"/{ESCAPED}", b"x")],
    "a windows name": [(f"..\\{ESCAPED}", b"x")],
    "a link and what lies behind it": [("link", b""), (f"link/{ESCAPED}", b"x")],
    "a bomb": [("zeros", bytes(4 << 20))],
    "nothing": [],
}


def tree(folder: Path) -> dict[str, int]:
    """Return everything in a folder with its size, so that what was written is seen."""
    return {
        str(each.relative_to(folder)): each.lstat().st_size
        for each in folder.rglob("*")
        if not each.is_dir()
    }


def archives() -> Iterator[tuple[str, bytes]]:
    """Yield each content in each kind of archive."""
    for kind, pack in KINDS.items():
        for name, members in CONTENTS.items():
            yield f"{name}, {kind}", pack(members)


def zipped(members: list[Member], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return stream.getvalue()


def tarred(members: list[Member]) -> bytes:
    """Return a tar file; the first member without content is a link out of the folder."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if not content:
                member.type, member.linkname = tarfile.SYMTYPE, "../.."
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


KINDS: Final[dict[str, Callable[[list[Member]], bytes]]] = {
    "zip": zipped,
    "zip without compression": lambda members: zipped(members, zipfile.ZIP_STORED),
    "tar": tarred,
    "tar.gz": lambda members: gzip.compress(tarred(members), mtime=0),
    "tar.bz2": lambda members: bz2.compress(tarred(members)),
    "tar.xz": lambda members: lzma.compress(tarred(members)),
}
