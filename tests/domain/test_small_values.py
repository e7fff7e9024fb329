"""Values that are looked through at once, and those that are not."""

from typing import Any

from holdfast.domain.text import LIGHT, is_small
from tests.marks import each_case

DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]

ROUND: list[Any] = []
ROUND.append(ROUND)


@each_case(
    "value", [None, 1, "", "x" * (LIGHT // 2), {"a": [1, 2.5, None, "b"]}, [["x"] * 100] * 10]
)
def test_what_is_small_is_light(value: Any) -> None:
    assert is_small(value)


@each_case(
    "value",
    [
        "x" * LIGHT,
        b"x" * LIGHT,
        {"a": {"b": ["x" * LIGHT]}},
        list(range(LIGHT)),
        {str(number): number for number in range(LIGHT)},
        ["x" * 1_000] * 100,
        DEEP,
        ROUND,
    ],
    ids=["text", "bytes", "inside", "numbers", "fields", "texts", "deep", "round"],
)
def test_what_is_large_long_deep_or_without_end_is_heavy(value: Any) -> None:
    assert not is_small(value)
