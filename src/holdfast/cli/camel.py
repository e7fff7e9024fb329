"""Values of the domain with their names in camel case, for the dialect of `--json` streams."""

from typing import Any

import msgspec
from msgspec import Struct

from holdfast.domain.sessions import SessionContext


def context_data(context: SessionContext) -> dict[str, Any]:
    """Return the whole workspace; variables are passed on as they were given."""
    return {**camel(context), "variables": context.variables}


def camel(value: Struct) -> dict[str, Any]:
    """Return the fields of a value that are set, with their names in camel case."""
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    return {_name(name): _plain(found) for name, found in fields.items() if found is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return camel(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return msgspec.to_builtins(value)


def _name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
