"""JSON-RPC messages as lines of JSON, their byte streams, and the errors of a connection.

Parsing is lenient and bounded: a line that is not a message becomes `Junk` and is not fatal.
"""

import json
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

LINE_LIMIT: Final = 32 << 20
# How many bytes of a junk line are shown for debugging.
HEAD: Final = 200
# Extra bytes for the redaction: a secret that is cut in two is not recognised.
HEAD_MARGIN: Final = 16 << 10
# Longer lines are only parsed by msgspec and may hold a limited number of values, because
# parsing must not block other work for long.
LONG: Final = 1 << 20
VALUES_MOST: Final = 2_000_000
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CANCELLED: Final = -32800
AUTH_REQUIRED: Final = -32000
NOT_FOUND: Final = -32002
_BOM: Final = b"\xef\xbb\xbf"
_KEPT_BYTES: Final = HEAD + HEAD_MARGIN
# Accepted and echoed unchanged, because some peers send ids that the protocol does not allow.
Id: TypeAlias = int | str | None


class JsonRpcError(Struct, frozen=True, omit_defaults=True):
    """The error object of a reply."""

    code: int
    message: str
    data: Any = None


class JsonRpcRequest(Struct, frozen=True, kw_only=True, eq=False):
    """A request that must be answered; compared by identity, because ids may repeat.

    `size` is the length of its line in bytes.
    """

    id: Id
    method: str
    params: Any = None
    size: int = 0


class JsonRpcNotification(Struct, frozen=True, kw_only=True):
    """A message without an answer; `size` is the length of its line in bytes."""

    method: str
    params: Any = None
    size: int = 0


class JsonRpcReply(Struct, frozen=True, kw_only=True):
    """A reply; without an id the request it belongs to can only be guessed."""

    id: Id = None
    has_id: bool = True
    result: Any = None
    error: JsonRpcError | None = None


JunkKind: TypeAlias = Literal["not_json", "not_object", "array", "not_utf8", "too_long"]


class Junk(Struct, frozen=True, kw_only=True):
    """A line that is not a message: the reason, its first bytes and its length.

    `too_long` also covers lines with too many values to parse. `head` may be longer than what is
    shown, because the redaction needs the extra bytes to find secrets.
    """

    kind: JunkKind
    head: bytes
    size: int = 0


class ByteReader(Protocol):
    """A byte source, such as an `asyncio.StreamReader`."""

    async def read(self, count: int = -1, /) -> bytes:
        """Return available bytes, at most `count`; empty at end of file."""


class ByteWriter(Protocol):
    """A byte sink, such as an `asyncio.StreamWriter`."""

    def write(self, content: bytes, /) -> None:
        """Buffer a whole line."""

    async def drain(self) -> None:
        """Wait until the buffer has room again."""

    def close(self) -> None:
        """Accept no more data."""

    async def wait_closed(self) -> None:
        """Wait until the buffer is flushed and the stream is closed."""


Message: TypeAlias = JsonRpcRequest | JsonRpcNotification | JsonRpcReply
Incoming: TypeAlias = Message | Junk


