"""Cases of `HoldfastSession` that need the SDK; run in its environment by `make interop`."""

import asyncio
import json
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import agents.version
import pytest
from agents import (
    Agent,
    FunctionTool,
    Runner,
    ToolOutputImage,
    ToolOutputText,
    function_tool,
    set_tracing_disabled,
)
from agents.run_internal.session_persistence import rewind_session_items
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from agents.usage import Usage
from openai.types.responses.response_usage import InputTokensDetails

from holdfast import (
    CallState,
    Code,
    Conflict,
    Invalid,
    LocalHoldfast,
    Role,
    StopReason,
    open_holdfast,
    sync,
)
from holdfast.domain.recordings import NotJsonError
from holdfast.integrations.calls import NOT_RUN, UNKNOWN_OUTCOME
from holdfast.integrations.openai_agents import HoldfastSession, durable, durable_tools

set_tracing_disabled(True)
FOLDER = Path(__file__).parent


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[LocalHoldfast]:
    async with open_holdfast(tmp_path / "home") as opened:
        yield opened


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def called(id_: str, name: str = "pay", **arguments: Any) -> Any:
    return function_call(name, arguments, call_id=id_)


def counted(effects: list[str]) -> FunctionTool:
    @function_tool
    def pay(cents: int) -> str:
        """Pay."""
        effects.append(f"paid {cents}")
        return f"paid {cents}"

    return pay


async def the_session(hf: LocalHoldfast, session: HoldfastSession) -> Any:
    return await hf.sessions.get(hf.owner, await session._open_session())


async def rows(hf: LocalHoldfast, session: HoldfastSession) -> list[Role]:
    return [row.role for row in await hf.read(await session._open_session())]


async def test_items_are_read_as_they_were_written(hf: LocalHoldfast) -> None:
    session = HoldfastSession("s", hf)
    items = [
        user("héllo \U0001f600 \ud800 \x00"),
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "odd"}]},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "zzz"},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "n", "arguments": "{"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text"}]},
        {"type": "mcp_list_tools", "tools": [{"a": None}], "n": 1.0, "big": 2**70},
        {"type": "item_reference", "id": "x"},
        {},
    ]

    await session.add_items(items)

    found = await session.get_items()
    assert (found, json.dumps(found)) == (items, json.dumps(items))


async def test_limits(hf: LocalHoldfast) -> None:
    session = HoldfastSession("s", hf, session_settings={"limit": 2})
    items = [user(str(number)) for number in range(4)]
    await session.add_items(items)

    found = {limit: await session.get_items(limit) for limit in (None, 3, 9, 0, -1)}

    assert found == {None: items[2:], 3: items[1:], 9: items, 0: [], -1: items}


async def test_pop_and_add_are_inverses(hf: LocalHoldfast) -> None:
    session, chance, plain = HoldfastSession("s", hf), random.Random(3), list[Any]()
    kinds = [
        lambda n: user(f"u{n}"),
        lambda n: {"type": "function_call", "call_id": f"c{n % 7}", "name": "n", "arguments": ""},
        lambda n: {"type": "function_call_output", "call_id": f"c{n % 7}", "output": f"{n}"},
        lambda n: {"role": "assistant", "content": f"a{n}"},
    ]

    for number in range(150):
        if plain and chance.random() < 0.4:
            assert await session.pop_item() == plain.pop()
        else:
            items = [chance.choice(kinds)(number) for _ in range(chance.randint(1, 3))]
            await session.add_items(items)
            plain += items
    left = await session.get_items()
    await session.clear_session()

    assert (left, await session.get_items(), await session.pop_item()) == (plain, [], None)
    found = await hf.sessions.verify(hf.owner, await session._open_session())
    assert found.faults == ()


async def test_a_rewind_with_a_diverging_tail_leaves_the_list(hf: LocalHoldfast) -> None:
    session = HoldfastSession("s", hf)
    items = [user("one"), user("two"), user("three")]
    await session.add_items(items)

    await rewind_session_items(session, [user("two"), user("other")])

    assert await session.get_items() == items


async def test_an_item_that_is_not_json_changes_nothing(hf: LocalHoldfast) -> None:
    session = HoldfastSession("s", hf)

    with pytest.raises(TypeError) as refused:
        await session.add_items([user("fine"), {"role": "user", "content": object()}])

    assert isinstance(refused.value, NotJsonError)
    assert (refused.value.code, await session.get_items()) == (Code.NOT_JSON, [])


async def test_a_closed_session_refuses_everything(hf: LocalHoldfast) -> None:
    session = HoldfastSession("s", hf)
    session.close()

    for work in (
        session.get_items,
        lambda: session.add_items([]),
        session.pop_item,
        session.clear_session,
    ):
        with pytest.raises(RuntimeError, match="closed"):
            await work()


