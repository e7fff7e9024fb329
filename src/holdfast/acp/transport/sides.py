"""What a connection needs: streams to read and to write, and how much it may be asked."""

from typing import Final, Protocol

from msgspec import Struct

from holdfast.acp.transport.framing import LINE_LIMIT


class Bounds(Struct, frozen=True, kw_only=True):
    """How much one side may ask of the other.

    `noise_*` is how much that is no message may come before the first message does; then the
    other side is taken for a program of another kind. `None` takes any amount.
    """

    line: int = LINE_LIMIT
    queued: int = 1024
    queued_bytes: int = 16 << 20
    open_requests: int = 64
    write_seconds: float = 30.0
    noise_lines: int | None = None
    noise_bytes: int | None = None


DEFAULT_BOUNDS: Final = Bounds()


class Reader(Protocol):
    """Where bytes come from; an `asyncio.StreamReader` is one."""

    async def read(self, count: int = -1, /) -> bytes:
        """Return what is there, at most so much; nothing at the end."""


class Writer(Protocol):
    """Where bytes go to; an `asyncio.StreamWriter` is one."""

    def write(self, content: bytes, /) -> None:
        """Take a whole line."""

    async def drain(self) -> None:
        """Wait until there is room again."""

    def close(self) -> None:
        """Take no more."""

    async def wait_closed(self) -> None:
        """Wait until nothing is held any more."""
