"""The types of the table as JSON Schema, and what their members look like."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Code
from holdfast.http.openapi.examples import EXAMPLES
from holdfast.http.openapi.refinements import REFINEMENTS
from holdfast.http.table import Route

Document = dict[str, Any]

_REFERENCE: Final = "#/components/schemas/{name}"


class ErrorForm(Struct, frozen=True):
    """Every error: a code for programs, a message for people, and what else is known."""

    error: Code
    message: str
    details: dict[str, Any]


class Schemas:
    """A schema for each type of a table, and the components they have in common."""

    def __init__(self, routes: Sequence[Route]) -> None:
        kinds: list[Any] = [ErrorForm]
        for route in routes:
            kinds += [route.body] if route.body else []
            kinds += [kind for each in route.gives.values() for kind in alternatives(each)]
        # Compared by name, because some types cannot be hashed.
        unique = {repr(kind): kind for kind in kinds}
        found, components = msgspec.json.schema_components(unique.values(), ref_template=_REFERENCE)
        self._schemas = dict(zip(unique, found, strict=True))
        self.components: Final[Document] = {
            name: _whole(name, schema) for name, schema in sorted(components.items())
        }

    def of(self, kind: Any) -> Document:
        """Return the schema of a type, or of any of several."""
        found = [self._schemas[repr(each)] for each in alternatives(kind)]
        return found[0] if len(found) == 1 else {"anyOf": found}


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types that a body of success may have."""
    if kind is None:
        return ()
    return kind if isinstance(kind, tuple) else (kind,)


def _whole(name: str, schema: Document) -> Document:
    examples = {"examples": [EXAMPLES[name]]} if name in EXAMPLES else {}
    return {**schema, **REFINEMENTS.get(name, {}), **examples}


def without_null(schema: Document) -> Document:
    """Return the schema of a value that is left out rather than null, as in a query."""
    rest = {name: each for name, each in schema.items() if (name, each) != ("default", None)}
    kinds = [kind for kind in rest.pop("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        return {**kinds[0], **rest}
    return {"anyOf": kinds, **rest} if kinds else rest


def inlined(schema: Any, definitions: Mapping[str, Document]) -> Any:
    """Return a parameter's schema without references: they are small, and nobody shares them."""
    if isinstance(schema, list):
        return [inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    rest = {name: inlined(each, definitions) for name, each in schema.items() if name != "$ref"}
    if reference is None:
        return rest
    return inlined(definitions[reference.rsplit("/", 1)[-1]], definitions) | rest
