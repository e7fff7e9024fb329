"""Results of functions as plain JSON; bytes stay bytes, which the engine replaces by handles."""

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.domain.messages import Media
from holdfast.domain.text import is_encodable

DEEPEST: Final = 64
LARGEST: Final = 16 << 20
_INTEGER_BELOW: Final = 1 << 63
_TEXTS: Final = (datetime, date, time, timedelta, Decimal, UUID)
_KEYS: Final = (str, int, float, enum.Enum, *_TEXTS)


class UnrecordableError(Exception):
    """A result that cannot be recorded; the message names its type and its path."""


def plain(value: Any) -> Any:
    """Return a result as JSON values and bytes; raises `UnrecordableError`."""
    converting = _Conversion()
    found = converting.plain(value, "$", 0)
    if converting.size > LARGEST:
        raise UnrecordableError("it has more than 16 MiB")
    return found


class _Conversion:
    def __init__(self) -> None:
        self.size = 0

    def plain(self, value: Any, path: str, depth: int) -> Any:
        if depth > DEEPEST:
            raise UnrecordableError(f"it is nested deeper than {DEEPEST} levels")
        if isinstance(value, enum.Enum):
            value = value.value
        if isinstance(value, _TEXTS):
            value = str(msgspec.to_builtins(value))
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, int | float):
            return self._number(value, path)
        if isinstance(value, bytes | bytearray | memoryview):
            self._count(len(value))
            return bytes(value)
        return self._inner(value, path, depth + 1)

    def _inner(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, Media):
            # Already kept: named by its handle.
            return self._fields(msgspec.structs.asdict(value), path, depth)
        if isinstance(value, msgspec.Struct):
            return self._fields(_struct_fields(value), path, depth)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = (each.name for each in dataclasses.fields(value))
            return self._fields({name: getattr(value, name) for name in names}, path, depth)
        if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
            return self.plain(dump(mode="json"), path, depth)
        if isinstance(value, Mapping):
            return self._fields(value, path, depth)
        if isinstance(value, list | tuple | Set):
            return self._items(value, path, depth)
        raise UnrecordableError(f"{type(value).__name__} at {path} is not JSON")

    def _fields(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        found = {}
        for key, each in value.items():
            if not isinstance(key, _KEYS):
                raise UnrecordableError(
                    f"the key of type {type(key).__name__} at {path} is no text"
                )
            name = self._text(str(msgspec.to_builtins(key)), path)
            found[name] = self.plain(each, f"{path}.{name}", depth)
        return found

    def _items(self, value: Iterable[Any], path: str, depth: int) -> list[Any]:
        return [self.plain(each, f"{path}[{at}]", depth) for at, each in enumerate(value)]

    def _text(self, value: str, path: str) -> str:
        if "\x00" in value or not is_encodable(value):
            raise UnrecordableError(f"the text at {path} has a NUL or a lone surrogate")
        self._count(len(value) if value.isascii() else len(value.encode()))
        return str(value)

    def _number(self, value: float, path: str) -> float:
        if isinstance(value, int):
            if not -_INTEGER_BELOW < value < _INTEGER_BELOW:
                raise UnrecordableError(f"the integer at {path} has more than 63 bits")
            return int(value)
        if not math.isfinite(value):
            raise UnrecordableError(f"the number at {path} is not finite")
        return float(value)

    def _count(self, size: int) -> None:
        self.size += size
        if self.size > LARGEST:
            raise UnrecordableError("it has more than 16 MiB")


def _struct_fields(value: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a Struct under the names that it is encoded with, and its tag."""
    info = value.__struct_config__
    tag = {info.tag_field: info.tag} if info.tag_field is not None else {}
    names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
    return tag | {
        shown: found
        for name, shown in names
        if not isinstance(found := getattr(value, name), msgspec.UnsetType)
    }
