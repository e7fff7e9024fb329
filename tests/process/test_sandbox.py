"""Holds how far a process reaches: its files, its network, its neighbours; and what is claimed."""

import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domain.tools import FsTier
from holdfast.process import landlock as process_landlock
from holdfast.process import seccomp as process_seccomp
from holdfast.process.child import ChildNotStarted
from holdfast.process.launcher import Launcher, _without
from holdfast.process.sandbox import (
    Bounds,
    Confinement,
    Means,
    Namespaces,
    describe_strength,
    sandbox_order,
)
from tests.marks import each_case
from tests.tools.process_fixture import Workbench, python

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ALL = Means(
    namespaces=Namespaces.ROOT, mounts=True, network=True, landlock=7, seccomp=True, counts=True
)
TRY = """
import os, pathlib, socket, sys
def attempt(name, act):
    try:
        print(name, act())
    except OSError as error:
        print(name, "refused")
"""


@pytest.fixture(
    params=[
        "all means",
        pytest.param("users' namespaces", marks=pytest.mark.torture),
        "landlock alone",
    ]
)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Workbench:
    """Be a workbench with all means, and ones with less."""
    means = await Launcher().means()
    if request.param == "users' namespaces" and means.namespaces is Namespaces.ROOT:
        means = Means(
            namespaces=Namespaces.USER,
            mounts=True,
            network=True,
            landlock=means.landlock,
            seccomp=means.seccomp,
        )
    if request.param == "landlock alone":
        means = Means(landlock=means.landlock, seccomp=means.seccomp)
    bench = Workbench(tmp_path, launcher=Launcher(means))
    bench.means = means
    return bench


