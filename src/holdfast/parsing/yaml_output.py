"""Writes YAML the way all our files are written: one value, one text, byte for byte.

Keys are sorted, lists keep their order. No text is left plain that another reader, also one of
YAML 1.1, could take for anything else.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, Final

# A longer key needs a form of its own, by the standard.
_KEY_LONGEST: Final = 1_000
_WORDS: Final = frozenset(
    {"yes", "no", "on", "off", "y", "n", "true", "false", "null", "~", "=", "<<"}
)
# Numbers, dates and times of either version begin so, and consist of this.
_NUMBER_LIKE: Final = re.compile(r"(?i:[-+.0-9][-+.,:_0-9a-fxotz ]*|[-+]?\.(?:inf|nan))")
_PLAIN: Final = re.compile(r"[^\s\-?:,\[\]{}#&*!|>'\"%@`](?:[^\n:#]|:(?=[^\s])|(?<=[^\s])#)*")
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def write_yaml(value: Any) -> str:
    """Return the document of a value made of what JSON has; ends with one line break."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from _entry(key, value[key])
    elif isinstance(value, list | tuple) and value:
        for item in value:
            yield from _after("-", list(_lines(item)))
    elif isinstance(value, str) and _is_block(value):
        yield from _block(value)
    else:
        yield _scalar(value)


def _entry(key: str, value: Any) -> Iterator[str]:
    name = _text(key)
    inner = list(_lines(value))
    if len(name) > _KEY_LONGEST:
        yield f"? {name}"
        yield from _after(":", inner)
    elif isinstance(value, dict | list | tuple) and value:
        yield f"{name}:"
        yield from _indented(inner)
    else:
        # A block's own lines are indented already, by the line above them.
        yield f"{name}: {inner[0]}"
        yield from inner[1:]


def _after(mark: str, lines: list[str]) -> Iterator[str]:
    yield f"{mark} {lines[0]}"
    yield from _indented(lines[1:])


def _indented(lines: list[str]) -> Iterator[str]:
    # An empty line stays empty, because a block keeps its blanks.
    return (f"  {line}" if line else line for line in lines)


def _is_block(text: str) -> bool:
    lines = text.split("\n")
    return (
        len(lines) > 1
        and not text.startswith(("\n", " "))
        and all(line.isprintable() and not line.endswith(" ") for line in lines)
    )


def _block(text: str) -> Iterator[str]:
    ending = "+" if text.endswith("\n\n") else "" if text.endswith("\n") else "-"
    yield f"|{ending}"
    yield from _indented(text.removesuffix("\n").split("\n"))


def _scalar(value: Any) -> str:
    match value:
        case str():
            return _text(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        case int() | float():
            return repr(value)
        case dict() | list() | tuple():
            return "{}" if isinstance(value, dict) else "[]"
        case _:
            raise TypeError(f"There is no YAML for a {type(value).__name__}.")


def _text(text: str) -> str:
    return text if _is_plain(text) else f'"{"".join(map(_escaped, text))}"'


def _is_plain(text: str) -> bool:
    return (
        text.isprintable()
        and not text.endswith((" ", ":"))
        and text.lower() not in _WORDS
        and _NUMBER_LIKE.fullmatch(text) is None
        and _PLAIN.fullmatch(text) is not None
    )


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if "\ud800" <= character <= "\udfff":
        raise ValueError("A lone surrogate has no YAML.")
    if character.isprintable():
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
