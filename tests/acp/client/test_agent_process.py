"""A program: started as it is meant to be, watched, and never left behind."""

import asyncio
import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.acp.client.agent_command import AgentStart
from holdfast.acp.client.agent_process import AGENT_LIMITS, AgentProcess, StopTimeouts, reap
from holdfast.acp.client.presets import find_command
from holdfast.acp.rpc.connection import ConnectionLimits
from holdfast.acp.rpc.framing import ConnectionLost
from holdfast.domain.agent_processes import ProcessExit, ProcessIdentity, ProgramLimits
from holdfast.process.child import ChildNotStarted
from holdfast.process.process_table import boot_id, find_process, group_members, has_mark
from tests.acp.scripted_agents import PATIENCE, Peer

pytestmark = pytest.mark.anyio

HASTY = StopTimeouts(
    closing_messages=0.2, closing=0.3, terminating=0.4, killing=5.0, drain_seconds=0.3
)
ENDLESS = "import time\nwhile True: time.sleep(60)"
# Signals 32 and 33.
RESERVED = 0b11 << 31


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=pytest.mark.torture)])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Run on both loops: the server runs on the other one."""
    return ("asyncio", {"use_uvloop": request.param == "uvloop"})


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    """Have a peer that does as scripts do by default."""
    return Peer(tmp_path / "place")


async def gone(*pids: int) -> bool:
    """Wait until none of them lives."""
    for _ in range(3000):
        if not any(find_process(pid) for pid in pids):
            return True
        await asyncio.sleep(0.01)
    return False


async def test_a_program_is_started_where_and_how_it_was_said(peer: Peer) -> None:
    start = peer.start(mark="session-1", argv=(*peer.argv, "--flag", "two words", "$HOME;'\""))
    program = await AgentProcess.spawn(start, timeouts=HASTY)
    await program.connection.request("initialize", {})
    await program.end()

    (told,) = peer.log("start")
    assert told["argv"][-3:] == ["--flag", "two words", "$HOME;'\""]
    assert told["cwd"] == str(peer.folder)
    assert told["env"] == {"PATH": os.environ["PATH"], "HOLDFAST_SESSION_ID": "session-1"}
    assert (told["pid"], told["group"], told["session"]) == (program.birth.pid,) * 3
    assert (told["umask"], told["fds"], told["nice"]) == (0o077, [0, 1, 2], os.nice(0))
    assert program.birth.group == program.birth.pid
    assert program.birth.started > 0
    assert program.birth.boot


async def test_its_streams_are_pipes_and_no_signal_is_ignored_or_blocked(tmp_path: Path) -> None:
    lines: list[bytes] = []
    show = "grep -E 'Sig(Blk|Ign)' /proc/self/status; stat -L -c %F /dev/fd/0 /dev/fd/1 /dev/fd/2"
    start = python("", tmp_path, argv=("sh", "-c", show))
    program = await AgentProcess.spawn(start, timeouts=HASTY, on_line=lines.append)
    await program.connection.wait_ended()
    await program.end()

    *signals, _, _, _ = (each.split() for each in lines)
    # Two are the C library's own, and nobody's to set.
    found = {name: int(value, 16) & ~RESERVED for name, value in signals}
    assert found == {b"SigBlk:": 0, b"SigIgn:": 0}
    assert lines[2:] == [b"fifo"] * 3


def python(source: str, place: Path, **more: Any) -> AgentStart:
    """Return the start of a piece of Python."""
    environment = {"PATH": os.environ["PATH"], "HOLDFAST_SESSION_ID": f"mark-{place.name}"}
    argv = (sys.executable, "-I", "-S", "-c", source)
    return AgentStart(**({"argv": argv, "folder": str(place), "environment": environment} | more))


async def test_bounds_are_set_in_the_program_and_only_there(peer: Peer) -> None:
    before = resource.getrlimit(resource.RLIMIT_CPU)
    limits = ProgramLimits(nice=3, address_space=1 << 40, cpu_seconds=1234, processes=4321)
    program = await AgentProcess.spawn(peer.start(limits=limits), timeouts=HASTY)
    peer.wait_for("start")
    await program.end()

    (told,) = peer.log("start")
    assert told["nice"] == os.nice(0) + 3
    assert told["limits"] == {
        "address_space": 1 << 40,
        "cpu_seconds": 1234,
        "processes": 4321,
    }
    assert resource.getrlimit(resource.RLIMIT_CPU) == before


async def test_a_command_can_be_wrapped_in_another(peer: Peer) -> None:
    start = peer.start(wrap=("env", "WRAPPED=yes"))
    program = await AgentProcess.spawn(start, timeouts=HASTY)
    peer.wait_for("start")
    await program.end()

    assert peer.log("start")[0]["env"]["WRAPPED"] == "yes"


@pytest.mark.parametrize(
    ("command", "stage", "problem"),
    [
        ("no-such-program", "find", "ENOENT"),
        ("/no/such/program", "find", "ENOENT"),
        ("./plain", "find", "ENOENT"),
        ("{folder}/plain", "find", "ENOENT"),
        ("{folder}/garbage", "start", "ENOEXEC"),
        ("{folder}/orphan", "start", "ENOENT"),
    ],
)
async def test_what_cannot_be_run_says_at_which_step(
    tmp_path: Path, command: str, stage: str, problem: str
) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    for name, content in (("garbage", "no program"), ("orphan", "#!/no/such/interpreter\n")):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(stat.S_IRWXU)
    start = python("", tmp_path, argv=(command.format(folder=tmp_path),))

    with pytest.raises(ChildNotStarted) as refused:
        await AgentProcess.spawn(start)

    assert (refused.value.stage, errno.errorcode[refused.value.problem]) == (stage, problem)
    assert not refused.value.can_pass


async def test_a_folder_or_a_bound_that_is_wrong_says_so(tmp_path: Path) -> None:
    with pytest.raises(ChildNotStarted, match=r"^folder \(ENOENT\)$"):
        await AgentProcess.spawn(python("", tmp_path, folder=str(tmp_path / "missing")))
    with pytest.raises(ChildNotStarted, match=r"^limits \(EINVAL\)$"):
        await AgentProcess.spawn(python("", tmp_path, limits=ProgramLimits(processes=-7)))


@pytest.mark.parametrize(
    ("python", "problem", "can_pass"),
    [("/bin/false", errno.EAGAIN, True), ("/no/such/python", errno.ENOENT, False)],
)
async def test_a_supervisor_that_does_not_start_says_so(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, python: str, problem: int, can_pass: bool
) -> None:
    start = peer.start()
    monkeypatch.setattr(sys, "executable", python)

    with pytest.raises(ChildNotStarted) as refused:
        await AgentProcess.spawn(start)
    found = refused.value
    assert (found.stage, found.problem, found.can_pass) == ("supervisor", problem, can_pass)


async def test_too_many_open_files_may_pass(peer: Peer) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 4, before[1]))
    try:
        with pytest.raises(ChildNotStarted) as refused:
            await AgentProcess.spawn(peer.start())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert (refused.value.stage, refused.value.can_pass) == ("supervisor", True)
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    await program.end()


def test_some_refusals_may_pass() -> None:
    assert ChildNotStarted("start", errno.EAGAIN).can_pass
    assert ChildNotStarted("start", errno.ENOMEM).can_pass
    assert not ChildNotStarted("start", errno.EACCES).can_pass


def test_a_bare_name_is_found_by_its_path_and_never_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "agent"
    program.write_text("#!/bin/sh\n")
    program.chmod(stat.S_IRWXU)
    monkeypatch.chdir(tmp_path)

    assert find_command("agent", {"PATH": f"/nowhere:{tmp_path}"}) == str(program)
    assert find_command(str(program), {}) == str(program)
    assert find_command("sh", {}) == "/bin/sh"
    for path in ("", ".", "relative:.", "/nowhere"):
        assert find_command("agent", {"PATH": path}) is None
    assert find_command("./agent", {"PATH": str(tmp_path)}) is None


async def test_complaints_are_kept_without_colours_and_only_the_last(tmp_path: Path) -> None:
    peer = Peer(
        tmp_path / "place",
        start=[
            {"stderr": "x" * 1024, "times": 2000},
            {"stderr": "\x1b[31mred\x1b[0m \x1b]0;title\x07 nul:\x00\n" + "ä" * 3000},
            {"stderr": "the end"},
        ],
    )
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    await program.connection.request("initialize", {})
    await program.end()

    assert program.stderr_tail == "ä" * 2044 + "the end"
    whole = program._stderr.text()
    assert len(whole.encode()) <= 64 << 10
    assert "\x1b[31mred" in whole


async def test_colours_are_taken_out_of_complaints(tmp_path: Path) -> None:
    peer = Peer(
        tmp_path / "place",
        start=[{"stderr": "\x1b[1;31mred\x1b[0m\x1b]0;title\x07, \x1b(Bnul \x00, \x1b[2K\x1b7end"}],
    )
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    await program.connection.request("initialize", {})
    await program.end()

    assert program.stderr_tail == "red, nul \ufffd, end"


@pytest.mark.parametrize(
    ("ignored", "expected"),
    [
        ([], ProcessExit(code=0, reason="ended")),
        (["eof"], ProcessExit(signal=signal.SIGTERM, reason="ended")),
        (["eof", "TERM"], ProcessExit(signal=signal.SIGKILL, reason="ended")),
    ],
)
async def test_a_program_is_ended_as_kindly_as_it_lets_us(
    tmp_path: Path, ignored: list[str], expected: ProcessExit
) -> None:
    peer = Peer(tmp_path / "place", ignore=ignored)
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    await program.connection.request("initialize", {})

    assert await program.end() == expected
    assert await program.end() == expected
    assert program.exited.result() == expected
    assert find_process(program.birth.pid) is None
    assert ("TERM" in ignored) == any(peer.log("signal"))
    assert [each["event"] for each in peer.log()].count("eof") == 1


@pytest.mark.parametrize("has_exited", [False, True])
@pytest.mark.parametrize(
    "how",
    [{}, {"session": True}, {"ignore": ["TERM"]}, {"session": True, "ignore": ["TERM", "HUP"]}],
)
async def test_nobody_who_comes_from_it_is_left(
    tmp_path: Path, how: dict[str, Any], has_exited: bool
) -> None:
    steps: list[Any] = [{"fork": how}, {"reply": {}}]
    peer = Peer(tmp_path / "place", on={"initialize": steps, "leave": [{"exit": 7}]})
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    await program.connection.request("initialize", {})
    (grandchild,) = [each["pid"] for each in peer.log("forked")]
    if has_exited:
        await program.connection.notify("leave", {})
        await asyncio.wait([program.exited])
        assert find_process(grandchild)

    exited = await program.end()

    assert exited.code == (7 if has_exited else 0)
    assert exited.reason == ("exited" if has_exited else "ended")
    assert (find_process(grandchild), find_process(program.birth.pid)) == (None, None)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"exit": 0}, ProcessExit(code=0, reason="exited")),
        ({"exit": 3}, ProcessExit(code=3, reason="exited")),
        ({"signal": "KILL"}, ProcessExit(signal=9, reason="exited")),
        ({"signal": "SEGV"}, ProcessExit(signal=11, reason="exited")),
    ],
)
async def test_the_end_of_a_program_is_noticed(
    tmp_path: Path, step: dict[str, Any], expected: ProcessExit
) -> None:
    steps = [{"text": "begun"}, {"raw": '{"method":"cut o'}, step]
    peer = Peer(tmp_path / "place", on={"session/prompt": steps})
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    future = await program.connection.begin("session/prompt", {})

    items = [each async for each in program.connection.incoming()]

    assert len(items) == 2
    with pytest.raises(ConnectionLost):
        future.result()
    assert await asyncio.wait_for(asyncio.shield(program.exited), PATIENCE) == expected
    assert await program.end() == expected


@pytest.mark.parametrize(
    "said", [{"text": "last words"}, {"raw": '{"jsonrpc":"2.0","method":"last/words"}'}]
)
async def test_its_exit_counts_although_somebody_holds_its_output(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    steps = [{"fork": {"session": True}}, said, {"exit": 3}]
    peer = Peer(tmp_path / "place", on={"session/prompt": steps})
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    future = await program.connection.begin("session/prompt", {})

    items = [each async for each in program.connection.incoming()]

    assert len(items) == 2
    with pytest.raises(ConnectionLost, match="exited"):
        future.result()
    assert program.exited.result() == ProcessExit(code=3, reason="exited")
    assert await program.end() == ProcessExit(code=3, reason="exited")


async def test_last_words_that_nobody_took_yet_are_kept(tmp_path: Path) -> None:
    steps = [{"texts": 5000}, {"reply": {"stopReason": "end_turn"}}, {"exit": 0}]
    peer = Peer(tmp_path / "place", on={"session/prompt": steps})
    program = await AgentProcess.spawn(
        peer.start(), timeouts=StopTimeouts(drain_seconds=0.1), bounds=ConnectionLimits(queued=8)
    )
    future = await program.connection.begin("session/prompt", {})
    count = 0
    async for _ in program.connection.incoming():
        count += 1
        if count == 1:
            # Longer than its last words are waited for.
            await asyncio.wait([program.exited], timeout=0.5)
    await program.end()

    assert count == 5001
    assert future.result() == {"stopReason": "end_turn"}


async def test_who_closes_its_output_and_lives_is_ended(tmp_path: Path) -> None:
    peer = Peer(tmp_path / "place", on={"session/prompt": [{"close": "stdout"}, "hang"]})
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    future = await program.connection.begin("session/prompt", {})

    items = [each async for each in program.connection.incoming()]

    assert len(items) == 1
    with pytest.raises(ConnectionLost, match="ended"):
        future.result()
    expected = ProcessExit(code=0, reason="stdout_closed")
    assert await asyncio.wait_for(asyncio.shield(program.exited), PATIENCE) == expected
    assert await program.end() == expected


async def test_who_reads_nothing_is_ended_as_stuck(tmp_path: Path) -> None:
    program = await AgentProcess.spawn(
        python(ENDLESS, tmp_path), timeouts=HASTY, bounds=ConnectionLimits(write_seconds=0.1)
    )
    with pytest.raises(ConnectionLost, match="stuck"):
        await program.connection.begin("session/prompt", "x" * (1 << 20))
    assert program.exited.done() is False

    expected = ProcessExit(signal=signal.SIGTERM, reason="stuck")
    assert await asyncio.wait_for(asyncio.shield(program.exited), PATIENCE) == expected
    assert await program.end() == expected


async def test_a_banner_is_no_agent(tmp_path: Path) -> None:
    peer = Peer(tmp_path / "place", start=[{"raw": "Welcome!\n", "times": 100}])
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY, bounds=AGENT_LIMITS)

    with pytest.raises(ConnectionLost, match="noise"):
        await program.connection.request("initialize", {})
    await program.end()


async def test_the_farewell_is_said_while_it_listens_and_never_in_the_way(peer: Peer) -> None:
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    await program.end(closing_messages=lambda: program.connection.request("session/close", {}))
    assert len(peer.got("session/close")) == 1

    second = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    assert (await second.end(closing_messages=lambda: asyncio.sleep(60))).reason == "ended"

    third = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    os.kill(third.birth.pid, signal.SIGKILL)
    await asyncio.wait([third.exited])
    said: list[None] = []
    assert await third.end(closing_messages=lambda: _note(said)) == ProcessExit(
        signal=9, reason="exited"
    )
    assert said == []


async def _note(said: list[None]) -> None:
    said.append(None)


async def test_ending_that_is_cancelled_ends_it_all_the_same(tmp_path: Path) -> None:
    peer = Peer(tmp_path / "place", ignore=["eof", "TERM"])
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    await program.connection.request("initialize", {})
    ending = asyncio.create_task(program.end())
    for _ in range(3):
        await asyncio.wait([ending], timeout=0.05)
        ending.cancel()

    with pytest.raises(asyncio.CancelledError):
        await ending
    assert find_process(program.birth.pid) is None
    assert program.exited.result() == ProcessExit(signal=9, reason="ended")


async def test_who_waits_for_the_exit_and_is_cancelled_does_no_harm(peer: Peer) -> None:
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)

    async def wait() -> None:
        await program.exited

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting

    assert await program.end() == ProcessExit(code=0, reason="ended")


async def test_starting_that_is_cancelled_leaves_nobody(peer: Peer) -> None:
    for ticks in range(12):
        starting = asyncio.create_task(AgentProcess.spawn(peer.start(), timeouts=HASTY))
        for _ in range(ticks):
            await asyncio.sleep(0.003)
        starting.cancel()
        try:
            program = await starting
        except asyncio.CancelledError:
            continue
        await program.end()

    assert await gone(*(each["pid"] for each in peer.log("start")))


async def test_who_loses_its_supervisor_is_gone_with_all_who_come_from_it(tmp_path: Path) -> None:
    steps: list[Any] = [{"fork": {"ignore": ["TERM"]}}, {"reply": {}}]
    peer = Peer(tmp_path / "place", on={"initialize": steps})
    program = await AgentProcess.spawn(peer.start(), timeouts=HASTY)
    await program.connection.request("initialize", {})
    (grandchild,) = [each["pid"] for each in peer.log("forked")]
    os.kill(parent_of(program.birth.pid), signal.SIGKILL)

    assert await asyncio.wait_for(asyncio.shield(program.exited), PATIENCE) == ProcessExit(
        reason="lost"
    )
    assert await program.end() == ProcessExit(reason="lost")
    assert await gone(grandchild, program.birth.pid)


def parent_of(pid: int) -> int:
    """Return the number of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


