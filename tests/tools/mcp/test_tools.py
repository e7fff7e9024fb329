"""Tools of MCP servers: real servers, started here or listening on this machine."""

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.messages import ResultStatus
from holdfast.domain.secrets import Scrubber, Secret
from holdfast.domain.tools import Effect, Grant, ToolClass
from holdfast.ports.llm import LlmTool
from holdfast.ports.tools import CallOutcome, PlannedCall
from holdfast.tools.mcp.client import McpSettings
from holdfast.tools.mcp.tools import McpTools
from holdfast.tools.toolbox import LocalToolbox
from holdfast.tools.web.ssrf import blocked_reason
from tests.marks import demands, each_case
from tests.tools.http_hosts import HOST, asked, chain, code_of, says, serving, settings
from tests.tools.mcp_servers import ECHO, Book, Hands, a_tool, welcoming, with_servers
from tests.tools.process_fixture import marked

# Programs are started here, which belongs to the whole run and not to the quick one.
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# A server of the old days in a few lines, for what no book would say.
OLD = """
import json, os, sys, time
def answer(id, **more):
    print(json.dumps({"jsonrpc": "2.0", "id": id, **more}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    id, method = asked.get("id"), asked["method"]
    if method == "initialize":
        version = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}}
        answer(id, result={**version, "serverInfo": {"name": "old", "version": "1"}})
    elif method == "tools/list":
        answer(id, result={"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        CALL
    elif id is not None:
        answer(id, error={"code": -32601, "message": "unknown"})
"""
HEARD = 'answer(id, result={"content": [{"type": "text", "text": "heard"}]})'


@pytest.fixture
async def tools() -> AsyncIterator[McpTools]:
    """Have tools that hang up when the test is over."""
    made = McpTools(welcoming())
    yield made
    await made.aclose()


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """Write the book of a server that says everything again."""
    return Book(tmp_path)


def scripted(script: str, id: str = "s") -> dict[str, Any]:
    return {
        "id": id,
        "transport": "stdio",
        "command": sys.executable,
        "args": ["-I", "-S", "-c", script],
    }


def old(call: str) -> dict[str, Any]:
    return scripted(OLD.replace("CALL", call))


def local(port: int, **more: Any) -> dict[str, Any]:
    url = f"http://127.0.0.1:{port}/mcp"
    return {"id": "web", "transport": "http", "url": url, "allow_local_endpoint": True, **more}


async def until(holds: Callable[[], bool]) -> bool:
    """Look until it is so, for a few seconds at most."""
    deadline = time.monotonic() + 10
    while not holds():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


