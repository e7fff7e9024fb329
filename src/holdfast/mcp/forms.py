"""Forms that every tool shares: the house's error, and how values and instants are spelled."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.domain.errors import HoldfastError

SessionIdForm = Annotated[str, Meta(description="The session's id.")]


class ErrorForm(Struct, frozen=True):
    """What went wrong, in a word for programs and a sentence for whoever reads it."""

    error: Annotated[str, Meta(description="A code of a closed list.")]
    message: Annotated[str, Meta(description="What happened, and what to do about it.")]
    details: Annotated[
        dict[str, Any],
        Meta(description="For a rejected value: field, value, expected, message and issues."),
    ]


def error_form(error: HoldfastError) -> ErrorForm:
    """Return an error as it is told; telling one must not raise another."""
    details = {str(name): _plain(value) for name, value in error.details.items()}
    return ErrorForm(error=str(error.code), message=_words(error.message), details=details)


def instant(at: datetime) -> str:
    """Return an instant of the record: UTC, always with six digits."""
    return f"{at.astimezone(UTC).isoformat(timespec='microseconds')[:-6]}Z"


def instant_or_none(at: datetime | None) -> str | None:
    """Return an instant of the record, if there is one."""
    return None if at is None else instant(at)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_words(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return _words(value)


def _words(value: object) -> str:
    # What cannot be encoded is shown as far as it can.
    return str(value).encode("utf-8", "replace").decode()
