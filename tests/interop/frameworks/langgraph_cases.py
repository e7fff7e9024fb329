"""Cases of `HoldfastSaver` that need LangGraph; run in its environment by `make interop`."""

import asyncio
import itertools
import operator
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import RemoveMessage, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

from holdfast import (
    CallState,
    Code,
    Conflict,
    Invalid,
    LocalHoldfast,
    Role,
    Status,
    open_holdfast,
    sync,
)
from holdfast.integrations import langgraph_calls
from holdfast.integrations.calls import UNKNOWN_OUTCOME
from holdfast.integrations.langgraph import HoldfastSaver

FOLDER = Path(__file__).parent
CAPABILITIES = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[LocalHoldfast]:
    async with open_holdfast(tmp_path / "home") as opened:
        yield opened


class Talk(TypedDict):
    messages: Annotated[list[Any], add_messages]


class Blocking(HoldfastSaver):
    """Answers with its blocking methods, each in a thread."""

    async def aget_tuple(self, config: Any) -> Any:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(self, config: Any, **options: Any) -> Any:
        for each in await asyncio.to_thread(lambda: list(self.list(config, **options))):
            yield each

    async def aput(self, *given: Any) -> Any:
        return await asyncio.to_thread(self.put, *given)

    async def aput_writes(self, *given: Any, **options: Any) -> Any:
        return await asyncio.to_thread(lambda: self.put_writes(*given, **options))

    async def adelete_thread(self, *given: Any) -> Any:
        return await asyncio.to_thread(self.delete_thread, *given)

    async def adelete_for_runs(self, *given: Any) -> Any:
        return await asyncio.to_thread(self.delete_for_runs, *given)

    async def acopy_thread(self, *given: Any) -> Any:
        return await asyncio.to_thread(self.copy_thread, *given)

    async def aprune(self, *given: Any, **options: Any) -> Any:
        return await asyncio.to_thread(lambda: self.prune(*given, **options))


@pytest.mark.parametrize("kind", [HoldfastSaver, Blocking])
async def test_the_conformance_suite_with_every_capability(kind: Any) -> None:
    @checkpointer_test(name=kind.__name__)
    async def saver() -> AsyncIterator[Any]:
        with tempfile.TemporaryDirectory() as folder:
            async with open_holdfast(Path(folder) / "home") as hf:
                yield kind(hf)

    report = (await validate(saver)).to_dict()

    results = report["results"]
    counted = {name: each["tests_passed"] for name, each in results.items()}
    assert counted == CAPABILITIES, report
    assert all(each["detected"] for each in results.values())
    assert not any(each["tests_failed"] or each["tests_skipped"] for each in results.values())