@pytest.mark.parametrize("verb", ["add", "pop", "clear"])
async def test_a_cancelled_caller_learns_of_it_when_the_outcome_is_known(
    hf: LocalHoldfast, verb: str
) -> None:
    for waits in range(12):
        session = HoldfastSession(f"s{waits}", hf)
        await session.add_items([user("one"), user("two")])
        work = {
            "add": lambda s=session: s.add_items([user("three"), user("four")]),
            "pop": session.pop_item,
            "clear": session.clear_session,
        }[verb]
        task = asyncio.ensure_future(work())
        for _ in range(waits):
            await asyncio.sleep(0)
        # Later ones come when all is done.
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task

        left = len(await session.get_items())
        assert left in {"add": {2, 4}, "pop": {2, 1}, "clear": {2, 0}}[verb]


async def test_a_run_is_a_turn_with_its_cost(hf: LocalHoldfast) -> None:
    effects: list[str] = []
    cached = InputTokensDetails(cached_tokens=4, cache_write_tokens=1)
    usage = Usage(
        requests=1,
        input_tokens=10,
        input_tokens_details=cached,
        output_tokens=3,
        total_tokens=13,
    )
    script = [
        {"output": [called("c1", cents=5)], "usage": usage, "response_id": "r1"},
        {"output": [assistant_message("done")], "usage": usage, "response_id": "r2"},
    ]
    session = HoldfastSession("s", hf, agent="Cashier")
    agent = Agent(name="A", model=ScriptedModel(script), tools=durable_tools([counted(effects)]))

    async with session.run() as hooks:
        result = await Runner.run(agent, "Pay 5", session=session, hooks=hooks)

    found = await the_session(hf, session)
    assert (result.final_output, effects) == ("done", ["paid 5"])
    assert await rows(hf, session) == [
        Role.USER,
        Role.TOOL_CALL,
        Role.TOOL_RESULT,
        Role.ASSISTANT,
    ]
    assert (found.settled, found.last_stop, found.agent.name) == (1, StopReason.STOP, "Cashier")
    # What came from the cache, or went into it, is apart.
    assert (found.usage.input, found.usage.output) == (10, 6)
    (call,) = (await hf.calls.list(hf.owner, found.id)).items
    assert (call.state, call.id) == (CallState.FINISHED, "c1")
    kinds = [item.get("type", "message") for item in await session.get_items()]
    assert kinds == ["message", "function_call", "function_call_output", "message"]


async def test_a_run_without_hooks_is_recorded_too(hf: LocalHoldfast) -> None:
    effects: list[str] = []
    model = ScriptedModel([[called("c1", cents=5)], [assistant_message("done")]])
    session = HoldfastSession("s", hf)

    async with session.run():
        agent = Agent(name="A", model=model, tools=durable_tools([counted(effects)]))
        await Runner.run(agent, "Pay", session=session)

    assert len(await session.get_items()) == 4
    assert len(await rows(hf, session)) == 4


async def test_a_failed_run_fails_its_turn(hf: LocalHoldfast) -> None:
    session = HoldfastSession("s", hf)
    agent = Agent(name="A", model=ScriptedModel([RuntimeError("gone")]))

    with pytest.raises(RuntimeError, match="gone"):
        async with session.run() as hooks:
            await Runner.run(agent, "Hi", session=session, hooks=hooks)

    assert (await the_session(hf, session)).last_stop is StopReason.ERROR


async def test_a_durable_tool_needs_a_run(hf: LocalHoldfast) -> None:
    effects: list[str] = []
    (tool,) = durable_tools([counted(effects)])
    model = ScriptedModel([[called("c1", cents=5)]])
    agent = Agent(name="A", model=model, tools=[tool])

    with pytest.raises(Exception, match=r"session\.run") as refused:
        await Runner.run(agent, "Pay", session=HoldfastSession("s", hf))

    causes = {type(each) for each in (refused.value, refused.value.__cause__)}
    assert (Invalid in causes, effects) == (True, [])


async def test_a_tool_that_raises_is_recorded_first(hf: LocalHoldfast) -> None:
    async def fail(_: Any, __: str) -> str:
        raise ValueError("secret text")

    tool = FunctionTool("pay", "Pay.", {"type": "object", "properties": {}}, fail)
    tool.strict_json_schema = False
    session = HoldfastSession("s", hf)
    agent = Agent(name="A", model=ScriptedModel([[called("c1")]]), tools=[durable(tool)])

    with pytest.raises(Exception, match="secret text"):
        async with session.run() as hooks:
            await Runner.run(agent, "Pay", session=session, hooks=hooks)

    found = [
        row for row in await hf.read(await session._open_session()) if row.role is Role.TOOL_RESULT
    ]
    assert found[0].parts[0].error.message == "pay failed with ValueError."


async def test_an_approval_that_comes_later_runs_the_call_once(hf: LocalHoldfast) -> None:
    effects: list[str] = []
    tool = counted(effects)
    tool.needs_approval = True
    model = ScriptedModel([[called("c1", cents=5)], [assistant_message("done")]])
    agent = Agent(name="A", model=model, tools=durable_tools([tool]))
    session = HoldfastSession("s", hf)

    async with session.run() as hooks:
        result = await Runner.run(agent, "Pay", session=session, hooks=hooks)
    before = list(effects)
    state = result.to_state()
    state.approve(result.interruptions[0])
    async with session.run() as hooks:
        again = await Runner.run(agent, state, session=session, hooks=hooks)

    assert (before, effects, again.final_output) == ([], ["paid 5"], "done")


