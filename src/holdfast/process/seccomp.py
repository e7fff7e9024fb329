"""Seccomp filter for commands: blocks network socket families and unneeded system calls.

It is a denylist and only the third layer of defence: Landlock restricts files, a namespace
restricts the network. Without a network namespace, this filter alone blocks network access.
"""

import errno
import platform
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_LOAD, _IS, _IS_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_UNIX, _INTERNET, _INTERNET_6, _KERNEL = 1, 2, 10, 16


class _Numbers(NamedTuple):
    """System call numbers of one machine architecture."""

    architecture: int
    socket: int
    # Kernel keyrings, perf events, bpf, userfaultfd, and io_uring, which bypasses this filter.
    closed: tuple[int, ...]
    # First number of a second ABI of the same kernel (x32).
    foreign: int | None = None


_MACHINES: Final[Mapping[str, _Numbers]] = {
    "x86_64": _Numbers(0xC000003E, 41, (248, 249, 250, 298, 321, 323, 425), 0x40000000),
    "aarch64": _Numbers(0xC00000B7, 198, (217, 218, 219, 241, 280, 282, 425)),
}


def is_known() -> bool:
    """Return whether system calls can be filtered on this machine."""
    return sys.platform == "linux" and platform.machine() in _MACHINES


def filter_program(*, allows_ip_sockets: bool) -> bytes:
    """Return the BPF program for this machine; `allows_ip_sockets` allows IPv4 and IPv6 sockets."""
    numbers = _MACHINES[platform.machine()]
    families = (_UNIX, _KERNEL, *((_INTERNET, _INTERNET_6) if allows_ip_sockets else ()))
    return b"".join(_instructions(numbers, families))


def _instructions(numbers: _Numbers, families: tuple[int, ...]) -> Iterator[bytes]:
    yield _instruction(_LOAD, _ARCHITECTURE)
    yield _instruction(_IS, numbers.architecture, skip_if_true=1)
    yield _fail(errno.ENOSYS)
    yield _instruction(_LOAD, _NUMBER)
    if numbers.foreign is not None:
        yield _instruction(_IS_AT_LEAST, numbers.foreign, skip_if_false=1)
        yield _fail(errno.ENOSYS)
    for number in numbers.closed:
        yield _instruction(_IS, number, skip_if_false=1)
        yield _fail(errno.EPERM)
    yield _instruction(_IS, numbers.socket, skip_if_true=1)
    yield _instruction(_RETURN, _ALLOW)
    yield _instruction(_LOAD, _FIRST_ARGUMENT)
    for family in families:
        yield _instruction(_IS, family, skip_if_false=1)
        yield _instruction(_RETURN, _ALLOW)
    yield _fail(errno.EAFNOSUPPORT)


def _instruction(
    code: int, operand: int, *, skip_if_true: int = 0, skip_if_false: int = 0
) -> bytes:
    return struct.pack("=HBBI", code, skip_if_true, skip_if_false, operand)


def _fail(problem: int) -> bytes:
    return _instruction(_RETURN, _FAIL | problem)
