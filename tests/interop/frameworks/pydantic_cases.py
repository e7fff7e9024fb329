"""Cases of pydantic-ai on Holdfast; run in its environment by `make interop`."""

import dataclasses
import json
import subprocess
import sys
import typing
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pydantic_ai.messages as m
import pytest
from pydantic import TypeAdapter
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
)
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, InMemoryConversationStore
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import RequestUsage

from holdfast import (
    ApprovalState,
    CallState,
    Code,
    Conflict,
    Decision,
    LocalHoldfast,
    Notice,
    NoticeCode,
    Role,
    Status,
    open_holdfast,
)
from holdfast.integrations.calls import UNKNOWN_OUTCOME
from holdfast.integrations.pydantic_ai import (
    HoldfastConversationStore,
    HoldfastDurability,
    _dumped,
    _entry,
)

FOLDER = Path(__file__).parent


@pytest.fixture
async def hf(tmp_path: Path) -> AsyncIterator[LocalHoldfast]:
    async with open_holdfast(tmp_path / "home") as opened:
        yield opened


@pytest.fixture(params=["ours", "memory"])
def store(request: pytest.FixtureRequest, hf: LocalHoldfast) -> Any:
    """Return a store; every behaviour is that of the one in memory."""
    return HoldfastConversationStore(hf) if request.param == "ours" else InMemoryConversationStore()


def _dump(entry: Any) -> bytes:
    return _dumped([entry])[entry.id]


def request_of(text: str) -> m.ModelRequest:
    return m.ModelRequest(parts=[m.UserPromptPart(text)])


def response_of(text: str, **more: Any) -> m.ModelResponse:
    return m.ModelResponse(parts=[m.TextPart(text)], model_name="gpt-4o", **more)


def talk(*texts: str, id_: str = "c") -> Conversation:
    made = [request_of(each) if n % 2 == 0 else response_of(each) for n, each in enumerate(texts)]
    return Conversation(messages=made, conversation_id=id_)


def said(conversation: Any) -> list[Any]:
    return [part.content for message in conversation.messages for part in message.parts]


def said_last(conversation: Any) -> list[Any]:
    return [message.parts[-1].content for message in conversation.messages[-2:]]


async def rows(hf: LocalHoldfast, id_: str = "c") -> list[Any]:
    found = await hf.foreign.get_component().sessions.find("pydantic-ai", id_)
    return list(await hf.read(found))


async def session_of(hf: LocalHoldfast, id_: str = "c") -> Any:
    found = await hf.foreign.get_component().sessions.find("pydantic-ai", id_)
    return await hf.sessions.get(hf.owner, found)


async def test_a_conversation_is_saved_and_continued(store: Any) -> None:
    first = talk("one", "two")
    added = await store.save(first, scope="me")

    loaded = await store.load("c")
    loaded.messages.extend(talk("three", "four").messages)
    more = await store.save(loaded)

    assert (len(added), len(more)) == (2, 2)
    assert said(await store.load("c")) == ["one", "two", "three", "four"]
    assert said(await store.load("c", limit=3)) == ["two", "three", "four"]
    assert [each.id for each in await store.load_entries("c")] == [e.id for e in [*added, *more]]
    assert await store.load("c", scope="other") is None
    assert await store.load("d") is None


async def test_stale_writers_are_refused_and_change_nothing(store: Any) -> None:
    await store.save(talk("one", "two"))
    one, other = await store.load("c"), await store.load("c")
    one.messages.extend(talk("three").messages)
    other.messages.extend(talk("another").messages)
    await store.save(one)

    with pytest.raises(ConversationConflict):
        await store.save(other)
    with pytest.raises(ConversationConflict):
        await store.save(talk("new"))
    record = await store.read_record("c")
    with pytest.raises(ConversationConflict):
        await store.write_record(
            dataclasses.replace(record, head_id="none", revision="r"),
            expected_revision=record.revision,
        )
    with pytest.raises(ConversationConflict):
        await store.write_record(
            dataclasses.replace(record, conversation_id="new", head_id="none"),
            expected_revision=None,
        )
    with pytest.raises(ConversationConflict):
        await store.delete_record("c", expected_revision="wrong")

    assert said(await store.load("c")) == ["one", "two", "three"]
    assert [each.conversation_id for each in await store.list_conversations()] == ["c"]


