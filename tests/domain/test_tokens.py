"""Tokens as values: what a scope reaches, when a token has ended, what a secret looks like."""

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import Code, Denied
from holdfast.domain.ids import LOCAL_OWNER, TokenId
from holdfast.domain.secrets import mask_json, mask_text
from holdfast.domain.tokens import (
    SECRET_BITS,
    USE_PRECISION,
    Caller,
    Scope,
    TokenKind,
    caller_of,
    hash_token,
    is_secret,
    secret_of,
)
from tests.builders import AT, a_token, an_id
from tests.marks import each_case

MOMENT = timedelta(microseconds=1)
SECRETS = st.integers(0, 2**SECRET_BITS - 1).map(secret_of)


def test_each_scope_contains_the_one_before_and_tools_stand_beside_reading() -> None:
    reached = {scope: [needed for needed in Scope if scope.allows(needed)] for scope in Scope}

    assert reached == {
        Scope.READ: [Scope.READ],
        Scope.WRITE: [Scope.READ, Scope.WRITE, Scope.TOOLS],
        Scope.ADMIN: [Scope.READ, Scope.WRITE, Scope.ADMIN, Scope.TOOLS],
        Scope.TOOLS: [Scope.TOOLS],
    }


def test_a_caller_is_refused_what_its_scope_does_not_reach() -> None:
    caller = Caller(owner=LOCAL_OWNER, scope=Scope.WRITE, token_id=TokenId(an_id(1)))

    caller.require(Scope.READ)
    caller.require(Scope.WRITE)
    with pytest.raises(Denied) as refused:
        caller.require(Scope.ADMIN)

    assert refused.value.code is Code.FORBIDDEN
    assert refused.value.details == {"needed": "admin", "scope": "write"}
    assert "holdfast token create NAME --scope admin" in refused.value.message


def test_a_token_is_live_until_it_expires_or_is_revoked() -> None:
    forever, ending = a_token(), a_token(expires_at=AT)

    assert forever.is_live(AT + timedelta(days=36_500))
    assert (ending.is_live(AT - MOMENT), ending.is_live(AT)) == (True, False)
    assert not a_token(revoked_at=AT).is_live(AT - timedelta(days=1))


def test_a_use_is_noted_once_in_an_hour() -> None:
    used = a_token(last_used_at=AT)

    assert a_token().is_use_due(AT)
    assert not used.is_use_due(AT + USE_PRECISION - MOMENT)
    assert used.is_use_due(AT + USE_PRECISION)


@each_case("kind", TokenKind)
def test_only_a_token_of_the_page_comes_as_a_cookie(kind: TokenKind) -> None:
    token = a_token(kind=kind)

    assert caller_of(token) == Caller(
        owner=token.owner,
        scope=token.scope,
        token_id=token.id,
        is_cookie=kind is TokenKind.PAGE,
    )


@given(SECRETS)
def test_a_secret_has_one_shape_and_tells_nothing_by_its_digest(secret: str) -> None:
    assert re.fullmatch(r"hf_[A-Za-z0-9_-]{43}", secret)
    assert is_secret(secret)
    assert len(hash_token(secret)) == 32
    assert hash_token(secret) != hash_token(secret[:-1])


@given(st.integers(0, 2**SECRET_BITS - 1), st.integers(0, 2**SECRET_BITS - 1))
def test_other_bits_are_another_secret(one: int, other: int) -> None:
    assert (secret_of(one) == secret_of(other)) == (one == other)


@each_case(
    "text",
    [
        *("", "hf_", f"hf_{'a' * 42}", f"hf_{'a' * 44}", f"HF_{'a' * 43}", f"hf_{'a' * 42}\n"),
        *(f" hf_{'a' * 43}", f"hf_{'a' * 43}\n", f"hf_{'ä' * 43}", f"hf_{'٣' * 43}"),
    ],
)
def test_nothing_else_is_a_secret(text: str) -> None:
    assert not is_secret(text)


@given(
    # All but some of one in ten thousand million, whose 43 characters have no capital.
    SECRETS.filter(lambda secret: secret[3:].lower() != secret[3:]),
    st.sampled_from(
        ["{}", "say {} twice: {}", "a={}", "/sign-in?code={}", "holdfast={}; x", "«{}»"]
    ),
)
def test_a_secret_is_masked_wherever_it_stands(secret: str, around: str) -> None:
    text = around.replace("{}", secret)

    assert mask_text(text) == around.replace("{}", "[masked]")
    assert secret.encode() not in mask_json(f'{{"x": ["{text}"]}}'.encode())


def test_a_name_that_only_begins_like_a_secret_is_left_alone() -> None:
    for name in (
        "hf_hub_download_with_a_name_that_is_really_quite_long_1",
        "hf_short",
        "shelf_ABC",
    ):
        assert mask_text(name) is name
