"""What must be nowhere, and what must not be left: canaries, files, leases, processes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.zones.model import TEMPLATE_PROMOTE_MARKER_V1
from tests.torture.judgement import Finding
from tests.torture.machine import carriers, is_alive
from tests.torture.notebooks import Books

EXPECTED = {
    TEMPLATE_PROMOTE_MARKER_V1,
    "history.db",
    "history.db-anchor",
    "history.db-wal",
    "history.db-reserve",
    "history.db-shm",
    "holdfast.toml",
    "key",
    "home-id",
    "token",
    "workspaces",
}


def leavings(
    home: Path, books: Books, canaries: Sequence[bytes], mark: str | None
) -> Iterator[Finding]:
    """Yield every canary found in the home's files, and everything that nobody tidied up."""
    for file in sorted(path for path in home.rglob("*") if path.is_file()):
        content = file.read_bytes()
        for canary in canaries:
            if canary in content:
                yield "LEAK", f"{canary!r} is in {file.name}"
    for path in sorted(home.iterdir()):
        if path.name not in EXPECTED:
            yield "ORPHAN", f"{path.name} was left in the home"
    for book in books.notebooks.values():
        if book.holder is not None and not is_alive(book.holder):
            yield "ORPHAN", f"{book.id} is leased to the dead"
    for pid in carriers(mark) if mark else ():
        yield "ORPHAN", f"process {pid} was left running"
