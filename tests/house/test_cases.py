"""Holds that a test that goes through a table hides no case: every one is run and reported."""

import pytest

from tests.marks import each_case

SEEN: list[tuple[int, str]] = []


@each_case("number", [1, 2])
@each_case(("letter", "is_odd"), [("a", True), pytest.param("b", False, id="even")])
def test_every_case_of_every_table_is_run(number: int, letter: str, is_odd: bool) -> None:
    assert is_odd == (letter == "a")
    SEEN.append((number, letter))
    if (number, letter) == (2, "b"):
        assert SEEN == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


@pytest.mark.anyio
@each_case("number", [1, 2])
async def test_an_async_test_is_awaited_for_every_case(number: int) -> None:
    assert number in (1, 2)


def test_all_cases_that_fail_are_named() -> None:
    @each_case("number", [1, 2, pytest.param(3, id="three")])
    def check(number: int) -> None:
        assert number == 2

    with pytest.raises(ExceptionGroup) as caught:
        check()

    notes = [error.__notes__ for error in caught.value.exceptions]
    assert notes == [["case 0: 1"], ["case 2: three"]]


def test_a_failure_of_pytest_is_one_and_ends_nothing_before_the_last_case() -> None:
    ran = []

    @each_case("number", [1, 2])
    def check(number: int) -> None:
        ran.append(number)
        if number == 1:
            pytest.fail("no")

    with pytest.raises(pytest.fail.Exception, match="no"):
        check()
    assert ran == [1, 2]
