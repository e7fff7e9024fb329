"""Small sums, exactly: + - * / // % ** and parentheses on whole and decimal numbers.

A parser of its own with bounds on everything; nothing here ever runs what it reads.
"""

import re
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Final

LONGEST: Final = 200
DEEPEST: Final = 32
BITS_MOST: Final = 1024

_TOKEN: Final = re.compile(r"\s*(\*\*|//|[-+*/%()]|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*")
_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]*)?(?:\.[0-9]+)?")
_SIGNIFICANT: Final = 12


class UnreadableError(ValueError):
    """The text is no sum."""


class UncomputableError(ValueError):
    """The sum has no answer here; the message says why."""


def calculate(expression: str) -> Fraction:
    """Return the exact value of a sum; raises `UnreadableError` or `UncomputableError`."""
    reader = _Reader(_tokens(expression))
    value = reader.total(depth=0)
    reader.expect_end()
    return value


def written(value: Fraction) -> str:
    """Write a value as people do: `4`, `0.25`, or rounded as `≈ 3.33333333333`."""
    if value.denominator == 1:
        return str(value.numerator)
    with localcontext(prec=_SIGNIFICANT):
        rounded = Decimal(value.numerator) / Decimal(value.denominator)
    text = str(rounded.normalize())
    return text if Fraction(rounded) == value else f"≈ {text}"


def _tokens(expression: str) -> list[str]:
    if len(expression) > LONGEST:
        raise UnreadableError
    tokens, place = [], 0
    while place < len(expression):
        found = _TOKEN.match(expression, place)
        if found is None:
            raise UnreadableError
        tokens.append(found[1])
        place = found.end()
    return tokens


class _Reader:
    """Reads tokens from left to right, one method for each rank of operators."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._place = 0

    def total(self, *, depth: int) -> Fraction:
        value = self._product(depth)
        while operator := self._one_of("+", "-"):
            other = self._product(depth)
            value = _bounded(value + other if operator == "+" else value - other)
        return value

    def expect_end(self) -> None:
        if self._place < len(self._tokens):
            raise UnreadableError

    def _product(self, depth: int) -> Fraction:
        value = self._signed(depth)
        while operator := self._one_of("*", "//", "/", "%"):
            value = _bounded(_multiplied(value, operator, self._signed(depth)))
        return value

    def _signed(self, depth: int) -> Fraction:
        sign = 1
        while operator := self._one_of("+", "-"):
            sign = -sign if operator == "-" else sign
        return sign * self._power(depth)

    def _power(self, depth: int) -> Fraction:
        value = self._atom(depth)
        # To the right first, and a sign may stand before the exponent, as mathematicians write.
        return _raised(value, self._signed(depth + 1)) if self._one_of("**") else value

    def _atom(self, depth: int) -> Fraction:
        if depth > DEEPEST:
            raise UncomputableError("it is nested too deeply for me")
        if self._one_of("("):
            value = self.total(depth=depth + 1)
            if not self._one_of(")"):
                raise UnreadableError
            return value
        return self._number()

    def _number(self) -> Fraction:
        token = self._tokens[self._place] if self._place < len(self._tokens) else ""
        if not token or not _NUMBER.fullmatch(token):
            raise UnreadableError
        self._place += 1
        return Fraction(token)

    def _one_of(self, *operators: str) -> str | None:
        if self._place == len(self._tokens) or self._tokens[self._place] not in operators:
            return None
        self._place += 1
        return self._tokens[self._place - 1]


def _multiplied(value: Fraction, operator: str, other: Fraction) -> Fraction:
    if operator == "*":
        return value * other
    if not other:
        raise UncomputableError("nothing can be divided by zero")
    if operator == "/":
        return value / other
    return Fraction(value // other) if operator == "//" else value % other


def _raised(value: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise UncomputableError("I only know whole exponents")
    if not value and exponent < 0:
        raise UncomputableError("nothing can be divided by zero")
    # Estimated before computing, because the computing is what would take for ever.
    if (_bits(value) - 1) * abs(exponent.numerator) > BITS_MOST:
        raise UncomputableError(_TOO_LARGE)
    return _bounded(Fraction(value**exponent.numerator))


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > BITS_MOST:
        raise UncomputableError(_TOO_LARGE)
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


_TOO_LARGE: Final = "the numbers become too large for me"
