"""Lines that are no message, or none that anybody waits for: made by hand, and by chance."""

import json
import os
import random
from pathlib import Path
from typing import Any, Final

from tests.torture.documents import DECIDED, REFUSED, TAKEN

CORPORA: Final = os.environ.get("HOLDFAST_CORPORA")

# What programs have been seen to print on the wrong output, and messages of the wrong shape.
PRINTED: Final = (
    b"Welcome to Agent 1.0!",
    b"\x1b[32mready\x1b[0m",
    b"(node:1) Warning: something is deprecated",
    b"Content-Length: 42\r",
    b"\r",
    b"data: {}",
    b"\xff\xfe{\x00}\x00",
    "\ufeff{}".encode("utf-16"),
    b"\xef\xbb\xbf",
    b"\x00" * 64,
    b'{"jsonrpc":"2.0"}',
    b'{"jsonrpc":"1.0","id":null,"result":null}',
    b'{"jsonrpc":"2.0","id":999999,"result":{"stopReason":"end_turn"}}',
    b'{"jsonrpc":"2.0","id":"1","result":{"stopReason":"end_turn"}}',
    b'{"jsonrpc":"2.0","id":true,"result":{"stopReason":"end_turn"}}',
    b'{"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":"no"}}',
    b'{"jsonrpc":"2.0","id":[1],"result":1}',
    b'{"jsonrpc":"2.0","id":{"a":1},"error":null}',
    b'{"jsonrpc":"2.0","result":{"stopReason":"end_turn"}}',
    b'{"jsonrpc":"2.0","method":7}',
    b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}',
    b'{"jsonrpc":"2.0","method":"$/cancel_request","params":[1]}',
    b'{"jsonrpc":"2.0","method":"no/such/notification","params":{"a":1}}',
    b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"peer-ses',
    b'[{"jsonrpc":"2.0","method":"session/update"}]',
    b'"text"',
)


def by_hand() -> list[bytes]:
    """Return the lines of the tables, and of a public suite where there is one."""
    texts = [*TAKEN, *REFUSED, *DECIDED, *PRINTED]
    if CORPORA:
        texts += [each.read_bytes() for each in sorted(Path(CORPORA).rglob("test_parsing/*.json"))]
    return [line for text in texts for line in text.split(b"\n")]


def by_chance(luck: random.Random, count: int) -> list[bytes]:
    """Return so many lines of every kind of trouble."""
    kinds = (_noise, _cut, _flipped, _wide, _unasked, _doubled)
    return [luck.choice(kinds)(luck).replace(b"\n", b" ") for _ in range(count)]


def _noise(luck: random.Random) -> bytes:
    return luck.randbytes(luck.randrange(1, 400))


def _cut(luck: random.Random) -> bytes:
    line = _message(luck)
    return line[: luck.randrange(1, len(line))]


def _flipped(luck: random.Random) -> bytes:
    """Return a message that is none any more, because its first byte is another one."""
    line = bytearray(_message(luck))
    line[0] = luck.choice(b"([<}x\x00\xff")
    return bytes(line)


def _wide(luck: random.Random) -> bytes:
    return _message(luck).decode().encode(luck.choice(("utf-16-le", "utf-16-be", "utf-32-le")))


def _unasked(luck: random.Random) -> bytes:
    """Return an answer to what nobody has asked."""
    id = luck.choice((luck.randrange(10**6, 10**9), -1, 0, 1.5, "1", "x", False, [], {}))
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "end_turn"}}).encode()


def _doubled(luck: random.Random) -> bytes:
    return _message(luck) + _message(luck)


def _message(luck: random.Random) -> bytes:
    content = {"type": "text", "text": f"wrong {luck.random()}"}
    update: Any = {"sessionUpdate": "agent_message_chunk", "content": content}
    params = {"sessionId": "peer-session-1", "update": update}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()