def config_of(thread: str = "t", **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def talk(saver: Any, *, answer: Any = None) -> Any:
    """Return a graph whose one node answers."""

    async def node(state: Talk) -> Any:
        said = answer(state) if answer else f"answer {len(state['messages'])}"
        return {"messages": [said if not isinstance(said, str) else AIMessage(said)]}

    graph = StateGraph(Talk)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile(checkpointer=saver)


def texts(state: Any) -> list[str]:
    return [message.content for message in state.values["messages"]]


async def rows(hf: LocalHoldfast, thread: str = "t") -> list[Any]:
    found = await HoldfastSaver(hf)._find(thread)
    assert found is not None
    return list(await hf.read(found))


async def the_session(hf: LocalHoldfast, thread: str = "t") -> Any:
    return await hf.sessions.get(hf.owner, await HoldfastSaver(hf)._find(thread))


async def contents(hf: LocalHoldfast) -> list[bytes]:
    """Return everything that is stored of a thread beside its messages."""
    columns = {
        "graph_checkpoints": "body",
        "graph_values": "content",
        "graph_items": "content",
        "graph_writes": "content",
        "foreign_records": "raw",
    }

    async def read(tx: Any, key: Any) -> list[bytes]:
        found = []
        for table, column in columns.items():
            asked = f"SELECT {column} FROM {table} WHERE session_key = :key"
            found += [row[0] for row in await tx.graphs._db.fetch(asked, {"key": key})]
        return found

    kept: list[bytes] = await hf.foreign.get_component().sessions.read(
        (await the_session(hf)).id, read
    )
    return kept


async def test_branches_do_not_mix(hf: LocalHoldfast) -> None:
    graph = talk(HoldfastSaver(hf))
    for text in ("one", "two", "three"):
        await graph.ainvoke({"messages": [HumanMessage(text)]}, config_of())
    whole = await graph.aget_state(config_of())
    old = [each async for each in graph.aget_state_history(config_of())]
    fork = next(each for each in old if texts(each) == ["one", "answer 1"]) if old else None
    assert fork is not None

    await graph.ainvoke({"messages": [HumanMessage("other")]}, fork.config)

    newest = await graph.aget_state(config_of())
    assert texts(newest) == ["one", "answer 1", "other", "answer 3"]
    assert texts(await graph.aget_state(whole.config)) == texts(whole)
    shown = [row.text for row in await rows(hf) if row.role in (Role.USER, Role.ASSISTANT)]
    assert shown[-2:] == ["other", "answer 3"]
    verified = await hf.sessions.verify(hf.owner, (await the_session(hf)).id)
    assert verified.faults == ()


def test_versions_are_never_those_of_another_branch(tmp_path: Path) -> None:
    with sync.open_holdfast(tmp_path / "home") as hf:
        saver = HoldfastSaver(hf)
        ones = {saver.get_next_version("0001.5", None) for _ in range(50)}

        assert len(ones) == 50
        assert all(each > saver.get_next_version(None, None) for each in ones)
        assert saver.get_next_version(7, None).startswith("0" * 31 + "8.")


async def test_writes_may_come_before_their_checkpoint(hf: LocalHoldfast) -> None:
    saver = HoldfastSaver(hf)
    checkpoint = {
        "v": 4,
        "id": "1f0",
        "ts": "",
        "channel_values": {"a": 1},
        "channel_versions": {"a": "1"},
        "versions_seen": {},
    }
    wanted = None
    for number, order in enumerate(itertools.permutations(range(4))):
        config = config_of(f"t{number}", checkpoint_ns="")
        at = config_of(f"t{number}", checkpoint_ns="", checkpoint_id="1f0")
        for step in order:
            if step == 3:
                await saver.aput(config, checkpoint, {"source": "loop"}, {"a": "1"})
            else:
                await saver.aput_writes(at, [("c", step)], f"task{step}", f"path{2 - step}")
        found = await saver.aget_tuple(config)
        assert found is not None
        assert (await saver.aget_tuple(at)).pending_writes == found.pending_writes
        wanted = wanted or found.pending_writes
        assert (
            found.pending_writes
            == wanted
            == [
                ("task2", "c", 2),
                ("task1", "c", 1),
                ("task0", "c", 0),
            ]
        )
        assert found.checkpoint["channel_values"] == {"a": 1}


async def test_the_first_write_stays_and_the_last_error(hf: LocalHoldfast) -> None:
    saver, at = HoldfastSaver(hf), config_of(checkpoint_ns="", checkpoint_id="1")
    checkpoint = {"v": 4, "id": "1", "channel_values": {}, "channel_versions": {}}
    await saver.aput(config_of(checkpoint_ns=""), checkpoint, {}, {})

    for number in range(2):
        await saver.aput_writes(at, [("c", number), ("__error__", number)], "task")

    found = (await saver.aget_tuple(at)).pending_writes
    assert found == [("task", "__error__", 1), ("task", "c", 0)]


class Everything(TypedDict):
    added: Annotated[list[Any], operator.add]
    kept: list[Any]
    messages: Annotated[list[Any], add_messages]
    other: Any


async def test_checkpoints_of_all_threads_are_listed_newest_first(hf: LocalHoldfast) -> None:
    saver, made = HoldfastSaver(hf), []
    for number in range(6):
        thread = f"t{number % 3}"
        checkpoint = {"v": 4, "id": f"{number:03}", "channel_values": {}, "channel_versions": {}}
        about = {"even": number % 2 == 0}
        await saver.aput(config_of(thread, checkpoint_ns=""), checkpoint, about, {})
        made.append(checkpoint["id"])

    async def listed(**options: Any) -> list[str]:
        return [each.checkpoint["id"] async for each in saver.alist(None, **options)]

    assert await listed() == made[::-1]
    assert await listed(limit=2) == ["005", "004"]
    assert await listed(limit=2, filter={"even": True}) == ["004", "002"]
    assert await listed(limit=2, before=config_of(checkpoint_id="003")) == ["002", "001"]
    blocking = await asyncio.to_thread(lambda: list(saver.list(None, limit=1)))
    assert [each.checkpoint["id"] for each in blocking] == ["005"]


async def test_values_equal_those_of_the_saver_in_memory(hf: LocalHoldfast) -> None:
    chance = random.Random(5)
    changes: list[Any] = []

    async def node(state: Any) -> Any:
        return changes[-1]

    def compiled(saver: Any) -> Any:
        graph = StateGraph(Everything)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        return graph.compile(checkpointer=saver)

    ours, theirs = compiled(HoldfastSaver(hf)), compiled(InMemorySaver())
    at_ours, at_theirs = config_of(), config_of()
    for number in range(60):
        said = (await ours.aget_state(at_ours)).values.get("messages") or []
        kept = list((await ours.aget_state(at_ours)).values.get("kept") or [])
        edit = chance.randrange(5)
        if edit == 0 and kept:
            kept[chance.randrange(len(kept))] = {"edited": number}
        elif edit == 1:
            kept = kept[: len(kept) // 2]
        else:
            kept = [*kept, number, {"n": [number]}]
        message: Any = HumanMessage(f"m{number}", id=f"id{number}")
        if said and edit == 2:
            message = RemoveMessage(id=chance.choice(said).id)
        elif said and edit == 3:
            message = HumanMessage(f"edited {number}", id=chance.choice(said).id)
        changes.append(
            {"added": [number], "kept": kept, "messages": [message], "other": ("a", number)}
        )
        await ours.ainvoke({"other": None}, at_ours)
        await theirs.ainvoke({"other": None}, at_theirs)
        at_ours, at_theirs = config_of(), config_of()
        if chance.random() < 0.3:
            pairs = [
                [each async for each in graph.aget_state_history(config_of())]
                for graph in (ours, theirs)
            ]
            place = chance.randrange(len(pairs[0]))
            at_ours, at_theirs = (found[place].config for found in pairs)
        assert (await ours.aget_state(at_ours)).values == (
            await theirs.aget_state(at_theirs)
        ).values

    async def history(graph: Any) -> list[Any]:
        return [each.values async for each in graph.aget_state_history(config_of())]

    assert await history(ours) == await history(theirs)
    assert (await hf.sessions.verify(hf.owner, (await the_session(hf)).id)).faults == ()


async def test_bytes_of_a_turn_do_not_grow(hf: LocalHoldfast) -> None:
    graph = talk(HoldfastSaver(hf), answer=lambda state: "a" * 400)
    sizes = {}
    for turn in range(1, 401):
        before = await contents(hf) if turn in (10, 400) else []
        await graph.ainvoke({"messages": [HumanMessage("q" * 300)]}, config_of())
        if before:
            sizes[turn] = sum(map(len, await contents(hf))) - sum(map(len, before))

    assert sizes[400] <= 1.1 * sizes[10], sizes
    assert sizes[400] <= 8 << 10, sizes


async def test_pruning_keeps_what_delta_channels_need(hf: LocalHoldfast) -> None:
    def grow(state: list[Any], writes: Any) -> list[Any]:
        return [*(state or []), *(each for write in writes for each in write)]

    class State(TypedDict):
        items: Annotated[list[Any], DeltaChannel(grow, list, snapshot_frequency=4)]
        plain: int

    async def node(state: Any) -> Any:
        return {"items": [len(state["items"])], "plain": len(state["items"])}

    saver = HoldfastSaver(hf)
    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    compiled = graph.compile(checkpointer=saver)

    for number in range(9):
        await compiled.ainvoke({"items": [f"in{number}"]}, config_of())
        before = (await compiled.aget_state(config_of())).values
        await saver.aprune(["t"])
        shown = [each async for each in saver.alist(config_of())]
        assert (await compiled.aget_state(config_of())).values == before
        assert len(before["items"]) == 2 * number + 2
        assert len(shown) == 1

    with pytest.raises(ValueError, match="keep_latest"):
        await saver.aprune(["t"], strategy="odd")
    notices = [row for row in await rows(hf) if row.role is Role.SYSTEM]
    assert len(notices) == 9


async def test_a_copy_goes_its_own_way(hf: LocalHoldfast) -> None:
    saver = HoldfastSaver(hf)
    graph = talk(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, config_of())

    await saver.acopy_thread("t", "u")
    await graph.ainvoke({"messages": [HumanMessage("two")]}, config_of("u"))

    listed = {each.config["configurable"]["thread_id"] async for each in saver.alist(None)}
    assert listed == {"t", "u"}
    assert texts(await graph.aget_state(config_of())) == ["one", "answer 1"]
    assert texts(await graph.aget_state(config_of("u"))) == ["one", "answer 1", "two", "answer 3"]
    assert [row.text for row in await rows(hf, "u")] == ["one", "answer 1", "two", "answer 3"]
    with pytest.raises(Conflict) as refused:
        await saver.acopy_thread("t", "u")
    assert refused.value.code is Code.ID_REUSED


async def test_a_deleted_thread_is_gone_and_its_id_free(hf: LocalHoldfast) -> None:
    saver = HoldfastSaver(hf)
    graph = talk(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, config_of())

    # Another object has deleted it; the first one still knows its session.
    await HoldfastSaver(hf).adelete_thread("t")
    empty = await graph.aget_state(config_of())
    await graph.ainvoke({"messages": [HumanMessage("two")]}, config_of())

    assert (empty.values, texts(await graph.aget_state(config_of()))) == ({}, ["two", "answer 1"])


async def test_a_thread_is_a_session_with_turns_and_costs(hf: LocalHoldfast) -> None:
    used: dict[str, Any] = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}
    used["input_token_details"] = {"cache_read": 4}

    def answer(state: Any) -> Any:
        about = {"model_name": "gpt-4o", "model_provider": "openai"}
        content = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "hi"}]
        return AIMessage(
            content, id=f"a{len(state['messages'])}", usage_metadata=used, response_metadata=about
        )

    graph = talk(HoldfastSaver(hf, agent="Talker"), answer=answer)
    for _ in range(2):
        await graph.ainvoke({"messages": [HumanMessage("Hello")]}, config_of("chat"))

    session = await the_session(hf, "chat")
    found = [(row.role, row.turn, row.text) for row in await rows(hf, "chat")]
    assert found == [
        (Role.USER, 1, "Hello"),
        (Role.ASSISTANT, 1, "hi"),
        (Role.USER, 2, "Hello"),
        (Role.ASSISTANT, 2, "hi"),
    ]
    assert (session.status, session.title, session.usage.input) == (Status.IDLE, "Hello", 12)
    assert session.metadata["integration"]["native_id"] == "chat"


