"""Arguments of tools are judged like submissions, and refused in their words."""

from typing import Any

import pytest

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.time import Moment
from holdfast.mcp.tool_types import Argument, BooleanType, IntegerType, one_of, validate_arguments
from holdfast.observations.model import Name
from tests.marks import each_case

TAKEN = (
    Argument("name", Name, "A name.", is_required=True),
    Argument("how", one_of(("a", "b")), "A way."),
    Argument("at", Moment, "A time."),
    Argument("limit", IntegerType(least=1, most=9), "A number."),
    Argument("raw", BooleanType(), "Yes or no."),
)


def test_what_was_sent_is_returned_and_null_was_not_sent() -> None:
    sent = {"name": "x", "limit": 3.0, "raw": False, "at": None}

    assert validate_arguments(TAKEN, sent) == {"name": "x", "limit": 3, "raw": False}


def test_where_anything_may_stand_null_is_something() -> None:
    taken = (Argument("value", Any, "A value.", is_required=True),)

    assert validate_arguments(taken, {"value": None}) == {}
    with pytest.raises(Invalid):
        validate_arguments(taken, {})


@each_case(
    ("sent", "field", "expected"),
    [
        ({}, "name", "required"),
        ({"name": None}, "name", "required"),
        ({"name": 1}, "name", "type: string"),
        ({"name": " "}, "name", "min_length: 1"),
        ({"name": "x", "how": "c"}, "how", "one of: a, b"),
        ({"name": "x", "at": "soon"}, "at", "format: iso_8601"),
        ({"name": "x", "limit": True}, "limit", "type: number"),
        ({"name": "x", "limit": 1.5}, "limit", "type: number"),
        ({"name": "x", "limit": "1"}, "limit", "type: number"),
        ({"name": "x", "raw": 1}, "raw", "one of: true, false"),
        ({"name": "x", "nmae": 1}, "nmae", "one of: at, how, limit, name, raw"),
    ],
)
def test_a_wrong_argument_is_one_issue(sent: dict[str, Any], field: str, expected: str) -> None:
    with pytest.raises(Invalid) as caught:
        validate_arguments(TAKEN, sent)

    error = caught.value
    assert error.code is Code.SCHEMA_VALIDATION_FAILED
    assert (error.details["field"], error.details["expected"]) == (field, expected)
    assert len(error.details["issues"]) == 1


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        validate_arguments(TAKEN, {"limit": "x", "owner": "eve"})

    assert [each["field"] for each in caught.value.details["issues"]] == ["name", "limit", "owner"]
