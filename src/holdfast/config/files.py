"""The file `holdfast.toml`: reads it whole, checks its keys and finds the line of each.

Values are not validated here.
"""

import difflib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from holdfast.config.keys import SETTING_KEYS
from holdfast.domain.errors import Code, Invalid

FILE_NAME: Final = "holdfast.toml"
LARGEST: Final = 1 << 20

_HEADER: Final = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_\-.\"' ]+?)\s*=")


class GivenValue(Struct, frozen=True):
    """A value and where it was given, for error messages."""

    value: Any
    where: str
    details: Mapping[str, Any] = {}
    # For a value from the file: its full key, and the line of every key.
    path: str = ""
    lines: Mapping[str, int] = {}

    def below(self, key: str) -> "KeyLocation":
        """Return the location of a key in this table; without its own line, that of the table."""
        path = f"{self.path}.{key}" if key else self.path
        words = path.split(".")
        ways = (".".join(words[:count]) for count in range(len(words), 0, -1))
        line = next((self.lines[way] for way in ways if way in self.lines), None)
        where, details = _location(Path(str(self.details["file"])), path, line)
        return KeyLocation(path, where, details)


class KeyLocation(Struct, frozen=True):
    """A key and its location."""

    path: str
    where: str
    details: Mapping[str, Any]

    def invalid(self, rule: str) -> Invalid:
        """Return the error for the value at this location."""
        return Invalid(Code.CONFIG_INVALID, f"{self.where}: {self.path} {rule}.", self.details)


def read_file(file: Path, *, required: bool) -> dict[str, GivenValue]:
    """Return the settings in the file by name; an unknown key is refused with a suggestion."""
    text = _text(file, required=required)
    if not text:
        return {}
    # Imported here, because most homes have no such file and the import slows every start.
    import tomllib

    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _unreadable_file(file, str(error)) from None
    known = {key.path: name for name, key in SETTING_KEYS.items()}
    lines = _key_lines(text)
    found = {}
    for path, value in _flatten(content):
        where, details = _location(file, path, lines.get(path))
        if path not in known:
            raise unknown_key(KeyLocation(path, where, details), suggest_nearest(path, known))
        found[known[path]] = GivenValue(value, f"{where}: {path}", details, path, lines)
    return found


def suggest_nearest(name: str, known: Mapping[str, Any]) -> str:
    """Return the end of a sentence that suggests the most similar known name."""
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)
    return f"; did you mean {nearest[0]}?" if nearest else "."


def unknown_key(location: KeyLocation, nearest: str) -> Invalid:
    """Return the error for an unknown key, ending with a suggestion."""
    message = f"{location.where} sets {location.path}, an unknown setting{nearest}"
    return Invalid(Code.CONFIG_INVALID, message, location.details)


def _text(file: Path, *, required: bool) -> str:
    try:
        content = _content(file)
    except FileNotFoundError:
        if required:
            raise Invalid(
                Code.CONFIG_INVALID, f"There is no {file}.", {"file": str(file)}
            ) from None
        return ""
    except NotADirectoryError:
        message = (
            f"{file.parent} is not a folder; the home folder and the configuration file "
            "must be in an existing one."
        )
        raise Invalid(Code.CONFIG_INVALID, message, {"file": str(file)}) from None
    except (OSError, ValueError) as error:
        message = getattr(error, "strerror", None) or "the path does not exist"
        raise _unreadable_file(file, message) from None
    if len(content) > LARGEST:
        raise _unreadable_file(file, "it is larger than 1 MiB")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _unreadable_file(file, "it is not UTF-8 text") from None


def _content(file: Path) -> bytes:
    # Non-blocking, because opening a FIFO would wait for its writer.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _unreadable_file(file, "it is not a file")
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read(LARGEST + 1)
    finally:
        os.close(descriptor)


def _flatten(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, keys in content.items():
        if not isinstance(keys, Mapping):
            yield section, keys
            continue
        for key, value in keys.items():
            yield f"{section}.{key}", value


def _key_lines(text: str) -> dict[str, int]:
    """Return the first line of each key or array of tables.

    The TOML parser does not report lines. Multi-line strings could confuse this scan, but no key
    takes one.
    """
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            section = _unquote(header[1])
            found.setdefault(section, number)
        elif key := _KEY.match(line):
            path = _unquote(f"{section}.{key[1]}" if section else key[1])
            found.setdefault(path, number)
    return found


def _unquote(path: str) -> str:
    return ".".join(word.strip().strip("\"'") for word in path.split("."))


def _location(file: Path, path: str, line: int | None) -> tuple[str, dict[str, Any]]:
    if line is None:
        return str(file), {"file": str(file), "key": path}
    return f"{file}, line {line}", {"file": str(file), "line": line, "key": path}


def _unreadable_file(file: Path, problem: str) -> Invalid:
    details: dict[str, Any] = {"file": str(file)}
    if line := re.search(r"at line (\d+)", problem):
        details["line"] = int(line[1])
    return Invalid(Code.CONFIG_INVALID, f"{file} cannot be read: {problem}.", details)
