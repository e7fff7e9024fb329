"""Marks: that work was done once and for all, told by the store and, as evidence, by a file."""

import hashlib
import logging
from pathlib import Path

from holdfast.zones.model import MIGRATION_MARKER_V1

log = logging.getLogger(__name__)

CONTENT = "v1\n"


def block_zones_mark(source: str) -> str:
    """Return the name of the mark for a folder, by its real path."""
    return f"block_zones_v1:{hashlib.sha256(source.encode('utf-8', 'surrogateescape')).hexdigest()}"


def raise_flag(data_dir: Path) -> None:
    """Write the flag file; nothing depends on it, so that it cannot be written is a warning."""
    try:
        (data_dir / MIGRATION_MARKER_V1).write_text(CONTENT)
    except OSError as error:
        log.warning("the flag %s was not written: %s", MIGRATION_MARKER_V1, error.strerror)
