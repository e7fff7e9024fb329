"""What a refusal of the server means: the table of statuses, read the other way round."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.errors import (
    Code,
    Denied,
    HoldfastError,
    Invalid,
    Unavailable,
)
from holdfast.http.errors import STATUSES

_CLASSES: Final[Mapping[int, type[HoldfastError]]] = {
    **{status: kind for kind, status in STATUSES.items()},
    401: Denied,
}
_WAIT_LONGEST: Final = 86_400


class ErrorForm(Struct, frozen=True):
    """The body that every refusal has."""

    error: str
    message: str
    details: dict[str, Any] = {}


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> HoldfastError:
    """Return the error that an answer tells, with the code, message and details of the server.

    How long to wait, where the server says it, stands in the details as `retry_after`.
    """
    try:
        form = msgspec.json.decode(body, type=ErrorForm)
    except (msgspec.DecodeError, RecursionError):
        # A proxy on the way, or no server of ours at all.
        told = f"The server answered {status} without saying why; is it a Holdfast server?"
        form = ErrorForm(Code.UNKNOWN_ANSWER, told)
    details = {**form.details, **_wait(headers)}
    try:
        code = Code(form.error)
    except ValueError:
        # Newer than we are: the class still says what the caller can do.
        code = Code.UNKNOWN_ANSWER
        details["error"] = form.error
    return _class_of(status)(code, form.message, details)


def not_understood(origin: str, what: str) -> Unavailable:
    """Return the error for an answer that is not what was promised."""
    return Unavailable(
        Code.UNKNOWN_ANSWER,
        f"The answer of {origin} is not what a Holdfast server says: {what}; check the address "
        "and the server's version.",
        {"server": origin},
    )


def _class_of(status: int) -> type[HoldfastError]:
    return _CLASSES.get(status) or (Unavailable if status >= 500 else Invalid)


def _wait(headers: Mapping[str, str]) -> dict[str, int]:
    told = headers.get("retry-after", "")
    if not (told.isascii() and told.isdigit()):
        return {}
    return {"retry_after": min(int(told[:6]), _WAIT_LONGEST)}
