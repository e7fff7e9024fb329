"""A server-sent event stream taken apart: strictly, and never more at a time than is bounded."""

from typing import Final

from msgspec import Struct

FRAME_LARGEST: Final = 16 << 20
_NUMBER_LONGEST: Final = 18
_END: Final = b"\n\n"


class NotAStreamError(Exception):
    """The other side does not send what it promised."""


class Frame(Struct, frozen=True, kw_only=True):
    """What stands between two blank lines; one that is only a sign of life has no name."""

    event: str = ""
    data: bytes = b""
    id: int | None = None
    retry: int | None = None


class Frames:
    """Bytes in, frames out; what has not ended yet waits for the rest of it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that are whole by now."""
        found: list[Frame] = []
        # From where it could end, so that a large frame is not searched anew with each piece.
        start = max(0, len(self._rest) - 1)
        self._rest += chunk
        begin = 0
        while (end := self._rest.find(_END, max(start, begin))) >= 0:
            found.append(_frame(bytes(self._rest[begin:end])))
            begin = end + len(_END)
        del self._rest[:begin]
        if len(self._rest) > FRAME_LARGEST:
            raise NotAStreamError("a frame does not end")
        return found


def _frame(block: bytes) -> Frame:
    fields: dict[str, bytes] = {}
    for line in block.split(b"\n"):
        name, colon, value = line.partition(b":")
        if not name and colon:
            continue
        key = name.decode("ascii", "replace")
        if key in fields:
            raise NotAStreamError("a frame says something twice")
        fields[key] = value.removeprefix(b" ")
    return Frame(
        event=fields.get("event", b"").decode("utf-8", "replace"),
        data=fields.get("data", b""),
        id=_number(fields.get("id")),
        retry=_number(fields.get("retry")),
    )


def _number(value: bytes | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or len(value) > _NUMBER_LONGEST:
        raise NotAStreamError("a number is none")
    return int(value)
