"""R15: every session that ever failed is loaded and projected, to the bytes that were recorded."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.marks import proves
from tests.torture.conftest import Tell
from tests.torture.failures import FOLDER, FailedSession, failed_sessions, loaded

LEAST = 12


@proves("R15")
@pytest.mark.parametrize("name", sorted(failed_sessions()))
def test_a_session_that_failed_is_read_and_goes_on(tmp_path: Path, name: str) -> None:
    failed = failed_sessions()[name]

    derived, faults = asyncio.run(loaded(tmp_path / "home", failed))

    assert faults == []
    assert derived == failed.derived


@proves("R15")
def test_a_row_that_changed_is_found(tmp_path: Path, tell: Tell) -> None:
    sessions = failed_sessions()
    failed = sessions["a-call-without-a-result"]

    derived, _ = asyncio.run(loaded(tmp_path / "home", without_the_last_row(failed)))

    tell(f"{len(sessions)} sessions, each to the same bytes")
    assert failed.derived is not None
    assert derived.chain != failed.derived.chain
    assert derived.request != failed.derived.request
    assert derived.exports.keys() == failed.derived.exports.keys()
    assert not set(derived.exports.values()) & set(failed.derived.exports.values())


def test_every_failure_says_what_it_was_and_is_of_one_form() -> None:
    sessions = failed_sessions()

    assert len(sessions) >= LEAST
    assert [name for name, each in sessions.items() if not each.why or each.derived is None] == []
    assert {file.suffix for file in FOLDER.iterdir()} == {".json"}


def without_the_last_row(failed: FailedSession) -> FailedSession:
    """Return the session as it was a moment earlier."""
    return replace(failed, rows=failed.rows[:-1])
