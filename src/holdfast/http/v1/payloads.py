"""Bodies with rules of their own: read whole, and refused in the words of observations."""

import re
from collections.abc import Callable
from typing import Any, Final

from holdfast.http.strictness import has_more_values
from holdfast.http.table import Asked
from holdfast.http.v1.refusals import invalid_body, invalid_query
from holdfast.http.v1.repeats import KEY
from holdfast.observations.claims import BYTES_MOST
from holdfast.observations.issues import Issue, rejection
from holdfast.observations.model import ANYTHING, FieldShape, Shape
from holdfast.observations.validation import decode_payload_strictly, faults

FIELD: Final = "idempotency_key"
SOURCE_LONGEST: Final = 200

# What every proxy passes on as it is.
_HEADER: Final = re.compile(r"[!-~]{1,200}")

Payload = dict[str, Any]


def payload(raw: bytes) -> Any:
    """Return what a body spells; doubled keys and the like are still there to be refused."""
    # Whatever is kept of it, it could not be kept in so many bytes; so it is not even read.
    if has_more_values(raw, BYTES_MOST):
        message = f"The payload has more than {BYTES_MOST} bytes"
        raise rejection((Issue(path=(), expected=f"max_bytes: {BYTES_MOST}", message=message),))
    return decode_payload_strictly(raw)


def arguments(needs: tuple[str, ...], takes: tuple[str, ...]) -> Callable[[bytes], Payload]:
    """Return what reads a body with these members, all it needs and no others."""
    known = (*needs, *takes, FIELD)
    shape = Shape(members=tuple(FieldShape(name, ANYTHING, "") for name in known))

    def read(raw: bytes) -> Payload:
        found = payload(raw)
        issues = faults(shape, found)
        if not issues:
            # What is null was sent; whoever takes it says whether it may be.
            issues = [
                Issue(path=(name,), expected="required", message=f"{name} is required")
                for name in needs
                if name not in found
            ]
            issues += [_unknown(name, found[name], known) for name in found if name not in known]
        if issues:
            raise rejection(issues)
        return dict(found)

    return read


def key_of(asked: Asked[Any, Any]) -> Any:
    """Take the key of a request out of its body, or from `Idempotency-Key`."""
    body = asked.body
    return chosen_key(asked, body.pop(FIELD, None) if isinstance(body, dict) else None)


def chosen_key(asked: Asked[Any, Any], given: Any) -> Any:
    """Return the key that was given, or that of the header; two must be one."""
    header = asked.headers.get(KEY)
    if header is not None and _HEADER.fullmatch(header) is None:
        expected, message = f"pattern: {_HEADER.pattern}", "Idempotency-Key must be printable ASCII"
        raise rejection((Issue(path=(FIELD,), value=header, expected=expected, message=message),))
    if given is not None and header is not None and given != header:
        told = invalid_query if asked.body is None else invalid_body
        raise told(FIELD, "it must be equal to Idempotency-Key")
    return header if given is None else given


def source_of(asked: Asked[Any, Any]) -> str:
    """Return through whom something is observed: what the client calls itself."""
    name = asked.headers.get("user-agent", "")
    return "".join(filter(str.isprintable, name))[:SOURCE_LONGEST]


def _unknown(name: str, value: Any, known: tuple[str, ...]) -> Issue:
    told = ", ".join(known)
    message = f"{name} is none of {told}"
    return Issue(path=(name,), value=value, expected=f"one of: {told}", message=message)
