"""Lines of a conversation: cut from bytes however they come, and bounded before they are read."""

import json
import re
from typing import Any, Final, NoReturn

DEPTH_MOST: Final = 100
# As many as the largest claim can hold, and some.
VALUES_MOST: Final = 600_000
# A string, closed or not, or what stands between values.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},]', re.DOTALL)
# What stands behind the word for it, where it is plain.
_ID: Final = re.compile(rb'\s*:\s*(?:(-?[0-9]{1,15})|"([^"\\\x00-\x1f\x7f-\xff]{0,200})")\s*[,}]')


class Overlong:
    """A line that was longer than it may be; nothing of it is kept."""


class Lines:
    """Makes lines of bytes; one above the limit is dropped to its end while reading goes on."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun = bytearray()
        self._is_overlong = False

    def feed(self, chunk: bytes) -> list[bytes | Overlong]:
        """Take what came next, and return the lines that it completes; blank ones are left out."""
        *ended, begun = chunk.split(b"\n")
        lines: list[bytes | Overlong] = []
        for piece in ended:
            self._add(piece)
            lines += self.rest()
        self._add(begun)
        return lines

    def rest(self) -> list[bytes | Overlong]:
        """Return the line that was begun, as if it ended here."""
        begun, self._begun = bytes(self._begun), bytearray()
        was_overlong, self._is_overlong = self._is_overlong, False
        if was_overlong:
            return [Overlong()]
        return [begun] if begun.strip() else []

    def _add(self, piece: bytes) -> None:
        if self._is_overlong or len(self._begun) + len(piece) > self._limit:
            self._is_overlong = True
            self._begun.clear()
        else:
            self._begun += piece


def message_of(line: bytes) -> dict[str, Any]:
    """Return the message on a line; what readers could take for different ones is refused."""
    require_moderate(line)
    found = _decoder.decode(line.decode())
    if not isinstance(found, dict):
        raise ValueError("no object")
    # Without this a request whose id is none would be taken for a notice that nobody answers.
    if "method" in found and not isinstance(found.get("id", 0), int | str):
        raise ValueError("an id is a number or a text")
    # Half a character can be read, and nobody can be answered with it.
    if b"\\u" in line:
        json.dumps(found, ensure_ascii=False).encode()
    return found


def id_of(line: bytes) -> int | str | None:
    """Return the id of a request that cannot be taken: whoever waits for it has to be told."""
    depth = 0
    for token in _TOKEN.finditer(line if b'"method"' in line else b""):
        mark = line[token.start()]
        depth += (mark in b"[{") - (mark in b"]}")
        found = _ID.match(line, token.end()) if depth == 1 and token[0] == b'"id"' else None
        if found is not None:
            return int(found[1]) if found[1] is not None else found[2].decode()
    return None


def require_moderate(line: bytes) -> None:
    """Refuse what would be too much to read, without reading it: values cost more than bytes."""
    openings = line.count(b"[") + line.count(b"{")
    if openings <= DEPTH_MOST and openings + line.count(b",") <= VALUES_MOST:
        return
    depth = values = 0
    for token in _TOKEN.finditer(line):
        mark = line[token.start()]
        depth += (mark in b"[{") - (mark in b"]}")
        values += mark in b"[{,"
        if depth > DEPTH_MOST or values > VALUES_MOST:
            raise ValueError("too much to read")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_decoder: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
