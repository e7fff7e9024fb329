"""Lines of a conversation: cut from bytes however they come, and bounded while they come."""


class Overlong:
    """A line that was longer than it may be; nothing of it is kept."""


class Lines:
    """Makes lines of bytes; one above the limit is dropped to its end while reading goes on."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun = bytearray()
        self._is_overlong = False

    def feed(self, chunk: bytes) -> list[bytes | Overlong]:
        """Take what came next, and return the lines that it completes; blank ones are left out."""
        *ended, begun = chunk.split(b"\n")
        lines: list[bytes | Overlong] = []
        for piece in ended:
            self._add(piece)
            lines += self.rest()
        self._add(begun)
        return lines

    def rest(self) -> list[bytes | Overlong]:
        """Return the line that was begun, as if it ended here."""
        begun, self._begun = bytes(self._begun), bytearray()
        was_overlong, self._is_overlong = self._is_overlong, False
        if was_overlong:
            return [Overlong()]
        return [begun] if begun.strip() else []

    def _add(self, piece: bytes) -> None:
        if self._is_overlong or len(self._begun) + len(piece) > self._limit:
            self._is_overlong = True
            self._begun.clear()
        else:
            self._begun += piece
