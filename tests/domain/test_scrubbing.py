"""The scrubber: every spelling of a managed secret goes, and nothing else changes."""

import base64
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.secrets import SHORTEST, ScrubbedStream, Scrubber, Secret
from tests.builders import a_call
from tests.marks import each_case

KEY = "sk-proj-0aB1cD2eF3gH4iJ5kL6m"
SECRETS = {
    "openai:default": KEY,
    "host:example.com": 'p"s\\w/ö+r d\n&1',
    "mcp:notes": "пароль-секрет",
    "odd": "+/+/+/+/!!!",
    "pem": "-----BEGIN KEY-----\nMIIEowIBAAKCAQEA\n-----END KEY-----\n",
}
SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": json.dumps,
    "json with letters": lambda value: json.dumps(value, ensure_ascii=False),
    "json in json": lambda value: json.dumps(json.dumps(value)),
    "url": quote,
    "whole url": lambda value: quote(value, safe=""),
    "form": quote_plus,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 of one before": lambda value: base64.b64encode(f"a{value}b".encode()).decode(),
    "base64 of two before": lambda value: base64.b64encode(f"ab{value}c".encode()).decode(),
    "base64 for urls": lambda value: base64.urlsafe_b64encode(f"{value}?".encode()).decode(),
    "base64 in a url": lambda value: quote(base64.b64encode(value.encode()), safe=""),
}


@pytest.fixture
def scrubber() -> Scrubber:
    """Know all secrets of this file."""
    return Scrubber((name, Secret(value)) for name, value in SECRETS.items())


@each_case("spelling", SPELLINGS)
@each_case("name", SECRETS)
def test_a_secret_is_found_however_it_is_spelled(
    scrubber: Scrubber, name: str, spelling: str
) -> None:
    spelled = SPELLINGS[spelling](SECRETS[name])

    cleaned = scrubber.redact_text(f"before {spelled} after")

    assert cleaned.startswith("before ")
    assert cleaned.endswith(" after")
    assert f"[secret:{name}]" in cleaned
    # What is left of base64 are the characters that also hold what stood beside the secret.
    left = cleaned.removeprefix("before ").removesuffix(" after").replace(f"[secret:{name}]", "")
    assert len(left) <= 10
    assert scrubber.holds(spelled)


@each_case("spelling", SPELLINGS)
@each_case("name", SECRETS)
def test_json_stays_json_and_only_its_secrets_change(
    scrubber: Scrubber, name: str, spelling: str
) -> None:
    told = f"before\t{SPELLINGS[spelling](SECRETS[name])}\\ after"
    value = {"n": 12345678901234567890, told: ["ä\x1b", {"x": told, "y": 1.5}]}

    cleaned = scrubber.redact_json(msgspec.json.encode(value))

    expected = scrubber.redact_text(told)
    assert expected != told
    assert json.loads(cleaned) == {
        "n": 12345678901234567890,
        expected: ["ä\x1b", {"x": expected, "y": 1.5}],
    }


def test_what_holds_no_secret_is_the_same_object_afterwards(scrubber: Scrubber) -> None:
    text = f"almost: {KEY[:-1]}, and 0aB1cD2eF3gH4iJ5kL6n"
    encoded = msgspec.json.encode({"text": text, "x": [1, True, None]})

    assert scrubber.redact_text(text) is text
    assert scrubber.redact_json(encoded) is encoded
    assert not scrubber.holds(text)


def test_without_secrets_everything_is_left_as_it_is() -> None:
    scrubber = Scrubber()
    text = f"a text with {KEY}"

    assert scrubber.redact_text(text) is text
    assert scrubber.redact_json(text.encode()) == text.encode()
    assert scrubber.unfinished(text) == len(text)


def test_a_secret_of_less_than_eight_characters_is_not_managed() -> None:
    short, enough = "a1b2c3d", "a1b2c3d4"
    scrubber = Scrubber([("short", Secret(short)), ("enough", Secret(enough))])

    assert len(enough) == SHORTEST
    assert scrubber.redact_text(f"{short} {enough}") == f"{short} [secret:enough]"


def test_the_lines_of_a_secret_are_found_apart() -> None:
    body = "MIIEowIBAAKCAQEA"
    scrubber = Scrubber(
        [("pem", Secret(f"-----BEGIN KEY-----\n{body}\nshort=\n-----END KEY-----"))]
    )

    assert scrubber.redact_text(f"+-----BEGIN KEY-----\n+{body}\n 3  short=") == (
        "+-----BEGIN KEY-----\n+[secret:pem]\n 3  short="
    )


def test_of_two_secrets_that_begin_alike_the_longer_one_is_found_whole() -> None:
    scrubber = Scrubber([("short", Secret(KEY)), ("long", Secret(f"{KEY}-and-more"))])

    assert scrubber.redact_text(f"{KEY}-and-more {KEY}") == "[secret:long] [secret:short]"


