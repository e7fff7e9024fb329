"""The tables of exit codes, and how an error is told."""

import errno
import json

import pytest

from holdfast.cli.errors import (
    EXIT_CODES,
    FAILURE_CODES,
    STOP_CODES,
    exit_code,
    turn_code,
    understood,
)
from holdfast.domain.errors import Code, HoldfastError, Internal, NotFound, StorageFull
from holdfast.domain.events import Failure, FailureCode, TurnEnded
from holdfast.domain.sessions import StopReason
from tests.cli.conftest import Cli


def test_every_class_of_errors_has_an_exit_code_of_its_own() -> None:
    assert set(EXIT_CODES) == set(HoldfastError.__subclasses__())
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert {kind.__name__: code for kind, code in EXIT_CODES.items()} == {
        "Invalid": 2,
        "Denied": 3,
        "NotFound": 4,
        "Conflict": 5,
        "LimitReached": 6,
        "Unavailable": 7,
        "StorageFull": 8,
        "Internal": 70,
    }


def test_every_failure_of_a_turn_has_an_exit_code() -> None:
    assert set(FAILURE_CODES) == set(FailureCode)


def test_every_way_a_turn_stops_has_an_exit_code() -> None:
    assert set(STOP_CODES) == set(StopReason)


def test_the_exit_code_is_that_of_the_class() -> None:
    assert exit_code(NotFound(Code.SESSION_NOT_FOUND, "There is none.")) == 4


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (TurnEnded(stop_reason=StopReason.STOP), 0),
        (TurnEnded(stop_reason=StopReason.ABORTED), 130),
        (
            TurnEnded(
                stop_reason=StopReason.ERROR,
                failure=Failure(code=FailureCode.PROVIDER_AUTH, message="no key"),
            ),
            3,
        ),
    ],
)
def test_an_unattended_run_ends_with_the_code_of_its_turn(ended: TurnEnded, code: int) -> None:
    assert turn_code(ended) == code


def test_an_error_nobody_foresaw_is_ours_and_its_text_stays_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = understood(RuntimeError("a secret"))

    assert isinstance(told, Internal)
    assert "a secret" not in told.message
    assert "a secret" in caplog.text


def test_a_full_disk_is_told_as_such() -> None:
    assert isinstance(understood(OSError(errno.ENOSPC, "no space")), StorageFull)


def test_an_error_is_one_line_on_stderr_with_its_remedy(cli: Cli) -> None:
    ran = cli("sessions", "show", "nope")

    assert (ran.code, ran.out) == (4, "")
    assert ran.err == (
        "holdfast: There is no such session; `holdfast sessions list` shows yours.\n"
    )


def test_with_json_an_error_is_its_body_on_stderr(cli: Cli) -> None:
    ran = cli("--json", "sessions", "show", "nope")

    assert (ran.code, ran.out) == (4, "")
    assert json.loads(ran.err) == {
        "error": "session_not_found",
        "message": "There is no such session; `holdfast sessions list` shows yours.",
        "details": {},
    }


def test_an_unforeseen_error_ends_with_seventy(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("holdfast.config.load", broken)
    ran = cli("sessions", "list", "--json")

    assert (ran.code, ran.error["error"]) == (70, "internal")
    assert "a secret" not in ran.err.splitlines()[-1]