async def test_branches_are_left_and_taken_up_again(store: Any) -> None:
    await store.save(talk("one", "two", "three", "four"))
    loaded = await store.load("c")

    branched = await store.branch("c", at=2, expected_revision=loaded.revision)
    branched.messages.extend(talk("five").messages)
    await store.save(branched)
    record = await store.read_record("c")
    back = await store.branch("c", from_entry=record.branches[0], expected_revision=record.revision)

    assert said(branched) == ["one", "two", "five"]
    assert said(back) == said(await store.load("c")) == ["one", "two", "three", "four"]


async def test_forks_go_their_own_way(store: Any) -> None:
    await store.save(talk("one", "two", "three", "four"))

    fork = await store.fork("c", at=2, new_conversation_id="f")
    fork.messages.extend(talk("five").messages)
    await store.save(fork)
    source = await store.load_entries("c")
    await store.delete("c")

    assert await store.load("c") is None
    assert said(await store.load("f")) == ["one", "two", "five"]
    entries = await store.load_entries("f")
    assert [each.id for each in entries[:2]] == [each.id for each in source[:2]]
    assert (await store.read_entry(entries[0].id)).message.parts[0].content == "one"
    with pytest.raises(LookupError):
        await store.read_entry(source[3].id)
    await store.save(talk("again"))
    assert said(await store.load("c")) == ["again"]


async def test_the_newest_are_listed_first(store: Any) -> None:
    for name in ("a", "b", "c"):
        await store.save(talk("hi", id_=name), scope="x" if name != "b" else None)
    again = await store.load("a")
    again.messages.extend(talk("more").messages)
    await store.save(again)

    listed = [each.conversation_id for each in await store.list_conversations()]
    scoped = [each.conversation_id for each in await store.list_conversations(scope="x", limit=1)]

    assert (listed, scoped) == (["a", "c", "b"], ["a"])


async def test_a_conversation_is_a_session_with_turns_and_costs(hf: LocalHoldfast) -> None:
    store = HoldfastConversationStore(hf, agent="Talker")
    used = RequestUsage(input_tokens=10, output_tokens=3, cache_read_tokens=4)
    messages = [
        request_of("Pay"),
        m.ModelResponse(
            parts=[
                m.ThinkingPart("hm"),
                m.TextPart("I pay."),
                m.ToolCallPart("pay", {"n": 1}, "t"),
            ],
            usage=used,
            model_name="gpt-4o",
            provider_name="openai",
            provider_response_id="r1",
        ),
        m.ModelRequest(parts=[m.ToolReturnPart("pay", "paid", "t")]),
        response_of("Done.", usage=used, provider_name="openai", provider_response_id="r2"),
    ]
    await store.save(Conversation(messages=messages, conversation_id="c"))
    await store.fork("c", new_conversation_id="f")

    found = await rows(hf)
    session, fork = await session_of(hf), await session_of(hf, "f")
    assert [(row.role, row.turn) for row in found] == [
        (Role.USER, 1),
        (Role.ASSISTANT, 1),
        (Role.TOOL_CALL, 1),
        (Role.TOOL_RESULT, 1),
        (Role.ASSISTANT, 1),
    ]
    assert (session.status, session.title) == (Status.IDLE, "Pay")
    assert (session.usage.input, session.usage.output, fork.usage.input) == (12, 6, 0)
    assert [row.text for row in await rows(hf, "f")] == [row.text for row in found]
    assert (await hf.sessions.verify(hf.owner, session.id)).faults == ()


async def test_instructions_are_a_notice_when_they_change(hf: LocalHoldfast) -> None:
    store = HoldfastConversationStore(hf)
    for number, text in enumerate(("Be short.", "Be short.", "Be long.")):
        loaded = await store.load("c") or Conversation(conversation_id="c")
        said = m.ModelRequest(parts=[m.UserPromptPart(f"{number}")], instructions=text)
        loaded.messages.extend([said, response_of("ok")])
        await store.save(loaded)

    notices = [row.parts[0].text for row in await rows(hf) if row.role is Role.SYSTEM]
    assert notices == ["Be short.", "Be long."]


async def test_a_left_branch_is_withdrawn(hf: LocalHoldfast) -> None:
    store = HoldfastConversationStore(hf)
    await store.save(talk("one", "two", "three", "four"))
    loaded = await store.load("c")
    assert loaded is not None
    await store.branch("c", at=2, expected_revision=loaded.revision)

    found = await rows(hf)
    (part,) = [part for row in found for part in row.parts if hasattr(part, "reason")]
    assert part.reason == "rewind"
    assert list(part.message_ids) == [row.id for row in found[2:4]]


