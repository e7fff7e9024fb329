"""JSON-RPC messages as lines of JSON, and how a conversation fails.

Reading is lenient and bounded: a line that is no message becomes `Junk` and ends nothing.

"""

import json
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

LINE_LIMIT: Final = 32 << 20
# So much of a line that is no message is shown to whoever looks for the fault.
HEAD: Final = 200
# So much more is kept of it: a secret that is cut in two is not recognised.
HEAD_MARGIN: Final = 16 << 10
# Longer lines are for the fast reader alone, and may not hold any number of values: to read one
# must not keep everybody waiting.
LONG: Final = 1 << 20
VALUES_MOST: Final = 2_000_000
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CANCELLED: Final = -32800
AUTH_REQUIRED: Final = -32000
NOT_FOUND: Final = -32002
_BOM: Final = b"\xef\xbb\xbf"
_KEPT: Final = HEAD + HEAD_MARGIN
# Read as it comes and given back as it came: some send what the protocol does not allow.
Id: TypeAlias = int | str | None


class JsonRpcError(Struct, frozen=True):
    """Why a request was refused."""

    code: int
    message: str
    data: Any = None


class JsonRpcRequest(Struct, frozen=True, kw_only=True, eq=False):
    """A question that is owed an answer; two with the same id are still two.

    `size` are the bytes of the line it came in.
    """

    id: Id
    method: str
    params: Any = None
    size: int = 0


class JsonRpcNotification(Struct, frozen=True, kw_only=True):
    """A message that nobody answers; `size` are the bytes of the line it came in."""

    method: str
    params: Any = None
    size: int = 0


class JsonRpcReply(Struct, frozen=True, kw_only=True):
    """An answer; without an id it can only be guessed to which question."""

    id: Id = None
    has_id: bool = True
    result: Any = None
    error: JsonRpcError | None = None


JunkKind: TypeAlias = Literal["not_json", "not_object", "array", "not_utf8", "too_long"]


class Junk(Struct, frozen=True, kw_only=True):
    """A line that is no message: why not, how it begins, and how long it was.

    It is too long also when there is too much in it to be read. The head may be longer than is
    shown, for whoever has to find secrets in it.
    """

    kind: JunkKind
    head: bytes
    size: int = 0


Message: TypeAlias = JsonRpcRequest | JsonRpcNotification | JsonRpcReply
Incoming: TypeAlias = Message | Junk


class LineSplitter:
    """Makes lines of bytes, however those are cut.

    A line above the limit is dropped to its end while reading goes on, and told of once.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._begun = bytearray()
        # How long the line is that is being dropped.
        self._overlong = 0

    def feed(self, chunk: bytes) -> list[bytes | Junk]:
        """Take what came next, and return the lines that it completes; blank ones are left out."""
        *ended, begun = chunk.split(b"\n")
        lines: list[bytes | Junk] = []
        for piece in ended:
            self._add(piece)
            lines += self.rest()
        self._add(begun)
        return lines

    def rest(self) -> list[bytes | Junk]:
        """Return the line that was begun, as if it ended here."""
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
        del self._begun[_KEPT:]
        self._begun += piece[: _KEPT - len(self._begun)]


def parse_line(line: bytes) -> Incoming:
    """Read one line; what kind of message it is shows in `method` first, then in `id`."""
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
    """Write one message as one line.

    Halves of characters are replaced, because there are programs that die of them.
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
        # The slower reader takes what some programs write: half a character, or NaN.
        return _replace_surrogates(json.loads(line.decode(), parse_constant=lambda _: None))


def _values(line: bytes) -> int:
    """Return how many values a line can hold at most."""
    return sum(map(line.count, (b",", b"{", b"[")))


def _junk(kind: JunkKind, line: bytes) -> Junk:
    return Junk(kind=kind, head=line[:_KEPT], size=len(line))


def _message(found: dict[str, Any], size: int) -> Message:
    method = found.get("method")
    if method is None:
        return _reply(found)
    if not isinstance(method, str):
        # What is no text is a method that nobody knows.
        method = ""
    if "id" in found:
        return JsonRpcRequest(id=found["id"], method=method, params=found.get("params"), size=size)
    return JsonRpcNotification(method=method, params=found.get("params"), size=size)


def _reply(found: dict[str, Any]) -> JsonRpcReply:
    error_object = found.get("error")
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
        id=found.get("id"), has_id="id" in found, result=found.get("result"), error=error
    )


def _content(message: Message) -> dict[str, Any]:
    content: dict[str, Any] = {"jsonrpc": "2.0"}
    if isinstance(message, JsonRpcNotification):
        return content | _method_object(message)
    if isinstance(message, JsonRpcRequest):
        return content | {"id": message.id} | _method_object(message)
    if message.has_id:
        content["id"] = message.id
    if message.error is None:
        return content | {"result": message.result}
    error = {"code": message.error.code, "message": message.error.message}
    if message.error.data is not None:
        error["data"] = message.error.data
    return content | {"error": error}


def _method_object(message: JsonRpcRequest | JsonRpcNotification) -> dict[str, Any]:
    called: dict[str, Any] = {"method": message.method}
    return called if message.params is None else called | {"params": message.params}


def _replace_surrogates(value: Any) -> Any:
    """Return the value with U+FFFD for each half of a character."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_surrogates(each) for each in value]
    return value


LossReason: TypeAlias = Literal["closed", "ended", "exited", "stuck", "noise"]


class RequestRefused(Exception):  # noqa: N818 — it says what is, not what went wrong
    """An error reply: theirs to our request, or, raised by a handler, ours to theirs."""

    def __init__(self, error: JsonRpcError) -> None:
        super().__init__(f"{error.code} {error.message}")
        self.error = error


class ConnectionLost(Exception):  # noqa: N818 — it says what is, not what went wrong
    """The other side is gone.

    `closed` by us, `ended` because it closed its end of a stream, `exited` with its process,
    `stuck` because it reads nothing, `noise` because it speaks something else.
    """

    def __init__(self, reason: LossReason) -> None:
        super().__init__(reason)
        self.reason: LossReason = reason
