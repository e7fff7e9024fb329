"""What is shown of a desk is decided by its snapshot and the length of its log alone."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.zones.replay import (
    FILTER_DEFAULTS,
    ReplayPlan,
    ReplayProblem,
    ReplaySource,
    plan_replay,
    without_block,
)
from tests.marks import each_case


def plan(document: Any, total: int, *, window: int = 50, page: int = 20) -> ReplayPlan:
    raw = document if document is None or isinstance(document, bytes) else None
    content = raw if raw is not None or document is None else msgspec.json.encode(document)
    return plan_replay(content, total, window=window, page=page)


def test_without_a_snapshot_the_last_page_is_shown() -> None:
    assert plan(None, 0) == ReplayPlan(source=ReplaySource.EMPTY, start=0, first=0)
    assert plan(None, 7) == ReplayPlan(source=ReplaySource.TAIL, start=0, first=0)
    assert plan(None, 70) == ReplayPlan(source=ReplaySource.TAIL, start=50, first=50)


@each_case(
    ("content", "problem"),
    [
        (b"", ReplayProblem.EMPTY_SNAPSHOT),
        (b"{", ReplayProblem.NOT_JSON),
        (b"\xff", ReplayProblem.NOT_JSON),
        (b"[]", ReplayProblem.NOT_AN_OBJECT),
        (b"{}", ReplayProblem.UNKNOWN_VERSION),
        (b'{"schemaVersion":0,"nodes":[]}', ReplayProblem.UNKNOWN_VERSION),
        (b'{"schemaVersion":"2"}', ReplayProblem.UNKNOWN_VERSION),
        (b'{"schemaVersion":1,"nodes":{}}', ReplayProblem.UNKNOWN_VERSION),
        (b'{"nodes":[' + b"[" * 99 + b"]" * 99 + b"]}", ReplayProblem.NOT_JSON),
        (b'{"nodes":' + b"[" * 5_000 + b"]" * 5_000 + b"}", ReplayProblem.NOT_JSON),
    ],
)
def test_a_snapshot_that_cannot_be_used_says_why(content: bytes, problem: ReplayProblem) -> None:
    found = plan(content, 70)

    assert found == ReplayPlan(source=ReplaySource.TAIL, start=50, first=50, problem=problem)


def test_the_second_form_shows_the_newest_lines_whatever_it_has_seen() -> None:
    document = {
        "schemaVersion": 2,
        "highWaterMark": 3,
        "documentState": {"pinnedNodeIds": ["n"], "filter": {"showIncoming": False}},
        "paneState": {"detailsOpen": True},
        "other": 1,
    }

    assert plan(document, 70) == ReplayPlan(
        source=ReplaySource.V2,
        start=20,
        first=20,
        overlay={
            "documentState": {
                "pinnedNodeIds": ["n"],
                "filter": {**FILTER_DEFAULTS, "showIncoming": False},
            },
            "paneState": {"detailsOpen": True},
        },
    )
    assert FILTER_DEFAULTS["showThinking"] is False


@each_case("mark", [0, -1, None, True, "3", 1.5])
def test_the_second_form_without_a_mark_keeps_how_the_page_was_left(mark: Any) -> None:
    document = {"schemaVersion": 2, "highWaterMark": mark, "paneState": {"detailsOpen": True}}

    found = plan(document, 70)

    assert (found.source, found.start, found.problem) == (
        ReplaySource.TAIL,
        50,
        ReplayProblem.NO_MARK,
    )
    assert found.overlay == {"paneState": {"detailsOpen": True}}


def test_the_first_form_shows_its_nodes_and_what_came_after_them() -> None:
    nodes = [{"type": "user_message", "message": "hi"}]
    document = {"schemaVersion": 1, "nodes": nodes, "highWaterMark": 60, "historyOffset": 12}

    assert plan(document, 70) == ReplayPlan(
        source=ReplaySource.V1, start=12, first=60, nodes=tuple(nodes)
    )
    assert plan({"nodes": nodes}, 3).first == 0
    assert plan({"nodes": nodes}, 70).first == 20
    deep = b'{"nodes":' + b"[" * 97 + b"]" * 97 + b"}"
    assert plan(deep, 3).source is ReplaySource.V1


@pytest.mark.parametrize("document", [{"schemaVersion": 2}, {"nodes": []}])
def test_a_mark_beyond_the_log_is_a_problem_and_no_error(document: dict[str, Any]) -> None:
    found = plan({**document, "highWaterMark": 99}, 5)

    assert found.problem is ReplayProblem.MARK_BEYOND_LOG
    assert found.first <= 5


@given(st.binary(max_size=40), st.integers(0, 300))
def test_no_content_is_too_odd_to_be_replayed(content: bytes, total: int) -> None:
    found = plan(content, total)

    assert 0 <= found.first <= total


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(JSON, JSON, st.sampled_from(["", " ", "\n\t"]))
def test_a_restored_snapshot_belongs_to_no_block_and_is_otherwise_untouched(
    before: Any, after: Any, space: str
) -> None:
    told = f'{{{space}"a":{{"sourceBlockId":"in"}},"b":{dumped(before)},{space}"sourceBlockId"'
    rest = f',"schemaVersion":2,{space}"c":{dumped(after)}{space}}}'

    changed = without_block(f'{told}{space}:{space}"block-7"{rest}'.encode())

    assert changed == f'{told}{space}:{space}""{rest}'.encode()


@each_case(
    "content",
    [b"", b"{", b'{"schemaVersion":1,"sourceBlockId":"x"}', b'{"schemaVersion":2,"nodes":[]}'],
)
def test_other_snapshots_stay_as_they_are(content: bytes) -> None:
    assert without_block(content) == content


def test_a_snapshot_of_any_depth_is_cleaned_or_left() -> None:
    """Somewhere among these one reader of JSON gives up, and another does not."""
    for depth in (1, 90, *range(700, 1_000)):
        rest = ',"n":' + "[" * depth + "]" * depth + "}"
        content = f'{{"schemaVersion":2,"sourceBlockId":"b"{rest}'
        cleaned = content.replace('"b"', '""') if depth < 100 else content

        assert without_block(content.encode()) == cleaned.encode()


@each_case("digits", [19, 20, 400, 4_300])
def test_a_snapshot_with_a_number_of_any_length_is_cleaned(digits: int) -> None:
    content = f'{{"schemaVersion":2,"n":-{"9" * digits}.5,"m":{"9" * digits},"sourceBlockId":'

    assert without_block(f'{content}"b"}}'.encode()) in {
        f'{content}""}}'.encode(),
        f'{content}"b"}}'.encode(),
    }


def dumped(value: Any) -> str:
    return msgspec.json.encode(value).decode()
