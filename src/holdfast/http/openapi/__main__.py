"""Prints the document of this version, as `docs/openapi.json` holds it."""

import json
import sys

from holdfast import __version__
from holdfast.http.assembly import table_of
from holdfast.http.guard import names_of
from holdfast.http.metrics import Metrics
from holdfast.http.openapi.document import described


async def _well() -> None:
    """Be a store that can be written; nobody asks."""


def whole_document() -> str:
    """Return the document, to be read by people and compared line by line."""
    table = table_of(_well, Metrics(), names_of(8765), __version__)
    document = json.loads(described(table.routes, __version__))
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(whole_document())
