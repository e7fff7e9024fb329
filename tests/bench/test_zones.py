"""The figures of desks are measured over real appends and real windows."""

import asyncio
from pathlib import Path

import pytest

from bench import zones

pytestmark = pytest.mark.anyio


async def test_the_figures_of_desks_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ROUNDS": 1, "LINES": 20, "WARM_UP": 5, "OPENINGS": 1}.items():
        monkeypatch.setattr(zones, name, value)
    monkeypatch.setattr(zones, "SIZE", 2 << 20)
    monkeypatch.setattr(zones, "BATCH", 1 << 20)
    for name in ("appends", "opening"):
        (tmp_path / name).mkdir()

    measured = await zones._appends(tmp_path / "appends")
    measured |= await asyncio.to_thread(zones.opening, tmp_path / "opening")

    assert {name: figure.value >= 0 for name, figure in measured.items()} == {
        "zone_append": True,
        "zone_append_100": True,
        "zone_append_1": True,
        "zone_open_1gb": True,
        "zone_open_1gb_mb": True,
    }