def test_one_saver_serves_four_loops_in_four_threads(tmp_path: Path) -> None:
    with sync.open_holdfast(tmp_path / "home") as hf:
        graph = talk(HoldfastSaver(hf))

        def play(number: int) -> list[str]:
            async def turns() -> list[str]:
                for each in range(3):
                    said = {"messages": [HumanMessage(f"{number}.{each}")]}
                    await graph.ainvoke(said, config_of(f"t{number}"))
                return texts(await graph.aget_state(config_of(f"t{number}")))

            return asyncio.run(turns())

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(play, range(4)))

    assert [each[::2] for each in found] == [[f"{n}.{k}" for k in range(3)] for n in range(4)]


async def test_a_cancelled_put_is_whole_or_not_there(hf: LocalHoldfast) -> None:
    saver, there = HoldfastSaver(hf), set()
    values = {"messages": [HumanMessage("one", id="1"), HumanMessage("two", id="2")], "a": 1}
    versions = {"messages": "1", "a": "1"}
    for waits in range(12):
        checkpoint = {
            "v": 4,
            "id": f"{waits:04}",
            "channel_values": values,
            "channel_versions": versions,
            "versions_seen": {},
        }
        config = config_of(f"t{waits}", checkpoint_ns="")
        task = asyncio.ensure_future(saver.aput(config, checkpoint, {}, versions))
        for _ in range(waits):
            await asyncio.sleep(0)
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
        found = await saver.aget_tuple(config)
        there.add(found is not None)
        if found is not None:
            assert found.checkpoint["channel_values"] == values
            assert len(await rows(hf, f"t{waits}")) == 2

    assert there == {False, True}


