"""Answers of a server that is newer than we are: what it has added is passed over.

Types that are sent as well as received refuse unknown keys, which is right for a server only.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")


def decoded(body: bytes, kind: type[T]) -> T:
    """Return a body as a type, without the keys that the type does not know."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        # Only now, because this costs more; what is wrong otherwise is wrong here, too.
        known = _known(msgspec.json.decode(body), inspect.type_info(kind))
        return msgspec.convert(known, kind)


def _known(value: Any, kind: inspect.Type) -> Any:
    match value, kind:
        case dict(), inspect.StructType():
            fields = {field.encode_name: field.type for field in kind.fields}
            tag = {name: value[name] for name in value if name == kind.tag_field}
            return tag | {
                name: _known(value[name], fields[name]) for name in value if name in fields
            }
        case dict(), inspect.DictType():
            return {name: _known(each, kind.value_type) for name, each in value.items()}
        case list(), inspect.VarTupleType() | inspect.ListType():
            return [_known(each, kind.item_type) for each in value]
        case _, inspect.UnionType():
            return _known_of_union(value, kind)
        case _:
            return value


def _known_of_union(value: Any, kind: inspect.UnionType) -> Any:
    for each in kind.types:
        match value, each:
            case dict(), inspect.StructType(tag_field=None):
                return _known(value, each)
            case dict(), inspect.StructType(tag_field=str(field), tag=tag) if (
                value.get(field) == tag
            ):
                return _known(value, each)
            case list(), inspect.VarTupleType() | inspect.ListType():
                return _known(value, each)
            case _:
                pass
    return value
