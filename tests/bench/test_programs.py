"""The agent of the figures plays whole turns, behind us and by hand."""

from pathlib import Path

import pytest

from bench import programs

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_the_figures_of_programs_are_measured_over_whole_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "UPDATES", 2_000)
    monkeypatch.setattr(programs, "TURNS", 2)
    for name in ("updates", "overhead"):
        (tmp_path / name).mkdir()

    measured = await programs._updates(tmp_path / "updates")
    measured |= await programs._overhead(tmp_path / "overhead")

    assert {name: figure.value > 0 for name, figure in measured.items()} == {
        "acp_updates": True,
        "acp_overhead_ms": True,
    }
