"""What somebody who can write into the store would put there: JSON that would be more than data."""

import json
import pickle
import random
from typing import Any, Final

import apsw

_DEEP: Final = 20_000


class _Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return __import__, ("antigravity",)


# Tags by which readers of other formats make objects, run code, or look names up.
TAGS: Final[tuple[Any, ...]] = (
    {"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, ["true"]]},
    {"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
    {"lc": 1, "type": "secret", "id": ["HOLDFAST_KEY"]},
    {"__class__": "subprocess.Popen", "args": ["true"]},
    {"$type": "System.Diagnostics.Process", "$value": "true"},
    {"@class": "java.lang.Runtime", "@type": "x"},
    {"__proto__": {"admin": True}, "constructor": {"prototype": {"admin": True}}},
    {"$ref": "file:///etc/passwd"},
    {"$ref": "#"},
    {"type": "text", "text": "${jndi:ldap://127.0.0.1:9/a} {{7*7}} <script>alert(1)</script>"},
    "!!python/object/apply:os.system ['true']",
    "holdfast.cli.app:run",
    {"type": "media", "ref": "file:///etc/passwd", "mime_type": "text/plain"},
    {"type": "media", "ref": "media://sha256-../../etc/passwd", "mime_type": "image/png"},
)
WRONG: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 1e308, 2**63, 10**40, "", "x", "\x00", "\ud800", [], {}, [[]], [None]),
    *({"": ""}, {"a": {"b": [1, {"c": None}]}}, [{"type": "nothing"}], {"type": 7}, "0" * 100_000),
)
# Of somebody else, or of nobody.
FOREIGN: Final[tuple[Any, ...]] = (
    "0192f0c1-0000-7000-8000-00000000dead",
    {"session_id": "0192f0c1-0000-7000-8000-00000000dead", "owner": "eve"},
    ["../../etc/passwd", "' OR 1=1 --"],
)
RAW: Final[tuple[bytes, ...]] = (
    b"",
    b"not json",
    b"\xff\xfe\x00",
    b'{"a":1,"a":2}',
    b"[NaN, Infinity, -Infinity]",
    b"[" * _DEEP + b"]" * _DEEP,
    b'{"a":' * _DEEP + b"1" + b"}" * _DEEP,
    b'{"n":' + b"9" * 5_000 + b"}",
    b'"\\ud800"',
    b"[" + b"0," * 200_000 + b"0]",
    pickle.dumps(_Bomb()),
    b"\x93NUMPY\x01\x00",
)


def poison(stored: bytes, luck: random.Random) -> bytes:
    """Return something to stand in a field's place: whole, or inside of what was there."""
    value = luck.choice((*TAGS, *WRONG, *FOREIGN, *RAW))
    if isinstance(value, bytes):
        return value
    inside = luck.random() < 0.6 and _grafted(json.loads(stored), value, luck)
    text = json.dumps(inside or value)
    return text.encode()


def _grafted(document: Any, value: Any, luck: random.Random) -> Any:
    """Return a document with the value somewhere in it."""
    if isinstance(document, dict) and document:
        name = luck.choice([*document, "extra"])
        deeper = document.get(name)
        goes_on = isinstance(deeper, dict | list) and bool(deeper) and luck.random() < 0.5
        return {**document, name: _grafted(deeper, value, luck) if goes_on else value}
    if isinstance(document, list) and document:
        place = luck.randrange(len(document))
        return [*document[:place], _grafted(document[place], value, luck), *document[place + 1 :]]
    return value


def json_fields(connection: apsw.Connection) -> list[tuple[str, str]]:
    """Return every column of every table that holds JSON objects or lists."""
    found = []
    tables = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    ).fetchall()
    for (table,) in tables:
        for _, column, *_ in connection.execute(f"PRAGMA table_info('{table}')").fetchall():
            values = connection.execute(f'SELECT "{column}" FROM "{table}" LIMIT 50').fetchall()
            if any(_is_json(value) for (value,) in values):
                found.append((str(table), str(column)))
    return found


def _is_json(value: Any) -> bool:
    text = value.encode() if isinstance(value, str) else value
    if not isinstance(text, bytes) or text[:1] not in (b"{", b"["):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
