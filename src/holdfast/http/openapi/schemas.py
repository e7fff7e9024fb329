"""JSON Schemas of the route types, with rules and examples that Python types cannot express."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.http.openapi.examples import EXAMPLES
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
_REFERENCE: Final = "#/components/schemas/{name}"


class Schemas:
    """A schema for each type of a table, and the components they share."""

    def __init__(self, routes: Sequence[Route]) -> None:
        other_media_types: list[Any] = [ErrorForm]
        for route in routes:
            other_media_types += [route.body] if route.body else []
            other_media_types += [
                kind for each in route.responses.values() for kind in alternatives(each)
            ]
        # Compared by name, because some types are not hashable.
        unique = {repr(kind): kind for kind in other_media_types}
        found, components = msgspec.json.schema_components(unique.values(), ref_template=_REFERENCE)
        self._schemas = dict(zip(unique, found, strict=True))
        self.components: Final[Document] = {
            name: _component(name, schema) for name, schema in sorted(components.items())
        }

    def of(self, kind: Any) -> Document:
        """Return the schema of a type, or of a union of several."""
        found = [self._schemas[repr(each)] for each in alternatives(kind)]
        return found[0] if len(found) == 1 else {"anyOf": found}


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types that a success body may have."""
    if kind is None:
        return ()
    return kind if isinstance(kind, tuple) else (kind,)


def _component(name: str, schema: Document) -> Document:
    examples = {"examples": [EXAMPLES[name]]} if name in EXAMPLES else {}
    return {**schema, **REFINEMENTS.get(name, {}), **examples}


def strip_null(schema: Document) -> Document:
    """Return the schema of a value that is omitted rather than null, as in a query."""
    rest = {name: each for name, each in schema.items() if (name, each) != ("default", None)}
    other_media_types = [kind for kind in rest.pop("anyOf", ()) if kind != {"type": "null"}]
    if len(other_media_types) == 1:
        return {**other_media_types[0], **rest}
    return {"anyOf": other_media_types, **rest} if other_media_types else rest


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
