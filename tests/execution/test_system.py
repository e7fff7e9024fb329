"""This machine: its clocks, its randomness, and proof that another process is dead."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.domain.leases import Holder, parse_holder
from holdfast.execution import system as execution_system
from holdfast.execution.system import (
    SharedMachine,
    SystemClock,
    SystemMachine,
    SystemRandomness,
    boot_id,
    process_space,
    start_of,
)
from tests.marks import each_case

NAP = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]


@contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that lives until its input ends."""
    with subprocess.Popen(NAP, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def _holder(pid: int) -> Holder:
    return replace(SystemMachine().holder(), pid=pid, started=start_of(pid) or 0, nonce="other")


def test_the_clocks_tell_the_time_and_never_go_back() -> None:
    clock = SystemClock()

    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)
    assert clock.now().tzinfo is UTC
    first = clock.lease_clock_ms()
    assert first <= clock.lease_clock_ms()
    assert abs(first - time.clock_gettime(time.CLOCK_BOOTTIME) * 1000) < 5_000


@each_case("count", [1, 12, 74])
def test_randomness_has_as_many_bits_as_asked_for(count: int) -> None:
    drawn = {SystemRandomness().bits(count) for _ in range(200)}

    assert min(drawn) >= 0
    assert max(drawn) < 1 << count
    assert len(drawn) > 1


@each_case("count", [74, 128, 256])
def test_no_thread_draws_what_another_one_drew(count: int) -> None:
    randomness = SystemRandomness()
    with ThreadPoolExecutor(8) as threads:
        drawn = list(threads.map(lambda _: randomness.bits(count), range(4_000)))

    assert len(set(drawn)) == len(drawn)


def test_a_forked_process_does_not_repeat_what_its_parent_draws() -> None:
    randomness = SystemRandomness()
    randomness.bits(74)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(randomness.bits(74)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = int(os.read(reading, 64))
    os.close(reading)
    os.close(writing)

    assert theirs not in {randomness.bits(74) for _ in range(1_000)}


def test_a_holder_is_this_process_and_no_other_of_its_kind() -> None:
    one, other = SystemMachine().holder(), SystemMachine().holder()

    assert (one.boot, one.space, one.pid) == (boot_id(), process_space(), os.getpid())
    assert one.started == start_of(os.getpid())
    assert one.nonce != other.nonce
    assert parse_holder(str(one)) == one


def test_a_living_process_is_not_gone() -> None:
    with _process() as process:
        assert not SystemMachine().is_gone(_holder(process.pid))
    assert not SystemMachine().is_gone(SystemMachine().holder())


def test_a_dead_process_is_gone_even_before_its_parent_noticed() -> None:
    with _process() as process:
        holder = _holder(process.pid)
        process.kill()
        assert process.stdout is not None
        # Its output ends when it has died; nobody has waited for it yet.
        assert process.stdout.read() == b""
        deadline = time.monotonic() + 10
        while not SystemMachine().is_gone(holder):
            assert time.monotonic() < deadline
        assert Path(f"/proc/{holder.pid}").exists()
    assert SystemMachine().is_gone(holder)


def test_a_number_that_somebody_else_has_now_is_gone() -> None:
    with _process() as process:
        earlier = replace(_holder(process.pid), started=1)

        assert SystemMachine().is_gone(earlier)


def test_another_boot_is_proof_and_another_container_is_none() -> None:
    dead = replace(SystemMachine().holder(), pid=2**22 - 1)
    machine = SystemMachine()

    assert machine.is_gone(dead)
    assert machine.is_gone(replace(dead, boot="another"))
    assert not machine.is_gone(replace(dead, space="another"))
    assert not machine.is_gone(replace(dead, started=0))


def test_where_machines_share_a_store_another_boot_is_another_machine() -> None:
    dead = replace(SystemMachine().holder(), pid=2**22 - 1)
    machine = SharedMachine(SystemMachine())

    assert machine.holder().pid == os.getpid()
    assert machine.is_gone(dead)
    assert not machine.is_gone(replace(dead, boot="another"))
    assert not machine.is_gone(machine.holder())


def test_a_strange_name_does_not_hide_when_a_process_started(tmp_path: Path) -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to(sleep)
    with subprocess.Popen([str(odd), "30"]) as process:
        try:
            ours, theirs = start_of(os.getpid()), start_of(process.pid)
            assert ours is not None
            assert theirs is not None
            assert ours < theirs < ours + 100 * 86_400
        finally:
            process.kill()


@pytest.fixture
def silent_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be on a system that tells nothing about its processes."""
    known = (execution_system.boot_id, execution_system.process_space)
    monkeypatch.setattr(execution_system, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    for function in known:
        function.cache_clear()
    yield
    for function in known:
        function.cache_clear()


@pytest.mark.usefixtures("silent_kernel")
def test_where_the_kernel_says_nothing_nothing_is_proven() -> None:
    one, other = SystemMachine(), SystemMachine()

    assert one.holder().boot == other.holder().boot
    assert one.holder().boot.startswith("booted-")
    assert (one.holder().space, one.holder().started) == ("0", 0)
    assert not one.is_gone(replace(other.holder(), pid=2**22 - 1))
