"""Previews: what an archive was about in one line, and how much is in it.

Whatever a snapshot holds, nothing here raises: what cannot be read has no preview.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

SNAPSHOT_LARGEST: Final = 4 << 20
PREVIEW_LONGEST: Final = 240
PREVIEW_LINES: Final = 200
BOOTSTRAP: Final = "# Session Context"
NOTHING: Final = ("", 0)
# As deep as the bodies of requests may be.
DEEPEST: Final = 100

_RUNS: Final = re.compile(r"\s+")


def parsed(content: bytes) -> Any:
    """Return the document that a content is; nothing where it is none."""
    try:
        return msgspec.json.decode(content)
    # Nested without end it is no document that anybody wrote.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def is_deep(value: Any) -> bool:
    """Tell whether a document is nested more deeply than anybody writes one."""
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def version_of(document: Any) -> int | None:
    """Return the version of a snapshot's form; one with nodes that says none is the first."""
    if not isinstance(document, dict):
        return None
    said = document.get("schemaVersion")
    if said is None and "nodes" in document:
        return 1
    return said if type(said) is int else None


def snapshot_preview(content: bytes | None) -> tuple[str, int]:
    """Return the preview and the number of nodes of a snapshot; any error gives `("", 0)`."""
    if content is None or len(content) > SNAPSHOT_LARGEST:
        return NOTHING
    document = parsed(content)
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(nodes, list):
        return NOTHING
    return collapse_preview(_first_said(nodes)), len(nodes)


def output_preview(lines: Iterable[bytes]) -> str:
    """Return what the first user prompt among the first lines of an output says."""
    for line in lines:
        said = _prompt_in(parsed(line))
        if said:
            return collapse_preview(said)
    return ""


def collapse_preview(text: str) -> str:
    """Return a text on one line, at most 240 characters of it, and an ellipsis for the rest."""
    collapsed = _RUNS.sub(" ", text).strip()
    if len(collapsed) > PREVIEW_LONGEST:
        return collapsed[:PREVIEW_LONGEST] + "…"
    return collapsed


def _first_said(nodes: list[Any]) -> str:
    """Return the first message of a person; what a program said to begin with only if need be."""
    said = [
        node["message"]
        for node in nodes
        if isinstance(node, dict)
        and node.get("type") == "user_message"
        and isinstance(node.get("message"), str)
        and node["message"].strip()
    ]
    own = [text for text in said if not text.startswith(BOOTSTRAP)]
    return next(iter(own or said), "")


def _prompt_in(line: Any) -> str:
    if not isinstance(line, dict):
        return ""
    if line.get("type") not in {"user", "user_message"} and line.get("role") != "user":
        return ""
    message = line.get("message")
    places = (message, _under(message), line.get("content"), line.get("text"))
    return next((text for place in places if (text := _text(place).strip())), "")


def _under(message: Any) -> Any:
    return message.get("content") if isinstance(message, Mapping) else None


def _text(place: Any) -> str:
    """Return the words at a place: a text, or the texts of a list of parts."""
    if isinstance(place, str):
        return place
    if not isinstance(place, list):
        return ""
    parts = (part.get("text") for part in place if isinstance(part, Mapping))
    return "".join(text for text in parts if isinstance(text, str))
