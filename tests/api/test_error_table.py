"""What a program may do wrong with tools, questions, loops and children: a class, code and remedy.

Nothing is changed by any of it. Faults of arguments that a type checker finds are not listed.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec import Struct

from holdfast import (
    CallAnswer,
    Conflict,
    Denied,
    Grant,
    Invalid,
    LimitReached,
    LocalHoldfast,
    NotFound,
    ResultStatus,
    SessionId,
    SessionQuery,
    SessionRequest,
    TurnFailed,
    open_holdfast,
    sync,
    tool,
)
from holdfast.children.model import ChildRequest
from holdfast.domain.approvals import ApprovalMode
from tests.builders import an_id
from tests.tooled import a_config, asks, call, says

pytestmark = pytest.mark.anyio

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
# Of definitions and answers that are refused.
LARGE = "x" * (17 << 20)


@tool(effect="pure")
def look(city: str) -> str:
    """Look."""
    return city


@tool(name="look", effect="pure")
def other(city: str) -> str:
    """Look elsewhere."""
    return city


def untyped(city) -> str:  # type: ignore[no-untyped-def]
    """Look."""
    return str(city)


def many(*cities: str) -> str:
    """Look."""
    return str(cities)


def unsayable(city: complex) -> str:
    """Look."""
    return str(city)


def unresolved(city: "Nowhere") -> str:  # type: ignore[name-defined] # noqa: F821
    """Look."""
    return str(city)


def generating(city: str) -> Any:
    """Look."""
    yield city


class Desk(Struct):
    """An open Holdfast, and a session that has answered once."""

    hf: LocalHoldfast
    session: SessionId

    async def open(self, *tools: Any, **request: Any) -> Any:
        return await self.hf.open(request=SessionRequest(**request), tools=tools)

    async def ask_twice(self, question: str, **options: Any) -> Any:
        await self.hf.ask("go", key="k", check=False)
        return await self.hf.ask(question, key="k", **options)

    async def create(self, **fields: Any) -> Any:
        return await self.hf.agents.create(self.hf.owner, {"name": "Odd", **fields})

    async def answer(self, call_id: str, session: str = "", **given: Any) -> Any:
        at = SessionId(session or self.session)
        return await self.hf.calls.answer(self.hf.owner, at, call_id, CallAnswer(**given))

    async def spawn(self, **request: Any) -> Any:
        wanted = ChildRequest(**{"agent": "holdfast", "task": "x", **request})
        return await self.hf.children.spawn(self.hf.owner, self.session, wanted)

    async def spawn_two(self) -> None:
        await self.spawn()
        await self.spawn(task="y")

    async def twice(self, message: str | None) -> None:
        async with self.hf.turn(self.session, "One"), self.hf.turn(self.session, message):
            pass

    async def empty(self) -> None:
        async with self.hf.turn(self.session):
            pass

    async def again(self) -> None:
        id_ = str(uuid4())
        for _ in range(2):
            async with self.hf.turn(self.session, "One", id=id_) as turn:
                await turn.say("1")

    async def differently(self) -> None:
        id_ = str(uuid4())
        with suppress(SystemExit):
            async with self.hf.turn(self.session, "One", id=id_) as turn:
                await turn.call("one", run=lambda: 1, effect="pure")
                raise SystemExit
        async with self.hf.turn(self.session, "One", id=id_) as turn:
            await turn.call("two", run=lambda: 1, effect="pure")

    async def elsewhere(self) -> None:
        async with self.hf.turn(self.session, "One") as turn:
            await asyncio.create_task(_call(turn))

    async def nested(self) -> None:
        async with self.hf.turn(self.session, "One") as turn:
            await turn.step("outer", lambda: _call(turn))

    async def said_elsewhere(self) -> None:
        async with self.hf.turn(self.session, "One") as turn:
            await asyncio.create_task(_say(turn))

    async def afterwards(self) -> None:
        async with self.hf.turn(self.session, "One") as turn:
            pass
        await turn.say("late")

    async def called_afterwards(self) -> None:
        async with self.hf.turn(self.session, "One") as turn:
            pass
        await _call(turn)

    async def blocking_on_its_own_loop(self) -> None:
        blocking = await asyncio.to_thread(lambda: sync.open_holdfast(self.hf.config.home))
        with_thread: Any = await asyncio.to_thread(blocking.__enter__)
        try:

            async def inside() -> None:
                with_thread.sessions.list(SessionQuery(owner=self.hf.owner))

            await asyncio.to_thread(with_thread._thread.wait, inside())
        finally:
            await asyncio.to_thread(blocking.__exit__, None, None, None)


async def _call(turn: Any) -> None:
    await turn.call("act", run=lambda: 1, effect="pure")


async def _say(turn: Any) -> None:
    await turn.say("1")


Case = tuple[Callable[[Desk], Any], type[Exception], str, str]
TABLE: dict[str, Case] = {
    "no annotation": (lambda _: tool(untyped), Invalid, "tool_invalid", "untyped.*city"),
    "*args": (lambda _: tool(many), Invalid, "tool_invalid", r"many.*cities.*list\["),
    "unsayable type": (lambda _: tool(unsayable), Invalid, "tool_invalid", "unsayable.*city"),
    "unresolved hint": (lambda _: tool(unresolved), Invalid, "tool_invalid", "unresolved.*Nowhere"),
    "generator": (lambda _: tool(generating), Invalid, "tool_invalid", "generating.*list"),
    "second tool of a name": (
        lambda desk: desk.open(look, other),
        Invalid,
        "tool_name_taken",
        "test_error_table",
    ),
    "reserved name": (
        lambda _: tool(name="read_file")(look.function),
        Invalid,
        "tool_name_taken",
        "read_file",
    ),
    "definition with a catalogue name": (
        lambda desk: desk.create(
            tools=[{"name": "read_file", "description": "x", "parameters": SCHEMA}]
        ),
        Invalid,
        "tool_name_taken",
        "read_file",
    ),
    "typo in the tools of a session": (
        lambda desk: desk.open(tools=("read_fille",)),
        Invalid,
        "unknown_tool",
        "did you mean read_file",
    ),
    "ask with an option of the opening": (
        lambda desk: desk.hf.ask("x", session=desk.session, model="offline:holdfast"),
        Invalid,
        "option_not_offered",
        r"sessions\.update",
    ),
    "ask with a key in a session": (
        lambda desk: desk.hf.ask("x", session=desk.session, key="k"),
        Invalid,
        "option_not_offered",
        "a key makes the session, too.*the same id",
    ),
    "ask another question with a key": (
        lambda desk: desk.ask_twice("go again"),
        Conflict,
        "message_id_reused",
        "^The key 'k' belongs to another question",
    ),
    "ask with a key and other options": (
        lambda desk: desk.ask_twice("go", title="x"),
        Conflict,
        "id_reused",
        "^The key 'k' belongs to another question or other options",
    ),
    "calls of a session instead of an owner": (
        lambda desk: desk.hf.calls.list(desk.session),
        Invalid,
        "invalid_input",
        r"the owner: write list\(hf\.owner, session_id\)",
    ),
    "approvals of a session instead of an owner": (
        lambda desk: desk.hf.approvals.list(desk.session),
        Invalid,
        "invalid_input",
        r"the owner: write list\(hf\.owner, session_id\)",
    ),
    "output of an unsayable type": (
        lambda desk: desk.hf.ask("x", output=complex),
        Invalid,
        "tool_invalid",
        "complex",
    ),
    "output that is never matched": (
        lambda desk: desk.hf.ask("x", output=list[int]),
        TurnFailed,
        "output_invalid",
        "not match the output schema",
    ),
    "turn on a running session": (lambda desk: desk.twice("Two"), Conflict, "turn_running", "wait"),
    "turn without a message": (lambda desk: desk.empty(), Conflict, "nothing_waits", "message"),
    "turn that has ended": (lambda desk: desk.again(), Conflict, "turn_ended", r"hf\.read"),
    "replay that differs": (
        lambda desk: desk.differently(),
        Conflict,
        "replay_mismatch",
        "one.*two",
    ),
    "call of a foreign task": (
        lambda desk: desk.elsewhere(),
        Invalid,
        "turn_wrong_task",
        r"turn\.branch",
    ),
    "call in a step": (lambda desk: desk.nested(), Invalid, "turn_nested", "beside"),
    "say in a foreign task": (
        lambda desk: desk.said_elsewhere(),
        Invalid,
        "turn_wrong_task",
        "task",
    ),
    "say after the block": (lambda desk: desk.afterwards(), Conflict, "turn_ended", "block"),
    "call after the block": (
        lambda desk: desk.called_afterwards(),
        Conflict,
        "turn_ended",
        "block",
    ),
    "answer to a call that has ended": (
        lambda desk: desk.answer("c1", status=ResultStatus.OK, result="x"),
        Conflict,
        "call_not_open",
        "finished",
    ),
    "answer to no call": (
        lambda desk: desk.answer("c9", status=ResultStatus.OK, result="x"),
        NotFound,
        "call_not_found",
        "call",
    ),
    "answer in no session": (
        lambda desk: desk.answer("c1", an_id(9), status=ResultStatus.OK, result="x"),
        NotFound,
        "session_not_found",
        "session",
    ),
    "answer that is too large": (
        lambda desk: desk.answer("c1", status=ResultStatus.OK, result=LARGE),
        Invalid,
        "too_large",
        "16 MiB",
    ),
    "answer with an odd status": (
        lambda desk: desk.answer("c1", status=ResultStatus.DENIED),
        Invalid,
        "invalid_input",
        "status",
    ),
    "answer with result and error": (
        lambda desk: desk.answer("c1", status=ResultStatus.OK, result=1, error="x"),
        Invalid,
        "invalid_input",
        "not both",
    ),
    "child with a wider grant": (
        lambda desk: desk.spawn(grant=Grant(commands=("rm",))),
        Denied,
        "grant_exceeded",
        "commands",
    ),
    "child above the limit": (
        lambda desk: desk.spawn_two(),
        LimitReached,
        "child_limit",
        "configuration",
    ),
    "blocking verb on its own loop": (
        lambda desk: desk.blocking_on_its_own_loop(),
        Invalid,
        "wrong_thread",
        "asynchronous API",
    ),
}


async def attempt(action: Callable[[Desk], Any], desk: Desk) -> None:
    found = action(desk)
    if isinstance(found, Awaitable):
        await found


@pytest.mark.parametrize("name", TABLE)
async def test_a_mistake_has_a_class_a_code_and_a_remedy(home: Path, name: str) -> None:
    action, kind, code, words = TABLE[name]
    steps = asks(call("look", "c1", city="Oslo")), says("done"), *[says("no")] * 3
    config = a_config(home, *steps, approval=ApprovalMode.AUTO, children_per_session=1)
    async with open_holdfast(config=config) as hf:
        first = await hf.ask("go", tools=[look])
        desk = Desk(hf=hf, session=first.session_id)
        rows = await hf.read(desk.session)
        with pytest.raises(kind) as caught:
            await attempt(action, desk)
        now = await hf.read(desk.session)

    error: Any = caught.value
    assert str(getattr(error, "failure", error).code) == code
    assert re.search(words, str(getattr(error, "message", error)))
    # At most the message of the turn that was in order, and how it ended.
    assert now[: len(rows)] == rows
    assert [row.text for row in now[len(rows) :] if row.text] in ([], ["One"], ["One", "1"])
