"""Our YAML profile, value by value and fault by fault."""

import math
from typing import Any

import pytest

from holdfast.parsing.yaml import (
    DEEPEST,
    LARGEST,
    WRITTEN_LARGEST,
    YamlError,
    read_written_yaml,
    read_yaml,
)
from tests.marks import each_case


@each_case(
    ("text", "value"),
    [
        ("", None),
        ("# only a comment", None),
        ("a: yes", {"a": "yes"}),
        ("[true, True, false, FALSE, on, off, y]", [True, True, False, False, "on", "off", "y"]),
        ("[~, null, Null, '', '~']", [None, None, None, "", "~"]),
        ("a:", {"a": None}),
        ("[12, -3, +4, 0o17, 0x1F, 010]", [12, -3, 4, 15, 31, 10]),
        ("[1.5, -.5, 1e3, 2., 1_000]", [1.5, -0.5, 1000.0, 2.0, "1_000"]),
        ("[.inf, -.INF]", [math.inf, -math.inf]),
        ("[2020-01-01, '12', \"12\", 1:30, =]", ["2020-01-01", "12", "12", "1:30", "="]),
        ("a: |\n  one\n  two\nb: >\n  three\n  four\n", {"a": "one\ntwo\n", "b": "three four\n"}),
        ("'<<': 1", {"<<": 1}),
        ("%YAML 1.2\n---\na: 1\n...\n", {"a": 1}),
        (f"{'word ' * 300}9", f"{'word ' * 300}9"),
        ("- a\n- - b\n  - c: d\n", ["a", ["b", {"c": "d"}]]),
        (f"{'[' * DEEPEST}{']' * DEEPEST}", eval("[" * DEEPEST + "]" * DEEPEST)),
    ],
)
def test_a_text_of_our_profile_is_read_by_the_core_schema(text: str, value: Any) -> None:
    assert read_yaml(text) == value


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(read_yaml(".nan"))


def test_true_is_not_mixed_up_with_one() -> None:
    assert [type(value) for value in read_yaml("[true, 1, 1.0, '1']")] == [bool, int, float, str]


@each_case(
    ("text", "problem", "place"),
    [
        ("a: [1, 2", "this is not valid YAML", (1, 9)),
        ("a: b: c", "this is not valid YAML", (1, 5)),
        ('a: "\\UFFFFFFFF"', "this is not valid YAML", (0, 0)),
        ('a: "\\U00110000"', "this is not valid YAML", (0, 0)),
        (f"%YAML 1.{'9' * 5000}\n---\n", "this is not valid YAML", (0, 0)),
        ("%YAML 1.3\n---\n", "this is not valid YAML", (0, 0)),
        ("%YAML 2.0\n---\n", "this is not valid YAML", (1, 1)),
        ("!" * 100_000, "tags cannot be used in Holdfast's YAML files", (1, 1)),
        ("a: \x07", "the text contains a character that YAML does not allow", (0, 0)),
        ("a: \ud800", "the text contains a character that YAML does not allow", (0, 0)),
        (
            "a: 1\na: 2",
            "a repeated key in a mapping cannot be used in Holdfast's YAML files",
            (2, 1),
        ),
        ("a: &x 1", "anchors cannot be used in Holdfast's YAML files", (1, 4)),
        ("- *x", "aliases cannot be used in Holdfast's YAML files", (1, 3)),
        ("a: !!str 1", "tags cannot be used in Holdfast's YAML files", (1, 4)),
        ("a: !mine 1", "tags cannot be used in Holdfast's YAML files", (1, 4)),
        ("%TAG ! tag:x\n---\na: 1", "tags cannot be used in Holdfast's YAML files", (2, 1)),
        (
            "%YAML 1.1\n---\n",
            "versions other than 1.2 cannot be used in Holdfast's YAML files",
            (2, 1),
        ),
        ("<<: {a: 1}", "merge keys cannot be used in Holdfast's YAML files", (1, 1)),
        ("1: a", "keys that are not text cannot be used in Holdfast's YAML files", (1, 1)),
        ("? [a]\n: b", "keys that are not text cannot be used in Holdfast's YAML files", (1, 3)),
        ("--- 1\n--- 2", "a second document cannot be used in Holdfast's YAML files", (2, 1)),
        (
            f"a: {'9' * 5000}",
            "a number of this length cannot be used in Holdfast's YAML files",
            (1, 4),
        ),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "more than 64 levels", (1, DEEPEST + 1)),
        ("é" * (LARGEST // 2 + 1), "the file is larger than 2 MiB", (0, 0)),
    ],
)
def test_a_text_outside_our_profile_is_refused_with_its_place(
    text: str, problem: str, place: tuple[int, int]
) -> None:
    with pytest.raises(YamlError) as refused:
        read_yaml(text)

    assert (refused.value.problem, (refused.value.line, refused.value.column)) == (problem, place)


@each_case(
    ("text", "line"),
    [
        ("", 1),
        ("a: 1", 1),
        ("a: 1\n# b\n", 2),
        ("b: 1\na: 2\n", 1),
        ("a: 1\na: 1\n", 2),
        ("a: 1\nb: '2'\n", 2),
        ("a: &x 1\n", 1),
        ("a: [1]\n", 1),
        ("a:\n- 1\n", 1),
        ("a:\n   - 1\n", 1),
        ("1: a\n", 1),
        ("? 1\n: a\n", 1),
        ("a: 0x10\n", 1),
        ('a: "b\n', 1),
        ("a: \x07\n", 1),
        ("- a\n b\n", 2),
        ("--- a\n", 1),
        ('a: "\\ud800"\n', 2),
        ('a: 1\nb: "\\Uffffffff"\n', 3),
    ],
)
def test_a_text_that_was_not_written_by_us_is_refused_with_the_first_line_that_differs(
    text: str, line: int
) -> None:
    with pytest.raises(YamlError) as refused:
        read_written_yaml(text)

    assert refused.value.problem.startswith("a file above 2 MiB must keep the form")
    assert refused.value.line == line


@each_case(
    ("text", "problem"),
    [
        ("x" * (WRITTEN_LARGEST + 1), "the file is larger than 16 MiB"),
        ("\n" * 1_000_001, "the file has more than 1,000,000 lines"),
        ("- " * 65 + "1\n", "more than 64 levels"),
        (f"a: {'9' * 5_000}\n", "a number of this length cannot be used in Holdfast's YAML files"),
    ],
)
def test_a_written_text_has_limits_of_its_own(text: str, problem: str) -> None:
    with pytest.raises(YamlError) as refused:
        read_written_yaml(text)

    assert refused.value.problem == problem


def test_more_values_than_a_file_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.parsing.yaml.VALUES_MOST", 10)

    assert read_yaml("[1, 2, 3, 4]") == [1, 2, 3, 4]
    with pytest.raises(YamlError) as refused:
        read_yaml("[1, 2, 3, 4, 5, 6, 7, 8, 9]")
    assert (refused.value.problem, refused.value.line) == ("more than 10 keys and values", 1)