async def test_a_blocking_method_on_the_loop_of_the_store_is_refused(hf: LocalHoldfast) -> None:
    with pytest.raises(Invalid) as refused:
        HoldfastSaver(hf).get_tuple(config_of())

    assert refused.value.code is Code.WRONG_THREAD


async def test_a_removed_message_is_withdrawn(hf: LocalHoldfast) -> None:
    graph = talk(HoldfastSaver(hf))
    await graph.ainvoke({"messages": [HumanMessage("one", id="1")]}, config_of())

    await graph.aupdate_state(config_of(), {"messages": [HumanMessage("uno", id="1")]})

    parts = [part for row in await rows(hf) for part in row.parts if hasattr(part, "reason")]
    assert [part.reason for part in parts] == ["edit"]
    shown = [row.text for row in await rows(hf)][-2:]
    assert shown == ["uno", "answer 1"]


async def test_all_messages_of_one_of_langchain_are_withdrawn(hf: LocalHoldfast) -> None:
    asked = AIMessage("I look.", id="a", tool_calls=[{"id": "c", "name": "look", "args": {}}])
    graph = talk(HoldfastSaver(hf), answer=lambda state: asked)
    await graph.ainvoke({"messages": [HumanMessage("one", id="1")]}, config_of())

    await graph.aupdate_state(config_of(), {"messages": [RemoveMessage(id="a")]})

    found = await rows(hf)
    (part,) = [part for row in found for part in row.parts if hasattr(part, "reason")]
    assert set(part.message_ids) == {row.id for row in found[1:3]}
    assert [row.role for row in found[1:3]] == [Role.ASSISTANT, Role.TOOL_CALL]