async def test_what_has_no_json_form_changes_nothing(hf: LocalHoldfast) -> None:
    store = HoldfastConversationStore(hf)
    odd = m.ModelRequest(parts=[m.ToolReturnPart("pay", object(), "t")])

    with pytest.raises(Exception, match="serialize"):
        await store.save(Conversation(messages=[odd], conversation_id="c"))

    assert await store.load("c") is None


def members(alias: Any) -> list[Any]:
    """Return the classes of a union of parts."""
    union = typing.get_args(alias)[0]
    found = [typing.get_args(each)[0] for each in typing.get_args(union)]
    return list(dict.fromkeys(typing.get_origin(each) or each for each in found))


GIVEN: dict[str, Any] = {
    "content": "text",
    "tool_name": "look",
}
SAMPLES: dict[Any, dict[str, Any]] = {
    m.UserPromptPart: {
        "content": [
            "text",
            m.TextContent("text", metadata={"a": 1}),
            m.StructuredContent({"a": [1]}),
            m.ImageUrl("https://example.com/a.png"),
            m.AudioUrl("https://example.com/a.mp3"),
            m.DocumentUrl("https://example.com/a.pdf"),
            m.VideoUrl("https://example.com/a.mp4"),
            m.BinaryContent(b"\x89PNG", media_type="image/png"),
            m.UploadedFile("f", provider_name="openai", media_type="image/png"),
            m.CachePoint(),
        ]
    },
    m.ToolSearchReturnPart: {"content": {"discovered_tools": []}},
    m.NativeToolSearchReturnPart: {"content": {"discovered_tools": []}},
    m.LoadCapabilityReturnPart: {"content": {"instructions": "Do.", "id": "a"}},
    m.ModelSettingsDeltaPart: {"settings": {"temperature": 1.0}},
    # An id that no instruction has is read back as none.
    m.InstructionDeltaPart: {"id": None},
    m.InstructionBaselinePart: {"instructions": []},
    m.FilePart: {"content": m.BinaryContent(b"\x89PNG", media_type="image/png")},
}


