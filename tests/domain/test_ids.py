"""Identifiers: the bits of a UUID, the grammar of what people may write."""

from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import is_slug, is_uuid, require_owner, require_uuid, slug_of, uuid7
from tests.marks import each_case

MILLISECONDS = st.integers(0, (1 << 48) - 1)
RANDOMNESS = st.integers(0, (1 << 74) - 1)


def test_a_new_id_has_the_bits_of_the_standard() -> None:
    # The example of RFC 9562, appendix A.6: rand_a is 0xCC3, rand_b 0x18C4DC0C0C07398F.
    randomness = 0x18C4DC0C0C07398F << 12 | 0xCC3

    assert uuid7(1_645_557_742_000, randomness) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@given(MILLISECONDS, RANDOMNESS)
def test_every_new_id_is_a_uuid_of_version_7_that_tells_its_time(at: int, randomness: int) -> None:
    text = uuid7(at, randomness)
    read = UUID(text)

    assert is_uuid(text)
    assert (str(read), read.version, read.variant) == (text, 7, RFC_4122)
    assert read.int >> 80 == at


@given(MILLISECONDS, RANDOMNESS, MILLISECONDS, RANDOMNESS)
def test_an_id_of_a_later_millisecond_sorts_later(
    at: int, randomness: int, other_at: int, other: int
) -> None:
    one, two = uuid7(at, randomness), uuid7(other_at, other)

    assert at == other_at or (one < two) == (at < other_at)


@given(MILLISECONDS, RANDOMNESS)
def test_no_random_bit_is_lost(at: int, randomness: int) -> None:
    turned = {uuid7(at, randomness ^ 1 << bit) for bit in range(74)}

    assert len(turned | {uuid7(at, randomness)}) == 75


@given(MILLISECONDS, st.integers(0, 1 << 128))
def test_more_randomness_than_needed_does_no_harm(at: int, randomness: int) -> None:
    assert uuid7(at, randomness) == uuid7(at, randomness & (1 << 74) - 1)


def test_a_clients_id_is_put_into_our_spelling() -> None:
    given_id = "0192F0C1-ABCD-7EF0-8123-456789ABCDEF"

    assert require_uuid(given_id, what="id") == given_id.lower()


@each_case(
    "text",
    [
        "",
        "0192f0c1abcd7ef08123456789abcdef",
        "0192f0c1-abcd-7ef0-8123-456789abcde",
        "0192f0c1-abcd-7ef0-8123-456789abcdefa",
        "0192f0c1-abcd-7ef0-8123-456789abcdeg",
        "{0192f0c1-abcd-7ef0-8123-456789abcdef}",
        "0192f0c1-abcd-7ef0-8123-456789abcdef\n",
        "٠192f0c1-abcd-7ef0-8123-456789abcdef",
    ],
)
def test_what_is_not_a_uuid_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        require_uuid(text, what="message id")

    assert refused.value.body() == {
        "error": Code.INVALID_ID,
        "message": "message id must be a UUID such as 0192f0c1-….",
        "details": {"field": "message id"},
    }


@each_case("text", ["a", "Code-Assistant_2", "-", "_", "a" * 255])
def test_letters_digits_dash_and_underscore_make_a_slug(text: str) -> None:
    assert is_slug(text)


@each_case("text", ["", "a" * 256, "a b", "a.b", "a/b", "ä", "a\n", "٣"])
def test_nothing_else_makes_a_slug(text: str) -> None:
    assert not is_slug(text)


@each_case("text", ["local", "a", "anna@example.org", "A_b-c.9", "x" * 128])
def test_an_owner_is_taken_as_written(text: str) -> None:
    assert require_owner(text) == text


@each_case("text", ["", "x" * 129, "a b", "a/b", "ä", "a\x00", "a\n"])
def test_what_cannot_be_an_owner_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        require_owner(text)

    assert (refused.value.code, refused.value.details) == (Code.INVALID_ID, {"field": "owner"})


@each_case(
    ("name", "slug"),
    [
        ("Code Assistant", "code-assistant"),
        ("  Größe: 5 / 7!  ", "gr-e-5-7"),
        ("snake_case", "snake_case"),
        ("already-a-slug", "already-a-slug"),
        ("日本語", ""),
        ("", ""),
        ("x" * 300, "x" * 255),
    ],
)
def test_a_name_gives_a_slug(name: str, slug: str) -> None:
    assert slug_of(name) == slug


@given(st.text())
def test_a_slug_made_of_any_name_is_a_slug_or_empty(name: str) -> None:
    slug = slug_of(name)

    assert slug == "" or is_slug(slug)


@given(st.text(alphabet="abcXYZ019_- ", max_size=30))
def test_a_slug_made_again_of_a_slug_stays(name: str) -> None:
    assert slug_of(slug_of(name)) == slug_of(name)
