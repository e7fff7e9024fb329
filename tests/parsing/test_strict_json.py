"""Bodies that every reader understands in the same way, and those that are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import Code, Invalid
from holdfast.parsing.strict_json import (
    DEPTH_MOST,
    PLAIN_LARGEST,
    VALUES_MOST,
    has_more_values,
    require_plain_json,
)
from tests.marks import each_case

FINE = [
    b"{}",
    b' {"a" : [1, -1.5e-7, true, null, "\\u00e9\xc3\xa9\\ud83d\\ude42"]}\r\n\t ',
    b'{"a":18446744073709551615,"b":-9223372036854775808}',
    b'{"a":1e308,"b":1e-400,"c":-0}',
    b'{"a":"\\\\u0000 \\\\\\\\u0000"}',
    b'{"a":{"x":1},"b":{"x":1}}',
    b'{"a":"' + b'[{,\\"' * 50_000 + b'"}',
    b"[" * DEPTH_MOST + b"]" * DEPTH_MOST,
    b"[" + b"0," * (VALUES_MOST - 1) + b"0]",
]
REFUSED = {
    b"": "Expecting value: line 1 column 1 (char 0)",
    b"\xef\xbb\xbf{}": "Expecting value: line 1 column 1 (char 0)",
    b"\xff\xfe{\x00}\x00": "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    b"{\x00}\x00": "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    b'{"a":1,"a":2}': "a key is repeated",
    b'{"a":1,"\\u0061":2}': "a key is repeated",
    b'{"b":[{"\xc3\xa9":1,"\\u00e9":2}]}': "a key is repeated",
    b'{"a":18446744073709551616}': "an integer exceeds 64 bits",
    b'{"a":-9223372036854775809}': "an integer exceeds 64 bits",
    b'{"a":' + b"9" * 5_000 + b"}": "an integer exceeds 64 bits",
    b'{"a":' + b"9" * 5_000 + b".0}": "a number exceeds 64 bits",
    b'{"a":-1e999}': "a number exceeds 64 bits",
    b'{"a":NaN}': "NaN is not a JSON number",
    b'{"a":-Infinity}': "-Infinity is not a JSON number",
    b"[" * (DEPTH_MOST + 1) + b"]" * (DEPTH_MOST + 1): "it is nested deeper than 100 levels",
    b'{"a":' * 101 + b"1" + b"}" * 101: "it is nested deeper than 100 levels",
    b"[" * 5_000_000: "it is nested deeper than 100 levels",
    b"[" + b"0," * VALUES_MOST + b"0]": "it has more than 100000 values",
    b"[" + b'"",' * VALUES_MOST + b'""]': "it has more than 100000 values",
    b"[" + b'"\\\\",' * (3 * VALUES_MOST) + b'""]': "it has more than 100000 values",
    b'"' + b'\\"' * 500_000: "Unterminated string starting at: line 1 column 1 (char 0)",
}


@each_case("body", FINE, ids=range(len(FINE)))
def test_plain_json_is_taken(body: bytes) -> None:
    require_plain_json(body)


@each_case(("body", "rule"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_readers_disagree_about_is_refused(body: bytes, rule: str) -> None:
    with pytest.raises(Invalid) as refused:
        require_plain_json(body)

    assert refused.value.body() == {
        "error": Code.INVALID_BODY,
        "message": f"The body is not strict JSON: {rule}.",
        "details": {"path": "", "rule": rule},
    }


_LEAVES = ["1", "-0", "1.0", "1e400", "1" * 19, "9" * 20, "NaN", "null", '""', "", "\x00", "é"]
_NAMES = ['"a"', '"\\u0061"', '"b"', '"\\u0000"', "a"]


def _written(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.lists(inner, max_size=3).map(lambda each: f"[{','.join(each)}]")
    pairs = st.tuples(st.sampled_from(_NAMES), inner).map(": ".join)
    return lists | st.lists(pairs, max_size=3).map(lambda each: f"{{{', '.join(each)}}}")


@given(st.recursive(st.sampled_from(_LEAVES), _written, max_leaves=6))
def test_a_small_body_is_judged_like_a_large_one(text: str) -> None:
    assert _verdict(text.encode()) == _verdict(text.encode() + b" " * PLAIN_LARGEST)


def _verdict(body: bytes) -> Code | None:
    try:
        require_plain_json(body)
    except Invalid as refused:
        return refused.code
    return None


@each_case("text", ["\\u0000", "a\\\\\\u0000", "\\ud83d\\ude42\\u0000"])
def test_a_text_with_a_nul_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        require_plain_json(f'{{"a":"{text}"}}'.encode())

    assert refused.value.code is Code.INVALID_TEXT


@each_case(
    ("body", "more"),
    [
        (b"[1,2,3]", False),
        (b"[1,2,3,4,5,6,7,8,9]", True),
        (b'["[[[[,,,,]]]]"]', False),
        (b"[[[[[[", False),
        (b"[[[[[[[[[[[", True),
        (b'{"a":{"b":{"c":{}}}}', False),
        (b'"' + b"[" * 99, False),
    ],
)
def test_how_many_values_there_must_be_is_seen_without_reading_them(
    body: bytes, more: bool
) -> None:
    assert has_more_values(body, 8) is more
