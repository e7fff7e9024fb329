"""Parameter texts of a docstring in the Google, NumPy or Sphinx form."""

import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import Final

from msgspec import Struct

_GOOGLE: Final = re.compile(r"(Args|Arguments|Parameters|Params|Keyword Arg(s|uments)):\s*")
_NUMPY: Final = re.compile(r"(Other )?Parameters\s*")
_UNDERLINE: Final = re.compile(r"-{3,}\s*")
_SPHINX: Final = re.compile(
    r":(?:param|parameter|arg|argument|key)\s+(?:[^:]*\s)?\*{0,2}(\w+):(.*)"
)
_SPHINX_TYPE: Final = re.compile(r":type\s+\w+:")
_GOOGLE_ENTRY: Final = re.compile(r"\*{0,2}(\w+)(?:\s*\(.*?\))?\s*:(.*)")
_NUMPY_ENTRY: Final = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")


class Docstring(Struct, frozen=True):
    """The description without its parameter sections, and the text of each parameter."""

    description: str
    parameters: Mapping[str, str]


def parse_docstring(text: str | None) -> Docstring:
    """Return the parts of a docstring."""
    lines = cleandoc(text or "").splitlines()
    kept: list[str] = []
    found: dict[str, list[str]] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        if _GOOGLE.fullmatch(line) and _is_indented(lines, at + 1):
            end = _block_end(lines, at + 1)
            _collect(_google_entries(lines[at + 1 : end]), found)
        elif _NUMPY.fullmatch(line) and _is_underlined(lines, at):
            end = _section_end(lines, at + 2)
            _collect(_numpy_entries(lines[at + 2 : end]), found)
        elif (entry := _SPHINX.fullmatch(line)) or _SPHINX_TYPE.match(line):
            end = _block_end(lines, at + 1, blank_ends=True)
            if entry:
                found[entry[1]] = [entry[2], *lines[at + 1 : end]]
        else:
            kept.append(line)
            end = at + 1
        at = end
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return Docstring(description, {name: _joined(text) for name, text in found.items()})


def _collect(entries: Iterator[tuple[str, str]], found: dict[str, list[str]]) -> None:
    """Add entries; a line without a name continues the entry before it."""
    names: list[str] = []
    for name, text in entries:
        if name:
            names = [each.strip().lstrip("*") for each in name.split(",")]
        for each in names:
            found.setdefault(each, []).append(text)


def _google_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    margin = _indent(lines[0])
    for line in lines:
        entry = _GOOGLE_ENTRY.fullmatch(line.strip()) if _indent(line) == margin else None
        yield (entry[1], entry[2]) if entry else ("", line)


def _numpy_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        entry = _NUMPY_ENTRY.fullmatch(line) if line[:1].strip() else None
        yield (entry[1], "") if entry else ("", line)


def _is_indented(lines: list[str], at: int) -> bool:
    return at < len(lines) and _indent(lines[at]) > 0


def _is_underlined(lines: list[str], at: int) -> bool:
    return at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1]) is not None


def _block_end(lines: list[str], at: int, *, blank_ends: bool = False) -> int:
    """Return the end of an indented block; blank lines belong to it unless they end it."""
    while at < len(lines) and (_indent(lines[at]) or not (lines[at].strip() or blank_ends)):
        at += 1
    return at


def _section_end(lines: list[str], at: int) -> int:
    while at < len(lines) and not (lines[at].strip() and _is_underlined(lines, at)):
        at += 1
    return at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0


def _joined(lines: list[str]) -> str:
    return " ".join(text for line in lines if (text := line.strip()))
