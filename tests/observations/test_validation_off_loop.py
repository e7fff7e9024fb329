"""Judging claims: small ones at once, large ones where they are no burden for others."""

import threading
from typing import Any

import pytest

from holdfast.domain.errors import Invalid
from holdfast.observations.claims import ValidPayload, accept_payload
from holdfast.observations.model import EntityType
from holdfast.observations.service import is_small_payload, validate_off_loop
from tests.marks import each_case

pytestmark = pytest.mark.anyio

SMALL = {
    "session_id": "abc123",
    "actions": [{"type": "a", "result": "success"}],
    "started_at": "2025-12-31T11:00:00Z",
}


@each_case(
    ("value", "light"),
    [
        (SMALL, True),
        (None, True),
        ({"a": ["x"] * 400}, True),
        ({"a": ["x"] * 1_000}, False),
        ({"a": "x" * 3_900}, True),
        ({"a": "x" * 4_000}, False),
        ({"a": {1, 2}}, True),
        ({"a": "\ud800"}, False),
        ({"a": object()}, False),
        ([[[[]]]] * 600, False),
        (dict.fromkeys(map(str, range(600))), False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_light_is_short_as_json(value: Any, light: bool) -> None:
    assert is_small_payload(value) is light


async def test_large_claims_are_judged_in_a_thread_of_their_own() -> None:
    judges: list[threading.Thread] = []

    def judge(kind: EntityType, payload: Any) -> ValidPayload:
        judges.append(threading.current_thread())
        return accept_payload(kind, payload)

    large = {**SMALL, "actions": SMALL["actions"] * 500}  # type: ignore[operator]
    told = [
        await validate_off_loop(judge, EntityType.AGENT_SESSION, each) for each in (SMALL, large)
    ]
    with pytest.raises(Invalid):
        await validate_off_loop(judge, EntityType.AGENT_SESSION, {**large, "session_id": "abc"})

    assert [len(each.fields["actions"]) for each in told] == [1, 500]
    main = threading.current_thread()
    assert [each is main for each in judges] == [True, False, False]
