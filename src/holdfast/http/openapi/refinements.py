"""What JSON Schema can say of a body and its type cannot: which keys belong together."""

from collections.abc import Mapping
from typing import Any, Final

_REFERENCE: Final = "#/components/schemas/"
_NOTHING: Final = {"type": "null"}
_OWN_LOOP: Final = {"runtime": {"$ref": f"{_REFERENCE}LlmRuntimeForm"}}

REFINEMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "AgentPost": {
        "anyOf": [
            {
                "title": "a language model in our own loop",
                "properties": {**_OWN_LOOP, "fallback_model_ids": {"maxItems": 0}},
                "required": ["system_prompt"],
            },
            {
                "title": "several language models in our own loop",
                "properties": {**_OWN_LOOP, "default_model_id": {"type": "string"}},
                "required": ["system_prompt", "default_model_id"],
            },
            {
                "title": "a program of its own, which chooses its own models",
                "properties": {
                    "runtime": {"$ref": f"{_REFERENCE}AcpRuntimeForm"},
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
