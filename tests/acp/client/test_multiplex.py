"""One program's words taken apart, by the conversation that they belong to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.acp.client.multiplex import Strand, Trunk, share_key
from holdfast.acp.rpc.connection import AnswerMarker, ConnectionLimits, ConnectionLost, Item
from holdfast.acp.rpc.framing import JsonRpcError, JsonRpcNotification, JsonRpcRequest, Junk
from holdfast.acp.rpc.streams import DEFAULT_LIMITS
from holdfast.domain.agent_processes import parse_program_options
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Invalid
from holdfast.domain.tools import Grant
from holdfast.process.agent_child import AgentLimits, AgentStart
from tests.acp.raw_peer import Far, connected
from tests.builders import a_model
from tests.engine.builders import a_turn, an_agent
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def parted(*names: str | None, **options: Any) -> AsyncIterator[tuple[Trunk, Far]]:
    """Yield the trunk of a connection with a strand for each name, and the other end."""
    async with asyncio.timeout(PATIENCE), connected(**options) as (connection, far):
        trunk = Trunk(connection)
        for name in names:
            trunk.strand().name = name
        yield trunk, far
        await trunk.aclose()


def update(session: str, number: int = 1) -> dict[str, Any]:
    """Return an update of a session."""
    return {"jsonrpc": "2.0", "method": "session/update",
            "params": {"sessionId": session, "number": number}}  # fmt: skip


def question(id_: int, session: str, method: str = "fs/read_text_file") -> dict[str, Any]:
    """Return a request of a session."""
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": {"sessionId": session}}


async def taken(strand: Strand) -> Item:
    """Return what came next for a strand."""
    return await anext(strand.incoming())


def told(item: Item) -> Any:
    """Return what an item is about."""
    assert isinstance(item, JsonRpcRequest | JsonRpcNotification)
    return item.params


async def test_each_hears_its_own_in_order_and_one_without_a_name_what_is_nobodys() -> None:
    async with parted("a", "b", None) as (trunk, far):
        one, two, new = trunk.strands
        await far.say(update("b", 1), update("a", 2), update("c", 3), update("a", 4))

        assert told(await taken(one)) == {"sessionId": "a", "number": 2}
        assert told(await taken(new)) == {"sessionId": "c", "number": 3}
        assert told(await taken(one)) == {"sessionId": "a", "number": 4}
        ready = two.ready()
        assert ready is not None
        assert ready.params == {"sessionId": "b", "number": 1}
        assert (one.ready(), two.ready(), new.ready()) == (None, None, None)


async def test_an_answer_goes_to_who_asked_and_keeps_its_place() -> None:
    async with parted("a", "b") as (trunk, far):
        one, two = trunk.strands
        asked = await one.begin("session/prompt", {"sessionId": "a"})
        other = await two.begin("session/prompt", {"sessionId": "b"})
        first, second = [(await far.hear())["id"] for _ in range(2)]
        await far.say(update("a"), {"jsonrpc": "2.0", "id": second, "result": "two"})
        await far.say({"jsonrpc": "2.0", "id": first, "result": "one"}, update("a", 2))

        came = [await taken(one) for _ in range(3)]
        # It has come before the last of those.
        found, more = two.answered(), two.answered()

    assert more is None
    assert [isinstance(each, AnswerMarker) for each in came] == [False, True, False]
    assert isinstance(found, AnswerMarker)
    assert (asked.result(), other.result()) == ("one", "two")


async def test_what_one_says_goes_out_as_it_is() -> None:
    async with parted("a") as (trunk, far):
        (strand,) = trunk.strands
        await strand.notify("session/cancel", {"sessionId": "a"})
        asking = asyncio.create_task(strand.request("session/close", {"sessionId": "a"}))
        cancel, close = await far.hear(), await far.hear()
        await far.say({"jsonrpc": "2.0", "id": close["id"], "result": {}})

        assert (cancel["method"], close["method"]) == ("session/cancel", "session/close")
        assert await asking == {}


async def test_each_owes_its_own_answers() -> None:
    async with parted("a", "b") as (trunk, far):
        one, two = trunk.strands
        await far.say(*(question(number, "a") for number in range(3)))
        requests = [await taken(one) for _ in range(3)]
        assert (one.owed, two.owed) == (3, 0)

        async def work() -> str:
            return "done"

        first, second, third = (each for each in requests if isinstance(each, JsonRpcRequest))
        one.handle(first, work())
        await one.answer(second, "said")
        await one.refuse(third, JsonRpcError(-32603, "no"))
        answers = [await far.hear() for _ in range(3)]

    assert one.owed == 0
    assert {each["id"]: each.get("result") for each in answers} == {0: "done", 1: "said", 2: None}


async def test_what_is_asked_for_nobody_is_answered_at_once() -> None:
    async with parted("a", None) as (trunk, far):
        await far.say(question(1, "who"), {"jsonrpc": "2.0", "id": 2, "method": "_x"})
        answers = [await far.hear() for _ in range(2)]

        assert [each["error"]["code"] for each in answers] == [-32602, -32601]
        assert trunk.strands[0].owed == 0


async def test_who_leaves_has_its_questions_answered_and_the_others_stay() -> None:
    async with parted("a", "b") as (trunk, far):
        one, two = trunk.strands
        asked = await one.begin("session/prompt", {"sessionId": "a"})
        prompt = await far.hear()
        await far.say(question(1, "a"), question(2, "a", "session/request_permission"))
        await taken(one)
        await taken(one)
        await trunk.drop(one)
        await trunk.drop(one)
        answers = {each["id"]: each for each in [await far.hear() for _ in range(2)]}
        await far.say(
            {"jsonrpc": "2.0", "id": prompt["id"], "result": "late"}, question(3, "a"), update("b")
        )
        late = await far.hear()

        assert answers[1]["error"]["code"] == -32602
        assert answers[2]["result"] == {"outcome": {"outcome": "cancelled"}}
        assert late["error"]["code"] == -32602
        assert told(await taken(two)) == {"sessionId": "b", "number": 1}
        assert asked.result() == "late"
        with pytest.raises(StopAsyncIteration):
            await taken(one)


async def test_one_who_takes_nothing_keeps_the_others_waiting_until_it_leaves() -> None:
    async with parted("a", "b") as (trunk, far):
        one, two = trunk.strands
        await far.say(*(update("a", number) for number in range(DEFAULT_LIMITS.queued)))
        waiting = asyncio.create_task(taken(two))
        # An array is answered as soon as it is read, so all before it was read by then.
        await far.say(question(1, "a"), update("b"), [])
        assert (await far.hear())["error"]["code"] == -32600
        assert not waiting.done()
        await trunk.drop(one)

        assert told(await waiting) == {"sessionId": "b", "number": 1}
        assert (await far.hear())["error"]["code"] == -32602


async def test_a_line_too_long_is_told_to_whom_it_names_or_to_all() -> None:
    head = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","x":"'
    async with parted("a", "b", bounds=ConnectionLimits(line=200)) as (trunk, far):
        one, two = trunk.strands
        await far.say_bytes(head + b"x" * 1_000 + b'"}}\n')
        assert isinstance(await taken(one), Junk)
        await far.say_bytes(b'{"id":1,"result":"' + b"x" * 1_000 + b'"}\n')

        assert [isinstance(await taken(each), Junk) for each in (one, two)] == [True, True]
        assert (one.ready(), two.ready()) == (None, None)


async def test_when_the_program_is_gone_all_hear_of_it() -> None:
    async with parted("a", "b") as (trunk, far):
        one, two = trunk.strands
        asked = await one.begin("session/prompt", {"sessionId": "a"})
        await far.hear()
        far.stop_talking()

        assert isinstance(await taken(one), AnswerMarker)
        assert isinstance(asked.exception(), ConnectionLost)
        for strand in (one, two):
            with pytest.raises(StopAsyncIteration):
                await taken(strand)
        assert (one.lost, two.lost) == ("ended", "ended")


async def test_a_name_is_free_for_who_bears_it_and_for_nobody_else() -> None:
    async with parted("a", "b") as (trunk, _):
        one, two = trunk.strands
        assert [one.is_free("a"), two.is_free("a"), two.is_free("c")] == [True, False, True]


START = AgentStart(
    argv=("/bin/agent", "--acp"),
    folder="/work",
    environment={"HOLDFAST_SESSION_ID": "one", "KEY": "secret"},
)
OTHERS = {
    "words": {"argv": ("/bin/agent",)},
    "folder": {"folder": "/other"},
    "variables": {"environment": {"HOLDFAST_SESSION_ID": "one", "KEY": "other"}},
    "limits": {"limits": AgentLimits(nice=5)},
    "fence": {"wrap": ("bwrap", "--")},
}


def key(start: AgentStart = START, owner: str = "me", **changes: Any) -> str:
    """Return by what those are known who may share a program."""
    capabilities = changes.pop("capabilities", {"terminal": True})
    turn = a_turn(model=a_model(), **changes)
    return share_key(turn, owner, start, capabilities)


@pytest.mark.parametrize("what", OTHERS)
async def test_only_those_share_for_whom_the_same_would_be_started(what: str) -> None:
    other = replace(START, **OTHERS[what])  # type: ignore[arg-type]
    another = replace(START, environment=START.environment | {"HOLDFAST_SESSION_ID": "two"})  # type: ignore[operator]

    assert key(other) != key()
    assert key(another) == key()


async def test_nobody_shares_with_another_owner_agent_or_grant() -> None:
    agent = an_agent()
    others = [
        key(owner="you"),
        key(capabilities={"terminal": False}),
        key(agent=replace(agent, id="other")),
        key(agent=replace(agent, grant=Grant(commands=("sh",)))),
    ]

    assert len({key(), *others}) == 5
    assert "secret" not in key()


def test_arguments_that_name_one_session_cannot_be_shared() -> None:
    def options(*args: str) -> bool:
        runtime = AcpRuntime(command="agent", args=args, options={"share": True})
        return parse_program_options(runtime).share

    assert options("--in={workspace}")
    with pytest.raises(Invalid) as refused:
        options("--id={session_id}")
    assert refused.value.details == {"fields": ["runtime.options.share"]}
