"""Previews of archives and the replay of an active zone."""

import json
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Internal
from holdfast.domain.ids import Owner
from holdfast.ports.store import Tx
from holdfast.zones.files import lines_between, newest_lines, read_lines
from holdfast.zones.lines import LineQuery, display_line
from holdfast.zones.model import (
    OUTPUT_FILE,
    SNAPSHOT_FILE,
    ArchiveSummary,
    ZoneFile,
    archive_prefix,
    archive_time,
)

SNAPSHOT_LARGEST: Final = 4 << 20
PREVIEW_LONGEST: Final = 240
PREVIEW_LINES: Final = 200
BOOTSTRAP: Final = "# Session Context"
NOTHING: Final = ("", 0)
# Same nesting limit as for request bodies.
DEEPEST: Final = 100
_RUNS: Final = re.compile(r"\s+")


def parse_snapshot(content: bytes) -> Any:
    """Return the parsed JSON document; `None` if it is invalid."""
    try:
        return msgspec.json.decode(content)
    # Nesting that exceeds the recursion limit is treated as invalid.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def is_deep(value: Any) -> bool:
    """Return whether a document exceeds the nesting limit."""
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
    """Return the schema version of a snapshot; nodes without a version mean version 1."""
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
    document = parse_snapshot(content)
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(nodes, list):
        return NOTHING
    return collapse_preview(_first_user_message(nodes)), len(nodes)


def output_preview(lines: Iterable[bytes]) -> str:
    """Return the first user prompt among the given lines of an output."""
    for line in lines:
        said = _prompt_in(parse_snapshot(line))
        if said:
            return collapse_preview(said)
    return ""


def collapse_preview(text: str) -> str:
    """Return a text on one line, cut to 240 characters with an ellipsis."""
    collapsed = _RUNS.sub(" ", text).strip()
    if len(collapsed) > PREVIEW_LONGEST:
        return collapsed[:PREVIEW_LONGEST] + "…"
    return collapsed


def _first_user_message(nodes: list[Any]) -> str:
    """Return the first user message; a bootstrap message only if there is no other."""
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
    """Return a text, or the joined texts of a list of parts."""
    if isinstance(place, str):
        return place
    if not isinstance(place, list):
        return ""
    parts = (part.get("text") for part in place if isinstance(part, Mapping))
    return "".join(text for text in parts if isinstance(text, str))


def without_block(content: bytes) -> bytes:
    """Return a version 2 snapshot with an empty `sourceBlockId`; other bytes are unchanged."""
    document = parse_snapshot(content)
    version = version_of(document)
    if version is None or version < 2 or "sourceBlockId" not in document:
        return content
    if is_deep(document):
        # At this depth JSON parsers differ; no client writes such a snapshot.
        return content
    text = content.decode()
    for start, end in reversed(_values_of(text, "sourceBlockId")):
        text = f'{text[:start]}""{text[end:]}'
    return text.encode()