async def test_an_encrypting_serializer_leaves_no_plain_text(tmp_path: Path) -> None:
    class Cipher:
        def encrypt(self, text: bytes) -> tuple[str, bytes]:
            return "xor", bytes(each ^ 77 for each in text)

        def decrypt(self, name: str, text: bytes) -> bytes:
            return bytes(each ^ 77 for each in text)

    async with open_holdfast(tmp_path / "home") as hf:
        graph = talk(HoldfastSaver(hf, serde=EncryptedSerializer(Cipher())))
        await graph.ainvoke({"messages": [HumanMessage("needle in a stack")]}, config_of())
        again = texts(await graph.aget_state(config_of()))
        kept = await contents(hf)
        said = await rows(hf)

    assert (again, said) == (["needle in a stack", "answer 1"], [])
    assert len(kept) > 5
    assert not any(b"needle in" in each for each in kept)


async def test_a_type_the_serializer_refuses_changes_nothing(hf: LocalHoldfast) -> None:
    saver = HoldfastSaver(hf)
    checkpoint = {
        "v": 4,
        "id": "1",
        "channel_values": {"a": object()},
        "channel_versions": {"a": "1"},
    }

    with pytest.raises(TypeError):
        await saver.aput(config_of(checkpoint_ns=""), checkpoint, {}, {"a": "1"})

    assert await saver.aget_tuple(config_of()) is None


