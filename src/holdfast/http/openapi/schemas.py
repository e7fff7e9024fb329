"""JSON Schemas of the route types, with rules and examples that Python types cannot express."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.http.routing import Route
from holdfast.wire.errors import ErrorForm

_COMPONENTS: Final = "#/components/schemas/"
_NOTHING: Final = {"type": "null"}
_OWN_LOOP: Final = {"runtime": {"$ref": f"{_COMPONENTS}LlmRuntimeForm"}}
REFINEMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "AgentPost": {
        "anyOf": [
            {
                "title": "a language model in Holdfast's own loop",
                "properties": {**_OWN_LOOP, "fallback_model_ids": {"maxItems": 0}},
                "required": ["system_prompt"],
            },
            {
                "title": "several language models in Holdfast's own loop",
                "properties": {**_OWN_LOOP, "default_model_id": {"type": "string"}},
                "required": ["system_prompt", "default_model_id"],
            },
            {
                "title": "an external program, which chooses its own models",
                "properties": {
                    "runtime": {"$ref": f"{_COMPONENTS}AcpRuntimeForm"},
                    "default_model_id": _NOTHING,
                    "fallback_model_ids": {"maxItems": 0},
                    "temperature": _NOTHING,
                    "max_tokens": _NOTHING,
                },
                "required": ["runtime"],
            },
        ]
    },
    "ResultContent": {
        "anyOf": [{"properties": {"error": _NOTHING}}, {"properties": {"result": _NOTHING}}]
    },
    "SettlePost": {
        "anyOf": [
            {"properties": {"how": {"enum": ["retry", "skip"]}}},
            {
                "properties": {
                    "how": {"enum": ["mark_done"]},
                    "result": {"type": ["array", "boolean", "number", "object", "string"]},
                },
                "required": ["result"],
            },
        ]
    },
    "UserPost": {
        "oneOf": [
            {"required": ["content"]},
            {"required": ["parts"]},
        ]
    },
}
Document = dict[str, Any]
_REFERENCE: Final = f"{_COMPONENTS}{{name}}"


# Text by the name of its field, where a pattern or readers need more than that name.
_SAMPLES: Final[Mapping[str, str]] = {
    "archive_zoneid": "agent:code-assistant:archive:1767323045678",
    "generation": "8296baa9455e3e70",
    "model": "offline:holdfast",
    "name": "Code assistant",
    "path": "/srv/work/sums",
    "role": "user",
    "slug": "code-assistant",
    "snippet": "The [tide] is high at noon.",
    "state": "idle",
    "status": "active",
    "text": "How much is 2+2?",
    "timestamp": "2026-01-02T03:04:05.678Z",
    "title": "Sums",
    "working_dir": "/srv/work/sums",
    "zone": "agent:code-assistant:current",
}
_BY_FORMAT: Final[Mapping[str, str]] = {
    "date-time": "2026-01-02T03:04:05.678901Z",
    "uuid": "019b7ca9-8f2e-7222-8aaa-000000000002",
}


class Schemas:
    """A schema for each type of a table, and the components they share."""

    def __init__(self, routes: Sequence[Route]) -> None:
        returned = [
            kind
            for route in routes
            for each in route.responses.values()
            for kind in alternatives(each)
        ]
        types = [ErrorForm, *(route.body for route in routes if route.body), *returned]
        # Compared by name, because some types are not hashable.
        unique = {repr(kind): kind for kind in types}
        found, components = msgspec.json.schema_components(unique.values(), ref_template=_REFERENCE)
        self._schemas = dict(zip(unique, found, strict=True))
        self.components: Final[Document] = {
            name: {**schema, **REFINEMENTS.get(name, {})}
            for name, schema in sorted(components.items())
        }
        for name in {_component_name(self.of(kind)) for kind in (ErrorForm, *returned)} - {""}:
            self.components[name]["examples"] = [example_of(self.components[name], components)]

    def of(self, kind: Any) -> Document:
        """Return the schema of a type, or of a union of several."""
        found = [self._schemas[repr(each)] for each in alternatives(kind)]
        return found[0] if len(found) == 1 else {"anyOf": found}


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types that a success body may have."""
    if kind is None:
        return ()
    return kind if isinstance(kind, tuple) else (kind,)


def _component_name(schema: Document) -> str:
    """Return the component that a schema, or the items of its list, refers to."""
    return str(schema.get("items", schema).get("$ref", "")).removeprefix(_COMPONENTS)


def example_of(schema: Document, components: Document, *, field: str = "") -> Any:
    """Return a value that fits a schema, with every field."""
    if "$ref" in schema:
        return example_of(components[_component_name(schema)], components, field=field)
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], components, field=field)
    text = _BY_FORMAT.get(schema.get("format", ""), _SAMPLES.get(field, field))
    if choices := schema.get("enum"):
        return text if text in choices else choices[0]
    items = schema.get("items")
    values: Document = {
        "array": [example_of(items, components, field=field)] if items else [],
        "boolean": True,
        "integer": schema.get("minimum", 1),
        "number": schema.get("minimum", 1),
        "object": {
            name: example_of(each, components, field=name)
            for name, each in schema.get("properties", {}).items()
        },
        "string": text,
    }
    return values.get(schema.get("type", ""))


def strip_null(schema: Document) -> Document:
    """Return the schema of a value that is omitted rather than null, as in a query."""
    rest = {name: each for name, each in schema.items() if (name, each) != ("default", None)}
    kinds = [kind for kind in rest.pop("anyOf", ()) if kind != _NOTHING]
    if len(kinds) == 1:
        return {**kinds[0], **rest}
    return {"anyOf": kinds, **rest} if kinds else rest


def inline_references(schema: Any, definitions: Mapping[str, Document]) -> Any:
    """Return a parameter's schema with references inlined, because it is small and unshared."""
    if isinstance(schema, list):
        return [inline_references(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    rest = {
        name: inline_references(each, definitions)
        for name, each in schema.items()
        if name != "$ref"
    }
    if reference is None:
        return rest
    return inline_references(definitions[reference.rsplit("/", 1)[-1]], definitions) | rest
