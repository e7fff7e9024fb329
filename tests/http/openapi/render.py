"""Writes `docs/openapi.json` anew: the document of this version, as the routes make it."""

import json
from pathlib import Path

from holdfast import __version__
from holdfast.http.app import table_of
from holdfast.http.mcp_mount import Reply
from holdfast.http.metrics import Metrics
from holdfast.http.openapi.document import described
from holdfast.http.security import names_of

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "openapi.json"


async def well() -> None:
    """Be a store that can be written; nobody asks."""


async def nobody(*_: object) -> Reply:
    """Be whoever speaks another protocol; nobody talks to them."""
    raise NotImplementedError


def render() -> str:
    """Return the document, to be read by people and compared line by line."""
    table = table_of(well, Metrics(), names_of(8765), __version__, nobody)
    document = json.loads(described(table.routes, __version__))
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(render(), "utf-8")