def sample(alias: Any, kind: Any) -> Any:
    """Return a part with every required field set."""
    needed = [
        field.name
        for field in dataclasses.fields(kind)
        if field.init
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    given = SAMPLES.get(kind, {})
    speaker = "user" if alias is m.ModelRequestPart else "assistant"
    given = {"speaker": speaker, **given}
    return kind(**{name: given[name] if name in given else GIVEN[name] for name in needed})


def kept(alias: Any, part: Any) -> None:
    """Require that a message with a part has the same bytes after it was stored, and is mapped."""
    from pydantic_ai.conversation_store import ConversationEntry

    from holdfast.integrations.pydantic_ai_messages import entry_of

    is_answer = alias is m.ModelResponsePart
    message = m.ModelResponse(parts=[part]) if is_answer else m.ModelRequest(parts=[part])
    raw = _dump(ConversationEntry(parent_id="p", message=message))
    again = _entry("i", raw)
    assert (again.parent_id, _dump(dataclasses.replace(again))) == ("p", raw)
    entry_of(again.message)


LEGACY = {m.RetryPromptPart}


@pytest.mark.parametrize(
    "alias", [m.ModelRequestPart, m.ModelResponsePart], ids=["request", "response"]
)
def test_every_part_survives_with_its_bytes(alias: Any) -> None:
    for kind in members(alias):
        if kind in LEGACY:
            continue
        if kind is m.RetryFeedbackPart:
            info = typing.get_type_hints(m.RetryFeedbackPart)["retry"]
            retry = (
                TypeAdapter(info).validate_python({"cause": "validation_error"}) if info else None
            )
            kept(alias, kind("again", retry=retry))
        else:
            kept(alias, sample(alias, kind))


def test_the_samples_have_every_content_of_a_user() -> None:
    assert {type(each) for each in SAMPLES[m.UserPromptPart]["content"]} == {
        each for each in m._USER_CONTENT_TYPES if each is not m.BinaryContent
    } | {type(m.BinaryContent(b"\x89PNG", media_type="image/png"))}


def test_every_field_of_a_message_survives() -> None:
    agent = Agent(TestModel(custom_output_text="hi"), instructions="Be short.")
    result = agent.run_sync("Hello")
    for message in result.all_messages():
        from pydantic_ai.conversation_store import ConversationEntry

        again = _entry("i", _dump(ConversationEntry(parent_id=None, message=message)))
        for field in dataclasses.fields(message):
            assert getattr(again.message, field.name) == getattr(message, field.name)


def test_a_version_that_was_not_tested_is_refused() -> None:
    code = (
        "import importlib.metadata as m; old = m.version\n"
        "m.version = lambda name: '3.0.0' if name == 'pydantic-ai-slim' else old(name)\n"
        "import holdfast.integrations.pydantic_ai"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert "holdfast[pydantic-ai]" in done.stderr


class Scripted:
    """A model that asks for calls until its history has a result, and counts its requests."""

    def __init__(self, *calls: Any, fails: bool = False) -> None:
        self.calls = calls
        self.seen: list[Any] = []

    def __call__(self, messages: list[Any], info: Any) -> Any:
        self.seen.append(messages)
        results = [
            part
            for message in messages
            for part in message.parts
            if part.part_kind in {"tool-return", "retry-prompt"}
        ]
        if results:
            return m.ModelResponse(parts=[m.TextPart("done")])
        return m.ModelResponse(parts=[m.ToolCallPart("pay", args, id_) for id_, args in self.calls])


def payer(script: Any, effects: list[Any], work: Any = None) -> Any:
    """Return an agent with one tool."""
    toolset: Any = FunctionToolset(id="payments")

    @toolset.tool_plain
    async def pay(cents: int) -> str:
        """Pay."""
        effects.append(cents)
        return work(cents) if work else f"paid {cents}"

    return Agent(
        FunctionModel(script, model_name="scripted"),
        name="payer",
        toolsets=[toolset],
        capabilities=[HoldfastDurability()],
    )


async def test_a_durable_run_is_one_turn_and_its_calls_are_recorded(hf: LocalHoldfast) -> None:
    effects: list[Any] = []
    store, agent = HoldfastConversationStore(hf), None
    agent = payer(Scripted(("c1", {"cents": 5}), ("c2", {"cents": 6})), effects)

    async with store.turn("c", "Pay."):
        result = await agent.run("Pay.", conversation=Conversation(conversation_id="c"))
        await store.save(result)

    found = await rows(hf)
    assert (found[0].role, found[-1].role) == (Role.USER, Role.ASSISTANT)
    assert sorted(row.role for row in found[1:-1]) == [Role.TOOL_CALL] * 2 + [Role.TOOL_RESULT] * 2
    calls = (await hf.calls.list(hf.owner)).items
    assert (result.output, sorted(effects)) == ("done", [5, 6])
    assert {call.state for call in calls} == {CallState.FINISHED}
    assert (await session_of(hf)).status is Status.IDLE
    loaded = await store.load("c")
    assert loaded is not None
    assert loaded.messages[0].parts[0].content == "Pay."


async def test_leaving_a_turn_saves_what_the_program_has_not(hf: LocalHoldfast) -> None:
    effects: list[Any] = []
    store = HoldfastConversationStore(hf)
    agent = payer(Scripted(("c1", {"cents": 5})), effects)

    async with store.turn("c", "Pay."):
        first = await agent.run("Pay.", conversation=Conversation(conversation_id="c"))
    loaded = await store.load("c")
    async with store.turn("c", "Thanks."):
        await agent.run("Thanks.", conversation=loaded)
        # Of another conversation, as when a tool runs an agent.
        await payer(Scripted(("c2", {"cents": 6})), effects).run("Pay more.")
    again = await store.load("c")

    assert loaded is not None
    assert again is not None
    assert len(loaded.messages) == len(first.all_messages()) == 4
    assert said_last(again)[-2:] == ["Thanks.", "done"]
    assert [each.conversation_id for each in await store.list_conversations()] == ["c"]
    record = await store.read_record("c")
    async with store.turn("c", "Once more."):
        await store.save((await agent.run("Once more.", conversation=again)).conversation)
        saved = await store.read_record("c")
    assert record != saved == await store.read_record("c")


async def test_a_result_that_cannot_be_saved_leaves_the_turn_to_be_continued(
    hf: LocalHoldfast,
) -> None:
    effects: list[Any] = []
    store, script = HoldfastConversationStore(hf), Scripted(("c1", {"cents": 5}))
    agent = payer(script, effects)
    await store.save(talk("one", "two"))
    stale = await store.load("c")
    await store.branch("c", at=1, expected_revision=stale.revision)

    async def play() -> None:
        async with store.turn("c", "Pay."):
            await agent.run("Pay.", conversation=stale)

    with pytest.raises(ConversationConflict):
        await play()
    async with store.turn("c", "Pay."):
        await agent.run("Pay.", conversation=await store.load("c"))

    assert (effects, len(script.seen)) == ([5], 2)
    assert said_last(await store.load("c"))[-1] == "done"


def count_restored(shown: list[Any]) -> int:
    parts = [part for row in shown for part in row.parts if isinstance(part, Notice)]
    return sum(part.code is NoticeCode.RESTORED for part in parts)


async def test_a_branch_that_is_taken_up_again_says_so(hf: LocalHoldfast) -> None:
    store = HoldfastConversationStore(hf)
    await store.save(talk("one", "two", "three", "four"))
    loaded = await store.load("c")
    branched = await store.branch("c", at=2, expected_revision=loaded.revision)
    branched.messages.extend(talk("five").messages)
    await store.save(branched)
    record = await store.read_record("c")
    before = await rows(hf)
    await store.branch("c", from_entry=record.branches[0], expected_revision=record.revision)
    await store.fork("c", new_conversation_id="f")

    found = await rows(hf)
    added = [row.text for row in found[len(before) :] if row.text]
    fork = await rows(hf, "f")
    assert [count_restored(each) for each in (before, found, fork)] == [0, 1, 0]
    assert added == ["three", "four"]
    assert (await hf.sessions.verify(hf.owner, (await session_of(hf)).id)).faults == ()


async def test_a_turn_that_failed_is_continued_where_it_was(hf: LocalHoldfast) -> None:
    effects: list[Any] = []
    failing = [True]

    def script(messages: list[Any], info: Any) -> Any:
        answer = scripted(messages, info)
        if len(scripted.seen) > 1 and failing:
            failing.pop()
            raise RuntimeError("the provider is gone")
        return answer

    scripted = Scripted(("c1", {"cents": 5}))
    agent, store = payer(script, effects), HoldfastConversationStore(hf)
    with pytest.raises(RuntimeError):
        async with store.turn("c", "Pay."):
            await agent.run("Pay.")

    async with store.turn("c", "Pay."):
        result = await agent.run("Pay.")
    async with store.turn("c", "Pay."):
        again = await payer(Scripted(("c9", {"cents": 7})), effects).run("Pay.")

    assert (result.output, again.output, effects) == ("done", "done", [5, 7])
    assert len(scripted.seen) == 3


async def test_a_replay_that_differs_is_refused(hf: LocalHoldfast) -> None:
    store = HoldfastConversationStore(hf)

    def gone(cents: int) -> str:
        raise RuntimeError("the tool is gone")

    async def play(agent: Any) -> None:
        async with store.turn("c", "Pay."):
            await agent.run("Pay.")

    with pytest.raises(RuntimeError):
        await play(payer(Scripted(("c1", {"cents": 5})), [], gone))
    renamed = Agent(
        FunctionModel(Scripted(), model_name="scripted"),
        name="other",
        capabilities=[HoldfastDurability()],
    )
    with pytest.raises(Conflict) as refused:
        await play(renamed)

    assert refused.value.code is Code.REPLAY_MISMATCH


async def test_an_approved_call_runs_once(hf: LocalHoldfast) -> None:
    effects: list[Any] = []
    toolset: Any = FunctionToolset(id="payments")

    @toolset.tool_plain(requires_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        effects.append(cents)
        return f"paid {cents}"

    agent: Any = Agent(
        FunctionModel(Scripted(("c1", {"cents": 5})), model_name="scripted"),
        name="payer",
        output_type=[str, DeferredToolRequests],
        toolsets=[toolset],
        capabilities=[HoldfastDurability()],
    )
    store = HoldfastConversationStore(hf)
    async with store.turn("c", "Pay."):
        asked = await agent.run("Pay.", conversation=Conversation(conversation_id="c"))
        await store.save(asked)
    loaded = await store.load("c")
    assert loaded is not None
    assert loaded.deferred_tool_requests is not None
    before = list(effects)

    async with store.turn("c", "Approved."):
        result = await agent.run(
            conversation=loaded, deferred_tool_results=DeferredToolResults(approvals={"c1": True})
        )
        await store.save(result)

    assert (before, effects, result.output) == ([], [5], "done")


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_call_that_waits_for_approval_is_answered_anywhere(
    tmp_path: Path, hf: LocalHoldfast, *, is_allowed: bool, raises: bool
) -> None:
    effects: list[Any] = []
    toolset: Any = FunctionToolset(id="payments")

    @toolset.tool(requires_approval=not raises)
    async def pay(ctx: RunContext[None], cents: int) -> str:
        """Pay."""
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        effects.append(cents)
        return f"paid {cents}"

    agent: Any = Agent(
        FunctionModel(Scripted(("c1", {"cents": 5})), model_name="scripted"),
        output_type=[str, DeferredToolRequests],
        name="payer",
        toolsets=[toolset],
        capabilities=[HoldfastDurability()],
    )
    store = HoldfastConversationStore(hf)
    async with store.turn("c", "Pay."):
        await agent.run("Pay.", conversation=Conversation(conversation_id="c"))
    waiting = await store.read_approvals("c")
    # As a server does, in a process of its own.
    async with open_holdfast(tmp_path / "home") as desk:
        (asked,) = (await desk.approvals.list(desk.owner)).items
        state = ApprovalState.ALLOWED if is_allowed else ApprovalState.DENIED
        answer = Decision(state=state, by="ada", note=None if is_allowed else "Too much.")
        await desk.approvals.answer(desk.owner, asked.session_id, asked.id, answer)
    results = await store.read_approvals("c")
    async with store.turn("c", "Answered."):
        await agent.run(conversation=await store.load("c"), deferred_tool_results=results)

    loaded = await store.load("c")
    assert loaded is not None
    returned = [part for message in loaded.messages for part in message.parts][-2]
    assert (waiting, asked.question.tool, asked.question.arguments) == (None, "pay", {"cents": 5})
    assert asked.state is ApprovalState.WAITING
    assert effects == ([5] if is_allowed else [])
    assert returned.content == ("paid 5" if is_allowed else "Too much.")
    assert await store.read_approvals("c") is None
    assert [each.state for each in (await hf.approvals.list(hf.owner)).items] == [state]
    assert (await session_of(hf)).status is Status.IDLE
    assert (await hf.sessions.verify(hf.owner, asked.session_id)).faults == ()


async def test_a_question_expires_when_its_call_waits_no_longer(hf: LocalHoldfast) -> None:
    store = HoldfastConversationStore(hf)
    calls = [m.ToolCallPart("pay", {"cents": cents}, f"c{cents}") for cents in (5, 6)]
    first = Conversation(
        messages=[request_of("Pay"), m.ModelResponse(parts=[*calls])],
        conversation_id="c",
        deferred_tool_requests=DeferredToolRequests(approvals=calls),
    )
    await store.save(first)
    await store.save(first)
    asked = (await hf.approvals.list(hf.owner)).items
    yes = Decision(state=ApprovalState.ALLOWED, by="ada")
    await hf.approvals.answer(hf.owner, asked[0].session_id, asked[0].id, yes)
    results = await store.read_approvals("c")

    await store.branch("c", at=1, expected_revision=first.revision)

    after = (await hf.approvals.list(hf.owner)).items
    assert [each.question.call_id for each in asked] == ["c5", "c6"]
    assert results is None
    assert [each.state for each in after] == [ApprovalState.ALLOWED, ApprovalState.EXPIRED]
    assert await store.read_approvals("c") is None


async def test_outside_a_turn_nothing_is_recorded(hf: LocalHoldfast) -> None:
    effects: list[Any] = []
    agent = payer(Scripted(("c1", {"cents": 5})), effects)

    with pytest.warns(UserWarning, match="outside a turn"):
        result = await agent.run("Pay.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = await agent.run("Pay.")

    assert (result.output, again.output, effects) == ("done", "done", [5, 5])
    assert (await hf.calls.list(hf.owner)).items == ()


async def test_a_killed_run_is_continued_with_what_is_known(tmp_path: Path) -> None:
    killed = table(tmp_path, "kill")
    again = table(tmp_path, "again")

    async with open_holdfast(tmp_path / "home") as hf:
        verified = await hf.sessions.verify(hf.owner, (await session_of(hf)).id)
        roles = [row.role for row in await rows(hf)]

    assert (killed.returncode, again.returncode) == (-9, 0), again.stderr
    found = json.loads(again.stdout)
    assert (found["effects"], found["unknown"], found["lost"]) == (2, ["kill-2"], 0)
    assert found["shown"] == ["charged 1", UNKNOWN_OUTCOME]
    assert (verified.faults, roles[-1]) == ((), Role.ASSISTANT)


def table(folder: Path, phase: str) -> Any:
    """Play a run that is killed inside its second call, or the same again."""
    command = [sys.executable, str(FOLDER / "pydantic_table.py"), str(folder), "durable", phase]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
