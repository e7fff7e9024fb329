"""Type hints as types that msgspec can convert, and the refusal of all others.

Knows pydantic and annotated_types by their names only, because neither is a dependency.
"""

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import inspect
import pathlib
import types
import typing
import uuid
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from msgspec import Meta, Struct

_SCALARS: Final = frozenset(
    {bool, int, float, str, bytes, bytearray, type(None), decimal.Decimal, uuid.UUID}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)
_CONTAINERS: Final = frozenset(
    {list, set, frozenset, tuple, dict}
    | {collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection}
    | {collections.abc.Set, collections.abc.MutableSet}
    | {collections.abc.Mapping, collections.abc.MutableMapping}
)
_MAPPINGS: Final = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})
_REMEDIES: Final[dict[Any, str]] = {
    object: "use Any",
    complex: "take two floats",
    pathlib.Path: "take a str",
    pathlib.PurePath: "take a str",
    collections.abc.Callable: "take a name, and look the function up",
}
# Around the type of a field of a `TypedDict` or a dataclass; they say nothing about its values.
_WRAPPERS: Final = frozenset(
    {"Required", "NotRequired", "ReadOnly", "Final", "ClassVar", "InitVar"}
)

# The attributes of annotated_types' classes; each is an argument of `Meta`.
_BOUNDS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length")
_BOUND_CLASSES: Final = frozenset(
    {"Gt", "Ge", "Lt", "Le", "MultipleOf", "MinLen", "MaxLen", "Interval", "Len"}
)
_FIELD_TEXTS: Final = ("description", "examples")
# Set by pydantic itself, or without a meaning for a schema that has no titles.
_FIELD_IGNORED: Final = frozenset({"annotation", "title", *_FIELD_TEXTS})


class UnsayableError(Exception):
    """A type that no schema can say; the message names it and a remedy."""


class Parameter(Struct, frozen=True, kw_only=True):
    """A parameter of a function that the model may set."""

    name: str
    type: Any
    default: Any
    is_positional: bool
    # The text of `Annotated[T, "text"]` or of a `Meta`.
    text: str | None


def translate_parameter(given: inspect.Parameter, hint: Any) -> Parameter:
    """Return a parameter with a type that msgspec can convert; raises `UnsayableError`."""
    text: str | None = None
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        text = next((mark for mark in marks if isinstance(mark, str)), None)
        metas = _metas(tuple(mark for mark in marks if not isinstance(mark, str)))
        text = text or next((each.description for each in metas if each.description), None)
        kind = _annotated(translate(inner), metas)
    else:
        kind = translate(hint)
    return Parameter(
        name=given.name,
        type=kind,
        default=given.default,
        is_positional=given.kind is given.POSITIONAL_ONLY,
        text=text,
    )


def translate(hint: Any) -> Any:
    """Return the hint as a type that msgspec can convert, with all its metadata."""
    return _Translation().translated(hint)


def is_model(kind: Any) -> bool:
    """Return whether a class reads itself from JSON, as models of pydantic do."""
    return isinstance(kind, type) and all(
        callable(getattr(kind, name, None)) for name in ("model_json_schema", "model_validate")
    )


