"""Lines and messages: whatever is read is told apart rightly, whatever is written can be read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.acp.rpc.framing import (
    HEAD,
    HEAD_MARGIN,
    INTERNAL_ERROR,
    LONG,
    VALUES_MOST,
    Incoming,
    JsonRpcError,
    JsonRpcNotification,
    JsonRpcReply,
    JsonRpcRequest,
    Junk,
    LineSplitter,
    Message,
    parse_line,
    render_message,
)
from tests.marks import each_case

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@each_case("id", [0, 1, -1, "", "0", "text", None, 2**60, 1.5, True, [], {}])
def test_a_method_with_an_id_of_any_value_is_a_request(id: Any) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": id, "method": "m", "params": {"a": 1}})

    found = parse_line(line.encode())

    assert isinstance(found, JsonRpcRequest)
    assert (type(found.id), found.id) == (type(id), id)
    assert (found.method, found.params) == ("m", {"a": 1})


@each_case(
    ("line", "expected"),
    [
        (b'{"method":"m","params":[1]}', JsonRpcNotification(method="m", params=[1])),
        (b'{"method":"m"}', JsonRpcNotification(method="m")),
        (b'{"method":"m","unknown":1,"_meta":{}}', JsonRpcNotification(method="m")),
        (b'{"method":7}', JsonRpcNotification(method="")),
        (b'{"id":1,"result":{"a":1}}', JsonRpcReply(id=1, result={"a": 1})),
        (b'{"id":0,"result":null}', JsonRpcReply(id=0)),
        (b'{"id":"x","result":1}', JsonRpcReply(id="x", result=1)),
        (b'{"id":1,"result":1,"method":null,"error":null}', JsonRpcReply(id=1, result=1)),
        (b'{"result":1}', JsonRpcReply(has_id=False, result=1)),
        (b"{}", JsonRpcReply(has_id=False)),
        (
            b'{"id":1,"error":{"code":-32000,"message":"no","data":{"a":1}}}',
            JsonRpcReply(id=1, error=JsonRpcError(-32000, "no", {"a": 1})),
        ),
        (b'{"id":1,"error":{}}', JsonRpcReply(id=1, error=JsonRpcError(INTERNAL_ERROR, ""))),
        (
            b'{"id":1,"error":{"code":"1","message":2}}',
            JsonRpcReply(id=1, error=JsonRpcError(INTERNAL_ERROR, "")),
        ),
        (b'{"id":1,"error":"no"}', JsonRpcReply(id=1, error=JsonRpcError(INTERNAL_ERROR, "no"))),
        (
            b'{"id":null,"error":{"code":-32700,"message":"bad"}}',
            JsonRpcReply(error=JsonRpcError(-32700, "bad")),
        ),
        (b'\xef\xbb\xbf{"method":"m"}', JsonRpcNotification(method="m")),
        (b'{"method":"m"}\r', JsonRpcNotification(method="m")),
        (b'  {"method" : "m"}\t', JsonRpcNotification(method="m")),
    ],
)
def test_a_message_without_both_is_known_by_what_it_has(line: bytes, expected: Incoming) -> None:
    if isinstance(expected, JsonRpcNotification):
        expected = replace(expected, size=len(line))
    assert parse_line(line) == expected


@each_case(
    ("line", "kind"),
    [
        (b"Welcome to the agent!", "not_json"),
        (b'{"method":"m"', "not_json"),
        (b'{"method":"m"}{"method":"m"}', "not_json"),
        (b"{'method':'m'}", "not_json"),
        (b"{" * 100_000, "not_json"),
        (b"[" * 100_000 + b"]" * 100_000, "not_json"),
        (b'{"a":' + b"1" * 5_000 + b"}", "not_json"),
        ("\N{GREEK SMALL LETTER ALPHA}".encode("utf-16"), "not_utf8"),
        (b'{"method":"\xff"}', "not_utf8"),
        (b'{"method":"\xed\xa0\x80"}', "not_utf8"),
        (b'[{"method":"m"}]', "array"),
        (b"[]", "array"),
        (b'"text"', "not_object"),
        (b"7", "not_object"),
        (b"null", "not_object"),
    ],
)
def test_a_line_that_is_no_message_says_why_and_how_it_begins(line: bytes, kind: Any) -> None:
    assert parse_line(line) == Junk(kind=kind, head=line[: HEAD + HEAD_MARGIN], size=len(line))


def test_half_a_character_and_a_number_that_is_none_can_be_read() -> None:
    line = b'{"method":"m","params":{"half":"a\\ud83d","\\ude00":NaN,"l":["\\ud83d\\ude00"]}}'

    assert parse_line(line) == JsonRpcNotification(
        method="m",
        params={"half": "a\ufffd", "\ufffd": None, "l": ["\N{GRINNING FACE}"]},
        size=len(line),
    )


@pytest.mark.parametrize("value", [b'"\\ud800"', b"NaN"])
def test_a_long_line_that_only_the_slow_reader_takes_is_not_read(value: bytes) -> None:
    line = b'{"method":"m","params":[' + b",".join([value] * (LONG // len(value))) + b"]}"

    assert parse_line(line) == Junk(
        kind="not_json", head=line[: HEAD + HEAD_MARGIN], size=len(line)
    )


def test_a_long_line_with_more_values_than_can_be_read_in_a_moment_is_not_read() -> None:
    many = b'{"method":"m","params":[' + b",".join([b"0"] * (VALUES_MOST - 2)) + b"]}"
    more = b'{"method":"m","params":[' + b",".join([b"0"] * (VALUES_MOST - 1)) + b"]}"

    assert parse_line(many) == JsonRpcNotification(
        method="m", params=[0] * (VALUES_MOST - 2), size=len(many)
    )
    assert parse_line(more) == Junk(
        kind="too_long", head=more[: HEAD + HEAD_MARGIN], size=len(more)
    )


@each_case(
    ("message", "line"),
    [
        (
            JsonRpcRequest(id=1, method="m", params={"a": [1, None]}),
            b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,null]}}\n',
        ),
        (JsonRpcNotification(method="m"), b'{"jsonrpc":"2.0","method":"m"}\n'),
        (JsonRpcReply(id=0, result=None), b'{"jsonrpc":"2.0","id":0,"result":null}\n'),
        (
            JsonRpcReply(id=None, error=JsonRpcError(-32600, "no")),
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}\n',
        ),
        (
            JsonRpcReply(has_id=False, error=JsonRpcError(-32600, "no", {"a": 1})),
            b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"no","data":{"a":1}}}\n',
        ),
        (
            JsonRpcNotification(method="m", params={"t": "a\nb\r\u2028", "\udc00": ("x\ud83d",)}),
            '{"jsonrpc":"2.0","method":"m","params":{"t":"a\\nb\\r\u2028","\ufffd":["x\ufffd"]}}\n'
            "".encode(),
        ),
    ],
)
def test_a_message_is_written_as_one_compact_line(message: Message, line: bytes) -> None:
    assert render_message(message) == line


@given(st.text(), values)
def test_what_is_written_can_be_read_again_and_is_one_line(method: str, params: Any) -> None:
    line = render_message(JsonRpcNotification(method=method, params={"value": params}))

    assert line.count(b"\n") == 1
    assert parse_line(line) == JsonRpcNotification(
        method=method, params={"value": params}, size=len(line)
    )


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_junk(line: bytes) -> None:
    assert isinstance(parse_line(line), JsonRpcRequest | JsonRpcNotification | JsonRpcReply | Junk)


@given(st.lists(st.binary(max_size=40)), st.data())
def test_any_cutting_gives_the_same_lines(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"\n".join(pieces)
    whole = LineSplitter(limit=20)
    expected = [*whole.feed(stream), *whole.rest()]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))

    splitter = LineSplitter(limit=20)
    found: list[bytes | Junk] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    found += splitter.rest()

    assert found == expected
    assert found == [
        line if len(line) <= 20 else Junk(kind="too_long", head=line, size=len(line))
        for line in stream.split(b"\n")
        if len(line) > 20 or line.strip(b" \t\r\x0b\x0c")
    ]


def test_blank_lines_are_left_out() -> None:
    assert LineSplitter().feed(b"\n\r\n  \n\ta\r\n\n") == [b"\ta\r"]


def test_a_line_at_the_limit_is_read_and_one_beyond_is_dropped_to_its_end() -> None:
    splitter = LineSplitter(limit=1000)

    assert splitter.feed(b"a" * 1000 + b"\n") == [b"a" * 1000]
    assert splitter.feed(b"b" * 900) == []
    assert splitter.feed(b"c" * 5000) == []
    assert splitter.feed(b"d" * 10 + b"\ne\n") == [
        Junk(kind="too_long", head=b"b" * 900 + b"c" * 5000 + b"d" * 10, size=5910),
        b"e",
    ]
    assert splitter.feed(b"f") == []
    assert splitter.rest() == [b"f"]
    assert splitter.rest() == []


def test_a_line_of_20_mib_is_read_and_one_of_40_mib_is_not() -> None:
    splitter = LineSplitter()
    line = render_message(JsonRpcNotification(method="m", params="x" * (20 << 20)))
    found = [
        each
        for start in range(0, len(line), 65_536)
        for each in splitter.feed(line[start:][:65_536])
    ]

    assert found == [line[:-1]]
    assert parse_line(line) == JsonRpcNotification(
        method="m", params="x" * (20 << 20), size=len(line)
    )

    too_long = [each for _ in range(640) for each in splitter.feed(b"y" * 65_536)]
    assert too_long + splitter.feed(b"\n") == [
        Junk(kind="too_long", head=b"y" * (HEAD + HEAD_MARGIN), size=40 << 20)
    ]
