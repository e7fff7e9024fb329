"""What is bound to a statement of Postgres: its values in the order of its numbers."""

from typing import Any, Final

from holdfast.domain.errors import Code, Invalid
from holdfast.store.database import Parameters, Row
from holdfast.store.postgres.dialect import Statement

_NUL: Final = "\x00"


def place_of(statement: Statement, parameters: Parameters) -> Row:
    """Return the names of the one session that is asked for."""
    return tuple([parameters[name] for name in statement.names])


def values_of(statement: Statement, parameters: Parameters, *, is_write: bool) -> list[Any]:
    """Return what is bound; a text that Postgres cannot keep is refused, and found nowhere."""
    values = [parameters[name] for name in statement.names]
    if any([type(value) is str and _NUL in value for value in values]):  # noqa: C419 — quicker
        if is_write:
            raise Invalid(Code.INVALID_TEXT, "Postgres keeps no text with a NUL in it.")
        # No text there is has one, and none has this either, which is no character.
        return [
            value.replace(_NUL, "\uffff") if isinstance(value, str) else value for value in values
        ]
    return values
