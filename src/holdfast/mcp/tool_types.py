"""MCP tool definition: name, arguments, validation, JSON Schemas and implementation.

The tools are in `session_tools.py` and `history_tools.py`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec
from msgspec import Struct

from holdfast.api import LocalHoldfast
from holdfast.domain.ids import Owner
from holdfast.domain.tokens import Caller, Scope
from holdfast.observations import model as observation_model
from holdfast.observations.issues import Issue, rejection
from holdfast.observations.model import ANYTHING, FieldShape, Kind, Shape
from holdfast.observations.validation import member_faults
from holdfast.wire.errors import ErrorForm


class IntegerType(Struct, frozen=True, kw_only=True):
    """An integer; its range is only documented here and checked by the service."""

    least: int = 0
    most: int | None = None
    usual: int | None = None


class BooleanType(Struct, frozen=True):
    """A boolean."""


class Argument(Struct, frozen=True):
    """One argument of a tool; null in an optional argument means that it was not sent."""

    name: str
    kind: Kind | IntegerType | BooleanType
    description: str
    is_required: bool = False


def validate_arguments(taken: Sequence[Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sent arguments, or raise one `Invalid` that lists every violation."""
    known = {each.name for each in taken}
    issues = [issue for each in taken for issue in _violations(each, given)]
    issues += [_unknown(name, known) for name in given if name not in known]
    if issues:
        raise rejection(issues)
    return {
        each.name: _plain(each, given[each.name])
        for each in taken
        if given.get(each.name) is not None
    }


def _violations(argument: Argument, given: Mapping[str, Any]) -> list[Issue]:
    name, value = argument.name, given.get(argument.name)
    if value is None:
        # For an argument of any type, null is a value.
        is_sent = name in given and argument.kind == ANYTHING
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
        case kind:
            return member_faults(FieldShape(name, kind, argument.description), value)


def _plain(argument: Argument, value: Any) -> Any:
    return int(value) if isinstance(argument.kind, IntegerType) else value


def _unknown(name: str, known: set[str]) -> Issue:
    known_names = ", ".join(sorted(known))
    return _issue(name, None, f"one of: {known_names}", "is not an argument of this tool")


def _issue(name: str, value: Any, expected: str, rule: str) -> Issue:
    return Issue(path=(name,), value=value, expected=expected, message=f"{name} {rule}")


Schema = dict[str, Any]
_PLAIN: Final[Mapping[type, Schema]] = {
    BooleanType: {"type": "boolean"},
    observation_model.NumberShape: {"type": "number", "exclusiveMinimum": 0},
    observation_model.ObjectShape: {"type": "object"},
    observation_model.AnyShape: {},
}


_DEFINITION: Final = "#/$defs/{name}"
# Not listed here, because every tool would repeat the list of all error codes.
_OPAQUE: Final[Mapping[str, Schema]] = {"Code": {"type": "string"}}


def input_schema(taken: Sequence[Argument | FieldShape], *, is_open: bool = False) -> Schema:
    """Return the schema of a tool's arguments; an open one allows additional members."""
    return _object_schema(taken, is_open=is_open)


def output_schema(given: Sequence[type[Struct]]) -> Schema:
    """Return the schema of a tool's result: one of its forms, or the error form.

    Errors are included, because some clients validate them against the schema as well.
    """
    found, definitions = msgspec.json.schema_components(
        (*given, ErrorForm), ref_template=_DEFINITION
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


def _object_schema(members: Sequence[Argument | FieldShape], *, is_open: bool) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {each.name: _member_schema(each) for each in members},
        "required": [each.name for each in members if each.is_required],
        "additionalProperties": is_open,
    }
    return schema if schema["required"] else {k: v for k, v in schema.items() if k != "required"}


def _member_schema(member: Argument | FieldShape) -> Schema:
    # Null is accepted but not declared, because some clients reject a field with two types.
    return {"description": member.description, **_type_schema(member.kind)}


def _type_schema(kind: Kind | IntegerType | BooleanType) -> Schema:
    match kind:
        case IntegerType():
            return _integer_schema(kind)
        case observation_model.ListShape():
            return _list_schema(kind)
        case Shape():
            return _object_schema(kind.members, is_open=True)
        case (
            observation_model.TextShape()
            | observation_model.PatternShape()
            | observation_model.ChoiceShape()
            | observation_model.InstantShape()
        ):
            return _text_schema(kind)
        case _:
            return dict(_PLAIN[type(kind)])


def _text_schema(
    kind: observation_model.TextShape
    | observation_model.PatternShape
    | observation_model.ChoiceShape
    | observation_model.InstantShape,
) -> Schema:
    match kind:
        case observation_model.TextShape():
            least = {"minLength": kind.shortest} if kind.shortest else {}
            return {"type": "string", **least, "maxLength": kind.longest}
        case observation_model.PatternShape(expression):
            return {"type": "string", "pattern": f"^{expression}$"}
        case observation_model.ChoiceShape(words):
            return {"type": "string", "enum": list(words)}
        case observation_model.InstantShape():
            # Not `format: date-time`, because a bare date or a time without offset is valid too.
            return {"type": "string", "examples": ["2025-12-31T11:00:00Z", "2025-12-31"]}
        case _ as never:
            assert_never(never)


def _integer_schema(kind: IntegerType) -> Schema:
    most = {} if kind.most is None else {"maximum": kind.most}
    usual = {} if kind.usual is None else {"default": kind.usual}
    return {"type": "integer", "minimum": kind.least, **most, **usual}


def _list_schema(kind: observation_model.ListShape) -> Schema:
    schema: Schema = {"type": "array", "items": _type_schema(kind.item)}
    if kind.shortest:
        schema["minItems"] = kind.shortest
    if kind.longest is not None:
        schema["maxItems"] = kind.longest
    return {**schema, "uniqueItems": True} if kind.is_distinct else schema


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
    takes: tuple[Argument | FieldShape, ...]
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
        taken = tuple(each for each in self.takes if isinstance(each, Argument))
        return await self.act(
            ToolRequest(
                holdfast=request.holdfast,
                caller=request.caller,
                source=request.source,
                arguments=validate_arguments(taken, request.arguments),
            )
        )
