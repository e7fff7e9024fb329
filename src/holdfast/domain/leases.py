"""Leases: who may write a session's turn, until when, and under which epoch.

The epoch grows with every change of hands and is a condition of every write of a turn, so a
holder that slept through its own end can do no harm. Instants are milliseconds of the machine's
boot clock, which no one can set.
"""

from typing import Final

from msgspec import Struct

from holdfast.domain.ids import SessionKey

# Four renewals long: three may come late before anybody takes over.
DURATION_MS: Final = 4_000
RENEWAL_MS: Final = 1_000


class Holder(Struct, frozen=True, kw_only=True):
    """A process, so described that its death can be proven on the same boot.

    `space` tells containers apart, in which the same number is another process.
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


def holder_of(text: str) -> Holder:
    """Read a holder as it was stored."""
    boot, space, pid, started, nonce = text.split("/")
    return Holder(boot=boot, space=space, pid=int(pid), started=int(started), nonce=nonce)
