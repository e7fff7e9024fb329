"""`checkpoint`: a name for a moment, with a state that fits into a history."""

from typing import Any

import pytest

from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Effect, ToolClass
from holdfast.ports.tools import CallOutcome, PlannedCall
from tests.marks import each_case
from tests.tools.file_fixture import Workshop, told

pytestmark = pytest.mark.anyio


def nested(levels: int) -> Any:
    state: Any = "x"
    for _ in range(levels):
        state = {"a": state}
    return state


async def test_a_checkpoint_has_a_name_and_a_time(shop: Workshop) -> None:
    done = await shop.call("checkpoint", name="spec done", state={"files": ["a"], "ok": True})

    assert done == CallOutcome(
        status=ResultStatus.OK, result={"name": "spec done", "at": "2026-01-02T03:04:05.678Z"}
    )


async def test_a_checkpoint_is_only_a_look(shop: Workshop) -> None:
    planned = await shop.plan("checkpoint", name="x")

    assert isinstance(planned, PlannedCall)
    assert (planned.effect, planned.tool_class) == (Effect.PURE, ToolClass.READ)


@each_case(
    "arguments",
    [
        {"name": ""},
        {"name": " \t"},
        {"name": "x" * 513},
        {"name": "x", "state": []},
        {"name": "x", "at": "now"},
        {"name": "x", "state": nested(33)},
        {"name": "x", "state": {"a": float("nan")}},
        {"name": "x", "state": {"a": [float("inf")]}},
        {"name": "x", "state": {"a": "y" * 65_537}},
        {"name": "x", "state": {"y" * 65_537: 1}},
        {"name": "x", "state": {"a": ["y" * 60_000] * 18}},
    ],
)
async def test_what_a_history_would_refuse_is_refused_here(
    shop: Workshop, arguments: dict[str, Any]
) -> None:
    assert told(await shop.plan("checkpoint", **arguments)) == ("error", "invalid_arguments")


@each_case("state", [None, {}, nested(32), {"a": "y" * 65_536}, {"a": [1, 2.5, None, -0.0]}])
async def test_what_a_history_takes_is_taken(shop: Workshop, state: Any) -> None:
    assert isinstance(await shop.plan("checkpoint", name="x" * 512, state=state), PlannedCall)