@pytest.fixture
def listener() -> Iterator[int]:
    """Listen on the machine's own loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_command_reads_and_writes_its_folder_and_its_scratch(bench: Workbench) -> None:
    (bench.work / "given.txt").write_text("given")

    told = await bench.script(
        "import os, pathlib\n"
        "print(pathlib.Path('given.txt').read_text())\n"
        "os.makedirs('a/b'); pathlib.Path('a/b/made.txt').write_text('made')\n"
        "os.rename('a/b/made.txt', 'a/moved.txt')\n"
        "os.symlink('given.txt', 'link'); os.mkfifo('pipe')\n"
        "pathlib.Path(os.environ['TMPDIR'], 'kept').write_text('kept')\n"
        "print(os.environ['HOME'] == os.environ['TMPDIR'])\n"
    )

    assert told["stdout"] == "given\nTrue\n", told["stderr"]
    assert (bench.work / "a/moved.txt").read_text() == "made"
    assert (bench.scratch / "kept").read_text() == "kept"


async def test_files_outside_of_the_scope_are_out_of_reach(bench: Workbench) -> None:
    if not bench.means.landlock:
        # Not claimed where the kernel cannot hold it.
        return
    outside = bench.user / "secret.txt"
    outside.write_text("secret")
    outside.chmod(0o644)
    (bench.work / "link").symlink_to(outside)
    (bench.hidden / "key").write_text("key")

    told = await bench.script(
        f"{TRY}\n"
        f"attempt('read', lambda: open({str(outside)!r}).read())\n"
        "attempt('link', lambda: open('link').read())\n"
        f"attempt('list', lambda: os.listdir({str(bench.user)!r}))\n"
        f"attempt('key', lambda: open({str(bench.hidden / 'key')!r}).read())\n"
        f"attempt('write', lambda: open({str(outside)!r}, 'w'))\n"
        f"attempt('make', lambda: open({str(bench.user / 'new')!r}, 'w'))\n"
        f"attempt('move', lambda: os.rename({str(outside)!r}, 'stolen'))\n"
        f"attempt('hard link', lambda: os.link({str(outside)!r}, 'stolen'))\n"
        f"attempt('remove', lambda: os.remove({str(outside)!r}))\n"
        f"attempt('up', lambda: open('../user/secret.txt').read())\n"
        "attempt('root', lambda: open('/etc/holdfast-was-here', 'w'))\n"
    )

    lines = told["stdout"].splitlines()
    assert [line for line in lines if not line.endswith(" refused")] == []
    assert len(lines) == 11, told["stderr"]
    assert outside.read_text() == "secret"
    assert sorted(os.listdir(bench.work)) == ["link"]


async def test_what_is_not_a_files_content_cannot_be_changed_outside_either(
    bench: Workbench,
) -> None:
    if not bench.means.mounts:
        # Landlock alone does not know of modes and times; the strength says so.
        return
    outside = bench.user / "mine.txt"
    outside.write_text("mine")
    before = outside.stat()

    told = await bench.script(
        f"{TRY}\n"
        f"attempt('mode', lambda: os.chmod({str(outside)!r}, 0o777))\n"
        f"attempt('time', lambda: os.utime({str(outside)!r}, (1, 1)))\n"
        f"attempt('cut', lambda: os.truncate({str(outside)!r}, 0))\n"
    )

    assert told["stdout"].splitlines() == ["mode refused", "time refused", "cut refused"]
    assert outside.stat() == before


async def test_other_processes_are_out_of_reach(bench: Workbench) -> None:
    if not bench.means.landlock:
        # Not claimed where the kernel cannot hold it.
        return
    told = await bench.script(
        f"{TRY}\n"
        f"attempt('environment', lambda: open('/proc/{os.getpid()}/environ').read())\n"
        f"attempt('memory', lambda: open('/proc/{os.getpid()}/mem', 'rb').read(1))\n"
        f"attempt('signal', lambda: os.kill({os.getpid()}, 0))\n"
        f"attempt('files', lambda: os.readlink('/proc/{os.getpid()}/fd/0'))\n"
    )

    assert {line.split()[1] for line in told["stdout"].splitlines()} == {"refused"}


async def test_there_is_no_network_unless_a_domain_is_granted(
    bench: Workbench, listener: int
) -> None:
    if not (bench.means.network or bench.means.seccomp):
        # Not claimed where the kernel cannot hold it.
        return
    source = (
        f"{TRY}\n"
        f"there = ('127.0.0.1', {listener})\n"
        "attempt('out', lambda: socket.create_connection(there, 2) and 'open')\n"
    )

    without = await bench.script(source)
    bench.allow((sys.executable, "-c", source), domains=("example.com",))
    granted = await bench.script(source)

    assert (without["stdout"], granted["stdout"]) == ("out refused\n", "out open\n")


async def test_sockets_of_other_kinds_lead_nowhere(bench: Workbench) -> None:
    if not bench.means.seccomp:
        # Not claimed on machines whose calls we do not know.
        return
    told = await bench.script(
        f"{TRY}\n"
        "attempt('vsock', lambda: socket.socket(40, socket.SOCK_STREAM))\n"
        "attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))\n"
        "attempt('unix', lambda: socket.socketpair() and 'pair')\n"
    )

    assert told["stdout"].splitlines() == ["vsock refused", "packet refused", "unix pair"]


async def test_sockets_of_other_programs_are_hidden(bench: Workbench) -> None:
    if not bench.means.mounts:
        # Landlock does not know of connecting; the strength says so.
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{folder}/door")
        door.listen()
        told = await bench.script(
            f"{TRY}\nmine = socket.socket(socket.AF_UNIX)\n"
            f"attempt('door', lambda: mine.connect('{folder}/door'))\n"
            "attempt('run', lambda: [n for n in os.listdir('/run') if n.endswith('.sock')])\n"
        )

    assert told["stdout"].splitlines()[0] == "door refused"


async def test_a_folder_of_our_own_stands_in_for_the_shared_one(bench: Workbench) -> None:
    if not bench.means.mounts:
        return

    told = await bench.script(
        "import os, pathlib\n"
        "pathlib.Path('/var/tmp/left-by-a-command').write_text('x')\n"
        "pathlib.Path('/dev/shm/left-by-a-command').write_text('x')\n"
        "print(os.listdir('/dev/shm'))\n"
    )

    assert told["stdout"] == "['left-by-a-command']\n", told["stderr"]
    assert "left-by-a-command" not in (*os.listdir("/var/tmp"), *os.listdir("/dev/shm"))


async def test_what_ordinary_programs_need_is_there(bench: Workbench) -> None:
    told = await bench.script(
        "import multiprocessing, os, pty, random, ssl, subprocess, tempfile, threading\n"
        "multiprocessing.Lock(); random.SystemRandom().random()\n"
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
        "print(subprocess.run(['sh', '-c', 'echo shell > /dev/null; echo shell'],"
        " capture_output=True, text=True).stdout.strip())\n"
        "tempfile.NamedTemporaryFile().close()\n"
        "print(os.path.exists('/proc/self/exe'), os.getuid() == os.stat('.').st_uid)\n"
    )

    assert told["stdout"].splitlines() == ["thread", "shell", "True True"], told["stderr"]


async def test_a_server_in_a_command_can_be_talked_to_by_it(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    if not (await bench.launcher.means()).network:
        return

    told = await bench.script(
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "client.sendall(b'hello'); print(server.accept()[0].recv(5))\n"
    )

    assert told["stdout"] == "b'hello'\n", told["stderr"]


async def test_a_session_with_full_reach_still_does_not_see_holdfasts_own(
    bench: Workbench,
) -> None:
    (bench.user / "mine.txt").write_text("mine")
    (bench.hidden / "key").write_text("key")
    source = (
        f"{TRY}\n"
        f"attempt('mine', lambda: open({str(bench.user / 'mine.txt')!r}).read())\n"
        f"attempt('write', lambda: open({str(bench.user / 'new.txt')!r}, 'w').write('new'))\n"
        f"attempt('key', lambda: open({str(bench.hidden / 'key')!r}).read())\n"
    )
    bench.allow((sys.executable, "-c", source), tier=FsTier.FULL)

    told = await bench.script(source)

    key = "key refused" if bench.means.mounts else "key key"
    assert told["stdout"].splitlines() == ["mine mine", "write 3", key], told["stderr"]


async def test_a_scratch_within_holdfasts_own_folder_stays_in_reach(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    bench.scratch.rmdir()
    bench.scratch = bench.hidden / "sessions" / "one"
    bench.scratch.mkdir(parents=True)
    (bench.hidden / "key").write_text("key")

    told = await bench.script(
        f"{TRY}\n"
        "pathlib.Path(os.environ['TMPDIR'], 'kept').write_text('kept')\n"
        f"attempt('key', lambda: open({str(bench.hidden / 'key')!r}).read())\n"
        f"attempt('beside', lambda: open({str(bench.hidden / 'new')!r}, 'w') and '')\n"
    )

    assert told["stdout"].startswith("key refused\n"), told["stderr"]
    assert (bench.scratch / "kept").read_text() == "kept"
    assert sorted(os.listdir(bench.hidden)) == ["key", "sessions"]


async def test_a_project_reaches_the_whole_repository_and_the_extra_roots(
    tmp_path: Path,
) -> None:
    bench = Workbench(tmp_path)
    (bench.work / ".git").mkdir()
    (bench.work / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (bench.work / "top.txt").write_text("top")
    (bench.user / "extra.txt").write_text("extra")
    bench.extra_roots = (str(bench.user),)
    bench.work = bench.work / "inner"
    bench.work.mkdir()
    source = (
        f"{TRY}\nattempt('top', lambda: open('../top.txt').read())\n"
        f"attempt('extra', lambda: open({str(bench.user / 'extra.txt')!r}).read())\n"
    )
    bench.allow((sys.executable, "-c", source), tier=FsTier.SANDBOXED)
    narrow = await bench.script(source)
    bench.allow((sys.executable, "-c", source), tier=FsTier.PROJECT)
    wide = await bench.script(source)

    assert narrow["stdout"].splitlines() == ["top refused", "extra refused"]
    assert wide["stdout"].splitlines() == ["top top", "extra extra"], wide["stderr"]


async def test_processes_are_not_without_number(tmp_path: Path) -> None:
    launcher = Launcher()
    if not (await launcher.means()).counts:
        return
    source = (
        "import threading\n"
        "stop = threading.Event()\n"
        "try:\n"
        "    for number in range(2000): threading.Thread(target=stop.wait).start()\n"
        "except RuntimeError: print('enough', number < 1000)\n"
        "stop.set()\n"
    )
    confinement = Confinement(
        readable=(sys.prefix, sys.base_prefix),
        writable=(str(tmp_path),),
        bounds=Bounds(processes=400),
    )

    finished = await launcher.run(python(source, tmp_path, confinement=confinement), time_limit=30)

    assert finished.stdout == "enough True\n", finished.stderr


def test_the_strength_claims_what_the_means_give_and_nothing_else() -> None:
    assert describe_strength(ALL).weaker == ()
    assert len(describe_strength(ALL).active) == 10
    nothing = describe_strength(Means())
    assert nothing.active == ()
    assert len(nothing.weaker) == 10
    some = describe_strength(Means(landlock=3, seccomp=True))
    assert [line for line in some.active if "Landlock 3" in line] != []
    assert [line for line in some.weaker if "namespaces" in line] != []


async def test_what_this_system_can_do_is_found_out_once() -> None:
    launcher = Launcher()

    first, second = await launcher.means(), await launcher.means()

    assert first is second
    assert await launcher.strength() == describe_strength(first)


@each_case(
    ("stage", "left"),
    [
        ("mounts", {"mounts": False}),
        ("network", {"network": False}),
        ("landlock", {"landlock": 0}),
        ("seccomp", {"seccomp": False}),
        ("namespaces", {"namespaces": Namespaces.USER}),
        ("proc", {"namespaces": Namespaces.USER}),
    ],
)
def test_a_refused_means_is_done_without(stage: str, left: dict[str, object]) -> None:
    less = _without(ALL, ChildNotStarted(stage, 1))

    assert {name: getattr(less, name) for name in left} == left


def test_a_user_without_namespaces_has_none() -> None:
    user = Means(namespaces=Namespaces.USER, mounts=True, network=True, landlock=1, seccomp=True)

    assert _without(user, ChildNotStarted("namespaces", 1)) == Means(landlock=1, seccomp=True)
    with pytest.raises(ChildNotStarted):
        _without(user, ChildNotStarted("supervisor"))


def test_an_order_asks_for_no_more_than_the_means_give() -> None:
    nothing = sandbox_order(Confinement(), Means())

    assert (nothing["unshare"], nothing["mounts"], nothing["rules"], nothing["filter"]) == (
        *(0, None, None),
        None,
    )


def test_shared_folders_are_not_covered_where_one_is_the_workspace() -> None:
    covers = [
        path
        for path, options, _ in sandbox_order(Confinement(writable=("/tmp",)), ALL)["mounts"][
            "steps"
        ]
        if options
    ]

    assert covers == ["/dev/shm", "/run", "/var/tmp"]


def test_what_lies_below_a_cover_is_put_back_in_the_order_of_paths() -> None:
    confinement = Confinement(
        readable=("/var/tmp/tools",),
        writable=("/var/tmp/work", "/home/work"),
        hidden=("/var/tmp/work/own",),
    )

    mounts = sandbox_order(confinement, ALL)["mounts"]

    assert mounts["writable"] == ["/home/work"]
    steps = [(path, bool(options), own) for path, options, own in mounts["steps"] if "/var" in path]
    assert steps == [
        ("/var/tmp", True, True),
        ("/var/tmp/tools", False, False),
        ("/var/tmp/work", False, True),
        ("/var/tmp/work/own", True, False),
    ]


@each_case(("version", "bits", "words"), [(1, 13, 1), (3, 15, 1), (5, 16, 1), (6, 16, 3)])
def test_rules_speak_of_what_a_version_knows(version: int, bits: int, words: int) -> None:
    attributes, rules = process_landlock.ruleset(
        version, [("/", process_landlock.EVERYTHING)], keeps_outside=False
    )

    assert len(attributes) == 8 * words
    assert int.from_bytes(attributes[:8], sys.byteorder) == (1 << bits) - 1
    assert rules == [("/", (1 << bits) - 1)]


def test_a_filter_is_made_of_whole_instructions() -> None:
    if not process_seccomp.is_known():
        return

    closed, open_ = (
        process_seccomp.filter_program(allows_ip_sockets=each) for each in (False, True)
    )

    assert (len(closed) % 8, len(open_) - len(closed)) == (0, 32)


def test_threads_can_ask_for_means_at_the_same_time() -> None:
    import asyncio

    found = []
    threads = [
        threading.Thread(target=lambda: found.append(asyncio.run(Launcher().means())))
        for _ in range(2)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert found[0] == found[1]
