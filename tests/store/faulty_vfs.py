"""A disk under SQLite that counts what is asked of it, and fails or waits when the test says so."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import apsw

Rule = Callable[[str, Path], None]


class Disk:
    """What the test has to say about the disk; one for all stores that are opened on it."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()
        self._rule: Rule = _healthy

    def behave(self, rule: Rule | None = None) -> None:
        """Ask the rule before every operation; it may wait or raise. Without one, be healthy."""
        self._rule = rule or _healthy

    def ask(self, operation: str, file: str | None) -> None:
        """Let an operation through, or do what the rule says."""
        path = Path(file or "temporary")
        self.asked[operation, path.name] += 1
        self._rule(operation, path)


def _healthy(operation: str, path: Path) -> None: ...


def failing(operation: str, suffix: str, error: Exception, *, times: int = 1_000_000) -> Rule:
    """Return a rule that raises an error so many times."""
    left = times

    def rule(asked: str, path: Path) -> None:
        nonlocal left
        if asked == operation and path.name.endswith(suffix) and left > 0:
            left -= 1
            raise error

    return rule


DISK = Disk()
# Encryption lies above the disk, so that what fails here is what really is written.
VFS = "multipleciphers-faulty"


_Name = apsw.URIFilename | str | None


class _File(apsw.VFSFile):
    def __init__(self, name: _Name, flags: list[int]) -> None:
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        DISK.ask("open", self._name)
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 — the name is SQLite's
        DISK.ask("write", self._name)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        DISK.ask("sync", self._name)
        super().xSync(flags)


class _Vfs(apsw.VFS):
    def xOpen(self, name: _Name, flags: list[int]) -> _File:  # noqa: N802
        return _File(name, flags)


_REGISTERED = _Vfs("faulty", "unix")
