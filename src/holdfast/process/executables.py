"""Find the executable of a command, and the paths it must be able to read."""

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from holdfast.process.environment import is_below
from holdfast.process.sandbox import SYSTEM

_PROGRAM_FOLDERS: Final = frozenset({"bin", "sbin", "shims", "libexec"})
# Parts of an installation next to its `bin`. Listed by name, because some prefixes hold secrets.
_BESIDE: Final = (
    *("include", "lib", "lib32", "lib64", "libexec", "plugins", "pyvenv.cfg", "share"),
    *("version", "versions"),
)
_PACKAGE_FOLDERS: Final = frozenset({"node_modules", ".pnpm"})
_ENVIRONMENTS: Final = (".venv", "venv")
_HEAD: Final = 256
_INTERPRETER: Final = 3


class Executable(Struct, frozen=True, kw_only=True):
    """An executable file: the path as given, its real path, and its identity."""

    path: str
    real: str
    identity: tuple[int, int, int, int]


def find_executable(command: str, *, path: Sequence[str], folder: str) -> Executable | None:
    """Return the program of a command: a path is used as given, a bare name is searched in PATH."""
    if "/" in command:
        return _executable(os.path.join(folder, command))
    candidates = (_executable(os.path.join(entry, command)) for entry in path)
    return next((found for found in candidates if found is not None), None)


def _executable(path: str) -> Executable | None:
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or not os.access(path, os.X_OK):
            return None
    except OSError:
        return None
    identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return Executable(path=path, real=os.path.realpath(path), identity=identity)


def executables(real: str) -> tuple[str, ...] | None:
    """Return all files that must be executable to run a program; `None` if unknown."""
    try:
        with open(real, "rb") as file:
            head = file.read(64)
            # Only 64-bit little-endian ELF; a script needs an interpreter, which may be a script
            # again.
            if head[:6] != b"\x7fELF\x02\x01":
                return None
            offset, size, count = struct.unpack_from("<32xQ14xHH", head)
            file.seek(offset)
            headers = [file.read(size) for _ in range(count)]
            for header in headers:
                kind, begin, length = struct.unpack_from("<I4xQ16xQ", header)
                if kind == _INTERPRETER:
                    file.seek(begin)
                    return real, os.fsdecode(file.read(length).rstrip(b"\0"))
    except (OSError, struct.error):
        return None
    return (real,)


def readable_for(
    program: Executable, *, path: Sequence[str], roots: Iterable[str]
) -> tuple[str, ...]:
    """Return the paths outside system folders and roots that a program must read."""
    folders = (*path, os.path.dirname(program.path))
    needed = [*path, *(each for folder in folders for each in _installation(folder))]
    for file in _files(program, path, roots):
        needed += [file, *_installation(os.path.dirname(file)), *_packages(file)]
    outside = (each for each in needed if not any(is_below(each, folder) for folder in SYSTEM))
    return tuple(dict.fromkeys(outside))


def _files(program: Executable, path: Sequence[str], roots: Iterable[str]) -> Iterator[str]:
    """Yield the executed files: the program, its interpreters, and Pythons of virtualenvs."""
    yield program.real
    yield from _interpreters(program.real, path)
    for root in roots:
        for name in _ENVIRONMENTS:
            real = os.path.realpath(os.path.join(root, name, "bin", "python"))
            # Only a Python interpreter qualifies, because a link in a workspace may point anywhere.
            if os.path.basename(real).startswith("python") and _executable(real) is not None:
                yield real


def _interpreters(file: str, path: Sequence[str]) -> Iterator[str]:
    try:
        with open(file, "rb") as opened:
            first = opened.read(_HEAD).split(b"\n", 1)[0]
    except OSError:
        return
    if not first.startswith(b"#!"):
        return
    for word in os.fsdecode(first[2:]).split()[:2]:
        found = find_executable(word, path=path, folder="/")
        if found is not None:
            yield found.real


def _packages(file: str) -> Iterator[str]:
    """Yield the outermost folder of Node packages around a file: packages load their siblings."""
    names = file.split("/")
    for place, name in enumerate(names):
        if name in _PACKAGE_FOLDERS:
            yield "/".join(names[: place + 1])
            return


def _installation(folder: str) -> Iterator[str]:
    """Yield the installation paths that belong to a folder of programs."""
    prefix, name = os.path.split(os.path.realpath(folder))
    if name not in _PROGRAM_FOLDERS:
        return
    yield os.path.join(prefix, name)
    for beside in _BESIDE:
        # `~/.local/share` holds the data of all applications, not only of this installation.
        if (os.path.basename(prefix), beside) != (".local", "share"):
            yield os.path.join(prefix, beside)
