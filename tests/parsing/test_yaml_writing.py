"""YAML as we write it: one text for one value, which every reader takes for the same."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from holdfast.parsing.yaml import read_written_yaml, read_yaml, write_yaml
from tests.marks import each_case

TRICKY = [
    "yes", "No", "on", "y", "~", "=", "<<", "null", "Null", "TRUE", "12:30", "190:20:30", "-",
    "2020-01-01", "2020-01-01T10:00:00Z", "1_000", "0b1", "0o17", "010", "0x1F", "1e3", "+12",
    ".inf", "-.INF", ".NaN", "1,000", "--- a", "---", "...", "a: b", "a:", "a #b", "#a", "a\n",
    "a\n\n", "\n", " a", "a ", "a\tb", "a\n b\nc", "\n a", "- x", "? x", "::", "'", '"', "a\rb",
    "\u0085", "\u2028", "\ufeff", "\u00a0", "\U000e0001", "🙂", "ä: ö", "[a]", "{a}", "@a", "%a",
    "x" * 2000, "a\n\n\nb\n", "a \nb",
]  # fmt: skip

texts = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.text("ab:#-? \n'\"{}[],&*!|>%@`~019._+", max_size=12)
    | st.sampled_from(TRICKY)
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
words = st.recursive(
    texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


def test_a_value_is_written_in_blocks_with_sorted_keys() -> None:
    value = {
        "tools": ["read_file", [1, []], {"b": 1.5, "a": {"deep": "one\ntwo"}}],
        "name": "Reviewer: the second",
        "prompt": "Be brief.\n  Indent.\n\nEnd.\n",
        "kept": "lines\n\n",
        "empty": {},
        "time": "12:30",
        "nothing": None,
        "right": True,
        "wrong": False,
    }

    assert write_yaml(value) == (
        "empty: {}\n"
        "kept: |+\n"
        "  lines\n"
        "\n"
        'name: "Reviewer: the second"\n'
        "nothing: null\n"
        "prompt: |\n"
        "  Be brief.\n"
        "    Indent.\n"
        "\n"
        "  End.\n"
        "right: true\n"
        'time: "12:30"\n'
        "tools:\n"
        "  - read_file\n"
        "  - - 1\n"
        "    - []\n"
        "  - a:\n"
        "      deep: |-\n"
        "        one\n"
        "        two\n"
        "    b: 1.5\n"
        "wrong: false\n"
    )


@given(values)
def test_what_is_written_is_read_again_and_written_the_same(value: Any) -> None:
    text = write_yaml(value)

    read = read_yaml(text)

    assert read == read_written_yaml(text) == value
    assert write_yaml(read) == text


@given(words)
def test_a_reader_of_the_older_yaml_reads_the_same_texts(value: Any) -> None:
    old = YAML(typ="safe", pure=True)
    old.version = (1, 1)

    assert old.load(write_yaml(value)) == value


@each_case("text", TRICKY)
def test_a_tricky_text_stays_a_text(text: str) -> None:
    written = write_yaml({text: [text]})

    assert read_yaml(written) == read_written_yaml(written) == {text: [text]}


@each_case(("value", "text"), [(math.inf, ".inf\n"), (-math.inf, "-.inf\n"), (math.nan, ".nan\n")])
def test_a_number_that_is_none_has_its_word(value: float, text: str) -> None:
    assert write_yaml(value) == text


def test_what_has_no_yaml_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        write_yaml({"a": "\ud800"})
    with pytest.raises(TypeError, match="bytes cannot be written as YAML"):
        write_yaml([b""])
