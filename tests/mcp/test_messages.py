"""Messages: lines cut from bytes, bounded before they are read, and refused with their id."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.mcp.messages import INVALID_REQUEST, VALUES_MOST, MessageError, parse_message
from holdfast.mcp.stdio_transport import LineBuffer, OverlongLine
from holdfast.parsing.strict_json import DEPTH_MOST
from tests.marks import each_case

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":%b}}'


@given(
    st.lists(st.binary(max_size=8).map(lambda each: each.replace(b"\n", b""))),
    st.integers(1, 5),
)
def test_lines_are_the_same_however_they_are_cut(said: list[bytes], size: int) -> None:
    whole = b"".join(each + b"\n" for each in said)
    lines = LineBuffer(100)
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]

    found = [line for piece in pieces for line in lines.feed(piece)]

    assert found == [each for each in said if each.strip()]
    assert lines.rest() == []


def test_a_line_that_is_too_long_is_dropped_and_the_next_one_is_not() -> None:
    lines = LineBuffer(4)

    found = [*lines.feed(b"12345"), *lines.feed(b"678\n1234\nab"), *lines.rest()]

    assert [each if isinstance(each, bytes) else None for each in found] == [None, b"1234", b"ab"]
    assert isinstance(found[0], OverlongLine)


def test_what_is_deep_or_wide_is_refused_without_being_read() -> None:
    # The message itself has two levels, three commas and two brackets.
    deepest, most = DEPTH_MOST - 2, VALUES_MOST - 6
    fine = (b"[" * deepest + b"]" * deepest, b'"' + b"[" * 500 + b'"', b"[" + b"1," * most + b"1]")
    for value in fine:
        assert not isinstance(parse_message(PING % value), MessageError)
    for bomb in (b"[" * (deepest + 1) + b"]" * (deepest + 1), b"[" + b"1," * (most + 1) + b"1]"):
        refused = parse_message(PING % bomb)
        assert isinstance(refused, MessageError)
        assert (refused.text, refused.request_id) == (INVALID_REQUEST, 1)


REQUEST = b'{"jsonrpc":"2.0","id":%b,"method":"ping","params":%b}'


@each_case(
    ("raw", "id", "code"),
    [
        *((raw, None, -32700) for raw in (b"", b"nonsense", b"\xff\xfe", b"[" * 5_000)),
        *((raw, None, -32600) for raw in (b"[]", b"[1]", b'"x"', b"17", b"{}")),
        (b'{"jsonrpc":"2.0"}', None, -32600),
        *(
            (REQUEST % (id, b"{}"), None, -32600)
            for id in (b"1.5", b"null", b"false", b'"\\ud800"')
        ),
        *(
            (raw.replace(b"%b", id), told, -32600)
            for id, told in ((b"5", 5), (b'"five"', "five"))
            for raw in (
                b'{"jsonrpc":"1.0","id":%b,"method":"ping"}',
                b'{"jsonrpc":"2.0","id":%b,"method":"ping","method":"ping"}',
                b'{"jsonrpc":"2.0","method":"ping","params":{"id":7,"a":NaN},"id": %b }',
                b'{"jsonrpc":"2.0","id":%b,"method":"ping","params":[]}',
                b'{"jsonrpc":"2.0","id":%b,"method":"ping","params":{"a":1,"a":2}}',
                b'{"jsonrpc":"2.0","id":%b,"method":"ping","params":{"a":"\\ud83d"}}',
                b'{"jsonrpc":"2.0","id":%b,"method":"ping","params":{"a":' + b"9" * 5_000 + b"}}",
                b'{"jsonrpc":"2.0","id":%b,"method":"ping","params":' + b"[" * 200,
            )
        ),
    ],
    ids=str,
)
def test_an_invalid_message_is_refused_with_its_id(
    raw: bytes, id: int | str | None, code: int
) -> None:
    refused = parse_message(raw)

    assert isinstance(refused, MessageError)
    assert (refused.request_id, refused.code) == (id, code)
