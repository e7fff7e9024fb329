"""The figures of search are measured over real messages."""

from pathlib import Path

import pytest

from bench.search import searched

pytestmark = pytest.mark.anyio


async def test_the_figures_of_search_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.search.QUERIES", 10)

    measured = await searched(tmp_path, messages=600, sessions=1)

    assert set(measured) == {"search_p50_ms", "search_index_ratio"}
    assert all(figure.value > 0 for figure in measured.values())
