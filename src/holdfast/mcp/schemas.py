"""JSON Schemas of what tools take and give, made from the tables that judge and the forms."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec
from msgspec import Struct

from holdfast.mcp.arguments import Argument, Flag, Whole
from holdfast.mcp.forms import ErrorForm
from holdfast.observations import model as observation_model
from holdfast.observations.model import FieldShape, Kind, Shape

Schema = dict[str, Any]

_PLAIN: Final[Mapping[type, Schema]] = {
    Flag: {"type": "boolean"},
    observation_model.NumberShape: {"type": "number", "exclusiveMinimum": 0},
    observation_model.ObjectShape: {"type": "object"},
    observation_model.AnyShape: {},
}


def input_schema(taken: Sequence[Argument | FieldShape], *, is_open: bool = False) -> Schema:
    """Return the schema of a tool's arguments; an open one takes others beside them."""
    return _object(taken, is_open=is_open)


def output_schema(given: Sequence[type[Struct]]) -> Schema:
    """Return the schema of what a tool answers: one of its forms, or the house's error.

    Some clients hold an error against the schema as well, so it has a place there.
    """
    found, definitions = msgspec.json.schema_components(
        (*given, ErrorForm), ref_template="#/$defs/{name}"
    )
    return {"type": "object", "anyOf": list(found), "$defs": definitions}


def _object(members: Sequence[Argument | FieldShape], *, is_open: bool) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {each.name: _described(each) for each in members},
        "required": [each.name for each in members if each.is_required],
        "additionalProperties": is_open,
    }
    return schema if schema["required"] else {k: v for k, v in schema.items() if k != "required"}


def _described(member: Argument | FieldShape) -> Schema:
    # Without null, though it is taken: some clients can offer no tool whose field has two types.
    return {"description": member.description, **_kind(member.kind)}


def _kind(kind: Kind | Whole | Flag) -> Schema:
    match kind:
        case Whole():
            return _whole(kind)
        case observation_model.ListShape():
            return _listing(kind)
        case Shape():
            return _object(kind.members, is_open=True)
        case (
            observation_model.TextShape()
            | observation_model.PatternShape()
            | observation_model.ChoiceShape()
            | observation_model.InstantShape()
        ):
            return _text(kind)
        case _:
            return dict(_PLAIN[type(kind)])


def _text(
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
            # Not `format: date-time`: a bare date and a time without a zone are taken, too.
            return {"type": "string", "examples": ["2025-12-31T11:00:00Z", "2025-12-31"]}
        case _ as never:
            assert_never(never)


def _whole(kind: Whole) -> Schema:
    most = {} if kind.most is None else {"maximum": kind.most}
    usual = {} if kind.usual is None else {"default": kind.usual}
    return {"type": "integer", "minimum": kind.least, **most, **usual}


def _listing(kind: observation_model.ListShape) -> Schema:
    schema: Schema = {"type": "array", "items": _kind(kind.item)}
    if kind.shortest:
        schema["minItems"] = kind.shortest
    if kind.longest is not None:
        schema["maxItems"] = kind.longest
    return {**schema, "uniqueItems": True} if kind.is_distinct else schema
