"""How answers become text: JSON that holds whatever was stored, and nothing that was not."""

import json
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.domain.text import is_encodable, storable


def plain(form: Struct) -> dict[str, Any]:
    """Return a form as plain values."""
    value: dict[str, Any] = msgspec.to_builtins(form)
    return value if is_encodable(text_of(value)) else _mended(value)


def text_of(value: Any) -> str:
    """Return plain values as JSON on one line."""
    # Not by the fast writer: what was observed may hold whole numbers beyond 64 bits.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _mended(value: Any) -> Any:
    """Return values without halves of characters, which cannot be sent, whoever stored them."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {_mended(name): _mended(each) for name, each in value.items()}
    return [_mended(each) for each in value] if isinstance(value, list | tuple) else value