class LineSplitter:
    """Splits chunks of bytes into lines.

    A line above the limit is discarded up to its end and reported once as `Junk`.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._begun = bytearray()
        # Length so far of the line that is being discarded.
        self._overlong = 0

    def feed(self, chunk: bytes) -> list[bytes | Junk]:
        """Add a chunk and return the lines it completes, without blank ones."""
        *ended, begun = chunk.split(b"\n")
        lines: list[bytes | Junk] = []
        for piece in ended:
            self._add(piece)
            lines += self.rest()
        self._add(begun)
        return lines

    def rest(self) -> list[bytes | Junk]:
        """Return the partial line as if it ended here."""
        begun, self._begun = self._begun, bytearray()
        overlong, self._overlong = self._overlong, 0
        if overlong:
            return [Junk(kind="too_long", head=bytes(begun), size=overlong)]
        return [] if not begun or begun.isspace() else [bytes(begun)]

    def _add(self, piece: bytes) -> None:
        size = (self._overlong or len(self._begun)) + len(piece)
        if size <= self._limit:
            self._begun += piece
            return
        self._overlong = size
        del self._begun[_KEPT_BYTES:]
        self._begun += piece[: _KEPT_BYTES - len(self._begun)]


def parse_line(line: bytes) -> Incoming:
    """Parse one line; `method` decides first what kind of message it is, then `id`."""
    if len(line) > LONG and _values(line) > VALUES_MOST:
        return _junk("too_long", line)
    try:
        found = _decode(line.removeprefix(_BOM))
    except UnicodeDecodeError:
        return _junk("not_utf8", line)
    except (ValueError, RecursionError):
        return _junk("not_json", line)
    if isinstance(found, dict):
        return _message(found, len(line))
    return _junk("array" if isinstance(found, list) else "not_object", line)


def render_message(message: Message) -> bytes:
    """Serialize one message as one line.

    Replaces unpaired surrogates, because some programs crash on them.
    """
    content = _content(message)
    try:
        return msgspec.json.encode(content) + b"\n"
    except UnicodeEncodeError:
        return msgspec.json.encode(_replace_surrogates(content)) + b"\n"


def _decode(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if len(line) > LONG:
            raise
        # The slower parser accepts what some programs send: unpaired surrogates and NaN.
        return _replace_surrogates(json.loads(line.decode(), parse_constant=lambda _: None))


def _values(line: bytes) -> int:
    """Return an upper bound for the number of values in a line."""
    return sum(map(line.count, (b",", b"{", b"[")))


def _junk(kind: JunkKind, line: bytes) -> Junk:
    return Junk(kind=kind, head=line[:_KEPT_BYTES], size=len(line))


def _message(body: dict[str, Any], size: int) -> Message:
    method = body.get("method")
    if method is None:
        return _reply(body)
    if not isinstance(method, str):
        # An invalid method is treated as an unknown method.
        method = ""
    if "id" in body:
        return JsonRpcRequest(id=body["id"], method=method, params=body.get("params"), size=size)
    return JsonRpcNotification(method=method, params=body.get("params"), size=size)


def _reply(body: dict[str, Any]) -> JsonRpcReply:
    error_object = body.get("error")
    error = None
    if isinstance(error_object, dict):
        code, message = error_object.get("code"), error_object.get("message")
        error = JsonRpcError(
            code if isinstance(code, int) else INTERNAL_ERROR,
            message if isinstance(message, str) else "",
            error_object.get("data"),
        )
    elif error_object is not None:
        error = JsonRpcError(INTERNAL_ERROR, str(error_object)[:HEAD])
    return JsonRpcReply(
        id=body.get("id"), has_id="id" in body, result=body.get("result"), error=error
    )


def _content(message: Message) -> dict[str, Any]:
    content: dict[str, Any] = {"jsonrpc": "2.0"}
    if isinstance(message, JsonRpcReply):
        content |= {"id": message.id} if message.has_id else {}
        if message.error is None:
            return content | {"result": message.result}
        return content | {"error": msgspec.to_builtins(message.error)}
    if isinstance(message, JsonRpcRequest):
        content["id"] = message.id
    content["method"] = message.method
    return content if message.params is None else content | {"params": message.params}


def _replace_surrogates(value: Any) -> Any:
    """Return the value with U+FFFD for each unpaired surrogate."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_surrogates(each) for each in value]
    return value


LossReason: TypeAlias = Literal["closed", "ended", "exited", "stuck", "noise"]


class RequestRefused(Exception):  # noqa: N818 — it says what is, not what went wrong
    """An error reply: received for our request, or raised by a handler to refuse theirs."""

    def __init__(self, error: JsonRpcError) -> None:
        super().__init__(f"{error.code} {error.message}")
        self.error = error


class ConnectionLost(Exception):  # noqa: N818 — it says what is, not what went wrong
    """The connection is lost.

    `closed` by us, `ended` by end of file or a broken pipe, `exited` with the process, `stuck` by
    a write timeout (the peer reads nothing), `noise` because the peer does not speak JSON-RPC.
    """

    def __init__(self, reason: LossReason) -> None:
        super().__init__(reason)
        self.reason: LossReason = reason
