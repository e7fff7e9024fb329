"""The error tree: what a caller can do, and what happened."""

import re

from holdfast.domain import errors
from holdfast.domain.errors import Code, HoldfastError, Internal, NotFound, out_of_memory
from tests.marks import each_case


def test_the_drawing_shows_every_class_and_what_to_do() -> None:
    drawn = re.findall(r"[├└]── (\w+) +\S", errors.__doc__ or "")

    assert drawn == [kind.__name__ for kind in HoldfastError.__subclasses__()]


@each_case("kind", HoldfastError.__subclasses__())
def test_every_class_says_what_its_caller_can_do(kind: type[HoldfastError]) -> None:
    assert kind.__doc__
    # A subclass only adds a built-in type that the interface of a framework promises.
    assert [each for each in kind.__subclasses__() if not issubclass(each, TypeError)] == []


@each_case("code", Code)
def test_a_code_is_its_name_in_lower_case(code: Code) -> None:
    assert code.value == code.name.lower()


def test_an_error_shows_its_code_its_message_and_its_details() -> None:
    error = NotFound(Code.SESSION_NOT_FOUND, "There is no such session.", {"field": "session_id"})

    assert str(error) == "There is no such session."
    assert error.body() == {
        "error": "session_not_found",
        "message": "There is no such session.",
        "details": {"field": "session_id"},
    }


def test_an_error_without_details_shows_none() -> None:
    assert Internal(Code.INTERNAL, "Our bug.").body()["details"] == {}


def test_an_error_keeps_its_own_details() -> None:
    details = {"field": "a"}
    error = Internal(Code.INTERNAL, "Our bug.", details)

    details["field"] = "b"

    assert error.details == {"field": "a"}


def test_whoever_meets_a_lack_of_memory_may_repeat_the_request() -> None:
    told = out_of_memory()

    assert told.code is Code.OUT_OF_MEMORY
    assert "Repeat the request with the same id" in told.message
