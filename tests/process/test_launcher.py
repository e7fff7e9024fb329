"""Holds that a process is bounded, that it is told on truly, and that nobody outlives it."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from holdfast.process import child as proces_child
from holdfast.process.child import ChildNotStarted
from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Means, Namespaces
from tests.marks import each_case
from tests.tools.process_fixture import PYTHON, marked, order, python

# Programs are started here, which belongs to the whole run and not to the quick one.
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# Holds on to life: in a session of its own, behind two forks, deaf to TERM.
STUBBORN = """
import os, signal, time
mark = "{mark}"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("ready", flush=True)
        time.sleep(600)
    os._exit(0)
{then}
"""


@pytest.fixture(
    params=[
        "namespaces",
        pytest.param("users' namespaces", marks=pytest.mark.torture),
        "in the open",
    ]
)
async def launcher(request: pytest.FixtureRequest) -> Launcher:
    """Be a launcher with all means, and ones with less."""
    means = await Launcher().means()
    if request.param == "users' namespaces" and means.namespaces is Namespaces.ROOT:
        return Launcher(
            Means(
                namespaces=Namespaces.USER,
                mounts=True,
                network=True,
                landlock=means.landlock,
                seccomp=means.seccomp,
            )
        )
    if request.param == "in the open":
        return Launcher(Means(landlock=means.landlock, seccomp=means.seccomp))
    return Launcher(means)


async def test_a_command_is_run_and_told_about(launcher: Launcher, tmp_path: Path) -> None:
    source = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"

    finished = await launcher.run(python(source, tmp_path), time_limit=20)

    assert (finished.exit_code, finished.stdout, finished.stderr, finished.timed_out) == (
        *(7, "out\n", "err\n"),
        False,
    )
    assert 0 < finished.duration_ms < 20_000


@each_case("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_death_by_a_signal_is_its_number_above_128(
    launcher: Launcher, tmp_path: Path, number: signal.Signals
) -> None:
    source = f"import os; os.kill(os.getpid(), {int(number)})"

    finished = await launcher.run(python(source, tmp_path), time_limit=20)

    assert finished.exit_code == 128 + number


async def test_a_child_finds_nothing_but_what_it_was_given(
    launcher: Launcher, tmp_path: Path
) -> None:
    source = (
        "import os, resource, signal, stat, sys\n"
        "print(dict(os.environ) | {'LC_CTYPE': ''})\n"
        "print(repr(sys.stdin.read()), os.getcwd(), os.getsid(0) == os.getpid())\n"
        "print(sorted(map(int, os.listdir('/proc/self/fd')))[:4])\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE), oct(os.umask(0)))\n"
        "print(signal.getsignal(signal.SIGTERM))\n"
        "print(open('/proc/self/status').read().partition('NoNewPrivs:')[2].split()[0])\n"
    )
    given = python(source, tmp_path, environment={"TZ": "UTC"})

    finished = await launcher.run(given, time_limit=20)

    # The last descriptor is the listing's own.
    assert finished.stdout.splitlines() == [
        "{'TZ': 'UTC', 'LC_CTYPE': ''}",
        f"'' {tmp_path} True",
        "[0, 1, 2, 3]",
        "(0, 0) 0o77",
        "0",
        "1",
    ]


async def test_a_command_that_takes_too_long_is_ended(launcher: Launcher, tmp_path: Path) -> None:
    start = time.monotonic()

    finished = await launcher.run(
        python("import time; print('begun', flush=True); time.sleep(600)", tmp_path), time_limit=0.5
    )

    assert (finished.exit_code, finished.timed_out) == (128 + signal.SIGTERM, True)
    assert finished.stdout == "begun\n"
    assert time.monotonic() - start < 4


async def test_whoever_is_asked_to_end_may_finish(launcher: Launcher, tmp_path: Path) -> None:
    source = (
        "import signal, sys, time\n"
        "def end(*_): print('tidied up', flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('begun', flush=True)\n"
        "time.sleep(600)\n"
    )

    finished = await launcher.run(python(source, tmp_path), time_limit=1)

    assert (finished.exit_code, finished.stdout) == (3, "begun\ntidied up\n")


async def test_nobody_survives_who_does_not_listen(launcher: Launcher, tmp_path: Path) -> None:
    mark = f"stubborn-{os.getpid()}-{time.monotonic_ns()}"
    source = STUBBORN.format(mark=mark, then="time.sleep(600)")

    finished = await launcher.run(python(source, tmp_path), time_limit=0.5)

    assert (finished.exit_code, finished.timed_out) == (128 + signal.SIGKILL, True)
    assert 2_400 < finished.duration_ms < 6_000
    assert marked(mark) == []


async def test_what_a_command_leaves_behind_ends_with_it(
    launcher: Launcher, tmp_path: Path
) -> None:
    mark = f"left-{os.getpid()}-{time.monotonic_ns()}"
    source = STUBBORN.format(mark=mark, then="os.read(0, 1); time.sleep(0.3); os._exit(5)")

    finished = await launcher.run(python(source, tmp_path), time_limit=20)

    assert (finished.exit_code, finished.timed_out) == (5, False)
    assert marked(mark) == []


async def test_cancelling_ends_everybody_before_it_is_heard(
    launcher: Launcher, tmp_path: Path
) -> None:
    mark = f"cancelled-{os.getpid()}-{time.monotonic_ns()}"
    source = STUBBORN.format(mark=mark, then="time.sleep(600)")
    task = asyncio.ensure_future(launcher.run(python(source, tmp_path), time_limit=600))
    await until(lambda: len(marked(mark)) >= 2)

    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert marked(mark) == []


async def test_cancelling_at_once_starts_nothing(launcher: Launcher, tmp_path: Path) -> None:
    source = "import pathlib, time; time.sleep(1); pathlib.Path('late').touch()"
    for _ in range(3):
        task = asyncio.ensure_future(launcher.run(python(source, tmp_path), time_limit=20))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    # Longer than the program would need, had it been left running.
    await asyncio.sleep(1.2)
    assert os.listdir(tmp_path) == []


async def test_the_middle_of_a_long_output_is_dropped_and_counted(
    launcher: Launcher, tmp_path: Path
) -> None:
    source = (
        "import sys; sys.stdout.write('a' * 600 + 'b' * 1000 + 'c' * 600)\n"
        "print('d' * 99, file=sys.stderr)"
    )

    finished = await launcher.run(python(source, tmp_path), time_limit=20, output_most=1000)

    assert finished.stdout == f"{'a' * 500}\n[… 1200 bytes left out …]\n{'c' * 500}"
    assert finished.output.dropped == 1200
    assert (finished.stderr, finished.errors.dropped) == ("d" * 99 + "\n", 0)


async def test_a_flood_costs_no_more_memory_than_is_kept(
    launcher: Launcher, tmp_path: Path
) -> None:
    source = "import os\nblock = b'x' * 65536\nfor _ in range(800): os.write(1, block)"

    finished = await launcher.run(python(source, tmp_path), time_limit=60)

    assert finished.exit_code == 0
    assert len(finished.stdout) < (4 << 20) + 100
    assert finished.output.dropped == 800 * 65536 - (4 << 20)


@pytest.mark.parametrize(
    ("argv", "stage"),
    [(("/nowhere/at-all",), "program"), (("/dev/null",), "start")],
)
async def test_what_cannot_be_started_is_told(
    launcher: Launcher, tmp_path: Path, argv: tuple[str, ...], stage: str
) -> None:
    with pytest.raises(ChildNotStarted) as refused:
        await launcher.run(order(argv, tmp_path), time_limit=20)

    assert refused.value.stage == stage


async def test_another_program_than_the_one_agreed_to_is_not_started(
    launcher: Launcher, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!{PYTHON}\nopen('ran', 'w')\n")
    program.chmod(0o700)
    found = program.stat()
    identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    agreed = order((str(program),), tmp_path, program_identity=identity)
    program.write_text(f"#!{PYTHON}\nopen('ran', 'a')\n")

    with pytest.raises(ChildNotStarted) as refused:
        await launcher.run(agreed, time_limit=20)

    assert refused.value.stage == "program-changed"
    assert not (tmp_path / "ran").exists()


async def test_another_folder_than_the_one_agreed_to_is_not_entered(
    launcher: Launcher, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    found = folder.stat()
    agreed = python("open('ran', 'w')", folder, folder_identity=(found.st_dev, found.st_ino))
    folder.rename(tmp_path / "elsewhere")
    folder.mkdir()

    with pytest.raises(ChildNotStarted) as refused:
        await launcher.run(agreed, time_limit=20)

    assert refused.value.stage == "folder-changed"
    assert list(folder.iterdir()) == []


async def test_a_child_that_lives_on_can_be_talked_to(launcher: Launcher, tmp_path: Path) -> None:
    source = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"

    child = await launcher.start(python(source, tmp_path))
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"hello\n")
        heard = await child.stdout.readline()
        child.stdin.close()
        code = await child.wait_ended()
    finally:
        await child.close()

    assert (heard, code) == (b"HELLO\n", 0)


async def test_letting_go_of_a_child_ends_it(launcher: Launcher, tmp_path: Path) -> None:
    mark = f"dropped-{os.getpid()}-{time.monotonic_ns()}"
    source = STUBBORN.format(mark=mark, then="time.sleep(600)")
    child = await launcher.start(python(source, tmp_path))
    await until(lambda: len(marked(mark)) >= 2)

    await child.close()

    assert marked(mark) == []


async def test_whoever_was_let_go_of_is_not_asked_any_more(tmp_path: Path) -> None:
    child = await Launcher().start(python("input()", tmp_path))
    await child.close()
    # They have the numbers now that the pipes to the supervisor had.
    pipes = [os.pipe() for _ in range(8)]

    child.stop()

    try:
        assert select.select([reading for reading, _ in pipes], [], [], 0)[0] == []
    finally:
        for each in pipes:
            os.close(each[0])
            os.close(each[1])


async def test_a_supervisor_that_dies_takes_the_command_along(tmp_path: Path) -> None:
    mark = f"orphan-{os.getpid()}-{time.monotonic_ns()}"
    source = STUBBORN.format(mark=mark, then="time.sleep(600)")
    launcher = Launcher()
    child = await launcher.start(python(source, tmp_path))
    await until(lambda: len(marked(mark)) >= 2)

    child.stop()
    child._kill()
    code = await child.wait_ended()
    await child.close()

    assert code == 128 + signal.SIGKILL
    await until(lambda: marked(mark) == [])


async def test_without_namespaces_a_command_dies_with_its_supervisor(tmp_path: Path) -> None:
    mark = f"command-{os.getpid()}-{time.monotonic_ns()}"
    child = await Launcher(Means()).start(
        python(f"import time; mark = '{mark}'; time.sleep(600)", tmp_path)
    )
    await child.wait_started()
    await until(lambda: len(marked(mark)) == 1)

    child._kill()

    await until(lambda: marked(mark) == [])
    await child.close()


async def test_termination_signals_do_not_end_a_supervisor(
    launcher: Launcher, tmp_path: Path
) -> None:
    source = (
        "status = open('/proc/self/status').read()\n"
        "for name in ('SigBlk', 'SigIgn'):\n"
        "    print(int(status.partition(name + ':')[2].split()[0], 16) & 0xffff)\n"
        "input()"
    )
    child = await launcher.start(python(source, tmp_path))
    try:
        assert child.stdin is not None
        # Python ignores SIGPIPE itself; nothing else may be inherited from the supervisor.
        inherited = [int(await child.stdout.readline()) for _ in range(2)]
        assert child._supervisor is not None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(child._supervisor.get_pid(), number)
        child.stdin.write(b"go on\n")
        code = await child.wait_ended()
    finally:
        await child.close()

    assert (inherited, code) == ([0, 1 << (signal.SIGPIPE - 1)], 0)


async def test_an_adopted_orphan_does_not_stay_a_zombie(tmp_path: Path) -> None:
    source = (
        "import os, sys\n"
        "if (child := os.fork()) == 0:\n"
        "    if (orphan := os.fork()) == 0: os._exit(0)\n"
        "    print(orphan, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "input()"
    )
    child = await Launcher(Means()).start(python(source, tmp_path))
    orphan = int(await child.stdout.readline())

    await until(lambda: not os.path.exists(f"/proc/{orphan}"))

    await child.close()


async def test_a_supervisor_that_says_nothing_is_no_success(tmp_path: Path) -> None:
    child = await Launcher().start(python("import time; time.sleep(600)", tmp_path))

    child._kill()
    with pytest.raises(ChildNotStarted) as refused:
        await child.wait_ended()
    await child.close()

    assert refused.value.stage == "supervisor"


async def test_many_commands_run_at_once(launcher: Launcher, tmp_path: Path) -> None:
    runs = (
        launcher.run(python(f"print({number})", tmp_path), time_limit=60) for number in range(8)
    )

    finished = await asyncio.gather(*runs)

    assert [each.stdout for each in finished] == [f"{number}\n" for number in range(8)]


def test_the_servers_loop_can_run_commands_too(tmp_path: Path) -> None:
    async def run() -> tuple[int, str]:
        source = "import os; print('here', sorted(map(int, os.listdir('/proc/self/fd'))))"
        finished = await Launcher().run(python(source, tmp_path), time_limit=20)
        return finished.exit_code, finished.stdout

    # This loop leaks descriptors; the command gets none of them. The last is the listing's own.
    leaked = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(run()) == (0, "here [0, 1, 2, 3]\n")
    finally:
        os.close(leaked)


async def test_nothing_is_left_open(tmp_path: Path) -> None:
    launcher = Launcher()
    await launcher.run(python("print(1)", tmp_path), time_limit=20)
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        await launcher.run(python("print(1)", tmp_path), time_limit=20)

    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_supervisor_starts_without_the_rest_of_holdfast() -> None:
    argv = proces_child.supervisor_argv("main")
    assert argv[:4] == (sys.executable, "-I", "-S", "-c")
    run = subprocess.run(
        [word.replace("main()", "print(*sys.modules)") for word in argv],
        capture_output=True,
        text=True,
        check=True,
    )

    ours = {name for name in run.stdout.split() if name.startswith("holdfast.process.")}
    assert ours == {
        "holdfast.process.supervisor",
        "holdfast.process.supervisor.namespaces",
        "holdfast.process.supervisor.main",
        "holdfast.process.supervisor.restrictions",
        "holdfast.process.supervisor.syscalls",
    }
    assert "msgspec" not in run.stdout


async def until(condition: Callable[[], bool]) -> None:
    """Look until something is so."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 — what other processes do rings no bell
            await asyncio.sleep(0.01)
