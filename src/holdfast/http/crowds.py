"""How many may be connected at once: each costs a file of the process, and the store needs some."""

import resource
from functools import cache
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from holdfast.domain.errors import Code, HoldfastError, Invalid, Unavailable
from holdfast.http.answers import encoded
from holdfast.http.errors import error_answer
from holdfast.http.guard import HEADERS

MOST: Final = 4096
# For the store, programs and whoever else needs files.
FILES_KEPT: Final = 256
LEAST: Final = 64
RETRY_SECONDS: Final = 5


@cache
def connections_most() -> int:
    """Return how many connections one process takes; fewer where it may open few files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else min(MOST, max(LEAST, soft - FILES_KEPT))


def plain_answer(error: HoldfastError) -> bytes:
    """Return the bytes of an answer to what was never read as a request; it is the last one."""
    answer = error_answer(error)
    body = encoded(answer.content)
    headers = {
        **HEADERS,
        **answer.headers,
        "content-type": answer.media_type,
        "content-length": str(len(body)),
        "connection": "close",
    }
    lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
    return b"".join([STATUS_LINE[answer.status], *lines, b"\r\n", body])


UNCLEAR: Final = plain_answer(
    Invalid(
        Code.INVALID_REQUEST,
        "This is no HTTP/1.1 request that Holdfast takes: it is malformed, too large, too slow, "
        "or could be read in two ways.",
    )
)
CROWDED: Final = plain_answer(
    Unavailable(
        Code.SYSTEM_LIMIT,
        "Too many connections are open; close some, or come back in a while.",
        {"retry_after": RETRY_SECONDS},
    )
)
