"""What a program passes to a verb, judged at the door: Python itself checks no types."""

from typing import Any, Final, get_args

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.messages import Part
from holdfast.domain.openings import SessionRequest
from holdfast.domain.sessions import OnBusy

_PARTS: Final = get_args(Part)


def require_name(value: Any, *, what: str) -> None:
    """Refuse what is no text where something is named."""
    if not isinstance(value, str):
        raise _refusal(what, f"{what} is named by a text", value)


def require_request(value: Any) -> None:
    """Refuse wishes in another form than theirs."""
    if value is not None and not isinstance(value, SessionRequest):
        raise _refusal("request", "request must be a SessionRequest", value)


def content_of(value: Any) -> str | tuple[Part, ...]:
    """Return a text, or a tuple of parts; anything else is refused."""
    if isinstance(value, str):
        # A plain one: what is more than a text, such as a choice, cannot be written down.
        return str.__str__(value)
    if isinstance(value, tuple) and all(isinstance(each, _PARTS) for each in value):
        return value
    raise _refusal("content", "content must be a str, or a tuple of parts", value)


def on_busy_of(value: Any) -> OnBusy:
    """Return what a message does that comes while a turn runs; its word is enough."""
    try:
        return OnBusy(value)
    except ValueError:
        choices = ", ".join(OnBusy)
        raise Invalid(
            Code.INVALID_INPUT, f"on_busy must be one of {choices}.", {"field": "on_busy"}
        ) from None


def require_number(value: Any, *, what: str) -> None:
    """Refuse what is no whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refusal(what, f"{what} must be an int", value)


def _refusal(field: str, told: str, value: Any) -> Invalid:
    return Invalid(Code.INVALID_INPUT, f"{told}, not {type(value).__name__}.", {"field": field})
