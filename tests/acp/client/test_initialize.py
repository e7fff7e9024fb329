"""What a program says of itself, as far as it is kept."""

from typing import Any

import msgspec

from holdfast.acp.client.agent_state import parse_initialize
from tests.marks import each_case

NOTHING: dict[str, Any] = {
    "protocolVersion": None,
    "agentInfo": {},
    "agentCapabilities": {},
    "authMethods": (),
}


def test_what_is_said_of_itself_is_kept() -> None:
    said = {
        "protocolVersion": 1,
        "agentInfo": {"name": "a", "version": "1", "_meta": {"x": [1]}},
        "agentCapabilities": {"loadSession": True, "promptCapabilities": {"image": False}},
        "authMethods": [{"id": "key", "name": "A key", "description": None}],
    }

    assert parse_initialize({**said, "_meta": {"mine": 1}}) == said | {
        "authMethods": ({"id": "key", "name": "A key", "description": None},)
    }


@each_case(
    "said",
    [None, [], {}, {"agentInfo": "a", "agentCapabilities": [], "authMethods": {"id": "x"}}],
)
def test_what_has_another_form_is_not_said(said: Any) -> None:
    assert parse_initialize(said) == NOTHING


def test_a_long_name_is_cut() -> None:
    info = parse_initialize({"agentInfo": {"name": "x" * 5_000, "version": "1"}})["agentInfo"]

    assert info == {"name": "x" * 1_984 + "\n[… 3016 bytes cut]", "version": "1"}


def test_what_is_too_large_leaves_what_counts() -> None:
    offered = {"resume": {}, "close": {}}
    said = {
        "_meta": {"mine": ["x"] * 100_000},
        "loadSession": True,
        "other": {"x": "y" * 20_000},
        "sessionCapabilities": offered,
    }

    found = parse_initialize({"agentCapabilities": said})

    assert found["agentCapabilities"] == {"loadSession": True, "sessionCapabilities": offered}


def test_so_many_fields_and_methods_are_kept_as_fit() -> None:
    many = {str(number): "x" * 300 for number in range(100_000)}
    methods = [{"id": str(number), "name": "x" * 100} for number in range(1_000)]

    found = parse_initialize(
        {"agentInfo": many, "agentCapabilities": many, "authMethods": [*methods, 5]}
    )

    assert 60_000 > len(msgspec.json.encode(found)) > 40_000
    assert found["authMethods"] == tuple(methods[: len(found["authMethods"])])


def test_what_is_nested_too_deeply_is_no_harm() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]

    found = parse_initialize({"agentCapabilities": {"loadSession": True, "_meta": deep}})

    assert found["agentCapabilities"]["loadSession"] is True
    assert len(msgspec.json.encode(found)) < 1_000
