"""Small sums: what they come to, and what is refused before it is computed."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.llm.offline import (
    DEEPEST,
    UncomputableError,
    UnreadableError,
    calculate,
    format_number,
)

ZERO = "nothing can be divided by zero"
LARGE = "the numbers become too large for me"
DEEP = "it is nested too deeply for me"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("2+2", "4"),
        ("(3.5*4)/2", "7"),
        ("0.1 + 0.2", "0.3"),
        ("1 - 2 - 3", "-4"),
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("-2**2", "-4"),
        ("2**-2", "0.25"),
        ("2**3**2", "512"),
        ("(-2)**3", "-8"),
        ("--+5", "5"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7.5 % 2", "1.5"),
        ("10/3", "≈ 3.33333333333"),
        ("1/3*3", "1"),
        ("0**0", "1"),
        (".5*2", "1"),
        ("1/10**20", "1E-20"),
        ("2**1000 // 2**990", "1024"),
        ("2**1023 - 2**1023", "0"),
        ("1**(10**100)", "1"),
        ("42", "42"),
        ("((((1))))", "1"),
        ("(" * DEEPEST + "1" + ")" * DEEPEST, "1"),
    ],
)
def test_a_sum_is_computed_exactly(expression: str, text: str) -> None:
    assert format_number(calculate(expression)) == text


@pytest.mark.parametrize(
    "expression",
    [
        "",
        " ",
        "+",
        "2+",
        "2 2",
        "(2",
        "2)",
        "()",
        "01",
        "1..2",
        "2***3",
        "a",
        "2+a",
        "1e5",
        "1" * 201,
    ],
)
def test_what_is_no_sum_is_unreadable(expression: str) -> None:
    with pytest.raises(UnreadableError):
        calculate(expression)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1/0", ZERO),
        ("1//0", ZERO),
        ("1%0", ZERO),
        ("0**-1", ZERO),
        ("2**0.5", "I only know whole exponents"),
        ("9**9**9", LARGE),
        ("2**1025", LARGE),
        ("3**1000", LARGE),
        ("2**1023+2**1023", LARGE),
        ("1/3**300+1/2**500+1/5**200", LARGE),
        ("(" * (DEEPEST + 1) + "1" + ")" * (DEEPEST + 1), DEEP),
        ("1**" * 40 + "1", DEEP),
    ],
)
def test_a_sum_beyond_the_bounds_is_refused_with_its_reason(expression: str, reason: str) -> None:
    with pytest.raises(UncomputableError) as refused:
        calculate(expression)

    assert str(refused.value) == reason


numbers = st.integers(min_value=-1000, max_value=1000)


@given(numbers, numbers, numbers)
def test_ranks_of_operators_are_python_s(one: int, two: int, three: int) -> None:
    expected = one - two * -three + one * two - three

    assert calculate(f"{one} - {two} * -{three} + {one}*{two} - {three}") == Fraction(expected)


@given(st.text(alphabet="0123456789.+-*/%() ", max_size=60))
def test_any_text_is_a_number_or_a_refusal(text: str) -> None:
    try:
        value = calculate(text)
    except (UnreadableError, UncomputableError):
        return
    assert isinstance(value, Fraction)
    assert format_number(value)