HOLDER = """
import asyncio, sys
from holdfast.acp.client.agent_command import AgentStart
from holdfast.acp.client.agent_process import AgentProcess
from tests.acp.scripted_agents import Peer
from pathlib import Path

async def main() -> None:
    peer = Peer(Path(sys.argv[1]), ignore=["eof", "TERM"], on={"initialize": [
        {"fork": {}}, {"fork": {"session": True, "ignore": ["TERM", "HUP"]}}, {"reply": {}}]})
    program = await AgentProcess.spawn(peer.start())
    await program.connection.request("initialize", {})
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_nobody_outlives_us(tmp_path: Path) -> None:
    family = killed_with_its_holder(tmp_path / "place")

    assert len(family) == 3
    assert await gone(*family)


def killed_with_its_holder(place: Path) -> list[int]:
    """Kill a process that runs a program, and return the numbers of all that were started."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDER, str(place)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        log = Peer(place).log()
        family = [each["pid"] for each in log if each["event"] in ("start", "forked")]
        assert all(find_process(pid) for pid in family)
        holder.kill()
    return family


def left(tmp_path: Path, mark: str, source: str = ENDLESS) -> subprocess.Popen[bytes]:
    """Start what a former run might have left: a program in a group of its own, with a mark."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"print(flush=True)\n{source}"],
        cwd=tmp_path,
        env={"HOLDFAST_SESSION_ID": mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def born(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    """Return by what it would be known."""
    assert process.stdout is not None
    process.stdout.readline()
    found = find_process(process.pid)
    assert found is not None
    return ProcessIdentity(pid=found.pid, group=found.group, started=found.started, boot=boot_id())


async def test_an_orphan_is_ended_only_when_everything_agrees(tmp_path: Path) -> None:
    with left(tmp_path, "session-1") as orphan:
        birth = born(orphan)

        for wrong in (
            replace(birth, started=birth.started + 1),
            replace(birth, started=birth.started - 1),
            replace(birth, started=0),
            replace(birth, boot="another boot"),
            replace(birth, group=0),
            replace(birth, group=1),
        ):
            assert not await reap(wrong, "session-1")
        assert not await reap(birth, "session-2")
        assert not await reap(birth, "session")
        assert not await reap(birth, "")
        assert orphan.poll() is None

        assert await reap(birth, "session-1")
        assert orphan.wait(PATIENCE) == -signal.SIGKILL
    assert not await reap(birth, "session-1")


async def test_what_an_orphan_left_in_its_group_is_ended_too(tmp_path: Path) -> None:
    # It goes when it was seen, and leaves somebody behind.
    source = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nos.read(0, 1)"
    with left(tmp_path, "session-1", source) as orphan:
        birth = born(orphan)
        assert orphan.stdin is not None
        orphan.stdin.close()
        orphan.wait(PATIENCE)
        (member,) = group_members(birth.group)

        assert not await reap(birth, "session-2")
        assert find_process(member.pid)
        assert await reap(birth, "session-1")
        assert await gone(member.pid)


async def test_processes_of_others_cannot_be_looked_into(tmp_path: Path) -> None:
    assert find_process(2**22 + 1) is None
    assert not has_mark(2**22 + 1, "session-1")


@pytest.mark.slow
async def test_five_deaf_programs_are_gone_within_ten_seconds(tmp_path: Path) -> None:
    peers = [Peer(tmp_path / str(number), ignore=["eof", "TERM"]) for number in range(5)]
    programs = [await AgentProcess.spawn(each.start()) for each in peers]
    for program in programs:
        await program.connection.request("initialize", {})
    began = time.monotonic()

    exits = await asyncio.gather(*(each.end() for each in programs))

    assert time.monotonic() - began < 10
    assert exits == [ProcessExit(signal=9, reason="ended")] * 5
    assert [find_process(each.birth.pid) for each in programs] == [None] * 5