class _Translation:
    """One hint: its own parts are translated, those of classes can only be checked."""

    def __init__(self) -> None:
        self._checked: set[Any] = set()

    def translated(self, hint: Any) -> Any:
        if isinstance(hint, typing.NewType):
            return self.translated(hint.__supertype__)
        if type(hint).__name__ == "TypeAliasType":
            return self.translated(hint.__value__)
        if isinstance(hint, TypeVar):
            raise UnsayableError(f"{hint} is a type variable; use a concrete type")
        if hint is Any or hint is None or get_origin(hint) is Literal:
            return hint
        return self._compound(hint, get_origin(hint), get_args(hint))

    def _compound(self, hint: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
        if origin is Annotated:
            return _annotated(self.translated(arguments[0]), _metas(arguments[1:]))
        if origin in {Union, types.UnionType}:
            return Union[tuple(map(self.translated, arguments))]  # noqa: UP007 — made at run time
        if origin in _CONTAINERS:
            return self._container(origin, arguments)
        if isinstance(origin, type) and self._is_record(origin):
            self._check_fields(origin, generic=True)
            return origin[tuple(map(self.translated, arguments))]  # type: ignore[index]
        return self._class(origin or hint)

    def _container(self, origin: Any, arguments: tuple[Any, ...]) -> Any:
        if origin in _MAPPINGS:
            _require_key(arguments[0])
        if origin is tuple and arguments and arguments[-1] is not ...:
            return tuple[tuple(map(self.translated, arguments))]  # type: ignore[misc]
        inner = tuple(each if each is ... else self.translated(each) for each in arguments)
        return origin[inner if len(inner) > 1 else inner[0]]

    def _class(self, kind: Any) -> Any:
        if kind in _SCALARS or kind in _CONTAINERS or is_model(kind):
            return kind
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return kind
        if self._is_record(kind):
            self._check_fields(kind)
            return kind
        name = getattr(kind, "__name__", None) or str(kind)
        remedy = _REMEDIES.get(kind, "use a type that JSON can say")
        raise UnsayableError(f"{name} cannot be said in a JSON schema; {remedy}")

    def _is_record(self, kind: Any) -> bool:
        return isinstance(kind, type) and (
            issubclass(kind, Struct)
            or dataclasses.is_dataclass(kind)
            or hasattr(kind, "__attrs_attrs__")
            or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
            or (issubclass(kind, dict) and hasattr(kind, "__total__"))
        )

    def _check_fields(self, kind: type, *, generic: bool = False) -> None:
        if kind in self._checked:
            return
        self._checked.add(kind)
        try:
            hints = typing.get_type_hints(kind, include_extras=True)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            raise UnsayableError(
                f"the type hints of {kind.__name__} cannot be resolved ({error}); import or "
                "define the types in its module"
            ) from None
        for name, hint in hints.items():
            try:
                self._check(hint, generic=generic)
            except UnsayableError as error:
                raise UnsayableError(f"field {name} of {kind.__name__}: {error}") from None

    def _check(self, hint: Any, *, generic: bool) -> None:
        """Refuse what msgspec would drop from the field of a class."""
        origin, arguments = get_origin(hint), get_args(hint)
        if isinstance(hint, TypeVar) and generic:
            return
        wrapper = getattr(hint, "_name", None) or getattr(origin, "_name", None)
        if wrapper == "ClassVar" or isinstance(hint, dataclasses.InitVar):
            return
        if wrapper in _WRAPPERS:
            self._check(arguments[0] if arguments else Any, generic=generic)
        elif origin is Annotated:
            for mark in arguments[1:]:
                if not isinstance(mark, Meta):
                    raise UnsayableError(f"{_name(mark)} would be lost; use msgspec.Meta")
            self._check(arguments[0], generic=generic)
        elif arguments and origin is not Literal:
            for each in arguments:
                if each is not ...:
                    self._check(each, generic=generic)
        else:
            self.translated(hint)


def _annotated(kind: Any, metas: tuple[Meta, ...]) -> Any:
    for meta in metas:
        kind = Annotated[kind, meta]
    return kind


def _metas(marks: tuple[Any, ...]) -> tuple[Meta, ...]:
    try:
        return _translate_metadata(marks)
    except _UntranslatableError as error:
        raise UnsayableError(f"{error} cannot be said in a JSON schema; leave it out") from None


def _require_key(hint: Any) -> None:
    """Refuse keys that are not texts or numbers, because JSON has no others."""
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    while isinstance(inner, typing.NewType):
        inner = inner.__supertype__
    is_simple = inner in _SCALARS - {type(None), bytearray} or inner is Any
    is_enum = isinstance(inner, type) and issubclass(inner, enum.Enum)
    if not is_simple and not is_enum and get_origin(inner) is not Literal:
        raise UnsayableError(f"{inner} cannot be a key of a JSON object; use str")


class _UntranslatableError(Exception):
    """Metadata that no schema can say; the message names it."""


def _translate_metadata(marks: tuple[Any, ...]) -> tuple[Meta, ...]:
    """Return the metadata as `Meta`; a text is a description."""
    return tuple(meta for mark in marks for meta in _translate_mark(mark))


def _translate_mark(mark: Any) -> Iterator[Meta]:
    kind = type(mark)
    library = kind.__module__.partition(".")[0]
    if isinstance(mark, Meta):
        yield mark
    elif isinstance(mark, str):
        yield Meta(description=mark)
    elif isinstance(documentation := getattr(mark, "documentation", None), str):
        yield Meta(description=documentation)
    elif library == "annotated_types" and kind.__name__ in _BOUND_CLASSES:
        given = {name: getattr(mark, name, None) for name in _BOUNDS}
        # A length of at least 0 says nothing.
        yield _meta({name: value for name, value in given.items() if value is not None})
    elif library == "annotated_types" and kind.__name__ == "Timezone" and mark.tz in {None, ...}:
        yield Meta(tz=mark.tz is ...)
    elif library == "pydantic":
        yield from _translate_pydantic(mark)
    else:
        raise _UntranslatableError(_name(mark))


def _translate_pydantic(mark: Any) -> Iterator[Meta]:
    name = type(mark).__name__
    if name == "FieldInfo":
        given: Mapping[str, Any] = mark._attributes_set
        for key in given:
            if key not in _FIELD_IGNORED:
                raise _UntranslatableError(f"Field({key}=…)")
        if texts := {key: given[key] for key in _FIELD_TEXTS if given.get(key) is not None}:
            yield _meta(texts)
        for each in mark.metadata:
            yield from _translate_mark(each)
    elif name == "_PydanticGeneralMetadata" and set(vars(mark)) == {"pattern"}:
        yield _meta(vars(mark))
    # Arguments are always converted strictly.
    elif name != "Strict" or not mark.strict:
        raise _UntranslatableError(_name(mark))


def _meta(given: Mapping[str, Any]) -> Meta:
    try:
        return Meta(**given)
    except (TypeError, ValueError) as error:
        raise _UntranslatableError(f"{dict(given)} ({error})") from None


def _name(mark: Any) -> str:
    return mark.__name__ if isinstance(mark, type) else type(mark).__name__