def called(id_: str, name: str = "pay", **arguments: Any) -> Any:
    return AIMessage("", tool_calls=[{"id": id_, "name": name, "args": arguments}])


def paying(saver: Any, effects: list[Any], *, work: Any = None, is_sync: bool = False) -> Any:
    """Return a graph that asks for one call and then answers."""

    def spend(cents: int) -> str:
        effects.append(cents)
        return work() if work else f"paid {cents}"

    if is_sync:

        @tool
        def pay(cents: int) -> str:
            """Pay."""
            return spend(cents)

    else:

        @tool
        async def pay(cents: int) -> str:
            """Pay."""
            return spend(cents)

    def ask(state: Talk) -> Any:
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage("done")]}
        return {"messages": [called("c1", cents=5)]}

    graph = StateGraph(Talk)
    graph.add_node("ask", ask)
    tools = ToolNode(
        [pay], wrap_tool_call=saver.guard, awrap_tool_call=saver.aguard, handle_tool_errors=False
    )
    graph.add_node("tools", tools)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges(
        "ask", lambda state: "tools" if state["messages"][-1].tool_calls else END
    )
    graph.add_edge("tools", "ask")
    return graph.compile(checkpointer=saver)


PAY = {"messages": [HumanMessage("Pay 5")]}


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_a_durable_tool_is_recorded_and_answered_once(
    hf: LocalHoldfast, durability: Any
) -> None:
    effects: list[Any] = []
    graph = paying(HoldfastSaver(hf), effects)

    result = await graph.ainvoke(PAY, config_of(), durability=durability)
    (before,) = [
        each async for each in graph.aget_state_history(config_of()) if each.next == ("tools",)
    ]
    again = await graph.ainvoke(None, before.config, durability=durability)

    assert (effects, result["messages"][-1].content) == ([5], "done")
    assert [each.content for each in again["messages"]] == ["Pay 5", "", "paid 5", "done"]
    (call,) = (await hf.calls.list(hf.owner)).items
    assert (call.name, call.arguments, call.state) == ("pay", {"cents": 5}, CallState.FINISHED)
    assert (await the_session(hf)).status is Status.IDLE


def test_a_durable_tool_without_an_event_loop(tmp_path: Path) -> None:
    effects: list[Any] = []
    with sync.open_holdfast(tmp_path / "home") as hf:
        graph = paying(HoldfastSaver(hf), effects, is_sync=True)
        result = graph.invoke(PAY, config_of())

    assert (effects, result["messages"][-1].content) == ([5], "done")


async def test_exit_durability_is_refused_before_the_effect(hf: LocalHoldfast) -> None:
    effects: list[Any] = []
    graph = paying(HoldfastSaver(hf), effects)

    with pytest.raises(Invalid) as refused:
        await graph.ainvoke(PAY, config_of(), durability="exit")

    assert (refused.value.code, effects) == (Code.DURABILITY_EXIT, [])


