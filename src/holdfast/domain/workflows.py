"""Workflows: what a `.relavium.yaml` file says, as one value; none is ever stored.

Which keys a file may have is the parser's to judge: a value here has passed it, or was made by
the rule that exports a session.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

SCHEMA_VERSION: Final = "1.0"
ENDING: Final = ".relavium.yaml"
# The one key under which an export keeps the transcript.
EXPORT_KEY: Final = "relaviumExport"
_NO_TITLE: Final = "exported-session"
# File systems end at 255 bytes, and the ending has to be there.
_STEM_LONGEST: Final = 200
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_OTHERS: Final = re.compile(r"[^a-z0-9]+")
_PLACEHOLDER: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


class NodeType(StrEnum):
    """What a node of a workflow does; only the first three are played here."""

    INPUT = "input"
    AGENT = "agent"
    OUTPUT = "output"
    HUMAN_GATE = "human_gate"
    CONDITION = "condition"
    TRANSFORM = "transform"
    PARALLEL = "parallel"
    MERGE = "merge"


class Edge(Struct, frozen=True, kw_only=True):
    """A way from one node to another; `extras` are the keys it has beside its two ends."""

    source: str
    target: str
    extras: tuple[str, ...] = ()


class Workflow(Struct, frozen=True):
    """A workflow as its file says it, key by key."""

    document: dict[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        """Return what stands under `workflow`."""
        body: dict[str, Any] = self.document["workflow"]
        return body

    @property
    def id(self) -> str:
        """Return its id."""
        return str(self.body["id"])

    @property
    def file_name(self) -> str:
        """Return what a file of it is called."""
        return f"{self.id[:_STEM_LONGEST]}{ENDING}"

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return its nodes by their ids, in their order."""
        return {node["id"]: node for node in self.body["nodes"]}

    @property
    def edges(self) -> list[Edge]:
        """Return its edges; where one leaves a node by a handle, that is one of its extras."""
        return [_edge(raw) for raw in self.body["edges"]]

    @property
    def agents(self) -> dict[str, dict[str, Any]]:
        """Return the agents that it brings along, by their ids."""
        return {each["id"]: each for each in self.body.get("agents", ()) if "id" in each}


def kebab_id(title: str | None) -> str:
    """Return the id that a session's title gives its workflow."""
    plain = _NOT_ASCII.sub("", title or "").lower()
    return _OTHERS.sub("-", plain).strip("-") or _NO_TITLE


def placeholders(text: str) -> list[str]:
    """Return what stands between the braces of each `{{…}}`; an opener without an end is text."""
    # Behind the last end nothing can close, and looking for it would be done again and again.
    closed, end, _ = text.rpartition("}}")
    return _PLACEHOLDER.findall(closed + end)


def _edge(raw: Mapping[str, Any]) -> Edge:
    source, handle, _ = raw["from"].partition(":")
    extras = [key for key in raw if key not in {"from", "to"}]
    named = ("handle", *extras) if handle else tuple(extras)
    return Edge(source=source, target=raw["to"], extras=named)