def _values_of(text: str, name: str) -> list[tuple[int, int]]:
    """Return the spans of a key's values in the text of a valid JSON object."""
    decoder = json.JSONDecoder()
    found = []
    at = _behind_space(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = decoder.raw_decode(text, at)
        start = _behind_space(text, _behind_space(text, at) + 1)
        _, end = decoder.raw_decode(text, start)
        if key == name:
            found.append((start, end))
        at = _behind_space(text, end)
        if text[at] == ",":
            at = _behind_space(text, at + 1)
    return found


def _behind_space(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at


WINDOW: Final = 5_000
PAGE: Final = 200
# Above this many bytes the oldest lines of a window are omitted; they can be requested.
REPLAY_ROOM: Final = 64 << 20
FILTER_DEFAULTS: Final = {
    "showThinking": False,
    "showSuccessfulTools": True,
    "showFailedTools": True,
    "showIncoming": True,
    "showOutgoing": True,
}


def new_snapshot(at: int, lines: int) -> bytes:
    """Return the snapshot of a zone that no view has shown yet: all defaults, up to the last line.

    It has no nodes, because the log is the content (version 2).
    """
    document = {
        "schemaVersion": 2,
        "savedAt": at,
        "highWaterMark": lines,
        "sourceBlockId": "",
        "documentState": {
            "collapsedNodeIds": [],
            "pinnedNodeIds": [],
            "scrollPosition": 0,
            "filter": FILTER_DEFAULTS,
        },
        "paneState": {"detailsOpen": False},
    }
    return msgspec.json.encode(document)


class ReplaySource(StrEnum):
    """Source of a replay."""

    V2 = "v2"
    V1 = "v1"
    TAIL = "tail"
    EMPTY = "empty"


class ReplayProblem(StrEnum):
    """Why a snapshot was ignored, or used only in part."""

    EMPTY_SNAPSHOT = "empty_snapshot"
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    UNKNOWN_VERSION = "unknown_version"
    NO_MARK = "no_mark"
    MARK_BEYOND_LOG = "mark_beyond_log"


class Replay(Struct, frozen=True, kw_only=True):
    """Initial view: nodes of the snapshot, then the log lines up to the last one.

    `start` is the number of the first line, or the history offset of the nodes.
    """

    source: ReplaySource
    lines: tuple[str, ...]
    nodes: tuple[Any, ...]
    start: int
    total: int
    overlay: dict[str, Any]
    generation: str | None
    torn: bool
    problem: ReplayProblem | None = None


class ReplayPlan(Struct, frozen=True, kw_only=True):
    """First log line that a replay reads, and the other content that it shows.

    `start` is where the view begins, which may be before the first line.
    """

    source: ReplaySource
    start: int
    first: int
    nodes: tuple[Any, ...] = ()
    overlay: dict[str, Any] = {}
    problem: ReplayProblem | None = None


def plan_replay(snapshot: bytes | None, total: int, *, window: int, page: int) -> ReplayPlan:
    """Plan the replay of a zone with an optional snapshot and `total` log lines."""
    if snapshot is None:
        return _tail(total, page)
    if not snapshot:
        return _tail(total, page, problem=ReplayProblem.EMPTY_SNAPSHOT)
    document = _shallow(snapshot)
    if not isinstance(document, dict):
        problem = ReplayProblem.NOT_JSON if document is None else ReplayProblem.NOT_AN_OBJECT
        return _tail(total, page, problem=problem)
    version = version_of(document)
    if version is not None and version >= 2:
        return _second(document, total, window=window, page=page)
    if version == 1 and isinstance(document.get("nodes"), list):
        return _first(document, total, window=window)
    return _tail(total, page, problem=ReplayProblem.UNKNOWN_VERSION)


def _shallow(snapshot: bytes) -> Any:
    """Return the document of a snapshot; `None` if it is invalid or nested too deeply."""
    document = parse_snapshot(snapshot)
    # The document is encoded as JSON again by callers at different stack depths.
    return None if is_deep(document) else document


def _second(document: dict[str, Any], total: int, *, window: int, page: int) -> ReplayPlan:
    overlay = _overlay(document)
    mark = _number(document.get("highWaterMark"))
    if not mark:
        return _tail(total, page, overlay=overlay, problem=ReplayProblem.NO_MARK)
    # Up to the current end of the log: lines written after the last save must be visible.
    start = max(0, total - window)
    problem = ReplayProblem.MARK_BEYOND_LOG if mark > total else None
    return ReplayPlan(
        source=ReplaySource.V2,
        start=start,
        first=start,
        overlay=overlay,
        problem=problem,
    )


def _first(document: dict[str, Any], total: int, *, window: int) -> ReplayPlan:
    mark = _number(document.get("highWaterMark")) or 0
    return ReplayPlan(
        source=ReplaySource.V1,
        start=_number(document.get("historyOffset")) or 0,
        # Limited to the window: an old snapshot would otherwise replay the whole log.
        first=max(min(mark, total), total - window),
        nodes=tuple(document["nodes"]),
        problem=ReplayProblem.MARK_BEYOND_LOG if mark > total else None,
    )


def _tail(
    total: int,
    page: int,
    *,
    overlay: dict[str, Any] | None = None,
    problem: ReplayProblem | None = None,
) -> ReplayPlan:
    start = max(0, total - page)
    return ReplayPlan(
        source=ReplaySource.TAIL if total else ReplaySource.EMPTY,
        start=start,
        first=start,
        overlay=overlay or {},
        problem=problem,
    )


def _overlay(document: dict[str, Any]) -> dict[str, Any]:
    """Return the saved view state, with defaults for missing filter values."""
    kept = {
        name: document[name]
        for name in ("documentState", "paneState")
        if isinstance(document.get(name), dict)
    }
    state = kept.get("documentState")
    if state is not None:
        said = state.get("filter")
        filters = FILTER_DEFAULTS | (said if isinstance(said, dict) else {})
        kept["documentState"] = {**state, "filter": filters}
    return kept


def _number(value: Any) -> int | None:
    # `bool` is a subclass of `int` in Python, but not a number in JSON.
    return value if type(value) is int and value >= 0 else None


async def archives_of(tx: Tx, owner: Owner, definition_id: str) -> list[tuple[str, int]]:
    """Return an agent's archives with their timestamps, newest first; skips other names."""
    names = await tx.zones.names(owner, archive_prefix(definition_id))
    dated = [(zone, archive_time(definition_id, zone)) for zone in names]
    return sorted(((zone, ms) for zone, ms in dated if ms is not None), key=lambda each: -each[1])


async def summary_of(tx: Tx, owner: Owner, zone: str, ms: int) -> ArchiveSummary:
    """Return the list entry of an archive; a damaged archive must not hide the others."""
    try:
        files = {file.name: file for file in await tx.zones.files(owner, zone)}
    except Internal:
        files = {}
    state, output = files.get(SNAPSHOT_FILE), files.get(OUTPUT_FILE)
    try:
        version, preview, nodes = await _preview(tx, state, output)
    except Internal:
        version, preview, nodes = None, *NOTHING
    return ArchiveSummary(
        archive_zoneid=zone,
        archived_at_ms=ms,
        preview=preview,
        node_count=nodes,
        size=sum(file.size for file in files.values()),
        lines=output.lines if output else 0,
        has_state=state is not None,
        has_output=output is not None,
        schema_version=version,
    )


async def _preview(
    tx: Tx, state: ZoneFile | None, output: ZoneFile | None
) -> tuple[int | None, str, int]:
    """Return the snapshot version, the preview and the number of nodes or lines."""
    content = await _snapshot(tx, state)
    version = None if content is None else version_of(parse_snapshot(content))
    is_log = state is None or (version is not None and version >= 2)
    preview = await _log_preview(tx, output) if is_log else snapshot_preview(content)
    return version, *preview


async def _snapshot(tx: Tx, file: ZoneFile | None) -> bytes | None:
    if file is None or file.size > SNAPSHOT_LARGEST:
        return None
    return await tx.zones.read(file, 0, file.size)


async def _log_preview(tx: Tx, output: ZoneFile | None) -> tuple[str, int]:
    if output is None:
        return NOTHING
    first = await lines_between(tx, output, 0, min(PREVIEW_LINES, output.lines))
    return output_preview(first), output.lines


async def replay_zone(tx: Tx, owner: Owner, zone: str, *, window: int, page: int) -> Replay:
    """Return the replay of an active zone; invalid content never raises."""
    files = {file.name: file for file in await tx.zones.files(owner, zone)}
    state, output = files.get(SNAPSHOT_FILE), files.get(OUTPUT_FILE)
    snapshot = None if state is None else await tx.zones.read(state, 0, state.size)
    plan = plan_replay(snapshot, output.lines if output else 0, window=window, page=page)
    first, found, torn = plan.first, list[bytes](), False
    if output is not None:
        first, found = await newest_lines(tx, output, plan.first, room=REPLAY_ROOM)
        torn = (await read_lines(tx, output, LineQuery(start=output.lines, limit=1))).torn
    return Replay(
        source=plan.source,
        lines=tuple(display_line(found)),
        nodes=plan.nodes,
        start=plan.start if plan.source is ReplaySource.V1 else first,
        total=output.lines if output else 0,
        overlay=plan.overlay,
        generation=output.generation if output else None,
        torn=torn,
        problem=plan.problem,
    )