async def gone(pids: Sequence[int]) -> bool:
    """Wait until none of the processes is there, or only as a name that nobody has read."""
    return await until(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.sampled(1)
@pytest.mark.parametrize("era", ["entry", "full_entry"])
async def test_a_server_is_started_and_its_tools_are_offered_and_called(
    tools: McpTools, book: Book, tmp_path: Path, era: str
) -> None:
    hands = Hands(tools, with_servers(tmp_path, getattr(book, era)()))

    offered = await tools.offers(hands.place)
    done = await hands.call("mcp_books_echo", text="hi")

    schema = ECHO["inputSchema"]
    assert isinstance(schema, dict)
    expected = LlmTool(name="mcp_books_echo", description="Says it again.", parameters=schema)
    assert offered == (expected,)
    assert done == CallOutcome(status=ResultStatus.OK, result={"text": '{"text": "hi"}'})
    assert book.calls == [["echo", {"text": "hi"}]]
    assert await tools.troubles(hands.place) == ()


async def test_somebody_who_agrees_sees_who_is_called_with_what(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    entry = book.entry()
    hands = Hands(tools, with_servers(tmp_path, entry))

    plan = await hands.plan("mcp_books_echo", text="a\n\u202eb\\")

    command = " ".join([entry["command"], *entry["args"]])
    assert isinstance(plan, PlannedCall)
    assert plan.question == (
        "Call echo of the MCP server books at\n"
        f"  {command}\n"
        "which describes it as\n"
        "  Says it again.\n"
        "with the arguments\n"
        "  {\n"
        '    "text": "a\\n\\u202eb\\\\"\n'
        "  }"
    )
    assert (plan.tool_class, plan.effect) == (ToolClass.EGRESS, Effect.UNSAFE)
    assert plan.preview == {"command": command}
    assert plan.memory is not None
    assert plan.memory.startswith("mcp:mcp_books_echo:")
    assert book.calls == []


async def test_an_answer_is_text_and_structure_and_the_rest_is_named(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    content = {
        "content": [
            {"type": "text", "text": "one\x00"},
            {"type": "image", "data": "QUJD", "mimeType": "image/png"},
            {"type": "audio", "data": "QUJD", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "two"}},
            {"type": "resource", "resource": {"uri": "file:///b", "blob": "QUJD"}},
            {"type": "resource_link", "uri": "file:///c", "name": "c"},
        ],
        "structuredContent": {"n": 1},
    }
    book.write(tools=[a_tool("t")], answers={"t": {"content": content}})
    hands = Hands(tools, with_servers(tmp_path, book.entry()))

    done = await hands.call("mcp_books_t")

    assert done.result == {
        "text": "one\ufffd\ntwo\nfile:///c",
        "structured": {"n": 1},
        "omitted": ["image of 3 bytes", "audio of 3 bytes", "resource of 3 bytes"],
    }


async def test_an_error_of_the_tool_is_an_error_with_the_servers_words(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    words = {"content": [{"type": "text", "text": "no such page"}], "isError": True}
    silence = {"content": [], "isError": True}
    answers = {"a": {"content": words}, "b": {"content": silence}}
    book.write(tools=[a_tool("a"), a_tool("b")], answers=answers)
    hands = Hands(tools, with_servers(tmp_path, book.entry()))

    told = [(await hands.call(f"mcp_books_{name}")).error for name in "ab"]

    assert [(each.code, each.message) for each in told if each] == [
        ("failed", "The server reports an error: no such page"),
        ("failed", "The server reports an error: no reason given"),
    ]


async def test_what_a_schema_promises_about_an_answer_is_not_run(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    # Matching this pattern would take longer than the universe has.
    slow = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    content = {"content": [], "structuredContent": {"a": "a" * 40 + "!"}}
    book.write(tools=[a_tool("t", outputSchema=slow)], answers={"t": {"content": content}})
    hands = Hands(tools, with_servers(tmp_path, book.entry()))

    done = await hands.call("mcp_books_t")

    assert done.result == {"text": "", "structured": {"a": "a" * 40 + "!"}}


@each_case(
    ("arguments", "code"),
    [
        ({}, "error/invalid_arguments"),
        ({"text": "a", "more": 1}, "error/invalid_arguments"),
        ({"text": "{{secrets.x}}"}, "error/invalid_arguments"),
        ({"text": "a"}, "planned"),
    ],
)
async def test_arguments_that_cannot_fit_are_refused_before_anybody_is_asked(
    tools: McpTools, book: Book, tmp_path: Path, arguments: dict[str, Any], code: str
) -> None:
    hands = Hands(tools, with_servers(tmp_path, book.entry()))

    assert code_of(await hands.plan("mcp_books_echo", **arguments)) == code


async def test_ids_are_made_of_plain_letters_and_what_does_not_fit_is_left_out_and_told(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    names = ["plain", "with.dot", "a b", "a_b", "x" * 60, "outside"]
    book.write(tools=[a_tool(name) for name in names], page=2)
    other = Book(tmp_path, "other")
    other.write(tools=[a_tool("c"), a_tool("huge", description="x" * 70_000)])
    allowed = [*names[:-1], "missing"]
    place = with_servers(
        tmp_path, book.entry("my.s", tools_allowlist=allowed), other.entry("my.s_a"), {"id": "?"}
    )

    offered = [tool.name for tool in await tools.offers(place)]

    assert offered == ["mcp_my_s_plain", "mcp_my_s_with_dot", "mcp_my_s_a_c"]
    assert await tools.troubles(place) == (
        "The declaration of an MCP server is not valid; check transport.",
        "Skipped from my.s because they are not in tools_allowlist: outside.",
        "Named in tools_allowlist but not offered by my.s: missing.",
        f"Skipped from my.s because the name or description is too long: {'x' * 60}.",
        "Skipped from my.s_a because the name or description is too long: huge.",
        "Skipped because several tools would share the id: mcp_my_s_a_b.",
    )


async def test_two_servers_cannot_take_one_id_from_each_other(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    book.write(tools=[a_tool("b_c")])
    other = Book(tmp_path, "other")
    other.write(tools=[a_tool("c")])
    hands = Hands(tools, with_servers(tmp_path, book.entry("a"), other.entry("a_b")))

    done = await hands.call("mcp_a_b_c")

    assert code_of(done) == "error/unavailable"
    assert (book.calls, other.calls) == ([], [])


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_the_hints_of_a_server_count_only_if_the_user_trusts_it(
    book: Book, tmp_path: Path, is_trusted: bool
) -> None:
    hints = {"reads": {"readOnlyHint": True}, "repeats": {"idempotentHint": True}, "acts": {}}
    book.write(tools=[a_tool(name, annotations=each) for name, each in hints.items()])
    known = {"books": book.configured(trusted=is_trusted)}
    tools = McpTools(McpSettings(configured=known))
    hands = Hands(tools, with_servers(tmp_path, {"ref": "books"}))

    plans = [await hands.plan(f"mcp_books_{name}") for name in hints]

    trusted = [Effect.PURE, Effect.IDEMPOTENT, Effect.UNSAFE]
    expected = trusted if is_trusted else [Effect.UNSAFE] * 3
    assert [plan.effect for plan in plans if isinstance(plan, PlannedCall)] == expected
    assert [tools.effect(f"mcp_books_{name}") for name in hints] == expected
    assert tools.effect("mcp_books_other") is Effect.UNSAFE
    await tools.aclose()


@demands("S0-275")
async def test_a_server_knows_its_own_variables_and_no_others_of_ours(
    book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def secret(ref: str) -> Secret:
        looked_up.append(ref)
        return Secret(f"value of {ref}")

    looked_up: list[str] = []

    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    book.write(tools=[a_tool("t")], answers={"t": {"environment": True}})
    env = {"MINE": "1", "TOKEN": {"secret": True, "ref": "books"}}
    tools = McpTools(welcoming(secret=secret))
    hands = Hands(tools, with_servers(tmp_path, book.entry(env=env)))

    known = json.loads((await hands.call("mcp_books_t")).result["text"])
    plan = await hands.plan("mcp_books_t")
    await tools.aclose()

    fixed = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "TMPDIR"}
    assert set(known) - fixed == {"MINE", "TOKEN"}
    assert (known["TOKEN"], known["TMPDIR"]) == ("value of books", f"{tmp_path}.servers/of-books")
    assert "value of" not in repr(plan)
    assert looked_up == ["books"]


async def test_a_secret_that_cannot_be_had_makes_the_server_unavailable(
    book: Book, tmp_path: Path
) -> None:
    async def locked(_: str) -> Secret:
        raise Unavailable(Code.KEYCHAIN_UNAVAILABLE, "The keychain is locked.")

    env = {"TOKEN": {"secret": True, "ref": "books"}}
    place = with_servers(tmp_path, book.entry(env=env))

    told = [
        await McpTools(made).troubles(place) for made in (welcoming(), welcoming(secret=locked))
    ]

    assert told == [
        ("The MCP server books is not available: a required secret is missing.",),
        ("The MCP server books is not available: The keychain is locked.",),
    ]


async def test_a_server_that_cannot_start_is_told_and_the_others_work(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    missing = {"id": "gone", "transport": "stdio", "command": str(tmp_path / "nothing")}
    forbidden = {"id": "no", "transport": "stdio", "command": str(book.path)}
    mute = scripted("pass", "mute")
    hands = Hands(tools, with_servers(tmp_path, missing, forbidden, mute, book.entry()))

    told = await tools.troubles(hands.place)
    done = await hands.call("mcp_gone_anything", a=1)
    other = await hands.call("mcp_books_echo", text="hi")

    assert told == (
        "The MCP server gone is not available: its command does not exist.",
        "The MCP server no is not available: its command cannot be run.",
        "The MCP server mute is not available: its answer is not a valid MCP answer.",
    )
    assert code_of(done) == "error/unavailable"
    assert done.error is not None
    assert "its command does not exist" in done.error.message
    assert other.status is ResultStatus.OK


async def test_a_name_of_no_declared_server_is_unknown(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    place = with_servers(tmp_path, book.entry())

    found = await tools.find(place, "mcp_books_echo")
    assert found is not None
    assert found.parameters() == ECHO["inputSchema"]
    assert await tools.find(place, "read_file") is None
    assert await tools.find(place, "mcp_others_echo") is None
    assert await tools.find(with_servers(tmp_path), "mcp_books_echo") is None


async def test_a_server_that_died_is_started_again(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    book.write(tools=[ECHO, a_tool("die")], answers={"die": {"exit": 3}})
    hands = Hands(tools, with_servers(tmp_path, book.entry()))

    died = await hands.call("mcp_books_die")
    done = await hands.call("mcp_books_echo", text="again")

    assert died.error is not None
    assert (died.error.code, died.error.message) == (
        "unknown",
        "The server disconnected during the call. The outcome of the call is unknown.",
    )
    assert done.result == {"text": '{"text": "again"}'}


async def test_a_server_that_died_is_missed_even_when_a_child_of_it_lives_on(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    answers = {"fork": {"fork": True}, "die": {"exit": 3}}
    book.write(tools=[a_tool("fork"), a_tool("die")], answers=answers)
    hands = Hands(tools, with_servers(tmp_path, book.entry()))
    await hands.call("mcp_books_fork")
    pids = book.readers

    died = await hands.call("mcp_books_die")
    again = await hands.call("mcp_books_fork")

    assert [code_of(died), code_of(again)] == ["unknown/unknown", "ok"]
    assert len(pids) == 2
    assert await gone(pids)


async def test_what_a_server_said_last_is_heard(tools: McpTools, tmp_path: Path) -> None:
    hands = Hands(tools, with_servers(tmp_path, old(f"{HEARD}; sys.exit()")))

    assert (await hands.call("mcp_s_t")).status is ResultStatus.OK


async def test_a_tool_that_changed_since_somebody_agreed_is_not_called(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    hands = Hands(tools, with_servers(tmp_path, book.entry()))
    plan = await hands.plan("mcp_books_echo", text="hi")
    assert isinstance(plan, PlannedCall)

    book.write(tools=[{**ECHO, "description": "Says it to everybody."}])
    done = await hands.run(plan)
    again = await hands.plan("mcp_books_echo", text="hi")

    assert code_of(done) == "denied/target_changed"
    assert book.calls == []
    assert isinstance(again, PlannedCall)
    assert again.digest != plan.digest
    assert again.memory != plan.memory
    assert (await hands.run(again)).status is ResultStatus.OK


async def test_a_tool_that_vanished_is_unavailable(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    hands = Hands(tools, with_servers(tmp_path, book.entry()))
    plan = await hands.plan("mcp_books_echo", text="hi")
    assert isinstance(plan, PlannedCall)

    book.write(tools=[])

    assert code_of(await hands.run(plan)) == "error/unavailable"
    assert await tools.offers(hands.place) == ()


async def test_leaving_ends_the_server_and_everybody_it_started(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    book.write(tools=[a_tool("t")], answers={"t": {"fork": True}})
    hands = Hands(tools, with_servers(tmp_path, book.entry()))
    await hands.call("mcp_books_t")
    pids = book.readers
    assert len(pids) == 2

    await tools.leave("another session")
    assert all(_runs(pid) for pid in pids)
    await tools.leave(hands.place.session)

    assert await gone(pids)


async def test_a_server_that_does_not_want_to_go_is_ended(tools: McpTools, tmp_path: Path) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"
    script = f"{deaf}\n{OLD.replace('CALL', HEARD)}\ntime.sleep(3600) # {tmp_path}"
    hands = Hands(tools, with_servers(tmp_path, scripted(script)))
    await hands.call("mcp_s_t")
    pids = marked(str(tmp_path))

    await tools.leave(hands.place.session)

    assert len(pids) == 1
    assert await gone(pids)


async def test_each_session_has_a_server_of_its_own(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    book.write(tools=[a_tool("t")], answers={"t": {"who": True}})
    places = [with_servers(tmp_path, book.entry(), session=name) for name in ("s1", "s2")]
    who = [
        (await Hands(tools, place).call("mcp_books_t")).result["text"]
        for place in (*places, places[0])
    ]

    assert who[0] == who[2] != who[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("call", "code"),
    [
        ('answer(id, error={"code": -32602, "message": "no"})', "error/invalid_arguments"),
        ('answer(id, error={"code": -32603, "message": "no"})', "error/failed"),
        ('answer(id, result={"content": "no list"})', "unknown/unknown"),
        ('answer(id, result={"content": [{"type": "text", "text": 5}]})', "unknown/unknown"),
        ("sys.exit()", "unknown/unknown"),
        ('print("x" * (9 << 20), flush=True)', "unknown/unknown"),
        ('print("[" * 100000); answer(id, result={"content": []})', "ok"),
        ('print("noise"); answer(id, result={"content": []})', "ok"),
        ('answer(999, result={"content": []}); answer(id, result={"content": []})', "ok"),
        (
            'answer(5, method="sampling/createMessage", params={}); '
            'answer(id, result={"content": []})',
            "ok",
        ),
        ("pass", "unknown/unknown"),
    ],
)
async def test_whatever_a_server_answers_is_the_calls_trouble_alone(
    tmp_path: Path, call: str, code: str
) -> None:
    tools = McpTools(welcoming(call_limit=1.0 if call == "pass" else 20.0))
    hands = Hands(tools, with_servers(tmp_path, old(call)))

    done = await hands.call("mcp_s_t")
    await tools.aclose()

    assert code_of(done) == code


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import time; time.sleep(60)", "it did not answer in time"),
        (OLD.replace('"tools/list"', '"other"'), "it did not list its tools"),
        (
            OLD.replace('answer(id, result={"tools"', "pass; ({'x'").replace("]})", "]})", 1),
            "it did not list its tools in time",
        ),
        (OLD.replace('"name": "t"', '"nome": "t"'), "it did not list its tools"),
        (OLD.replace("2024-11-05", "1999-01-01"), "its answer is not a valid MCP answer"),
    ],
)
async def test_a_server_that_does_not_keep_to_the_protocol_is_unavailable(
    tmp_path: Path, script: str, why: str
) -> None:
    tools = McpTools(welcoming(connect_limit=1.0, list_limit=0.5))
    place = with_servers(tmp_path, scripted(script.replace("CALL", "pass")))

    told = await tools.troubles(place)
    began = time.monotonic()
    offered = await tools.offers(place)
    took = time.monotonic() - began
    await tools.aclose()

    assert told == (f"The MCP server s is not available: {why}.",)
    assert offered == ()
    # Not asked again at once, so one server that hangs does not slow down every step.
    assert took < 0.5 or "in time" not in why


async def test_a_call_that_is_called_off_leaves_the_server_usable(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    book.write(tools=[ECHO, a_tool("hang")], answers={"hang": {"hang": True}})
    hands = Hands(tools, with_servers(tmp_path, book.entry()))
    await tools.offers(hands.place)

    call = asyncio.create_task(hands.call("mcp_books_hang"))
    assert await until(lambda: bool(book.calls))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert (await hands.call("mcp_books_echo", text="hi")).status is ResultStatus.OK


async def test_leaving_ends_a_server_that_is_just_being_started(
    tools: McpTools, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    script = f"import time; open({str(begun)!r}, 'w').close(); time.sleep(60)"
    place = with_servers(tmp_path, scripted(script))
    offering = asyncio.create_task(tools.offers(place))
    assert await until(begun.exists)
    pids = marked(str(begun))

    await tools.leave(place.session)

    assert await offering == ()
    assert len(pids) == 1
    assert await gone(pids)


@pytest.mark.parametrize("how", ["http", "sse"])
async def test_a_server_on_this_machine_is_reached_where_that_is_allowed(
    tools: McpTools, book: Book, tmp_path: Path, how: str
) -> None:
    with book.listening(how) as port:
        url = f"http://127.0.0.1:{port}/{'mcp' if how == 'http' else 'sse'}"
        entry = {"id": "web", "transport": how, "url": url}
        hands = Hands(tools, with_servers(tmp_path, {**entry, "allow_local_endpoint": True}))
        done = await hands.call("mcp_web_echo", text="hi")
        plan = await hands.plan("mcp_web_echo", text="hi")
        await tools.aclose()
        told = await tools.troubles(with_servers(tmp_path, entry, session="s2"))

    assert done.result == {"text": '{"text": "hi"}'}
    assert isinstance(plan, PlannedCall)
    assert plan.preview == {"host": "127.0.0.1"}
    assert told == (
        "The MCP server web is not available: The URL is refused: only https is supported.",
    )


@pytest.mark.torture
async def test_a_server_on_the_web_is_reached_like_every_other_host(
    book: Book, tmp_path: Path
) -> None:
    async def token() -> Secret:
        return Secret("canary")

    (tmp_path / "chain.pem").write_bytes(chain(HOST))
    with book.listening("https", str(tmp_path / "chain.pem")) as port:
        tools = McpTools(McpSettings(web=settings(credentials={HOST: token})))
        entry = {"id": "web", "transport": "http", "url": f"https://{HOST}:{port}/mcp"}
        allowed = (Grant(domains=(f"{HOST}:{port}",)),)
        hands = Hands(tools, with_servers(tmp_path, entry, grants=allowed))
        done = await hands.call("mcp_web_echo", text="hi")
        plan = await hands.plan("mcp_web_echo", text="hi")
        await tools.aclose()

    assert done.result == {"text": '{"text": "hi"}'}
    assert isinstance(plan, PlannedCall)
    assert plan.preview == {"host": HOST}
    assert "canary" not in repr((done, plan))


@demands("S0-220", "S0-242")
@each_case(
    ("url", "domains", "address", "why"),
    [
        (f"https://{HOST}/", (), "8.8.8.8", f"{HOST}:443 is not an allowed domain"),
        (
            f"https://{HOST}/",
            (HOST,),
            "169.254.169.254",
            f"{HOST} resolves to an address that is link-local; nothing was sent",
        ),
        (
            f"https://{HOST}/",
            (HOST,),
            "no",
            f"{HOST} resolves to an address that is no address; nothing was sent",
        ),
        (
            "https://localhost/",
            ("localhost",),
            "127.0.0.1",
            "localhost is an IP address or a local name",
        ),
        ("http://example.com/", ("example.com",), "8.8.8.8", "only https is supported"),
    ],
)
async def test_a_server_on_the_web_obeys_the_same_rules(
    tmp_path: Path, url: str, domains: tuple[str, ...], address: str, why: str
) -> None:
    async def resolve(_: str, __: int) -> Sequence[str]:
        return (address,)

    tools = McpTools(McpSettings(web=settings(resolve=resolve, address_check=blocked_reason)))
    entry = {"id": "web", "transport": "http", "url": url}
    place = with_servers(tmp_path, entry, grants=(Grant(domains=domains),))

    (told,) = await tools.troubles(place)
    await tools.aclose()

    assert why in told


@demands("S0-242")
@each_case("address", ["8.8.8.8", "10.0.0.1", "::ffff:127.0.0.1"])
async def test_a_local_server_is_on_this_machine_whatever_its_name_leads_to(
    tmp_path: Path, address: str
) -> None:
    async def resolve(_: str, __: int) -> Sequence[str]:
        return ("127.0.0.1", address)

    tools = McpTools(welcoming(web=settings(resolve=resolve)))
    place = with_servers(tmp_path, local(9, url="http://localhost:9/mcp"))

    (told,) = await tools.troubles(place)
    await tools.aclose()

    assert "an address that is not on this machine" in told


async def test_an_address_of_this_machine_is_reached_only_if_the_user_has_configured_it(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        entry = local(taken.getsockname()[1])
    known = {key: value for key, value in entry.items() if key != "id"}
    told = {}
    for name, configured in {
        "nothing": {},
        "another path": {"web": {**known, "url": f"{known['url']}/"}},
        "not as local": {"web": {**known, "allow_local_endpoint": False}},
        "the same": {"other": known},
    }.items():
        tools = McpTools(McpSettings(configured=configured))
        (told[name],) = await tools.troubles(with_servers(tmp_path, entry))
        await tools.aclose()

    refused = (
        "The MCP server web is not available: its agent uses a local address, and "
        "only your configuration may allow those. To allow this one, add it to "
        "holdfast.toml as [mcp.servers.web], with the same url and "
        "allow_local_endpoint = true."
    )
    # Where it may be reached, nothing listens.
    assert told == {
        "nothing": refused,
        "another path": refused,
        "not as local": refused,
        "the same": "The MCP server web is not available: 127.0.0.1 cannot be reached.",
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("hints", "how", "code"),
    [
        ({}, {"hang": True}, "unknown/unknown"),
        ({"idempotentHint": True}, {"hang": True}, "error/timeout"),
        ({"readOnlyHint": True}, {"exit": 3}, "error/unavailable"),
    ],
)
async def test_what_can_be_called_again_is_an_error_when_no_answer_comes(
    book: Book, tmp_path: Path, hints: dict[str, Any], how: dict[str, Any], code: str
) -> None:
    book.write(tools=[a_tool("t", annotations=hints)], answers={"t": how})
    known = {"books": book.configured(trusted=True)}
    tools = McpTools(McpSettings(configured=known, call_limit=1.0))

    done = await Hands(tools, with_servers(tmp_path, {"ref": "books"})).call("mcp_books_t")
    await tools.aclose()

    assert code_of(done) == code
    assert book.calls == [["t", {}]]


@pytest.mark.torture
async def test_a_call_over_the_web_that_was_sent_and_not_answered_is_unknown(
    book: Book, tmp_path: Path
) -> None:
    # An exit in the middle of it: what a reader sees is a connection that breaks off.
    book.write(tools=[a_tool("die")], answers={"die": {"exit": 3}})
    tools = McpTools(welcoming())
    with book.listening("http") as port:
        hands = Hands(tools, with_servers(tmp_path, local(port)))
        done = await hands.call("mcp_web_die")
        again = await hands.call("mcp_web_die")
        await tools.aclose()

    assert code_of(done) == "unknown/unknown"
    # Nobody listens there any more, so nothing was sent.
    assert code_of(again) == "error/unavailable"
    assert book.calls == [["die", {}]]


async def test_a_session_keeps_the_tools_that_its_servers_had_at_first(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    late = Book(tmp_path, "late")
    late.write(tools=[])
    place = with_servers(tmp_path, book.entry(), late.entry("late"))
    box = LocalToolbox([], tools)

    async def names() -> list[str]:
        return [tool.name for tool in await box.offers(place)]

    first = await names()
    book.write(tools=[{**ECHO, "description": "New."}, a_tool("wipe")])
    late.write(tools=[a_tool("one")])
    second = await names()
    late.write(tools=[a_tool("one"), a_tool("two")])
    third = await names()
    refused = await box.plan(place, asked("mcp_books_wipe"))
    allowed = await box.plan(place, asked("mcp_books_echo", text="hi"))
    await tools.leave(place.session)
    # As a later process knows it: what was found is written down with the session.
    known = msgspec.structs.replace(place, tools=frozenset(third))
    fourth = [tool.name for tool in await box.offers(known)]

    assert first == ["mcp_books_echo"]
    # Of a server that had none, the first that are found.
    assert second == third == fourth == ["mcp_books_echo", "mcp_late_one"]
    assert code_of(refused) == "denied/not_granted"
    assert code_of(allowed) == "planned"


async def test_no_word_of_a_server_brings_a_secret_to_the_model(book: Book, tmp_path: Path) -> None:
    canary = "canary-0123456789"
    says = f"uses {canary}"
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": says}}}
    wrong = {"content": [{"type": "text", "text": f"401 for {canary}"}], "isError": True}
    listed = [{"name": "t", "description": says, "inputSchema": schema}, a_tool(canary)]
    book.write(tools=[*listed, a_tool(f"{canary}{'x' * 60}")], answers={"t": {"content": wrong}})
    scrubber = Scrubber([("key", Secret(canary))])
    tools = McpTools(welcoming())
    box = LocalToolbox([], tools, lambda: scrubber)
    place = with_servers(tmp_path, book.entry())

    offered = await box.offers(place)
    told = await box.troubles(place)
    plan = await box.plan(place, asked("mcp_books_t"))
    assert isinstance(plan, PlannedCall)
    done = await box.run(place, plan)
    await tools.aclose()

    assert [(tool.name, tool.description) for tool in offered] == [
        ("mcp_books_t", "uses [secret:key]")
    ]
    assert len(told) == 1
    assert done.error is not None
    assert done.error.message == "The server reports an error: 401 for [secret:key]"
    assert canary not in repr((offered, told, plan, done))


async def test_a_server_that_redirects_or_packs_or_never_ends_is_not_followed(
    tmp_path: Path,
) -> None:
    plays = {
        "redirect": says(b"", status="307 Go", headers=["Location: /other"]),
        "packed": says(b"x", headers=["Content-Encoding: gzip"]),
        "huge": says(b" " * (9 << 20), headers=["Content-Type: application/json"]),
    }

    async def token() -> Secret:
        return Secret("canary")

    heard: dict[str, int] = {}
    for name, play in plays.items():
        async with serving(play) as host:
            tools = McpTools(McpSettings(web=settings(credentials={HOST: token})))
            url = f"https://{HOST}:{host.port}/"
            grants = (Grant(domains=(f"{HOST}:{host.port}",)),)
            entry = {"id": "web", "transport": "http", "url": url}
            place = with_servers(tmp_path, entry, grants=grants)
            told = await tools.troubles(place)
            await tools.aclose()
        assert len(told) == 1
        heard[name] = len({each.line for each in host.heard})
        assert {each.headers["authorization"] for each in host.heard} == {"Bearer canary"}
        assert "canary" not in told[0]

    assert heard == {"redirect": 1, "packed": 1, "huge": 1}


@pytest.mark.torture
async def test_a_host_that_is_no_longer_granted_is_not_reached_any_more(
    book: Book, tmp_path: Path
) -> None:
    (tmp_path / "chain.pem").write_bytes(chain(HOST))
    with book.listening("https", str(tmp_path / "chain.pem")) as port:
        tools = McpTools(McpSettings(web=settings()))
        entry = {"id": "web", "transport": "http", "url": f"https://{HOST}:{port}/mcp"}
        allowed = (Grant(domains=(f"{HOST}:{port}",)),)
        wide = await tools.offers(with_servers(tmp_path, entry, grants=allowed))
        narrow = await tools.offers(with_servers(tmp_path, entry, grants=(*allowed, Grant())))
        await tools.aclose()

    assert ([each.name for each in wide], narrow) == (["mcp_web_echo"], ())


@pytest.mark.torture
async def test_a_server_on_the_web_that_restarted_is_found_again(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    with book.listening("http") as port:
        hands = Hands(tools, with_servers(tmp_path, local(port)))
        up = await hands.call("mcp_web_echo", text="1")
    down = await hands.call("mcp_web_echo", text="2")
    with book.listening("http", port=port):
        again = await hands.call("mcp_web_echo", text="3")
        await tools.aclose()

    assert [code_of(each) for each in (up, down, again)] == ["ok", "error/unavailable", "ok"]
    assert book.calls == [["echo", {"text": "1"}], ["echo", {"text": "3"}]]


async def test_websockets_can_be_declared_and_are_not_spoken(
    tools: McpTools, tmp_path: Path
) -> None:
    entry = {"id": "ws", "transport": "websocket", "url": f"https://{HOST}/"}

    assert await tools.troubles(with_servers(tmp_path, entry)) == (
        "The MCP server ws is not available: "
        "websockets are not supported; declare it with transport http.",
    )


async def test_a_server_can_tell_a_call_that_is_made_again_by_its_key(
    tools: McpTools, book: Book, tmp_path: Path
) -> None:
    hands = Hands(tools, with_servers(tmp_path, book.entry()))
    plan = await hands.plan("mcp_books_echo", text="hi")
    assert isinstance(plan, PlannedCall)

    twice = [await hands.run(plan) for _ in range(2)]

    assert [code_of(each) for each in twice] == ["ok", "ok"]
    assert [meta["holdfast/idempotency_key"] for meta in book.metas] == ["k1", "k1"]


async def test_headers_go_to_the_server_that_they_are_configured_for(tmp_path: Path) -> None:
    async def secret(ref: str) -> Secret:
        return Secret(f"Bearer of-{ref}")

    async def token() -> Secret:
        return Secret("of-the-host")

    async with serving(says(b"", status="404 No")) as host:
        headers = {"X-Team": "blue", "Authorization": {"secret": True, "ref": "web"}}
        url = f"https://{HOST}:{host.port}/"
        known = {"web": {"transport": "http", "url": url, "headers": headers}}
        web = settings(credentials={HOST: token})
        tools = McpTools(McpSettings(web=web, secret=secret, configured=known))
        place = with_servers(
            tmp_path, {"ref": "web"}, grants=(Grant(domains=(f"{HOST}:{host.port}",)),)
        )
        told = await tools.troubles(place)
        await tools.aclose()

    sent = {(each.headers["x-team"], each.headers["authorization"]) for each in host.heard}
    # Of two who could be shown, the one that was meant for this server.
    assert sent == {("blue", "Bearer of-web")}
    assert "of-web" not in repr(told)
