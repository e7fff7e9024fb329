"""Values of a Postgres statement, in the order of its numbered parameters."""

from typing import Any, Final

from holdfast.domain.errors import Code, Invalid
from holdfast.store.database import Parameters, Row
from holdfast.store.postgres.dialect import Statement

_NUL: Final = "\x00"


def place_of(statement: Statement, parameters: Parameters) -> Row:
    """Return the key, or owner and id, of the requested session."""
    return tuple([parameters[name] for name in statement.names])


def values_of(statement: Statement, parameters: Parameters, *, is_write: bool) -> list[Any]:
    """Return the values to bind; text with NUL is rejected on write and matches nothing on read."""
    values = [parameters[name] for name in statement.names]
    if any([type(value) is str and _NUL in value for value in values]):  # noqa: C419 — quicker
        if is_write:
            raise Invalid(Code.INVALID_TEXT, "Postgres keeps no text with a NUL in it.")
        # Stored text contains neither NUL nor this noncharacter, so the query finds nothing.
        return [
            value.replace(_NUL, "\uffff") if isinstance(value, str) else value for value in values
        ]
    return values
