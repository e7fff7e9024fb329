"""Messages of the protocol as they come: judged before its package sees them, on every transport.

What is no message gets an answer all the same, by the id of its request wherever it has one.
Imported where it is used, because the protocol's package is.
"""

import json
import re
from typing import Any, Final, NoReturn

from mcp import types
from mcp.types import jsonrpc_message_adapter
from msgspec import Struct

DEPTH_MOST: Final = 100
# As many as the largest claim can hold, and some.
VALUES_MOST: Final = 600_000
NOT_JSON: Final = "This is no JSON in UTF-8."
NOT_A_MESSAGE: Final = "This is no JSON-RPC message, or one that cannot be answered."
INVALID_REQUEST: Final = (
    "This request cannot be taken: a key stands twice, half a character or NaN is in it, or it is "
    "too deep or has too many values."
)
# A string, closed or not, or what stands between values.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},]', re.DOTALL)
# What stands behind the word for it, where it is plain.
_ID: Final = re.compile(rb'\s*:\s*(?:(-?[0-9]{1,15})|"([^"\\\x00-\x1f\x7f-\xff]{0,200})")\s*[,}]')


class MessageError(Struct, frozen=True):
    """Why something is not taken as a message, and by whose id that is told, if it has one."""

    code: int
    text: str
    request_id: int | str | None = None

    def message(self) -> types.JSONRPCError:
        """Return it as it is sent."""
        error = types.ErrorData(code=self.code, message=self.text)
        return types.JSONRPCError(jsonrpc="2.0", id=self.request_id, error=error)


def parse_message(raw: bytes) -> types.JSONRPCMessage | MessageError:
    """Return the message that the bytes are, or why they are none."""
    try:
        return jsonrpc_message_adapter.validate_python(_decode_message(raw), by_name=False)
    except (ValueError, RecursionError):
        request_id = _id_of(raw)
        if request_id is not None:
            return MessageError(types.INVALID_REQUEST, INVALID_REQUEST, request_id)
        if _is_json(raw):
            return MessageError(types.INVALID_REQUEST, NOT_A_MESSAGE)
        return MessageError(types.PARSE_ERROR, NOT_JSON)


def _decode_message(line: bytes) -> dict[str, Any]:
    """Return the message on a line; what readers could take for different ones is refused."""
    require_bounded(line)
    found = _decoder.decode(line.decode())
    if not isinstance(found, dict):
        raise ValueError("no object")
    # Without this a request whose id is none would be taken for a notice that nobody answers.
    if "method" in found and not _is_id(found.get("id", 0)):
        raise ValueError("an id is a number or a text")
    # Half a character can be read, and nobody can be answered with it.
    if b"\\u" in line:
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _is_id(given: Any) -> bool:
    # For Python a truth value is a number, too.
    return isinstance(given, int | str) and not isinstance(given, bool)


def _id_of(line: bytes) -> int | str | None:
    """Return the id of a request that cannot be taken: whoever waits for it has to be told."""
    depth = 0
    for token in _TOKEN.finditer(line if b'"method"' in line else b""):
        mark = line[token.start()]
        depth += (mark in b"[{") - (mark in b"]}")
        found = _ID.match(line, token.end()) if depth == 1 and token[0] == b'"id"' else None
        if found is not None:
            return int(found[1]) if found[1] is not None else found[2].decode()
    return None


def require_bounded(line: bytes) -> None:
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


def _is_json(line: bytes) -> bool:
    try:
        require_bounded(line)
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_decoder: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
