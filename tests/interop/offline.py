"""Takes the network away, and proves that it is gone: loopback is all that is left."""

import ctypes
import fcntl
import os
import socket
import struct
from contextlib import suppress
from typing import Final

_NEW_NETWORK: Final = 0x40000000
_NEW_USER: Final = 0x10000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
# Nobody's address, kept for documentation: a packet to it would have to leave the machine.
_OUTSIDE: Final = ("192.0.2.1", 9)
# A port that nobody listens on, for programs that would ask a proxy.
_CLOSED: Final = "http://127.0.0.1:9"


def leave_the_network() -> dict[str, str]:
    """Go into a network of our own, and return the variables that programs need besides.

    Where the rights for it do not exist, the variables point every request at a closed port.
    """
    if _unshared():
        _raise_loopback()
        if _is_cut_off():
            return {}
    here = "127.0.0.1,localhost"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    proxies = {name: _CLOSED for each in names for name in (each, each.lower())}
    return proxies | {"NO_PROXY": here, "no_proxy": here}


def _unshared() -> bool:
    """Leave the network; as a person with a namespace of their own, as root at once."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_NETWORK) == 0:
        return True
    if libc.unshare(_NEW_USER | _NEW_NETWORK) != 0:
        return False
    with suppress(OSError):
        for path, text in (
            ("/proc/self/setgroups", "deny"),
            ("/proc/self/uid_map", f"{user} {user} 1"),
            ("/proc/self/gid_map", f"{group} {group} 1"),
        ):
            with open(path, "w") as file:
                file.write(text)
    return True


def _raise_loopback() -> None:
    """Switch loopback on: in a new network it is off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        asked = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(probe, _GET_FLAGS, asked)[:18])[1]
        fcntl.ioctl(probe, _SET_FLAGS, struct.pack("16sh", b"lo", flags | _UP))


def _is_cut_off() -> bool:
    """Tell whether loopback works and nothing else does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # No packet is sent: the system only looks for a way there.
            probe.connect(_OUTSIDE)
            return False
        except OSError:
            pass
    with socket.socket() as listening:
        try:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            socket.create_connection(listening.getsockname(), timeout=2).close()
        except OSError:
            return False
    return True
