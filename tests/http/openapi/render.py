"""Writes `docs/openapi.json` anew: the document of this version, as the routes make it."""

import json
from pathlib import Path

from holdfast import __version__
from holdfast.http.app import build_route_table
from holdfast.http.mcp_mount import McpReply
from holdfast.http.metrics import Metrics
from holdfast.http.openapi.document import encode_document
from holdfast.http.security import server_names

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "openapi.json"


async def well() -> None:
    """Be a store that can be written; nobody asks."""


async def nobody(*_: object) -> McpReply:
    """Be whoever speaks another protocol; nobody talks to them."""
    raise NotImplementedError


def render() -> str:
    """Return the document, to be read by people and compared line by line."""
    table = build_route_table(well, Metrics(), server_names(8765), __version__, nobody)
    document = json.loads(encode_document(table.routes, __version__))
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(render(), "utf-8")