async def test_a_checkpoint_that_is_never_saved_stops_the_call(
    hf: LocalHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(langgraph_calls, "SAVED_SECONDS", 0.1)
    effects: list[Any] = []
    saver = HoldfastSaver(hf)
    given = config_of(checkpoint_map={"": "none"})
    request = type("Request", (), {})()
    request.tool_call = {"id": "c", "name": "pay", "args": {}}
    request.runtime = type("Runtime", (), {"config": given})()

    async def execute(_: Any) -> Any:
        effects.append(1)
        return ToolMessage("paid", tool_call_id="c")

    with pytest.raises(Exception, match="is not saved"):
        await saver.aguard(request, execute)
    assert effects == []
    free = HoldfastSaver(hf, allow_unsaved=True)
    assert (await free.aguard(request, execute)).content == "paid"
    assert (await free.aguard(request, execute)).content == "paid"
    assert effects == [1]
    request.tool_call = {"id": "c", "name": "pay", "args": {"more": 1}}
    with pytest.raises(Conflict) as refused:
        await free.aguard(request, execute)
    assert refused.value.code is Code.CALL_MISMATCH
    request.runtime = None
    with pytest.raises(Invalid) as alone:
        await free.aguard(request, execute)
    assert (alone.value.code, effects) == (Code.NO_SESSION, [1])


async def test_what_a_durable_tool_raises_is_recorded_and_raised(hf: LocalHoldfast) -> None:
    def fail() -> str:
        raise ValueError("secret text")

    with pytest.raises(ValueError, match="secret text"):
        await paying(HoldfastSaver(hf), [], work=fail).ainvoke(PAY, config_of())

    (call,) = (await hf.calls.list(hf.owner)).items
    assert call.state is CallState.FINISHED
    assert not any("secret" in str(row.parts) for row in await rows(hf))


async def test_a_durable_tool_cannot_interrupt(hf: LocalHoldfast) -> None:
    with pytest.raises(Invalid, match="interrupt in a node before it"):
        await paying(HoldfastSaver(hf), [], work=lambda: interrupt("?")).ainvoke(PAY, config_of())


async def test_a_step_of_a_node_has_its_effect_once(hf: LocalHoldfast) -> None:
    effects, failing = list[Any](), [True]
    saver = HoldfastSaver(hf)

    async def node(state: Any, config: Any) -> Any:
        async def send() -> Any:
            effects.append(1)
            return {"sent": len(effects)}

        sent = await saver.step(config, "send", send)
        if failing.pop():
            raise RuntimeError("later")
        return {"messages": [AIMessage(str(sent))]}

    node.__annotations__["config"] = __import__(
        "langchain_core.runnables", fromlist=["RunnableConfig"]
    ).RunnableConfig
    graph = StateGraph(Talk)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    compiled = graph.compile(checkpointer=saver)
    with pytest.raises(RuntimeError):
        await compiled.ainvoke(PAY, config_of(), durability="sync")

    failing.append(False)
    result = await compiled.ainvoke(None, config_of(), durability="sync")

    assert (effects, result["messages"][-1].content) == ([1], "{'sent': 1}")


def killed(folder: Path, durability: str) -> None:
    """Play a run that kills itself inside its tool."""
    command = [sys.executable, str(FOLDER / "langgraph_killed.py"), str(folder), durability]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_a_killed_run_is_resumed_with_what_is_known(tmp_path: Path, durability: str) -> None:
    killed(tmp_path, durability)
    effects: list[Any] = []

    async with open_holdfast(tmp_path / "home") as hf:
        graph = paying(HoldfastSaver(hf), effects)
        result = await graph.ainvoke(None, config_of(), durability="sync")
        (unknown,) = (await hf.calls.list(hf.owner, state=CallState.UNKNOWN)).items
        verified = await hf.sessions.verify(hf.owner, (await the_session(hf)).id)

    assert (tmp_path / "effects").read_text() == "paid\n"
    assert [each.content for each in result["messages"]] == ["Pay 5", "", UNKNOWN_OUTCOME, "done"]
    assert (effects, unknown.id, verified.faults) == ([], "c1", ())


def test_a_version_that_was_not_tested_is_refused() -> None:
    code = (
        "import importlib.metadata as m; m.version = lambda name: '5.0.0'\n"
        "import holdfast.integrations.langgraph"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert "holdfast[langgraph]" in done.stderr


def test_the_package_alone_loads_no_framework() -> None:
    code = (
        "import sys, holdfast, holdfast.app, holdfast.integrations.records;"
        "print(any(name.startswith('langgraph') for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.strip() == "False"
