"""Sessions that a framework runs: its records, the messages made of them, and what it withdraws."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CallState,
    Code,
    Conflict,
    LocalHoldfast,
    NotFound,
    Role,
    RunScope,
    SessionId,
    Status,
    StopReason,
    Usage,
    open_holdfast,
)
from holdfast.domain.agents import ExternalRuntime
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Notice,
    NoticeCode,
    Part,
    ResultStatus,
    Text,
    ToolCall,
    ToolResult,
    Withdrawn,
)
from holdfast.domain.recordings import Disposition
from holdfast.domain.waits import WaitReason
from holdfast.engine.projection import project
from holdfast.integrations.records import (
    ForeignCost,
    ForeignEntry,
    ForeignSessions,
    ForeignWriter,
    Framework,
)
from tests.new_homes import furnish

pytestmark = pytest.mark.anyio
FRAMEWORK = Framework(name="acme", version="1.2.3")


@pytest.fixture
async def hf(home: Path) -> AsyncIterator[LocalHoldfast]:
    async with open_holdfast(furnish(home)) as opened:
        yield opened


def foreign_of(hf: LocalHoldfast) -> ForeignSessions:
    sessions: ForeignSessions = hf.foreign.get_component().sessions
    return sessions


async def opened(hf: LocalHoldfast, native_id: str = "chat-1") -> SessionId:
    return await foreign_of(hf).open(FRAMEWORK, native_id, agent="Helper")


def entry(value: Any, *drafts: MessageDraft) -> ForeignEntry:
    return ForeignEntry(kind="item", raw=json.dumps(value).encode(), drafts=drafts)


def said(role: Role, *parts: Part) -> MessageDraft:
    return MessageDraft(role=role, parts=parts)


def user(text: str) -> ForeignEntry:
    return entry({"user": text}, said(Role.USER, Text(text=text)))


def assistant(text: str) -> ForeignEntry:
    return entry({"assistant": text}, said(Role.ASSISTANT, Text(text=text)))


def call(id_: str) -> ForeignEntry:
    part = ToolCall(id=CallId(id_), name="look", arguments={})
    return entry({"call": id_}, said(Role.TOOL_CALL, part))


def result(id_: str) -> ForeignEntry:
    part = ToolResult(call_id=CallId(id_), name="", status=ResultStatus.OK, result="found")
    return entry({"result": id_}, said(Role.TOOL_RESULT, part))


async def add(hf: LocalHoldfast, session_id: SessionId, *entries: ForeignEntry) -> None:
    await foreign_of(hf).write(session_id, lambda writer: writer.add("items", entries))


async def raws(hf: LocalHoldfast, session_id: SessionId) -> list[Any]:
    view = await foreign_of(hf).live(session_id, "items")
    return [json.loads(record.raw) for record in view]


async def test_a_session_is_found_by_its_native_id_and_says_who_runs_it(
    hf: LocalHoldfast,
) -> None:
    first, again, other = await opened(hf), await opened(hf), await opened(hf, "chat-2")

    session = await hf.sessions.get(hf.owner, first)
    assert (first == again, first == other) == (True, False)
    assert session.agent.runtime == ExternalRuntime(framework="acme")
    assert (session.agent.name, session.agent.slug) == ("Helper", "helper")
    assert session.metadata["integration"] == {
        "framework": "acme",
        "version": "1.2.3",
        "native_id": "chat-1",
    }


async def test_an_agent_of_another_kind_is_not_taken(hf: LocalHoldfast) -> None:
    await hf.agents.create(hf.owner, {"name": "Helper"})

    with pytest.raises(Conflict) as refused:
        await opened(hf)

    assert refused.value.code is Code.SLUG_TAKEN


async def test_turns_follow_from_the_messages(hf: LocalHoldfast) -> None:
    session_id = await opened(hf)

    await add(hf, session_id, user("Look it up."))
    running = await hf.sessions.get(hf.owner, session_id)
    await add(hf, session_id, call("c1"), result("c1"), assistant("Found."))
    ended = await hf.sessions.get(hf.owner, session_id)
    rows = await hf.read(session_id)

    assert (running.status, running.turn, running.settled) == (Status.RUNNING, 1, 0)
    assert running.waiting is not None
    assert running.waiting.reason is WaitReason.HOLDER
    assert (ended.status, ended.settled, ended.last_stop) == (Status.IDLE, 1, StopReason.STOP)
    assert (running.title, {row.turn for row in rows}) == ("Look it up.", {1})
    assert [row.role for row in rows] == [
        Role.USER,
        Role.TOOL_CALL,
        Role.TOOL_RESULT,
        Role.ASSISTANT,
    ]
    (known,) = (await hf.calls.list(hf.owner, session_id)).items
    assert known.state is CallState.FINISHED
    assert (await hf.sessions.verify(hf.owner, session_id)).faults == ()


async def test_a_notice_after_the_answer_leaves_the_turn_answered(hf: LocalHoldfast) -> None:
    session_id = await opened(hf)
    notice = entry({}, said(Role.SYSTEM, Notice(code=NoticeCode.HARNESS, text="A hook has run.")))

    await add(hf, session_id, user("Look it up."), assistant("Found."), notice)
    ended = await hf.sessions.get(hf.owner, session_id)

    assert (ended.status, ended.settled, ended.last_stop) == (Status.IDLE, 1, StopReason.STOP)


async def test_an_unanswered_turn_is_closed_by_the_next_message(hf: LocalHoldfast) -> None:
    session_id = await opened(hf)

    await add(hf, session_id, user("One"), user("and more"))
    await add(hf, session_id, user("Two"))

    rows = await hf.read(session_id)
    assert [(row.role, row.turn) for row in rows] == [
        (Role.USER, 1),
        (Role.USER, 1),
        (Role.SYSTEM, 1),
        (Role.USER, 2),
    ]
    assert (await hf.sessions.get(hf.owner, session_id)).last_stop is StopReason.INTERRUPTED


async def test_no_process_answers_the_message_and_none_may_be_sent(home: Path) -> None:
    async with (
        open_holdfast(furnish(home)) as hf,
        open_holdfast(furnish(home), scope=RunScope.NONE) as other,
    ):
        session_id = await opened(other)
        await add(other, session_id, user("Hello?"))
        await asyncio.sleep(2.5)

        with pytest.raises(Conflict) as refused:
            await hf.send(session_id, "Answer me.")
        rows = await hf.read(session_id)

    assert refused.value.code is Code.EXTERNAL_RUNTIME
    assert [row.role for row in rows] == [Role.USER]


async def test_an_open_turn_waits_for_its_program_after_a_restart(home: Path) -> None:
    async with open_holdfast(furnish(home)) as hf:
        session_id = await opened(hf)
        await add(hf, session_id, user("Hello?"))
    async with open_holdfast(furnish(home)) as hf:
        await asyncio.sleep(1.5)
        session = await hf.sessions.get(hf.owner, session_id)
        await add(hf, session_id, assistant("Hello!"))
        answered = await hf.sessions.get(hf.owner, session_id)

    assert (session.status, session.settled) == (Status.RUNNING, 0)
    assert (answered.settled, answered.last_stop) == (1, StopReason.STOP)


async def test_the_live_view_equals_a_plain_list_after_random_changes(hf: LocalHoldfast) -> None:
    session_id = await opened(hf)
    chance, plain = random.Random(7), list[Any]()

    for number in range(300):
        what = chance.random()
        if what < 0.6 or not plain:
            items = [f"{number}-{each}" for each in range(chance.randint(1, 3))]
            made = [assistant(each) if chance.random() < 0.5 else user(each) for each in items]
            await add(hf, session_id, *made)
            plain += [json.loads(each.raw) for each in made]
        elif what < 0.97:
            await foreign_of(hf).write(session_id, pop)
            plain.pop()
        else:
            await foreign_of(hf).write(session_id, clear)
            plain.clear()
        if number % 10 == 0:
            assert await raws(hf, session_id) == plain

    assert await raws(hf, session_id) == plain
    assert (await hf.sessions.verify(hf.owner, session_id)).faults == ()


async def pop(writer: ForeignWriter) -> None:
    newest = (await writer.view("items")).newest()
    assert newest is not None
    await writer.withdraw("items", [newest], "pop")


async def clear(writer: ForeignWriter) -> None:
    await writer.withdraw("items", list(await writer.view("items")), "clear")


async def test_a_removal_is_a_row_that_names_what_it_removes(hf: LocalHoldfast) -> None:
    session_id = await opened(hf)
    await add(hf, session_id, user("One"), assistant("Two"))

    await foreign_of(hf).write(session_id, pop)

    rows = await hf.read(session_id)
    assert rows[-1].parts == (Withdrawn(message_ids=(rows[1].id,), reason="pop"),)
    assert await raws(hf, session_id) == [{"user": "One"}]
    assert [row.text for row in rows[:2]] == ["One", "Two"]


async def test_a_model_is_not_shown_what_was_withdrawn(hf: LocalHoldfast) -> None:
    session_id = await opened(hf)
    await add(hf, session_id, user("Secret"), assistant("Secret too"))
    await foreign_of(hf).write(session_id, clear)
    await add(hf, session_id, user("Plain"), assistant("Fine"), user("And now?"))

    shown = project(await hf.read(session_id), turn=3)

    assert [message.text for message in shown] == ["Plain", "Fine", "And now?"]


async def test_two_processes_append_to_one_session(home: Path) -> None:
    async with (
        open_holdfast(furnish(home)) as one,
        open_holdfast(furnish(home), scope=RunScope.NONE) as two,
    ):
        session_id = await opened(one)
        assert await opened(two) == session_id

        for number in range(20):
            holders = (one, two)
            both = [add(hf, session_id, user(f"{number}-{n}")) for n, hf in enumerate(holders)]
            await asyncio.gather(*both)

        seen = await raws(one, session_id)
        assert seen == await raws(two, session_id)
        assert len(seen) == 40


async def test_a_deleted_session_leaves_its_native_id_free(hf: LocalHoldfast) -> None:
    session_id = await opened(hf)
    await add(hf, session_id, user("One"))

    await foreign_of(hf).delete(session_id)
    again = await opened(hf)

    assert again != session_id
    assert await raws(hf, again) == []
    with pytest.raises(NotFound):
        await add(hf, session_id, user("Two"))


@pytest.mark.parametrize("scope", [RunScope.ALL, RunScope.NONE])
async def test_what_is_in_memory_gives_way_to_what_another_process_wrote(
    home: Path, scope: RunScope
) -> None:
    async with open_holdfast(home) as one, open_holdfast(home, scope=scope) as two:
        session_id = await opened(one)
        await add(one, session_id, user("One"), call("c1"))
        before = await raws(one, session_id)
        await add(two, session_id, result("c1"), assistant("Two"))
        after = await raws(one, session_id)
        await add(one, session_id, user("Three"), assistant("Four"))
        found = await one.sessions.get(one.owner, session_id)

        await foreign_of(two).delete(session_id)
        again = await foreign_of(one).find("acme", "chat-1")
        with pytest.raises(NotFound):
            await raws(one, session_id)

    assert (len(before), len(after), again) == (2, 4, None)
    assert (found.settled, found.last_stop) == (2, StopReason.STOP)


async def test_a_session_that_was_deleted_here_is_not_found_in_memory(hf: LocalHoldfast) -> None:
    session_id = await opened(hf)
    await add(hf, session_id, user("One"))
    assert await foreign_of(hf).find("acme", "chat-1") == session_id
    assert len(await raws(hf, session_id)) == 1

    await hf.sessions.delete(hf.owner, session_id)

    assert await foreign_of(hf).find("acme", "chat-1") is None
    with pytest.raises(NotFound):
        await raws(hf, session_id)


async def test_a_closed_session_is_resumed_by_its_framework(hf: LocalHoldfast) -> None:
    session_id = await opened(hf)
    await hf.sessions.close(hf.owner, session_id)

    await add(hf, session_id, user("One"), assistant("Two"))

    assert (await hf.sessions.get(hf.owner, session_id)).status is Status.IDLE


async def test_a_request_is_charged_once(hf: LocalHoldfast) -> None:
    session_id = await opened(hf)
    cost = ForeignCost(request_id="r1", model="openai:gpt-4o", usage=Usage(input=10, output=2))

    for _ in range(2):
        await foreign_of(hf).write(session_id, lambda writer: writer.charge(cost))

    session = await hf.sessions.get(hf.owner, session_id)
    assert (session.usage.input, session.microcents > 0) == (10, True)


async def test_records_written_ahead_give_way_to_those_of_the_framework(
    hf: LocalHoldfast,
) -> None:
    session_id = await opened(hf)
    ahead = ForeignEntry(kind="item", raw=b'"early"', disposition=Disposition.AHEAD)
    await add(hf, session_id, user("One"), ahead)

    async def save(writer: ForeignWriter) -> None:
        await writer.forget("items", (await writer.view("items")).ahead())
        await writer.add("items", [assistant("late")])

    before = await raws(hf, session_id)
    await foreign_of(hf).write(session_id, save)

    assert before == [{"user": "One"}, "early"]
    assert await raws(hf, session_id) == [{"user": "One"}, {"assistant": "late"}]
    assert [row.role for row in await hf.read(session_id)] == [Role.USER, Role.ASSISTANT]


async def test_an_interrupt_ends_the_turn_of_a_framework(hf: LocalHoldfast) -> None:
    session_id = await opened(hf)
    await add(hf, session_id, user("One"), call("c1"))

    await hf.sessions.interrupt(hf.owner, session_id)

    session = await hf.sessions.get(hf.owner, session_id)
    assert (session.settled, session.last_stop) == (1, StopReason.ABORTED)
