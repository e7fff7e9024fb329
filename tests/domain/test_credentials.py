"""Credentials by their looks: what is masked, what is refused, and what is left alone."""

import json
import time

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.secrets import is_credential, is_secret_name, mask_json, mask_text
from tests.marks import each_case

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
PEM_BODY = "MIIEowIBAAKCAQEAvGVhbGx5Tm90QUtleQ==\nc2Vjb25kTGluZQ=="

SHAPES = [
    # An authorization, as a header and by its scheme.
    ("Authorization: Bearer ab12cd34ef56", "Authorization: Bearer [masked]"),
    ("authorization=Basic dXNlcjpwYXNz", "authorization=Basic [masked]"),
    ('"Authorization": "token abcdefgh"', '"Authorization": "token [masked]"'),
    ("curl -H bearer  ab12cd34ef56", "curl -H bearer  [masked]"),
    ("Bearer abcdefghijklmnopqrstuvwxyz", "Bearer [masked]"),
    ("Basic dXNlcjpwYXNzd29yZDE=", "Basic [masked]"),
    # A value whose name says what it is.
    ("api_key = 'abcd1234efgh'", "api_key = '[masked]'"),
    ('{\\"apiKey\\": \\"abcd1234efgh\\"}', '{\\"apiKey\\": \\"[masked]\\"}'),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "AWS_SECRET_ACCESS_KEY=[masked]"),
    ("client_secret: abc123def", "client_secret: [masked]"),
    ("password=hunter", "password=[masked]"),
    ("token=abcd&x=1", "token=[masked]&x=1"),
    # An address.
    ("postgres://me:pässword@db/x", "postgres://[masked]@db/x"),
    ("https://abcdefghijklmnopqrst@github.com/x", "https://[masked]@github.com/x"),
    ("https://h/x?access_token=ab12cd34&y=1", "https://h/x?access_token=[masked]&y=1"),
    ("https://h/x?key=ab12cd34", "https://h/x?key=[masked]"),
    (
        "https://h/x?X-Amz-Signature=0123456789abcdef0",
        "https://h/x?X-Amz-Signature=[masked]",
    ),
    # A key by how it begins.
    (f"the token is {JWT}.", "the token is [masked]."),
    ("sk-proj-abcdefgh12345678", "[masked]"),
    ("sk-ant-api03-abcdefgh12345678", "[masked]"),
    ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "[masked]"),
    ("ghp_abcdefghij0123456789", "[masked]"),
    ("github_pat_abcdefghij0123456789", "[masked]"),
    ("xoxb-1234567890-abc", "[masked]"),
    ("xapp-1-A0123456789", "[masked]"),
    ("AKIAIOSFODNN7EXAMPLE", "[masked]"),
    ("ASIAIOSFODNN7EXAMPLE", "[masked]"),
    ("glpat-abcdefghij0123456789", "[masked]"),
    ("hf_abcdefghij0123456789", "[masked]"),
    ("gsk_abcdefghij0123456789", "[masked]"),
    ("xai-abcdefghij0123456789", "[masked]"),
    ("sk_live_abcdefghij012345", "[masked]"),
    ("rk_test_abcdefghij012345", "[masked]"),
    (f"npm_{'a1' * 18}", "[masked]"),
    (f"pypi-{'a1' * 20}", "[masked]"),
    ("ya29.abcdefghij0123456789", "[masked]"),
    (f"SG.{'a1' * 11}.{'b2' * 20}", "[masked]"),
    (f"dop_v1_{'a1' * 32}", "[masked]"),
    # Behind a line break that JSON in JSON escaped, and behind a colour.
    ("x\\nghp_abcdefghij0123456789", "x\\n[masked]"),
    ("\x1b[31mghp_abcdefghij0123456789", "\x1b[31m[masked]"),
    (
        f"-----BEGIN RSA PRIVATE KEY-----\n{PEM_BODY}\n-----END RSA PRIVATE KEY-----\nx",
        "-----BEGIN RSA PRIVATE KEY-----\n[masked]-----END RSA PRIVATE KEY-----\nx",
    ),
    (
        f"-----BEGIN PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{PEM_BODY}",
        "-----BEGIN PRIVATE KEY-----\n[masked]",
    ),
    ("ä ghp_abcdefghij0123456789 ü \ud800", "ä [masked] ü \ud800"),
    ("ghp_abcdefghij0123456789 and ghp_abcdefghij0123456780", "[masked] and [masked]"),
]

