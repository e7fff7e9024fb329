"""How MCP servers are started: with consent, confined, clean, and never to be left behind."""

import asyncio
import json
import logging
import os
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.tools import FsTier, Grant, ResultCode
from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Means
from holdfast.tools.mcp.client import McpSettings
from holdfast.tools.mcp.connection import STDERR_MOST
from holdfast.tools.mcp.declarations import StdioServer, build_order
from holdfast.tools.mcp.tools import McpTools
from holdfast.tools.process_context import ProcessSettings, process_context_of
from holdfast.tools.tool import ToolFailure
from tests.marks import each_case
from tests.tools.http_hosts import code_of
from tests.tools.mcp_servers import Book, Hands, a_tool, welcoming, with_servers
from tests.tools.process_fixture import PYTHON, known_means

# Programs are started here, which belongs to the whole run and not to the quick one.
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
IN_THE_OPEN = Means(landlock=known_means().landlock, seccomp=known_means().seccomp)
WAYS = pytest.mark.parametrize(
    "means", [known_means(), IN_THE_OPEN], ids=["all means", "in the open"]
)


class World:
    """A folder to work in, a folder of Holdfast's own, and one that is nobody's business."""

    def __init__(self, root: Path) -> None:
        self.work, self.home, self.other = root / "work", root / "home", root / "other"
        self.scratch = self.home / "scratch"
        for folder in (self.work, self.scratch, self.other):
            folder.mkdir(parents=True)
        self.secret, self.theirs = self.home / "history.db", self.other / "letter.txt"
        for file in (self.secret, self.theirs):
            file.write_text("canary")
        self.book = Book(self.work)
        self.processes = ProcessSettings(
            environment={**os.environ, "CI": "1"}, hidden=(str(self.home),)
        )

    def tools(self, **more: Any) -> McpTools:
        """Return the tools of somebody who has configured the book's server, with more."""
        return McpTools(
            McpSettings(
                launcher=Launcher(known_means()),
                processes=self.processes,
                configured={"books": self.book.configured(**more)},
            )
        )

    def hands(self, tools: McpTools, **more: Any) -> Hands:
        given = {"scratch": str(self.scratch), "grants": (Grant(),), **more}
        place = with_servers(self.work, {"ref": "books"})
        return Hands(tools, msgspec.structs.replace(place, **given))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Make a world."""
    return World(tmp_path)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it is so; a test that waits for ever fails by its own limit."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 — seen from outside
            await asyncio.sleep(0.01)


async def seen(world: World, *paths: Path, **more: Any) -> list[bool]:
    """Return which of the paths are there for a server of this configuration."""
    answer = {"look": [str(path) for path in paths]}
    world.book.write(tools=[a_tool("t")], answers={"t": answer})
    tools = world.tools(**more)
    done = await world.hands(tools).call("mcp_books_t")
    await tools.aclose()
    found: list[bool] = json.loads(done.result["text"])
    return found


async def test_a_program_that_an_agent_declares_is_not_started_without_consent(
    world: World,
) -> None:
    begun = world.work / "begun"
    script = f"open({str(begun)!r}, 'w').close()"
    declared = {"id": "evil", "transport": "stdio", "command": PYTHON, "args": ["-c", script]}
    tools = world.tools()
    hands = Hands(tools, with_servers(world.work, declared, world.book.entry()))

    told = await tools.troubles(hands.place)
    done = await hands.call("mcp_evil_t")
    known = await hands.call("mcp_books_echo", text="hi")
    await tools.aclose()

    assert told == (
        "The MCP server evil is not available: its agent declares a program, and "
        "only your configuration may start programs. To allow this one, add it to "
        "holdfast.toml as [mcp.servers.evil], with the same command, args and env.",
    )
    assert code_of(done) == "error/unavailable"
    assert not begun.exists()
    # The very same as the user has configured is what the user agreed to.
    assert code_of(known) == "ok"


async def test_what_a_declared_program_is_told_has_to_be_agreed_to_as_well(world: World) -> None:
    env = {"TOKEN": {"secret": True, "ref": "github"}}
    tools = world.tools()

    told = await tools.troubles(with_servers(world.work, world.book.entry(env=env)))
    await tools.aclose()

    assert len(told) == 1
    assert "is not available: its agent declares a program" in told[0]
    assert world.book.readers == []


async def test_a_server_sees_its_session_and_what_it_is_given_and_nothing_else(
    world: World,
) -> None:
    readable = world.other / "shared"
    readable.mkdir()
    paths = (world.book.path, world.scratch, world.theirs, world.secret, readable)

    plain = await seen(world, *paths)
    given = await seen(world, *paths, readable=[str(readable)])
    # What is ours cannot be given away, not even by mistake.
    ours = await seen(world, *paths, readable=[str(world.home)], writable=[str(world.home)])

    is_covered = known_means().mounts
    assert plain[:2] == given[:2] == ours[:2] == [True, True]
    assert given[4]
    if is_covered:
        assert (plain[2:], given[2:], ours[2:]) == (
            [False, False, False],
            [False, False, True],
            [False, False, False],
        )


async def test_a_server_that_is_not_confined_reaches_what_the_user_does_but_nothing_of_ours(
    world: World,
) -> None:
    found = await seen(world, world.theirs, world.secret, confined=False)

    assert found == [True, not known_means().mounts]


@each_case(
    ("more", "domains", "network", "is_jailed"),
    [
        ({}, (), False, True),
        ({"network": True}, (), True, True),
        ({}, ("example.com",), True, True),
        ({"confined": False}, (), True, False),
    ],
)
def test_the_network_is_granted_or_configured(
    world: World, more: dict[str, Any], domains: tuple[str, ...], network: bool, is_jailed: bool
) -> None:
    server = StdioServer(id="s", command=PYTHON, **more)
    place = with_servers(world.work, grants=(Grant(domains=domains),))

    reach = build_order(server, place, world.processes).confinement

    assert (reach.has_network, reach.is_jailed) == (network, is_jailed)
    assert reach.hidden == (str(world.home),)


async def test_a_server_without_the_network_reaches_no_port_of_this_machine(world: World) -> None:
    if not known_means().network:
        # Said by `doctor` as weaker; there is nothing to hold here.
        return
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        script = (
            "import socket, sys\n"
            f"try: socket.create_connection(('127.0.0.1', {port}), 5)\n"
            "except OSError: sys.exit('refused')\n"
            "sys.exit('reached')\n"
        )
        said = [await _last_words(world, script, network=given) for given in (False, True)]

    assert said == ["refused", "reached"]


async def test_protected_paths_hold_for_a_server(world: World) -> None:
    (world.work / ".env").write_text("canary")
    script = (
        "import sys; open('.envrc', 'w')\n"
        "try: told = open('.env').read()\n"
        "except OSError: told = 'refused'\n"
        "print(told, file=sys.stderr)"
    )
    place = msgspec.structs.replace(
        with_servers(world.work, grants=(Grant(),)), scratch=str(world.scratch)
    )
    server = StdioServer(id="s", command=PYTHON, args=("-I", "-c", script), cwd="workspace")
    loose = msgspec.structs.replace(server, confined=False)
    order = build_order(server, place, world.processes)
    finished = await Launcher(known_means()).run(order, time_limit=60)

    assert build_order(loose, place, world.processes).confinement.guard is None
    assert not (world.work / ".envrc").exists()
    if known_means().mounts:
        assert finished.stderr == "refused\n"


async def _last_words(world: World, script: str, *, network: bool) -> str:
    """Run a script as a server and return what it complained about."""
    server = StdioServer(id="s", command=PYTHON, args=("-I", "-c", script), network=network)
    order = build_order(server, with_servers(world.work, grants=(Grant(),)), world.processes)
    return (await Launcher(known_means()).run(order, time_limit=20)).stderr.strip()


@each_case("is_confined", [True, False])
def test_a_server_is_told_what_commands_are_told_and_what_is_named(
    world: World, is_confined: bool
) -> None:
    names = ("CI", "NOT_SET")
    server = StdioServer(id="s", command=PYTHON, env_names=names, confined=is_confined)
    place = msgspec.structs.replace(with_servers(world.work), scratch=str(world.scratch))

    known = build_order(server, place, world.processes).environment

    usual = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "TMPDIR"}
    assert set(known) - usual == {"CI"}
    own = f"{world.scratch}.servers/of-s"
    assert known["HOME"] == (own if is_confined else os.environ["HOME"])
    assert known["TMPDIR"] == (own if is_confined else str(world.scratch))


async def test_a_server_has_a_home_of_its_own_that_nobody_else_in_the_session_reaches(
    world: World,
) -> None:
    place = msgspec.structs.replace(
        with_servers(world.work, grants=(Grant(),)), scratch=str(world.scratch)
    )
    # Whatever a server may be called, it is at home below its session.
    one, other = (
        StdioServer(id=id_, command=PYTHON, args=("-I", "-c", LEAVING)) for id_ in ("one", "..")
    )
    first, second = (build_order(server, place, world.processes) for server in (one, other))
    homes = [Path(f"{world.scratch}.servers/of-{id_}") for id_ in ("one", "..")]

    said = [
        (await Launcher(known_means()).run(order, time_limit=20)).stderr.strip()
        for order in (first, second)
    ]

    assert said == ["['left']", "['left']"]
    assert [[each.name for each in home.iterdir()] for home in homes] == [["left"], ["left"]]
    assert {home.stat().st_mode & 0o777 for home in homes} == {0o700}
    reached = [set(order.confinement.writable) for order in (first, second)]
    assert [str(home) in reach for home in homes for reach in reached] == [True, False, False, True]
    commands = process_context_of(place, world.processes)
    assert not [root for root in commands.roots if str(homes[0]).startswith(f"{root}/")]


LEAVING = (
    "import os, pathlib, sys\n"
    "home = pathlib.Path(os.environ['HOME'])\n"
    "(home / 'left').touch()\n"
    "sys.exit(str(os.listdir(home)))\n"
)


def test_a_server_without_a_home_is_not_started(world: World) -> None:
    place = msgspec.structs.replace(
        with_servers(world.work, grants=(Grant(),)), scratch=str(world.scratch)
    )
    Path(f"{world.scratch}.servers").write_text("in the way")

    with pytest.raises(ToolFailure, match="its folder cannot be created"):
        build_order(StdioServer(id="s", command=PYTHON), place, world.processes)


def test_a_full_tier_is_no_jail_for_servers_either(world: World) -> None:
    place = with_servers(world.work, grants=(Grant(fs=FsTier.FULL),))

    order = build_order(StdioServer(id="s", command=PYTHON), place, world.processes)

    assert not order.confinement.is_jailed


def test_a_program_of_the_working_folder_is_not_found_by_its_name(world: World) -> None:
    program = world.work / "serve"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = f"{world.work}:{os.environ['PATH']}"
    processes = msgspec.structs.replace(world.processes, environment={"PATH": path})

    with pytest.raises(ToolFailure) as refused:
        build_order(StdioServer(id="s", command="serve"), with_servers(world.work), processes)

    assert (refused.value.code, refused.value.message) == (
        ResultCode.UNAVAILABLE,
        "its command does not exist",
    )


PLANTED = "import os, sys; sys.exit('planted with ' + os.environ.get('TOKEN', ''))"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "args", [("-m", "mcp_server_git"), ("mcp_server_git.py",), ("-c", "import mcp_server_git")]
)
@pytest.mark.parametrize("is_confined", [True, False])
async def test_a_server_runs_nothing_out_of_the_folder_that_a_session_works_in(
    world: World, args: tuple[str, ...], is_confined: bool
) -> None:
    (world.work / "mcp_server_git.py").write_text(PLANTED)
    said = {}
    for cwd in (None, "workspace"):
        server = StdioServer(id="s", command=PYTHON, args=args, confined=is_confined, cwd=cwd)
        order = build_order(server, with_servers(world.work, grants=(Grant(),)), world.processes)
        ended = await Launcher(known_means()).run(order, time_limit=20)
        said[cwd] = "planted" in ended.stderr

    # The folder of the session is asked for by name, or it is not where a server starts.
    assert said == {None: False, "workspace": True}


def test_a_command_is_not_looked_for_in_the_folder_of_a_session_either(world: World) -> None:
    program = world.work / "serve"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    server = StdioServer(id="s", command="./serve")

    with pytest.raises(ToolFailure):
        build_order(server, with_servers(world.work), world.processes)


async def test_a_program_that_is_none_is_told(world: World) -> None:
    broken = world.work / "broken"
    broken.write_bytes(b"\x00 no program at all")
    broken.chmod(0o755)
    entry = {"id": "b", "transport": "stdio", "command": str(broken)}
    tools = McpTools(welcoming(launcher=Launcher(known_means())))

    told = await tools.troubles(with_servers(world.work, entry))
    await tools.aclose()

    assert told == (
        "The MCP server b is not available: its command cannot be run: exec format error.",
    )


async def test_what_a_server_complains_about_is_bounded_and_never_in_its_way(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # More than a pipe holds: whoever does not listen would have it hang.
    flood = "first " + "x" * (1 << 20) + " last\x1b"
    world.book.write(tools=[a_tool("t")], answers={"t": {"complain": flood}})
    tools = world.tools()

    with caplog.at_level(logging.INFO, logger="holdfast.tools.mcp.connection"):
        done = await world.hands(tools).call("mcp_books_t")
        await tools.aclose()

    assert code_of(done) == "ok"
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"an MCP server ({PYTHON}) reported a problem: first xxx")
    assert said.endswith("xxx last\\u001b")
    assert len(said) < STDERR_MOST + 200


@pytest.mark.torture
@WAYS
async def test_nobody_survives_whoever_started_them(tmp_path: Path, means: Means) -> None:
    book = Book(tmp_path)
    given = msgspec.json.encode(means).decode()
    argv = [sys.executable, "-m", "tests.tools.mcp_parent", str(tmp_path), given]
    parent = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=PIPE)
    assert parent.stdout is not None
    try:
        assert await parent.stdout.readline() == b"ready\n"
        alive = book.readers
    finally:
        parent.kill()
        await parent.wait()

    # The server, and a child of it that hears nothing of its input.
    assert len(alive) == 2
    await until(lambda: not book.readers)


@pytest.fixture
async def many(tmp_path: Path) -> AsyncIterator[list[Hands]]:
    """Have a few sessions with a server each, let go of when the test is over."""
    tools = McpTools(welcoming(launcher=Launcher(known_means())))
    books = [Book(tmp_path, f"book{number}") for number in range(3)]
    yield [
        Hands(tools, with_servers(tmp_path, book.entry(), session=book.path.name)) for book in books
    ]
    await tools.aclose()


async def test_servers_of_several_sessions_are_let_go_of_at_once(
    many: list[Hands], tmp_path: Path
) -> None:
    for hands in many:
        assert code_of(await hands.call("mcp_books_echo", text="hi")) == "ok"
    before = len(os.listdir("/proc/self/fd"))

    await many[0].tools.aclose()

    assert [Book(tmp_path, f"book{number}").readers for number in range(3)] == [[], [], []]
    assert len(os.listdir("/proc/self/fd")) < before
