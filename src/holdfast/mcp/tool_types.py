"""MCP tool definition: name, arguments, validation, JSON Schemas and implementation.

The tools are in `session_tools.py` and `history_tools.py`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, inspect

from holdfast.api import LocalHoldfast
from holdfast.domain.ids import Owner
from holdfast.domain.tokens import Caller, Scope
from holdfast.observations.issues import Issue, rejection
from holdfast.observations.model import EXACT, Object
from holdfast.observations.validation import members_of, value_issues
from holdfast.wire.errors import ErrorForm

T = TypeVar("T", bound=Struct)


class IntegerType(Struct, frozen=True, kw_only=True):
    """An integer; its range is only documented here and checked by the service."""

    least: int = 0
    most: int | None = None
    usual: int | None = None


class BooleanType(Struct, frozen=True):
    """A boolean."""


class ObjectType(Struct, frozen=True):
    """An object of one of several types, each under the name that selects it.

    The types are only documented here; the service validates by the one that was selected.
    """

    types: Mapping[str, type[Struct]]


class Argument(Struct, frozen=True):
    """One argument of a tool; null in an optional argument means that it was not sent.

    `kind` is a type with its constraints.
    """

    name: str
    kind: Any
    description: str
    is_required: bool = False


def one_of(words: Iterable[str]) -> Any:
    """Return the type of a text that is one of these."""
    literal: Any = Literal
    return literal[tuple(map(str, words))]


def arguments_of(payload: type[Struct]) -> tuple[Argument, ...]:
    """Return the members of a payload as arguments."""
    return tuple(
        Argument(
            name,
            kind,
            f"{kind.__metadata__[-1].description}{'' if is_required else ' May be null.'}",
            is_required,
        )
        for name, (kind, is_required) in members_of(payload).items()
    )


def validate_arguments(declared: Sequence[Argument], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sent arguments, or raise one `Invalid` that lists every violation."""
    known = {each.name for each in declared}
    issues = [issue for each in declared for issue in _violations(each, values)]
    issues += [_unknown(name, known) for name in values if name not in known]
    if issues:
        raise rejection(issues)
    return {
        each.name: _plain(each, values[each.name])
        for each in declared
        if values.get(each.name) is not None
    }


def _violations(argument: Argument, values: Mapping[str, Any]) -> list[Issue]:
    name, value = argument.name, values.get(argument.name)
    if value is None:
        # For an argument of any type, null is a value.
        is_sent = name in values and argument.kind is Any
        is_missing = argument.is_required and not is_sent
        return [_issue(name, None, "required", "is required")] if is_missing else []
    match argument.kind:
        case IntegerType():
            # `bool` is a subclass of `int` in Python but not a JSON number.
            is_number = not isinstance(value, bool) and isinstance(value, int | float)
            is_whole = is_number and value == value // 1
            return [] if is_whole else [_issue(name, value, "type: number", "must be an integer")]
        case BooleanType():
            is_flag = isinstance(value, bool)
            return (
                []
                if is_flag
                else [_issue(name, value, "one of: true, false", "must be true or false")]
            )
        case ObjectType():
            return value_issues(name, Object, value)
        case kind:
            return value_issues(name, kind, value)


def _plain(argument: Argument, value: Any) -> Any:
    return int(value) if isinstance(argument.kind, IntegerType) else value


def _unknown(name: str, known: set[str]) -> Issue:
    known_names = ", ".join(sorted(known))
    return _issue(name, None, f"one of: {known_names}", "is not an argument of this tool")


def _issue(name: str, value: Any, expected: str, rule: str) -> Issue:
    return Issue(path=(name,), value=value, expected=expected, message=f"{name} {rule}")


Schema = dict[str, Any]
# Not `format: date-time`, because a bare date or a time without offset is valid too.
_TIME_SCHEMA: Final = {"type": "string", "examples": ["2025-12-31T11:00:00Z", "2025-12-31"]}
_TIME_WORDS: Final = " An ISO 8601 date or time; UTC if it has no offset."
_DEFINITION: Final = "#/$defs/{name}"
# Not listed here, because every tool would repeat the list of all error codes.
_OPAQUE: Final[Mapping[str, Schema]] = {"Code": {"type": "string"}}


def input_schema(declared: Sequence[Argument], *, is_open: bool = False) -> Schema:
    """Return the schema of a tool's arguments; an open one allows additional members."""
    # Null is described but not declared, because some clients reject a field with two types.
    properties = {each.name: _describe(each) for each in declared}
    required = [each.name for each in declared if each.is_required]
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": is_open,
    }


def _describe(argument: Argument) -> Schema:
    schema = _type_schema(argument.kind)
    words = f"{argument.description}{_TIME_WORDS if schema == _TIME_SCHEMA else ''}"
    return {"description": words, **schema}


def output_schema(forms: Sequence[type[Struct]]) -> Schema:
    """Return the schema of a tool's result: one of its forms, or the error form.

    Errors are included, because some clients validate them against the schema as well.
    """
    found, definitions = msgspec.json.schema_components(
        (*forms, ErrorForm), ref_template=_DEFINITION
    )
    definitions |= {name: _OPAQUE[name] for name in definitions if name in _OPAQUE}
    if "MessageForm" in definitions:
        members = definitions["MessageForm"]["properties"]
        members["parts"] |= {"items": {"type": "object"}}
    used = _reachable(found, definitions)
    return {
        "type": "object",
        "anyOf": list(found),
        "$defs": {name: each for name, each in definitions.items() if name in used},
    }


