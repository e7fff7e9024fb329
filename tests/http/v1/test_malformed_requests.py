"""Odd requests: whatever is sent, the answer is about the request and never our fault."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.http.app import V1_ROUTES
from tests.http.v1.client import Visitor

pytestmark = pytest.mark.anyio

TEXTS = ["", " ", "\x00", "a\x00b", "\ud800", "\U0001f4a9", "x" * 5000, "%", "_", "'; --", "../.."]
VALUES: list[Any] = [
    *TEXTS,
    None,
    True,
    0,
    -1,
    2**53,
    2**63 - 1,
    2**64 - 1,
    1.5,
    1e308,
    [],
    [None],
    ["\ud800"],
    {},
    {"\x00": "\ud800"},
    {"text": "\ud800"},
    {"type": "acp", "command": "\ud800", "args": ["\x00"]},
    {"working_dir": "/\x00"},
]
RAW = [
    b"",
    b"[]",
    b"null",
    b"{",
    b'{"a":1,"a":2}',
    b'{"metadata":' + b"[" * 200 + b"]" * 200 + b"}",
    b'{"max_tokens":' + b"9" * 5000 + b"}",
    b'{"temperature":NaN}',
    b'{"temperature":1e999}',
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
]


async def test_odd_values_in_every_field_are_told_as_such(visitor: Visitor) -> None:
    places = await _places(visitor)
    for route in (
        route for route in V1_ROUTES if route.changes and route.body not in {None, bytes}
    ):
        for body in _bodies(route):
            answer = await visitor.ask(route.method, _path(route, places), _encoded(body))
            assert answer.status < 500, (route.name, body, answer.body)


async def test_odd_bodies_are_told_as_such(visitor: Visitor) -> None:
    places = await _places(visitor)
    for route in (route for route in V1_ROUTES if route.changes and route.body is not None):
        for body in RAW:
            answer = await visitor.ask(route.method, _path(route, places), body)
            assert answer.status < 500, (route.name, body, answer.body)


async def test_odd_queries_are_told_as_such(visitor: Visitor) -> None:
    places = await _places(visitor)
    odd = ["", "%00", "%ED%A0%80", "%F0%9F%92%A9", "x" * 3000, "9" * 40, "-1", "1e9", "%27", ",,"]
    for route in (
        route for route in V1_ROUTES if route.method == "GET" and "events" not in route.path
    ):
        for name in (field.encode_name for field in _fields(route.query)):
            for value in odd:
                answer = await visitor.get(f"{_path(route, places)}?{name}={value}")
                assert answer.status < 500, (route.name, name, value, answer.body)


async def test_odd_paths_lead_nowhere(visitor: Visitor) -> None:
    places = await _places(visitor)
    for route in (route for route in V1_ROUTES if "{" in route.path):
        for name in places:
            for value in ("\x00", "\ufffd", "\U0001f4a9", "x" * 5000, "..", "%", " "):
                path = _path(route, {**places, name: value})
                if path == _path(route, places):
                    continue
                answer = await visitor.ask(route.method, path)
                assert answer.status in (200, 400, 404), (route.name, value, answer.body)


async def _places(visitor: Visitor) -> dict[str, str]:
    session = await visitor.session()
    return {
        "agent_id": session["agent_id"],
        "session_id": session["id"],
        "model_id": "offline:holdfast",
        "message_id": (await visitor.say(session, "hello"))["id"],
        "hash": "0" * 64,
        "approval_id": session["id"],
        "call_id": "c1",
        "worker_id": session["id"],
        "definition_id": session["agent_id"],
        "ms": "1",
        "name": "output",
        "session_key": session["id"],
        "checkpoint": "reached",
    }


def _path(route: Any, places: dict[str, str]) -> str:
    path: str = route.path.format(**places)
    return path


def _fields(kind: Any) -> Any:
    return msgspec.structs.fields(kind)


def _bodies(route: Any) -> list[dict[str, Any]]:
    """Return bodies that are right but for one field, which is odd."""
    kinds = getattr(route.body, "__args__", (route.body,))
    right = dict(route.example or {})
    found = []
    # A raw body has no fields.
    for kind in set(kinds) - {bytes}:
        tag = kind.__struct_config__.tag
        start = {**right, "role": tag} if tag else right
        found += [
            {**start, field.encode_name: value} for field in _fields(kind) for value in VALUES
        ]
    return found


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
