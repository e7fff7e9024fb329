"""Untrusted text files: reads them within a size limit and reports all their errors at once.

A fault names a place and the rule it breaks, never the value.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.parsing.yaml import YamlError


class FileError(ValueError):
    """The file cannot be read as text; `is_missing` means that it does not exist."""

    def __init__(self, problem: str, *, is_missing: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.is_missing = is_missing


def read_text(path: Path, *, largest: int) -> str:
    """Return the text of a file, without a byte order mark; raises `FileError`."""
    try:
        # Non-blocking, because opening a FIFO would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise FileError("the file does not exist", is_missing=True) from None
    except (OSError, ValueError) as error:
        raise FileError(
            f"it cannot be opened ({getattr(error, 'strerror', 'invalid name')})"
        ) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileError("it is not a file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise FileError(f"it cannot be read ({error.strerror})") from None
    finally:
        os.close(descriptor)
    if len(content) > largest:
        raise FileError(f"it is larger than {largest} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"it is not UTF-8 at byte {error.start + 1}") from None


_PLACE: Final = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)


class Fault(Struct, frozen=True):
    """A place in a file, and the rule that it breaks."""

    path: str
    problem: str


class FormError(ValueError):
    """The file is not valid; it lists every fault."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(", ".join(fault.path for fault in faults))
        self.faults = faults


def syntax_error(where: str, error: FileError | YamlError, code: Code) -> Invalid:
    """Return the error of a file that is not YAML, or cannot be read."""
    line, column = getattr(error, "line", 0), getattr(error, "column", 0)
    place = f", line {line}, column {column}" if line else ""
    details = {"file": where, "line": line, "column": column}
    return Invalid(code, f"{where}{place}: {error.problem}.", details)


def invalid_file(where: str, what: str, faults: list[Fault], code: Code) -> Invalid:
    """Return the error of a file with faults; it lists all of them."""
    problems = "; ".join(f"{fault.path or 'the file'}: {fault.problem}" for fault in faults)
    details = {"file": where, "fields": [fault.path for fault in faults]}
    return Invalid(code, f"{where} is not a valid {what}: {problems}.", details)


def duplicate_faults(path: str, names: Iterable[str]) -> Iterator[Fault]:
    """Yield a fault for each repeated name in a list."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            yield Fault(f"{path}[{number}]", "it is repeated")
        seen.add(name)


def translate_fault(path: str, error: msgspec.ValidationError) -> Fault:
    """Return the library's error as a fault, without the value that it may quote."""
    found = _PLACE.fullmatch(str(error))
    problem, inner = (found["problem"], found["path"] or "") if found else ("it is not valid", "")
    if named := _FIELD.fullmatch(problem):
        reason = "it is missing" if named[1] == "missing required" else "unknown key"
        return Fault(f"{path}{inner}.{named[2]}", reason)
    if problem.startswith("Invalid"):
        problem = "it is not one of the allowed values"
    return Fault(f"{path}{inner}", problem[:1].lower() + problem[1:])
