"""Terminals: commands that the agent has run by us, with the newest of their output."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.client.agent_command import AgentStart
from holdfast.acp.client.agent_process import (
    TERMINAL_OUTPUT_MOST,
    TERMINALS_MOST,
    StopTimeouts,
    TerminalOutput,
    Terminals,
)
from holdfast.acp.rpc.framing import INTERNAL_ERROR, NOT_FOUND, RequestRefused
from holdfast.domain.agent_processes import ProcessExit
from holdfast.process.process_table import find_process
from holdfast.process.streams import TailBuffer

pytestmark = pytest.mark.anyio

WAITS = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"


@pytest.fixture
async def terminals() -> AsyncIterator[Terminals]:
    """Have terminals that are closed afterwards."""
    opened = Terminals()
    yield opened
    await opened.aclose()


def python(source: str, folder: Path, **more: Any) -> AgentStart:
    """Return the start of a piece of Python."""
    environment = {"PATH": os.environ["PATH"], "HOLDFAST_SESSION_ID": "s", "GIVEN": "yes"}
    argv = (sys.executable, "-I", "-S", "-c", source)
    return AgentStart(**({"argv": argv, "folder": str(folder), "environment": environment} | more))


async def shown(terminals: Terminals, id: str, text: str) -> str:
    """Wait until a terminal shows a text, and return all that it shows."""
    for _ in range(3000):
        output = terminals.output(id).text
        if text in output:
            return output
        await asyncio.sleep(0.01)
    raise TimeoutError(terminals.output(id))


async def test_a_command_shows_what_it_prints_on_both_outputs(
    terminals: Terminals, tmp_path: Path
) -> None:
    source = (
        "import os, sys\n"
        "print(os.getcwd(), os.environ['GIVEN'], repr(sys.stdin.read()), flush=True)\n"
        "sys.stderr.write('complaint\\0\\n')\nsys.exit(3)"
    )
    id = await terminals.create(python(source, tmp_path))

    assert await terminals.wait(id) == ProcessExit(code=3, reason="exited")
    assert await terminals.wait(id) == ProcessExit(code=3, reason="exited")
    assert terminals.output(id) == TerminalOutput(
        text=f"{tmp_path} yes ''\ncomplaint\ufffd\n",
        truncated=False,
        exit=ProcessExit(code=3, reason="exited"),
    )


async def test_two_may_wait_and_one_may_give_up(terminals: Terminals, tmp_path: Path) -> None:
    id = await terminals.create(python(WAITS, tmp_path))
    first, second = (asyncio.create_task(terminals.wait(id)) for _ in range(2))
    await asyncio.wait([first], timeout=0.01)
    first.cancel()
    await terminals.kill(id)

    assert await second == ProcessExit(signal=signal.SIGTERM, reason="ended")


@pytest.mark.parametrize(
    ("most", "expected"),
    [(10, "éééé!"), (9, "éééé!"), (8, "ééé!"), (1, "!"), (0, ""), (-5, "")],
)
async def test_the_beginning_is_dropped_between_two_characters(
    terminals: Terminals, tmp_path: Path, most: int, expected: str
) -> None:
    source = "import sys; sys.stdout.buffer.write(('é' * 100 + '!').encode())"
    id = await terminals.create(python(source, tmp_path), output_most=most)
    await terminals.wait(id)

    assert terminals.output(id) == TerminalOutput(
        text=expected, truncated=True, exit=ProcessExit(code=0, reason="exited")
    )


async def test_nobody_can_ask_for_more_than_a_mebibyte(
    terminals: Terminals, tmp_path: Path
) -> None:
    source = "import os\nfor _ in range(300): os.write(1, b'x' * 10_000)"
    ids = [
        await terminals.create(python(source, tmp_path), output_most=most)
        for most in (None, 1 << 40)
    ]
    for id in ids:
        await terminals.wait(id)

    outputs = [terminals.output(id) for id in ids]
    assert [len(each.text) for each in outputs] == [TERMINAL_OUTPUT_MOST, TERMINAL_OUTPUT_MOST]
    assert [each.truncated for each in outputs] == [True, True]


async def test_a_killed_command_can_still_be_looked_at(
    terminals: Terminals, tmp_path: Path
) -> None:
    id = await terminals.create(python(WAITS, tmp_path))
    text = await shown(terminals, id, "\n")
    assert terminals.output(id).exit is None

    await terminals.kill(id)
    await terminals.kill(id)

    expected = ProcessExit(signal=signal.SIGTERM, reason="ended")
    assert terminals.output(id) == TerminalOutput(text=text, truncated=False, exit=expected)
    assert await terminals.wait(id) == expected
    assert find_process(int(text)) is None


async def test_a_released_terminal_is_ended_and_forgotten(
    terminals: Terminals, tmp_path: Path
) -> None:
    id = await terminals.create(python(WAITS, tmp_path))
    pid = int(await shown(terminals, id, "\n"))
    await terminals.release(id)

    assert find_process(pid) is None
    for use in (terminals.wait, terminals.kill, terminals.release):
        with pytest.raises(RequestRefused) as refused:
            await use(id)
        assert refused.value.error.code == NOT_FOUND
    with pytest.raises(RequestRefused):
        terminals.output(id)


async def test_who_ignores_being_asked_is_killed_with_all_who_come_from_it(
    tmp_path: Path,
) -> None:
    terminals = Terminals(timeouts=StopTimeouts(terminating=0.2, drain_seconds=0.1))
    source = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    print(os.getpid(), os.getppid(), 'both', flush=True)\n"
        "time.sleep(600)"
    )
    id = await terminals.create(python(source, tmp_path))
    pids = [int(each) for each in (await shown(terminals, id, "both")).split()[:2]]
    await terminals.release(id)

    assert [find_process(pid) for pid in pids] == [None, None]


async def test_the_17th_is_refused_until_one_is_released(
    terminals: Terminals, tmp_path: Path
) -> None:
    start = python("", tmp_path, argv=("sleep", "600"))
    ids = await asyncio.gather(*(terminals.create(start) for _ in range(TERMINALS_MOST)))
    assert len(set(ids)) == TERMINALS_MOST

    with pytest.raises(RequestRefused, match="at most 16 terminals at once"):
        await terminals.create(start)
    await terminals.release(ids[3])
    assert await terminals.create(start) not in ids


async def test_a_command_that_cannot_run_is_refused_and_takes_no_place(
    terminals: Terminals, tmp_path: Path
) -> None:
    for _ in range(TERMINALS_MOST + 1):
        with pytest.raises(RequestRefused, match="cannot be run: no such file") as refused:
            await terminals.create(python("", tmp_path, argv=("no-such-program",)))
        assert refused.value.error.code == INTERNAL_ERROR


async def test_closing_ends_all_and_what_is_just_starting_too(tmp_path: Path) -> None:
    terminals = Terminals()
    id = await terminals.create(python(WAITS, tmp_path))
    pid = int(await shown(terminals, id, "\n"))
    creating = asyncio.create_task(terminals.create(python("", tmp_path, argv=("sleep", "600"))))
    await asyncio.sleep(0)
    await terminals.aclose()

    with pytest.raises(RequestRefused, match="the session is ending"):
        await creating
    assert find_process(pid) is None
    with pytest.raises(RequestRefused):
        terminals.output(id)


async def test_who_gives_up_waiting_for_the_end_does_not_stop_it(
    terminals: Terminals, tmp_path: Path
) -> None:
    id = await terminals.create(python(WAITS, tmp_path))
    pid = int(await shown(terminals, id, "\n"))
    killing = asyncio.create_task(terminals.kill(id))
    await asyncio.sleep(0)
    killing.cancel()

    assert await terminals.wait(id) == ProcessExit(signal=signal.SIGTERM, reason="ended")
    assert find_process(pid) is None


def test_half_a_character_is_not_shown_before_the_rest_came() -> None:
    ring = TailBuffer(100)
    ring.add(b"a\xf0\x9f\x98")

    assert ring.text(is_over=False) == "a"
    assert ring.text() == "a\ufffd"
    ring.add(b"\x80")
    assert ring.text(is_over=False) == "a\N{GRINNING FACE}"
    ring.add(b"\x80\x80\x80\x80")
    assert ring.text(is_over=False) == "a\N{GRINNING FACE}" + "\ufffd" * 4
    assert TailBuffer(5).text(is_over=False) == ""
    assert ring.dropped == 0
