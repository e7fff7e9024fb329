"""What a house does while somebody reads from it: its statements, its imports, its processes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import apsw

# What stored data must never cause: that something is loaded, run, reached or unpacked.
EFFECTS: Final = (
    *("import", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
    *("pty.", "socket.connect", "socket.getaddrinfo", "pickle.find_class", "marshal.loads"),
    *("ctypes.dlopen", "exec", "compile", "code.__new__", "urllib.Request", "webbrowser.open"),
)


@dataclass
class Watch:
    """What was seen."""

    statements: list[str] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


_open: list[Watch] = []
_is_hooked: list[bool] = []


@contextmanager
def effects_watched() -> Iterator[Watch]:
    """Note every effect and every opened path until the block is left."""
    if not _is_hooked:
        # It stays for the life of the process, and hears nothing while nobody watches.
        sys.addaudithook(_heard)
        _is_hooked.append(True)
    watch = Watch()
    _open.append(watch)
    try:
        yield watch
    finally:
        _open.remove(watch)


@contextmanager
def statements_watched(watch: Watch) -> Iterator[None]:
    """Note the text of every statement of connections that are opened until the block is left."""

    def traced(event: Any) -> None:
        watch.statements.append(event["sql"])

    def hooked(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, traced)

    apsw.connection_hooks.append(hooked)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(hooked)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if not _open:
        return
    for watch in _open:
        if event == "open":
            watch.paths.append(str(arguments[0]))
        elif event.startswith(EFFECTS):
            watch.effects.append(f"{event} {arguments!r}"[:200])
