"""Leases: which process may write a session's turn, until when, and under which epoch.

The epoch grows with every change of holder and is checked by every write of a turn (fencing), so a
holder that was suspended past its expiry cannot write. Times are milliseconds of the machine's boot
clock, because it cannot be set.
"""

from typing import Final

from msgspec import Struct

from holdfast.domain.ids import SessionKey

# Four renewal periods, so that three renewals may be late before another process takes over.
DURATION_MS: Final = 4_000
RENEWAL_MS: Final = 1_000
# Later than every time.
EVER: Final = 1 << 62


class Holder(Struct, frozen=True, kw_only=True):
    """A process, identified so that its death can be proven within the same boot.

    `space` is the pid namespace, because the same pid is another process in another container.
    """

    boot: str
    space: str
    pid: int
    started: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.boot}/{self.space}/{self.pid}/{self.started}/{self.nonce}"


class Lease(Struct, frozen=True, kw_only=True):
    """The right to run one session's turns."""

    key: SessionKey
    holder: str
    epoch: int


def parse_holder(text: str) -> Holder:
    """Parse a stored holder."""
    boot, space, pid, started, nonce = text.split("/")
    return Holder(boot=boot, space=space, pid=int(pid), started=int(started), nonce=nonce)
