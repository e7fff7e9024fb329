"""Canonical JSON: one spelling for one value."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.canonical_json import (
    canonical,
    canonical_text,
    decode_exact,
    digest,
    equality_key,
)
from tests.domain.strategies import JSON
from tests.marks import each_case


class _Name(str):
    """A text of a class of its own."""


@each_case(
    ("value", "spelled"),
    [
        ({"b": 1, "a": [2, 1]}, '{"a":[2,1],"b":1}'),
        ({"\U0001f600": 1, "\uffff": 2, "é": 3, "z": 4}, '{"z":4,"é":3,"\uffff":2,"\U0001f600":1}'),
        ('"\\/', '"\\"\\\\/"'),
        ("\b\t\n\f\r\x00\x1f\x7f", '"\\b\\t\\n\\f\\r\\u0000\\u001f\x7f"'),
        ([True, False, None], "[true,false,null]"),
        ([1.0, -0.0, 3600.0, -2.0], "[1,0,3600,-2]"),
        ([0.1, 1.5, 1e300, 2.0**53], "[0.1,1.5,1e+300,9007199254740992.0]"),
        ([2.0**53 - 1, 10**40], "[9007199254740991," + "1" + "0" * 40 + "]"),
        ({"a": {"b": [1.0, {"c": 2.0}]}}, '{"a":{"b":[1,{"c":2}]}}'),
        ((1, 2.0), "[1,2]"),
        (7.0, "7"),
        (
            {"at": "2025-12-31T11:00:00.250Z", "n": -1e16},
            '{"at":"2025-12-31T11:00:00.250Z","n":-1e+16}',
        ),
        ([None, 1e16, {"": 1e-7}], '[null,1e+16,{"":1e-07}]'),
        ([_Name("b"), {_Name("a"): 2.0}], '["b",{"a":2}]'),
    ],
)
def test_a_value_has_one_spelling(value: Any, spelled: str) -> None:
    assert canonical_text(value) == spelled
    assert canonical(value) == spelled.encode()


def test_spelling_a_value_does_not_change_it() -> None:
    value = {"a": [1.0, {"b": 2.0}]}

    canonical(value)

    assert json.dumps(value) == '{"a": [1.0, {"b": 2.0}]}'


@each_case("value", [float("nan"), float("inf"), [-float("inf")]])
def test_what_is_no_number_has_no_spelling(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical(value)


@given(JSON)
def test_a_spelling_is_that_of_the_library_but_for_whole_floats(value: Any) -> None:
    told = json.loads(json.dumps(value), parse_float=_whole)

    plain = json.dumps(told, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    assert canonical_text(value) == plain


def _whole(digits: str) -> float | int:
    number = float(digits)
    is_whole = number.is_integer() and abs(number) < 2.0**53
    return int(number) if is_whole else number


@given(JSON)
def test_what_is_read_has_the_spelling_it_was_read_from(value: Any) -> None:
    spelled = canonical(value)

    assert canonical(decode_exact(spelled)) == spelled
    assert decode_exact(spelled) == value


@given(JSON | st.integers(-(1 << 80), 1 << 80), JSON)
def test_values_are_the_same_exactly_when_their_spellings_are(one: Any, other: Any) -> None:
    first, second = (decode_exact(canonical(each)) for each in (one, other))

    assert (equality_key(first) == equality_key(second)) == (canonical(first) == canonical(second))
    assert equality_key(first) == equality_key(decode_exact(canonical(first)))


@each_case(("one", "other"), [(1, True), (0, False), ("1", 1), (None, "null"), ([1 << 70], [True])])
def test_what_only_looks_alike_is_not_the_same(one: Any, other: Any) -> None:
    assert equality_key(one) != equality_key(other)


def test_a_digest_is_that_of_the_spelling() -> None:
    file = "a1982776d80c4c3af389895b42bbc5b5a81f9869717d60d384d596226b9df56a"

    told = digest(["sessions/session-abc123.json", file])

    assert told[:32] == "7df2898527c8dbd5d6b4e8464000ff31"
