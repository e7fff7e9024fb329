"""The figures of Postgres are measured over real turns, or it is said why they are not."""

from pathlib import Path

import pytest

from bench import postgres
from tests.postgres import Databases

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_the_figures_of_postgres_are_measured(
    tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ROUNDS": 1, "ROWS": 10, "MANY": 2, "PLAYERS": 2, "TURNS": 1}.items():
        monkeypatch.setattr(postgres, name, value)
    monkeypatch.setattr(postgres, "RINGS", 3)

    measured = await postgres.measured_appends(tmp_path, databases.fresh())
    measured |= await postgres.measured_turns(tmp_path, databases.fresh())
    measured |= await postgres.measured_doorbell(tmp_path, databases.fresh())

    assert {name: figure.value >= 0 for name, figure in measured.items()} == {
        "pg_append_1": True,
        "pg_append_100": True,
        "pg_turn_50": True,
        "pg_doorbell_ms": True,
    }


def test_without_a_server_it_is_said_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(postgres, "find_server", lambda: None)

    measured = postgres.appends(tmp_path) | postgres.turns(tmp_path) | postgres.doorbell(tmp_path)

    assert measured == {}
    assert capsys.readouterr().err.count("SKIPPED pg_*: no Postgres server was found") == 3
