"""The figures of observed history are measured over real claims."""

from pathlib import Path

import pytest

from bench import observations

pytestmark = pytest.mark.anyio


async def test_the_figures_of_observed_history_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"ROUNDS": 1, "CLAIMS": 8, "WARM_UP": 2, "LONG": 12, "SESSIONS": 3, "CHECKPOINTS": 40}
    for name, value in (small | {"PAGES": 2}).items():
        monkeypatch.setattr(observations, name, value)
    for name in ("submits", "resolving", "timelines"):
        (tmp_path / name).mkdir()

    measured = await observations._submits(tmp_path / "submits")
    measured |= await observations._resolving(tmp_path / "resolving")
    measured |= await observations._timelines(tmp_path / "timelines")

    assert {name: figure.value >= 0 for name, figure in measured.items()} == {
        "submit_ms": True,
        "resolve_1k_cold": True,
        "resolve_1k_next": True,
        "timeline_100k": True,
    }
