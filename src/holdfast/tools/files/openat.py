"""openat2 and its fallback: open beneath a directory descriptor, and find its real path."""

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

# Without links of any kind, so that the checked names are the walked names.
_RESOLVE: Final = 0x08 | 0x04 | 0x02  # beneath, no symbolic links, no magic links
_OPENAT2: Final = 437
# O_PATH needs no read permission on a directory; not available on every system.
PATH_ONLY: Final[int] = getattr(os, "O_PATH", os.O_RDONLY)
NO_FOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
FOLDER: Final[int] = getattr(os, "O_DIRECTORY", 0) | NO_FOLLOW

# Kernel pseudo file systems, which expose our own environment and memory, among others.
_KERNEL_FILESYSTEMS: Final = frozenset(
    {
        0x9FA0,  # proc
        0x62656572,  # sysfs
        0x64626720,  # debugfs
        0x74726163,  # tracefs
        0x73636673,  # securityfs
        0x62656570,  # configfs
        0x0027E0EB,  # cgroup
        0x63677270,  # cgroup2
        0xCAFE4A11,  # bpf
        0xDE5E81E4,  # efivarfs
        0x6165676C,  # pstore
        0xF97CFF8C,  # selinuxfs
    }
)


class KernelSupport(NamedTuple):
    """Features of this system; probed once, when the tools are built."""

    # Opens a directory below another one; raises `OSError` at a link or a missing name.
    open_folder: "FolderOpener"
    speaks: Callable[[int], bool]
    # Missing protections, as display text.
    weaknesses: tuple[str, ...]


FolderOpener = Callable[[int, Sequence[str], int], int]
Identity = tuple[int, int]


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def probe_kernel() -> KernelSupport:
    """Probe the features of this system."""
    weaknesses = []
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    beneath = _beneath(libc) if libc is not None else None
    if beneath is None:
        weaknesses.append("Paths are resolved one component at a time: the kernel has no openat2.")
    with _open_root() as root:
        if real_path(root) is None:
            weaknesses.append(
                "Real paths cannot be read: protected files are recognized by name only."
            )
    return KernelSupport(
        open_folder=beneath or walk_beneath,
        speaks=_kernel_file_test(libc) if libc is not None else lambda _: False,
        weaknesses=tuple(weaknesses),
    )


def walk_beneath(root: int, names: Sequence[str], flags: int) -> int:
    """Open a directory name by name without following links."""
    here = os.open(".", flags | FOLDER, dir_fd=root)
    for name in names:
        try:
            below = os.open(name, flags | FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


def identity(descriptor: int) -> Identity:
    """Return device and inode number, which are independent of the path."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def identities_above(folder: int, top: int) -> Iterator[Identity]:
    """Yield the identities of an open directory and its parents, up to but excluding the top."""
    end, here = identity(top), os.dup(folder)
    try:
        while (found := identity(here)) != end:
            yield found
            above = os.open("..", PATH_ONLY | FOLDER, dir_fd=here)
            os.close(here)
            here = above
            # The parent of the file system root is the root itself.
            if identity(here) == found:
                return
    finally:
        os.close(here)


def real_path(descriptor: int) -> str | None:
    """Return the current path of a descriptor; `None` if the system does not report it."""
    if sys.platform == "darwin":
        import fcntl

        found = fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024))
        return os.fsdecode(found.rstrip(b"\0"))
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


@contextmanager
def _open_root() -> Iterator[int]:
    root = os.open("/", PATH_ONLY | FOLDER)
    try:
        yield root
    finally:
        os.close(root)


def _beneath(libc: ctypes.CDLL) -> FolderOpener | None:
    """Return an opener that uses openat2; `None` if it does not work here."""
    call = libc.syscall
    call.restype = ctypes.c_long
    call.argtypes = (
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.POINTER(_OpenHow),
        ctypes.c_size_t,
    )

    def open_folder(root: int, names: Sequence[str], flags: int) -> int:
        path = os.fsencode("/".join(names) or ".")
        how = _OpenHow(flags=flags | FOLDER, mode=0, resolve=_RESOLVE)
        while True:
            opened = int(call(_OPENAT2, root, path, ctypes.byref(how), ctypes.sizeof(how)))
            if opened >= 0:
                return opened
            problem = ctypes.get_errno()
            if problem != errno.EINTR:
                raise OSError(problem, os.strerror(problem))

    with _open_root() as root:
        try:
            os.close(open_folder(root, (), PATH_ONLY))
        # An old kernel, or a seccomp filter that blocks the call.
        except OSError:
            return None
    return open_folder


def _kernel_file_test(libc: ctypes.CDLL) -> Callable[[int], bool]:
    """Return a function that checks whether a descriptor is on a kernel file system."""

    def speaks(descriptor: int) -> bool:
        # Larger than struct statfs on any machine; its first word is the type.
        found = (ctypes.c_ulong * 64)()
        if libc.fstatfs(descriptor, found) != 0:
            return True
        return int(found[0]) & 0xFFFFFFFF in _KERNEL_FILESYSTEMS

    return speaks