def test_a_name_cannot_break_json_or_hold_a_line_break() -> None:
    scrubber = Scrubber([('a "b"\n\\', Secret(KEY))])

    assert scrubber.redact_json(b'"%b"' % KEY.encode()) == b'"[secret:a__b___]"'


def test_a_match_that_begins_inside_of_an_escape_is_none() -> None:
    scrubber = Scrubber([("a", Secret("nABCDEFGH")), ("b", Secret("b1234567"))])
    value = {"line": "x\nABCDEFGH", "colour": "\x1b1234567"}
    encoded = msgspec.json.encode(value)

    assert b"nABCDEFGH" in encoded
    assert b"b1234567" in encoded
    assert scrubber.redact_json(encoded) is encoded


def test_a_text_that_is_nothing_but_a_word_of_the_format_stays() -> None:
    # A choice, a key and a tag of the record.
    words = ("assistant", "arguments", "tool_result")
    scrubber = Scrubber((f"odd{number}", Secret(word)) for number, word in enumerate(words))
    encoded = b'{"role":"assistant","arguments":{},"type":"tool_result","text":"my assistant"}'

    assert scrubber.redact_json(encoded) == (
        b'{"role":"assistant","arguments":{},"type":"tool_result","text":"my [secret:odd0]"}'
    )


@each_case("word", ["correcthorsebatterystaple", "horse_battery", "horse.battery"])
def test_a_secret_that_is_one_plain_word_is_found_where_it_is_all_of_a_text(word: str) -> None:
    scrubber = Scrubber([("odd", Secret(word))])
    call = a_call(arguments={"password": word, word: [word, f"x {word}"]})

    assert scrubber.redact_value(call) == a_call(
        arguments={
            "password": "[secret:odd]",
            "[secret:odd]": ["[secret:odd]", "x [secret:odd]"],
        }
    )


def test_a_value_is_cleaned_as_a_whole(scrubber: Scrubber) -> None:
    call = a_call(arguments={"header": ["Basic", KEY], "n": 1})
    other = a_call()

    assert scrubber.redact_value(call) == a_call(
        arguments={"header": ["Basic", "[secret:openai:default]"], "n": 1}
    )
    assert scrubber.redact_value(other) is other


def test_what_may_be_shown_has_neither_secrets_nor_credentials(scrubber: Scrubber) -> None:
    assert (
        scrubber.redact_and_mask(f"{KEY} and ghp_abcdefghij0123456789")
        == "[secret:openai:default] and [masked]"
    )
    assert scrubber.mask(b'{"a":"ghp_abcdefghij0123456789"}') == b'{"a":"[masked]"}'


def test_the_scrubber_does_not_show_what_it_knows(scrubber: Scrubber) -> None:
    assert KEY not in repr(scrubber)
    assert KEY not in str(scrubber)


@given(
    st.lists(
        st.sampled_from([KEY, "sk-proj-0aB1", "x", " ", base64.b64encode(KEY.encode()).decode()])
        | st.text(max_size=5),
        max_size=8,
    ),
    st.integers(1, 40),
)
def test_in_pieces_a_text_loses_the_same_secrets_as_whole(texts: list[str], size: int) -> None:
    scrubber = Scrubber([("key", Secret(KEY))])
    whole = "".join(texts)
    stream = ScrubbedStream(lambda: scrubber)

    pieces = [stream.feed(whole[at : at + size]) for at in range(0, len(whole), size)]

    assert "".join([*pieces, stream.rest()]) == scrubber.redact_text(whole)
    assert stream.rest() == ""


def test_only_what_may_become_a_secret_is_held_back() -> None:
    scrubber = Scrubber([("key", Secret(KEY))])
    stream = ScrubbedStream(lambda: scrubber)

    assert stream.feed("the key is s") == "the key is "
    assert stream.feed("imple") == "simple"
    assert stream.feed(f" {KEY[:9]}") == " "
    assert stream.feed(KEY[9:]) == "[secret:key]"
    assert stream.feed(KEY[:9]) == ""
    assert stream.rest() == KEY[:9]


def test_a_secret_that_becomes_known_between_two_pieces_is_not_shown_whole() -> None:
    known = [Scrubber()]
    stream = ScrubbedStream(lambda: known[-1])

    pieces = [stream.feed(f"one {KEY} two {KEY[:9]}")]
    known.append(Scrubber([("key", Secret(KEY))]))
    pieces += [stream.feed(f"{KEY[9:]} three {KEY[:5]}"), stream.feed(f"{KEY[5:]}!")]

    # What was shown is shown; nothing of it is said again.
    assert pieces == [f"one {KEY} two {KEY[:9]}", "[secret:key] three ", "[secret:key]!"]
