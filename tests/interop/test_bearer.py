"""The door before our server changes nothing but what is asked for by somebody else's name."""

import json
from collections.abc import Iterator

import pytest

from tests.interop.bearer import Door
from tests.interop.mcp_judges import INSTEAD, NOT_APPLICABLE
from tests.marks import each_case


@pytest.fixture
def door() -> Iterator[Door]:
    found = Door(INSTEAD)
    yield found
    found.server_close()


def test_who_asks_by_a_name_of_the_suite_is_led_to_what_we_have(door: Door) -> None:
    asked = {"id": 7, "method": "tools/call", "params": {"name": "test_error_handling", "_meta": 1}}

    led = json.loads(door.led(json.dumps(asked).encode()))

    wanted = {"session_id": "abc123", "name": "nowhere"}
    assert led == {
        **asked,
        "params": {"name": "restore_checkpoint", "arguments": wanted, "_meta": 1},
    }


@each_case(
    "body",
    [
        b"",
        b"no JSON",
        b"[]",
        b'{"method":"tools/list"}',
        b'{"method":"tools/list","params":null}',
        b'{"method":"tools/call","params":{"name":"query_agent_history"}}',
        b'{"method":"prompts/get","params":{"name":"test_simple_text"}}',
    ],
)
def test_everything_else_passes_as_it_came(door: Door, body: bytes) -> None:
    assert door.led(body) == body


def test_what_is_led_somewhere_is_judged() -> None:
    assert not {"tools-call-simple-text", "tools-call-error", "prompts-get-simple"} & set(
        NOT_APPLICABLE
    )
