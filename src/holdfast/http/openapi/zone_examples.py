"""Examples of what is told about zones, as it goes over the wire."""

from collections.abc import Mapping
from typing import Any, Final

_AGENT: Final = "019b7ca9-8f2e-7111-8aaa-000000000001"
_SESSION: Final = "019b7ca9-8f2e-7222-8aaa-000000000002"
_AT: Final = 1_767_323_045_678
_ZONE: Final = f"agent:{_AGENT}:current"
_ARCHIVE: Final = f"agent:{_AGENT}:archive:{_AT}"
_GENERATION: Final = "8296baa9455e3e70"
_LINE: Final = '{"type":"user","text":"hello"}'
_FILE: Final[dict[str, Any]] = {
    "name": "output",
    "size": 31,
    "lines": 1,
    "created_ms": _AT,
    "modified_ms": _AT,
    "generation": _GENERATION,
}
_LINES: Final[dict[str, Any]] = {
    "lines": [_LINE],
    "start": 0,
    "total": 1,
    "generation": _GENERATION,
    "torn": False,
    "tail_open": False,
}
_NAMED: Final[dict[str, Any]] = {"archive_zoneid": _ARCHIVE, "archived_at_ms": _AT}
_SUMMARY: Final[dict[str, Any]] = {
    **_NAMED,
    "preview": "hello",
    "node_count": 1,
    "size": 31,
    "lines": 1,
    "has_state": False,
    "has_output": True,
    "schema_version": None,
}

ZONE_EXAMPLES: Final[Mapping[str, Any]] = {
    "ArchiveForm": {**_NAMED, "content": None, "files": [_FILE]},
    "ArchiveList": {"data": [_SUMMARY], "next_cursor": None},
    "ArchivedForm": {**_NAMED, "files": {"output": 31}},
    "DeletedForm": {"deleted": True},
    "DeskForm": {"zone": _ZONE, "session_id": _SESSION, "files": [_FILE]},
    "LinesForm": _LINES,
    "OutputAppendedForm": {"zone": _ZONE, "offset": 0, "bytes_written": 31},
    "ReplayForm": {**_LINES, "source": "tail", "nodes": [], "overlay": {}, "problem": None},
    "RestoredForm": {"zone": _ZONE, "restored_from": _ARCHIVE, "displaced": None},
    "StateForm": {"zone": _ZONE, "content": None, "modified_ms": None},
    "StateWrittenForm": {"zone": _ZONE, "bytes_written": 19, "modified_ms": _AT},
}