@pytest.mark.parametrize(
    "value",
    [
        ToolOutputText(text="x"),
        [ToolOutputText(text="x"), ToolOutputImage(image_url="data:image/png;base64,AA==")],
        {"a": [1, None]},
        "text",
        object(),
    ],
    ids=["text", "list", "json", "str", "object"],
)
async def test_a_recorded_result_is_what_the_tool_returned(hf: LocalHoldfast, value: Any) -> None:
    runs: list[int] = []

    async def give(_: Any, __: str) -> Any:
        runs.append(1)
        return value

    tool = durable(FunctionTool("pay", "Pay.", {"type": "object", "properties": {}}, give))
    session = HoldfastSession("s", hf)
    context = _Context()

    async with session.run():
        first = await tool.on_invoke_tool(context, "{}")
        again = await tool.on_invoke_tool(context, "{}")

    wanted = value if type(value) is not object else str(value)
    assert (first is value, again, len(runs)) == (True, wanted, 1)


class _Context:
    tool_call_id = "c1"
    tool_call = None


async def test_another_run_may_not_use_the_id_of_a_call(hf: LocalHoldfast) -> None:
    (tool,) = durable_tools([counted([])])
    session = HoldfastSession("s", hf)

    async with session.run():
        await tool.on_invoke_tool(_real_context('{"cents": 5}'), '{"cents": 5}')
        with pytest.raises(Conflict) as refused:
            await tool.on_invoke_tool(_real_context('{"cents": 6}'), '{"cents": 6}')

    assert refused.value.code is Code.CALL_MISMATCH


def _real_context(arguments: str) -> Any:
    from agents.tool_context import ToolContext

    return ToolContext(None, tool_name="pay", tool_call_id="c1", tool_arguments=arguments)


def test_run_sync_in_a_thread_of_its_own(tmp_path: Path) -> None:
    effects, outputs = list[str](), list[str]()
    with sync.open_holdfast(tmp_path / "home") as hf:
        session = HoldfastSession("s", hf)

        def work(number: int) -> None:
            asyncio.set_event_loop(asyncio.new_event_loop())
            model = ScriptedModel([[assistant_message(f"hi {number}")]])
            agent = Agent(name="A", model=model, tools=durable_tools([counted(effects)]))
            result = Runner.run_sync(agent, f"Hi {number}", session=session)
            outputs.append(result.final_output)

        for number in range(3):
            thread = threading.Thread(target=work, args=(number,))
            thread.start()
            thread.join()
        items = asyncio.run(session.get_items())

    assert (outputs, len(items)) == (["hi 0", "hi 1", "hi 2"], 6)


def killed(folder: Path, point: str) -> None:
    """Play a run that kills itself at a point."""
    command = [sys.executable, str(FOLDER / "openai_killed.py"), str(folder), point]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr


# Where a run is killed, and what the next request of the model says of the second call.
POINTS = {
    "before": (NOT_RUN, 0),
    "in": (UNKNOWN_OUTCOME, 1),
    "after": (UNKNOWN_OUTCOME, 1),
    "result": ("paid 5", 1),
    # A tool that is not durable: that it may have run is all that is known.
    "plain": (UNKNOWN_OUTCOME, 1),
}


@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_run_is_continued_with_what_is_known(tmp_path: Path, point: str) -> None:
    wanted, count = POINTS[point]
    killed(tmp_path, point)
    seen: list[Any] = []

    def answer(call: ModelCall) -> Any:
        seen.extend(call.input)
        return [assistant_message("I see.")]

    async with open_holdfast(tmp_path / "home") as hf:
        session = HoldfastSession("s", hf)
        agent = Agent(name="A", model=ScriptedModel([ModelStep(responder=answer)]))
        async with session.run() as hooks:
            await Runner.run(agent, "Go on.", session=session, hooks=hooks)
        found = await the_session(hf, session)
        verified = await hf.sessions.verify(hf.owner, found.id)

    effects = (tmp_path / "effects").read_text().splitlines() if count else []
    kinds = [item.get("type", "message") for item in seen]
    assert kinds == ["message", "function_call", "function_call_output", "message"]
    assert (seen[2]["output"], len(effects)) == (wanted, count)
    assert (found.last_stop, verified.faults) == (StopReason.STOP, ())


def test_a_version_that_was_not_tested_is_refused() -> None:
    code = (
        "import agents.version as v; v.__version__ = '0.25.1'\n"
        "import holdfast.integrations.openai_agents"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert "holdfast[openai-agents]" in done.stderr
    assert agents.version.__version__.startswith("0.24.")


def test_the_package_alone_loads_no_framework() -> None:
    code = (
        "import sys, holdfast, holdfast.app, holdfast.integrations.records;"
        "print('agents' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.strip() == "False"
