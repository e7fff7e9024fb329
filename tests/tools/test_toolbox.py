"""The toolbox itself: what a tool returns, before anybody else sees it."""

import base64
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.secrets import Scrubber, Secret
from holdfast.domain.text import is_small
from holdfast.domain.tools import Effect, ResultCode, ToolClass
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, ToolWorkspace
from holdfast.tools.tool import (
    CallPlan,
    LocalTool,
    ToolFailure,
    UnansweredRequest,
    plan_read_only,
)
from holdfast.tools.toolbox import LocalToolbox
from tests.marks import each_case
from tests.tools.file_fixture import Workshop
from tests.tools.http_hosts import a_place, asked

pytestmark = pytest.mark.anyio

CANARY = "canary-0123456789"


class Nothing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the tool takes."""


@pytest.mark.parametrize("size", [10, 1 << 20])
async def test_no_secret_leaves_the_toolbox_however_large_the_result(size: int) -> None:
    async def act(_: ToolWorkspace, __: Nothing, ___: RequestedCall) -> Any:
        return {"text": "x" * size, "found": [f"{CANARY}!"]}

    tool = LocalTool(
        name="tell",
        description="Tells.",
        arguments=Nothing,
        effect=lambda _: Effect.PURE,
        plan=plan_read_only,
        act=act,
    )
    scrubber = Scrubber([("key", Secret(CANARY))])
    toolbox = LocalToolbox([tool], scrubber=lambda: scrubber)
    place = a_place(tools=frozenset({"tell"}))
    planned = await toolbox.plan(place, asked("tell"))
    assert isinstance(planned, PlannedCall)

    done = await toolbox.run(place, planned)

    told = {"text": "x" * size, "found": ["[secret:key]!"]}
    assert done == CallOutcome(status=ResultStatus.OK, result=told)
    # Both ways are taken here.
    assert is_small(told) is (size == 10)


def failing(plan: ToolFailure | None, act: ToolFailure, effect: Effect) -> LocalToolbox:
    """Return a toolbox with a tool that cannot do it, and somebody who knows a secret."""

    async def planned(_: ToolWorkspace, __: Nothing) -> CallPlan:
        if plan is not None:
            raise plan
        question, preview = f"with {CANARY}?", {"host": CANARY}
        return CallPlan(tool_class=ToolClass.EGRESS, question=question, preview=preview)

    async def acted(_: ToolWorkspace, __: Nothing, ___: RequestedCall) -> Any:
        raise act

    tool = LocalTool(
        name="tell",
        description="Tells.",
        arguments=Nothing,
        effect=lambda _: effect,
        plan=planned,
        act=acted,
    )
    scrubber = Scrubber([("key", Secret(CANARY))])
    return LocalToolbox([tool], scrubber=lambda: scrubber)


async def test_no_secret_leaves_the_toolbox_in_a_question_or_in_an_error() -> None:
    place = a_place(tools=frozenset({"tell"}))
    trouble = ToolFailure(ResultCode.FAILED, f"{CANARY} is refused.")
    refusing = failing(trouble, trouble, Effect.UNSAFE)
    asking = failing(None, trouble, Effect.UNSAFE)

    refused = await refusing.plan(place, asked("tell"))
    planned = await asking.plan(place, asked("tell"))
    assert isinstance(planned, PlannedCall)
    done = await asking.run(place, planned)

    error = ToolError(code=ResultCode.FAILED, message="[secret:key] is refused.")
    assert refused == done == CallOutcome(status=ResultStatus.ERROR, error=error)
    assert planned.question == "with [secret:key]?"
    assert planned.preview == {"host": "[secret:key]"}


@each_case("effect", Effect)
async def test_of_what_went_out_unanswered_nobody_says_that_it_failed(effect: Effect) -> None:
    place = a_place(tools=frozenset({"tell"}))
    toolbox = failing(None, UnansweredRequest(ResultCode.TIMEOUT, "It took too long."), effect)
    planned = await toolbox.plan(place, asked("tell"))
    assert isinstance(planned, PlannedCall)

    done = await toolbox.run(place, planned)

    late = ToolError(code=ResultCode.TIMEOUT, message="It took too long.")
    unknown = ToolError(
        code=ResultCode.UNKNOWN,
        message="It took too long. The outcome of the call is unknown.",
    )
    if effect is Effect.UNSAFE:
        assert done == CallOutcome(status=ResultStatus.UNKNOWN, error=unknown)
    else:
        assert done == CallOutcome(status=ResultStatus.ERROR, error=late)


class Anything(Struct, frozen=True, kw_only=True):
    """Takes whatever comes."""

    value: Any = None


@each_case(
    "value",
    [
        CANARY,
        f"key = {CANARY}",
        {"headers": {"Authorization": f"Bearer {CANARY}"}},
        {CANARY: 1},
        ["--token", CANARY],
        base64.b64encode(CANARY.encode()).decode(),
    ],
)
@each_case("tool_class", list(ToolClass))
async def test_a_call_with_a_managed_secret_is_refused(value: Any, tool_class: ToolClass) -> None:
    acted: list[Any] = []

    async def plan(_: ToolWorkspace, arguments: Anything) -> CallPlan:
        acted.append(arguments)
        return CallPlan(tool_class=tool_class, question=str(arguments))

    async def act(_: ToolWorkspace, arguments: Anything, __: RequestedCall) -> Any:
        acted.append(arguments)

    tool = LocalTool(
        name="use",
        description="Uses.",
        arguments=Anything,
        effect=lambda _: Effect.UNSAFE,
        plan=plan,
        act=act,
    )
    known: list[tuple[str, Secret]] = []
    toolbox = LocalToolbox([tool], scrubber=lambda: Scrubber(known))
    place = a_place(tools=frozenset({"use"}))
    call = RequestedCall(id="c1", name="use", arguments={"value": value}, idempotency_key="k")
    before = await toolbox.plan(place, call)
    assert isinstance(before, PlannedCall)

    # It became a secret between the question and the answer.
    known.append(("key", Secret(CANARY)))
    acted.clear()
    refused = [await toolbox.plan(place, call)]
    if tool_class is not ToolClass.READ:
        refused.append(await toolbox.run(place, before))

    for done in refused:
        assert isinstance(done, CallOutcome)
        assert done.error is not None
        assert done.error.code is ResultCode.INVALID_ARGUMENTS
        assert CANARY not in str(done)
    assert acted == []


async def test_what_only_looks_like_a_secret_is_no_reason_to_refuse(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)

    done = await shop.call("write_file", path="a.txt", content="[secret:key] sk-0123456789abcdef")

    assert done.status is ResultStatus.OK