def _reachable(schema: Any, definitions: Mapping[str, Schema]) -> set[str]:
    """Return the names of the definitions that a schema refers to, also through others."""
    used: set[str] = set()
    rest = [schema]
    while rest:
        match rest.pop():
            case {"$ref": str(reference)}:
                name = reference.rsplit("/", 1)[-1]
                if name not in used:
                    used.add(name)
                    rest.append(definitions[name])
            case dict() as members:
                rest += members.values()
            case list() | tuple() as items:
                rest += items
            case _:
                pass
    return used


def _type_schema(kind: Any) -> Schema:
    match kind:
        case IntegerType():
            return _integer_schema(kind)
        case BooleanType():
            return {"type": "boolean"}
        case ObjectType(types=types):
            forms = [
                {"title": name, **input_schema(arguments_of(each), is_open=True)}
                for name, each in types.items()
            ]
            return {"type": "object", "anyOf": forms}
        case _ if get_origin(kind) is Literal:
            # `inspect` would sort the words.
            return {"type": "string", "enum": list(get_args(kind))}
        case _:
            return _schema_of(inspect.type_info(kind))


def _schema_of(kind: inspect.Type) -> Schema:
    schema: Schema = {}
    match kind:
        case inspect.Metadata(type=bare, extra_json_schema=extra):
            others = {name: each for name, each in (extra or {}).items() if name != "description"}
            schema = {**_schema_of(bare), **others}
        case inspect.UnionType(types=(inspect.IntType(), *_)):
            schema = {"type": "number", "exclusiveMinimum": 0}
        case inspect.UnionType(types=(bare, *_)):
            schema = _schema_of(bare)
        case inspect.CustomType():
            schema = _TIME_SCHEMA
        case inspect.StrType():
            schema = _text_schema(kind)
        case inspect.LiteralType(values=words):
            schema = {"type": "string", "enum": list(words)}
        case inspect.EnumType(cls=words):
            schema = {"type": "string", "enum": [each.value for each in words]}
        case inspect.ListType(item_type=item, min_length=least, max_length=most):
            bounds = {"minItems": least, "maxItems": most}
            schema = {"type": "array", "items": _schema_of(item)} | _set_only(bounds)
        case inspect.StructType(cls=payload):
            schema = input_schema(arguments_of(payload), is_open=True)
        case inspect.DictType():
            schema = {"type": "object"}
    return schema


def _text_schema(kind: inspect.StrType) -> Schema:
    if kind.pattern is not None and kind.pattern.startswith(r"\A") and kind.pattern != EXACT:
        return {"type": "string", "pattern": f"^{kind.pattern[2:-2]}$"}
    return {"type": "string"} | _set_only(
        {"minLength": kind.min_length, "maxLength": kind.max_length}
    )


def _set_only(bounds: Schema) -> Schema:
    return {name: bound for name, bound in bounds.items() if bound}


def _integer_schema(kind: IntegerType) -> Schema:
    most = {} if kind.most is None else {"maximum": kind.most}
    usual = {} if kind.usual is None else {"default": kind.usual}
    return {"type": "integer", "minimum": kind.least, **most, **usual}


class ToolRequest(Struct, frozen=True, kw_only=True):
    """A tool call: the services, the caller, the client's name and the arguments."""

    holdfast: LocalHoldfast
    caller: Caller
    source: str
    arguments: Mapping[str, Any]

    @property
    def owner(self) -> Owner:
        """Return the owner that the call acts for."""
        return self.caller.owner

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return an argument, or the default if it was not sent."""
        return self.arguments.get(name, otherwise)

    def query(self, kind: type[T]) -> T:
        """Return a query made of the arguments that are its fields."""
        fields = {name: self.get(name) for name in members_of(kind) if name in self.arguments}
        return msgspec.convert(fields, kind)


class ToolAnswer(Struct, frozen=True):
    """A tool result; `words` names the one member to send as text, because a form is an object."""

    form: Struct
    words: str | None = None


class Tool(Struct, frozen=True, kw_only=True):
    """Definition of one tool.

    `takes` are its arguments; an open tool accepts others as well and validates them itself.
    `gives` are its possible result forms. A tool that needs only the READ scope is read-only.
    """

    name: str
    title: str
    description: str
    takes: tuple[Argument, ...]
    gives: tuple[type[Struct], ...]
    act: Callable[[ToolRequest], Awaitable[ToolAnswer]]
    is_open: bool = False
    needs: Scope = Scope.READ
    is_idempotent: bool = True
    is_destructive: bool = False

    @property
    def is_read_only(self) -> bool:
        """Return whether the tool changes nothing."""
        return self.needs is Scope.READ

    def input_schema(self) -> Schema:
        """Return the schema of its arguments."""
        return input_schema(self.takes, is_open=self.is_open)

    def output_schema(self) -> Schema:
        """Return the schema of its results."""
        return output_schema(self.gives)

    async def call(self, request: ToolRequest) -> ToolAnswer:
        """Check the caller's scope, validate the arguments and run the tool."""
        request.caller.require(self.needs)
        if self.is_open:
            return await self.act(request)
        return await self.act(
            ToolRequest(
                holdfast=request.holdfast,
                caller=request.caller,
                source=request.source,
                arguments=validate_arguments(self.takes, request.arguments),
            )
        )
