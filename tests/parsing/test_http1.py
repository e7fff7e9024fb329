"""HTTP/1.1 as a client speaks it: whole answers whatever the pieces, and no others."""

import pytest

from holdfast.parsing.http1 import (
    GREETINGS_MOST,
    End,
    Head,
    HeadTooLargeError,
    NeedMore,
    NotHttpError,
    Piece,
    Talk,
    UnsendableError,
)

HOST = (("Host", "a.example"),)


def asked() -> Talk:
    """Return a conversation in which something was asked."""
    talk = Talk()
    talk.request("GET", "/", HOST)
    return talk


def heard(talk: Talk, *chunks: bytes) -> list[Piece]:
    """Return the pieces of an answer that comes in these chunks."""
    found: list[Piece] = []
    for chunk in chunks:
        talk.receive(chunk)
        while not isinstance(piece := talk.next(), NeedMore):
            found.append(piece)
            if isinstance(piece, End):
                return found
    return found


def test_a_request_is_written_as_it_is_meant() -> None:
    body = b'{"a":1}'
    headers = (*HOST, ("Content-Length", str(len(body))))

    assert Talk().request("POST", "/v1/agents?x=1", headers, body) == (
        b"POST /v1/agents?x=1 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 7\r\n\r\n" + body
    )


def test_an_answer_is_read_in_any_pieces() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"

    whole = heard(asked(), answer)
    bytewise = heard(asked(), *(bytes([each]) for each in answer))

    head = Head(200, (("content-length", "5"), ("x-a", "b")))
    assert whole == [head, b"hello", End(is_reusable=True)]
    assert (bytewise[0], bytewise[-1]) == (head, End(is_reusable=True))
    assert b"".join(piece for piece in bytewise if isinstance(piece, bytes)) == b"hello"


def test_a_connection_carries_one_request_after_the_other() -> None:
    talk = Talk()
    for _ in range(2):
        assert talk.request("GET", "/", HOST)
        pieces = heard(talk, b"HTTP/1.1 204 No Content\r\n\r\n")
        assert pieces == [Head(204, ()), End(is_reusable=True)]


def test_a_connection_that_is_said_to_end_carries_no_other() -> None:
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

    assert heard(asked(), answer)[-1] == End(is_reusable=False)


def test_what_is_said_before_the_answer_is_passed_over() -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"

    assert heard(asked(), answer)[0] == Head(204, ())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 2",
    ],
)
def test_half_an_answer_is_none(answer: bytes) -> None:
    with pytest.raises(NotHttpError):
        heard(asked(), answer, b"") if answer else heard(asked(), b"")


@pytest.mark.parametrize("answer", [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"\x00" * 9])
def test_another_language_is_refused(answer: bytes) -> None:
    with pytest.raises(NotHttpError):
        heard(asked(), answer + b"\r\n\r\n")


@pytest.mark.parametrize("lines", [b"a: b\r\n" * 300, b"a: " + b"b" * (1 << 17)])
def test_a_head_without_bounds_is_given_up(lines: bytes) -> None:
    with pytest.raises(HeadTooLargeError):
        heard(asked(), b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n\r\n")


def test_an_answer_that_is_only_ever_promised_is_given_up() -> None:
    promise, answer = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"
    talk = asked()

    # Counted for each answer, because a connection may carry many.
    for _ in range(2):
        pieces = heard(talk, *[promise] * GREETINGS_MOST, answer)
        assert pieces == [Head(204, ()), End(is_reusable=True)]
        talk.request("GET", "/", HOST)
    with pytest.raises(NotHttpError):
        heard(talk, *[promise] * (GREETINGS_MOST + 1))


def test_what_cannot_be_sent_is_refused_without_repeating_it() -> None:
    with pytest.raises(UnsendableError) as refused:
        Talk().request("GET", "/", (*HOST, ("Authorization", "se\ncret")))

    assert "cret" not in str(refused.value)
    assert refused.value.__cause__ is None
