"""Parses and validates JSON-RPC messages before the MCP SDK reads them, on every transport.

An invalid message still gets an error response, with the id of its request if it can be found.
Import lazily, because this imports the SDK.
"""

import json
import re
from typing import Any, Final

from mcp import types
from mcp.types import jsonrpc_message_adapter
from msgspec import Struct

from holdfast.parsing.strict_json import TOKEN, decode_strictly, require_moderate

# A little more than the largest observation can contain.
VALUES_MOST: Final = 600_000
NOT_JSON: Final = "The message is not valid JSON in UTF-8."
NOT_A_MESSAGE: Final = "The message is not a JSON-RPC request or notification."
INVALID_REQUEST: Final = (
    "The request is ambiguous or too large: it has a duplicate key, a lone surrogate or NaN, "
    "or is nested too deeply, or has too many values."
)
# The value of an `id` member, if it is a simple number or string.
_ID: Final = re.compile(rb'\s*:\s*(?:(-?[0-9]{1,15})|"([^"\\\x00-\x1f\x7f-\xff]{0,200})")\s*[,}]')


class MessageError(Struct, frozen=True):
    """Why a message is invalid, and the request id to answer, if known."""

    code: int
    text: str
    request_id: int | str | None = None

    def message(self) -> types.JSONRPCError:
        """Return the JSON-RPC error message."""
        error = types.ErrorData(code=self.code, message=self.text)
        return types.JSONRPCError(jsonrpc="2.0", id=self.request_id, error=error)


def parse_message(raw: bytes) -> types.JSONRPCMessage | MessageError:
    """Parse a message; returns a `MessageError` if it is invalid."""
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
    """Decode a message; rejects ambiguous JSON that two parsers could read differently."""
    found = decode_strictly(line, values_most=VALUES_MOST)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    # Otherwise a request with an invalid id would be treated as a notification and not answered.
    if "method" in found and not _is_id(found.get("id", 0)):
        raise ValueError("an id must be a number or a string")
    # Lone surrogates can be parsed, but a response that contains them cannot be encoded.
    if b"\\u" in line:
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _is_id(value: Any) -> bool:
    # `bool` is a subclass of `int` in Python.
    return isinstance(value, int | str) and not isinstance(value, bool)


def _id_of(line: bytes) -> int | str | None:
    """Return the id of an invalid request, because its sender waits for a response."""
    depth = 0
    for token in TOKEN.finditer(line if b'"method"' in line else b""):
        mark = line[token.start()]
        depth += (mark in b"[{") - (mark in b"]}")
        found = _ID.match(line, token.end()) if depth == 1 and token[0] == b'"id"' else None
        if found is not None:
            return int(found[1]) if found[1] is not None else found[2].decode()
    return None


def _is_json(line: bytes) -> bool:
    try:
        require_moderate(line, values_most=VALUES_MOST)
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
