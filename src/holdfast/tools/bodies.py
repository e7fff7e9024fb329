"""Bodies of answers, read to the end within what anybody may send us."""

import zlib
from collections.abc import AsyncIterator
from typing import Final

from holdfast.domain.tools import ResultCode
from holdfast.tools.tool import ToolTrouble, Unanswered

BODY_LARGEST: Final = 4 << 20
_SWELLS_AT_MOST: Final = 100
_PIECES_AT_MOST: Final = 64
# For zlib: find out by yourself whether it is gzip or deflate.
_EITHER: Final = 32 + zlib.MAX_WBITS


async def whole_body(
    chunks: AsyncIterator[bytes], *, encoding: str = "", largest: int = BODY_LARGEST
) -> bytes:
    """Return the body, inflated if need be; too much of it is refused as soon as it is seen."""
    match encoding.strip().lower():
        case "" | "identity":
            return await _plain(chunks, largest)
        case "gzip" | "x-gzip" | "deflate":
            return await _inflated(chunks, largest)
        case _:
            raise Unanswered(
                ResultCode.FAILED, "The answer is compressed in a way that was not asked for."
            )


async def _plain(chunks: AsyncIterator[bytes], largest: int) -> bytes:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > largest:
            raise _too_large(f"The answer is larger than {largest} bytes.")
    return bytes(body)


async def _inflated(chunks: AsyncIterator[bytes], largest: int) -> bytes:
    body, taken, pieces, inflating = bytearray(), 0, 1, zlib.decompressobj(_EITHER)
    async for chunk in chunks:
        taken += len(chunk)
        # Much may be packed that unpacks to nothing.
        if taken > largest:
            raise _too_large(f"The answer is larger than {largest} bytes.")
        rest = chunk
        while rest:
            if inflating.eof:
                # One content may be packed in pieces; each costs us, even an empty one.
                pieces, inflating = pieces + 1, zlib.decompressobj(_EITHER)
            body += _some(inflating, rest, largest + 1 - len(body))
            if len(body) > largest:
                raise _too_large(f"The answer swells to more than {largest} bytes.")
            if pieces > _PIECES_AT_MOST:
                raise _too_large("The answer is packed in too many pieces.")
            if len(body) > taken * _SWELLS_AT_MOST:
                raise _too_large("The answer swells to more than a hundred times its size.")
            rest = inflating.unconsumed_tail or inflating.unused_data
    if taken and not inflating.eof:
        raise _unreadable()
    return bytes(body)


def _some(inflating: "zlib._Decompress", chunk: bytes, most: int) -> bytes:
    try:
        return inflating.decompress(chunk, most)
    except zlib.error:
        raise _unreadable() from None


def _too_large(why: str) -> ToolTrouble:
    return ToolTrouble(ResultCode.TOO_LARGE, why)


def _unreadable() -> ToolTrouble:
    return Unanswered(ResultCode.FAILED, "The compressed answer cannot be read.")
