"""The tables of exit codes, and how an error is told."""

import errno
import json

import pytest

from holdfast import Holdfast
from holdfast.cli.errors import (
    EXIT_CODES,
    FAILURE_CODES,
    STOP_CODES,
    exit_code,
    translate_error,
    turn_code,
)
from holdfast.domain.errors import (
    Code,
    HoldfastError,
    Internal,
    NotFound,
    StorageFull,
    Unavailable,
)
from holdfast.domain.events import Failure, FailureCode, TurnEnded
from holdfast.domain.secrets import Secret
from holdfast.domain.sessions import StopReason
from tests.cli.conftest import Cli
from tests.marks import each_case


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


@each_case(
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
    told = translate_error(RuntimeError("a secret"))

    assert isinstance(told, Internal)
    assert "a secret" not in told.message
    assert "a secret" in caplog.text


@each_case(
    ("met", "kind", "code", "ends_with"),
    [
        (OSError(errno.ENOSPC, "no space"), StorageFull, Code.STORAGE_FULL, 8),
        (OSError(errno.EDQUOT, "quota"), StorageFull, Code.STORAGE_FULL, 8),
        (MemoryError(), Unavailable, Code.OUT_OF_MEMORY, 7),
        (OSError(errno.ENOMEM, "no memory"), Unavailable, Code.OUT_OF_MEMORY, 7),
        (OSError(errno.EMFILE, "too many files"), Unavailable, Code.SYSTEM_LIMIT, 7),
        (OSError(errno.ENFILE, "too many files"), Unavailable, Code.SYSTEM_LIMIT, 7),
        (RuntimeError("can't start new thread"), Unavailable, Code.SYSTEM_LIMIT, 7),
    ],
)
def test_what_has_run_out_is_told_as_such(
    met: Exception, kind: type[HoldfastError], code: Code, ends_with: int
) -> None:
    told = translate_error(met)

    assert (type(told), told.code, exit_code(told)) == (kind, code, ends_with)


def test_a_command_without_memory_ends_with_seven(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starved(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("holdfast.config.load", starved)
    ran = cli("sessions", "list", "--json")

    assert (ran.code, ran.out, ran.error["error"]) == (7, "", "out_of_memory")


SECRET = "correct-horse-battery-staple"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_no_secret_is_in_an_error_that_is_shown(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        message = f"The provider does not like {SECRET}."
        raise Unavailable(Code.INVALID_INPUT, message, {"heard": ["Bearer", {"as": SECRET}]})

    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr("holdfast.config.load", refused)
    ran = cli("sessions", "list", *flags)

    assert (ran.code, ran.out) == (7, "")
    assert "The provider does not like [secret:" in ran.err
    assert SECRET not in ran.err


def test_a_secret_that_a_house_learned_is_not_in_its_errors(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(house: Holdfast, *_: object, **__: object) -> None:
        house.secrets.remember("test", Secret(SECRET))
        raise Unavailable(Code.INVALID_INPUT, f"The provider does not like {SECRET}.")

    monkeypatch.setattr("holdfast.cli.commands.sessions.find_session", refused)
    ran = cli("sessions", "show", "anything")

    assert ran.err == "holdfast: The provider does not like [secret:test].\n"


def test_an_error_is_one_line_on_stderr_with_its_remedy(cli: Cli) -> None:
    ran = cli("sessions", "show", "nope")

    assert (ran.code, ran.out) == (4, "")
    assert ran.err == (
        "holdfast: There is no such session; `holdfast sessions list` shows yours.\n"
    )


@each_case(
    ("words", "told"),
    [
        (("sessions", "list", "--status", "open"), "'--status': 'open' is not one of 'pending'"),
        (("sessions", "export", "x", "--format", "pdf"), "'--format': 'pdf' is not one of "),
        (("token", "create", "x", "--scope", "god"), "'--scope': 'god' is not one of 'read'"),
    ],
)
def test_a_choice_that_there_is_not_is_told_in_our_words(
    cli: Cli, words: tuple[str, ...], told: str
) -> None:
    ran = cli(*words)

    assert (ran.code, ran.err.startswith(f"holdfast: Invalid value for {told}")) == (2, True)


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
