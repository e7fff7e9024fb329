"""Replays: what is shown of a desk before anything else is known, decided from what lies there."""

from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.zone_previews import is_deep, parsed, version_of

WINDOW: Final = 5_000
PAGE: Final = 200
# Beyond so many bytes the oldest lines of a window are left to be asked for.
REPLAY_ROOM: Final = 64 << 20
FILTER_DEFAULTS: Final = {
    "showThinking": False,
    "showSuccessfulTools": True,
    "showFailedTools": True,
    "showIncoming": True,
    "showOutgoing": True,
}


class ReplaySource(StrEnum):
    """From what a replay was made."""

    V2 = "v2"
    V1 = "v1"
    TAIL = "tail"
    EMPTY = "empty"


class Problem(StrEnum):
    """Why a snapshot was of no use, or of less than it says."""

    EMPTY_SNAPSHOT = "empty_snapshot"
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    UNKNOWN_VERSION = "unknown_version"
    NO_MARK = "no_mark"
    MARK_BEYOND_LOG = "mark_beyond_log"


class Replay(Struct, frozen=True, kw_only=True):
    """What to show: nodes as a snapshot kept them, then lines of the log up to its last.

    `start` is the number of the first line, or where the history of the nodes begins.
    """

    source: ReplaySource
    lines: tuple[str, ...]
    nodes: tuple[Any, ...]
    start: int
    total: int
    overlay: dict[str, Any]
    generation: str | None
    torn: bool
    problem: Problem | None = None


class ReplayPlan(Struct, frozen=True, kw_only=True):
    """From which line on a replay needs the log, and what else it shows.

    `start` is where what is shown begins, which may be before the first of the lines.
    """

    source: ReplaySource
    start: int
    first: int
    nodes: tuple[Any, ...] = ()
    overlay: dict[str, Any] = {}
    problem: Problem | None = None


def planned(snapshot: bytes | None, total: int, *, window: int, page: int) -> ReplayPlan:
    """Decide what is shown of a desk with a snapshot, or without, and so many lines of log."""
    if snapshot is None:
        return _tail(total, page)
    if not snapshot:
        return _tail(total, page, problem=Problem.EMPTY_SNAPSHOT)
    document = _shallow(snapshot)
    if not isinstance(document, dict):
        told = Problem.NOT_JSON if document is None else Problem.NOT_AN_OBJECT
        return _tail(total, page, problem=told)
    version = version_of(document)
    if version is not None and version >= 2:
        return _second(document, total, window=window, page=page)
    if version == 1 and isinstance(document.get("nodes"), list):
        return _first(document, total, window=window)
    return _tail(total, page, problem=Problem.UNKNOWN_VERSION)


def _shallow(snapshot: bytes) -> Any:
    """Return the document of a snapshot; nothing where it is none, or nested without end."""
    document = parsed(snapshot)
    # What is shown is written as JSON again, wherever the one stands who shows it.
    return None if is_deep(document) else document


def _second(document: dict[str, Any], total: int, *, window: int, page: int) -> ReplayPlan:
    overlay = _overlay(document)
    mark = _number(document.get("highWaterMark"))
    if not mark:
        return _tail(total, page, overlay=overlay, problem=Problem.NO_MARK)
    # Up to where the log is now: what was written after the last save must not be hidden.
    start = max(0, total - window)
    problem = Problem.MARK_BEYOND_LOG if mark > total else None
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
        # Never more than the window: a page that saved long ago would be shown all of a long log.
        first=max(min(mark, total), total - window),
        nodes=tuple(document["nodes"]),
        problem=Problem.MARK_BEYOND_LOG if mark > total else None,
    )


def _tail(
    total: int,
    page: int,
    *,
    overlay: dict[str, Any] | None = None,
    problem: Problem | None = None,
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
    """Return how the page was left; what a filter does not say is as it usually is."""
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
    # True is a number to Python and none to anybody else.
    return value if type(value) is int and value >= 0 else None