ORDINARY = [
    "",
    "bearer authentication, with basic understanding",
    "max_tokens: 12345678, tokens=ab12cd34ef, tokenizer: cl100k_base1",
    "the secretary: arrived2024",
    "token: string",
    "password: required",
    "password=${PASSWORD_1234}",
    "token=<your token 1234>",
    "api_key: ********1234",
    "secret=true, secret=null",
    "ssh://git@github.com/x, https://example.com:8080/a@b",
    "?sort_key=created_at, ?page=12345678",
    "sk-learn-is-a-library-of-python",
    "ghp_short, AKIA and more, eyJhbGciOiJIUzI1NiJ9.x.y",
    "never print -----BEGIN PRIVATE KEY----- blocks",
    "monkey: 12345678abc",
    "İstanbul'da token yok",
]

# What is masked for safety's sake, and would refuse too many honest files.
LOOSE = {"password=hunter", "token=abcd&x=1"}


@each_case(("text", "masked"), SHAPES)
def test_what_looks_like_a_credential_is_masked(text: str, masked: str) -> None:
    assert mask_text(text) == masked


@each_case(("text", "masked"), SHAPES)
def test_what_is_masked_once_is_not_masked_again(text: str, masked: str) -> None:
    assert mask_text(masked) is masked


@each_case("text", ORDINARY)
def test_ordinary_text_is_the_same_object_afterwards(text: str) -> None:
    encoded = msgspec.json.encode({"text": text, "items": [text, 1, None]})

    assert mask_text(text) is text
    assert mask_json(encoded) is encoded
    assert not is_credential(text)


@each_case("text", [text for text, _ in SHAPES])
def test_a_file_may_not_hold_what_is_surely_a_credential(text: str) -> None:
    assert is_credential(text) is (text not in LOOSE)


@each_case(
    ("name", "value", "is_one"),
    [
        ("API_TOKEN", "abcd1234", True),
        ("api_token", "string", False),
        ("MODE", "abcd1234", False),
        ("max_tokens", "abcd1234", False),
        ("token", "12345678", False),
        ("", "abcd1234", False),
    ],
)
def test_a_name_can_make_a_value_a_credential(name: str, value: str, is_one: bool) -> None:
    assert is_credential(value, name) is is_one


@each_case(
    ("name", "is_one"),
    [
        ("apiKey", True),
        ("x-api-key", True),
        ("GITHUB_TOKEN", True),
        ("client_secret", True),
        ("passwd", True),
        ("key", False),
        ("keyboard", False),
        ("output_tokens", False),
        ("secretary", False),
    ],
)
def test_some_names_are_names_of_secrets(name: str, is_one: bool) -> None:
    assert is_secret_name(name) is is_one


@each_case(("text", "masked"), [(text, masked) for text, masked in SHAPES if "\ud800" not in text])
def test_json_stays_json_and_only_its_credentials_change(text: str, masked: str) -> None:
    value = {"n": 12345678901234567890, "text": f"\x1b\n{text}", text: ["ö", text]}

    told = mask_json(msgspec.json.encode(value))

    assert json.loads(told) == {
        "n": 12345678901234567890,
        "text": f"\x1b\n{masked}",
        masked: ["ö", masked],
    }


def test_in_json_a_name_is_enough_to_mask_its_text() -> None:
    encoded = (
        b'{"password" : "open sesame","api_key":"abc","token":["kept here"],"auth":'
        b'{"client_secret":"so\\"so","output_tokens":7,"secret":12345678},"say":"token"}'
    )

    assert mask_json(encoded) == (
        b'{"password" : "[masked]","api_key":"abc","token":["kept here"],"auth":'
        b'{"client_secret":"[masked]","output_tokens":7,"secret":12345678},"say":"token"}'
    )


@given(st.text())
def test_masking_a_text_twice_is_masking_it_once(text: str) -> None:
    once = mask_text(text)

    assert mask_text(once) == once


@given(st.recursive(st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)))
def test_masked_json_can_be_read(value: object) -> None:
    encoded = json.dumps({"secret token=": value}, ensure_ascii=False).encode("utf-8", "replace")

    json.loads(mask_json(encoded))


@each_case(
    "text",
    [
        "-----BEGIN PRIVATE KEY-----\nAAAAAAAAAAAAAAAAAAAA ",
        "eyJ",
        "1meyJ",
        "eyJaaaaaaaa.",
        "sk-",
        "token",
        "api_key:",
        "secret_key_",
        "password=",
        "bearer ",
        "://a:",
        "?token",
        "\\n",
        "- ",
    ],
)
def test_no_text_takes_long(text: str) -> None:
    begun = time.monotonic()

    mask_text(f"{text * (500_000 // len(text))} key")

    # Far more than it takes; a square of the length would take hours.
    assert time.monotonic() - begun < 10
