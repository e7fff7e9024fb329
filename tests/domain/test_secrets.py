"""A secret: nothing but `reveal` gives it away."""

import copy
import json
import pickle

import msgspec
import pytest

from holdfast.domain.secrets import Secret
from tests.marks import each_case

KEY = "sk-canary-0123456789"


def test_a_secret_is_revealed_when_asked_for() -> None:
    assert Secret(KEY).reveal() == KEY


@each_case(
    "shown",
    [
        repr(Secret(KEY)),
        str(Secret(KEY)),
        f"{Secret(KEY)}",
        f"{Secret(KEY)!r:>40}",
        f"{Secret(KEY):>40}",
        f"{[Secret(KEY)]}",
        "%s" % Secret(KEY),  # noqa: UP031
        json.dumps({"key": Secret(KEY)}, default=str),
        repr(TypeError(Secret(KEY))),
    ],
)
def test_what_is_shown_of_a_secret_is_a_mark(shown: str) -> None:
    assert "[secret]" in shown
    assert "canary" not in shown


@each_case("encode", [msgspec.json.encode, msgspec.to_builtins, pickle.dumps])
def test_a_secret_cannot_be_written_down(encode: object) -> None:
    assert callable(encode)

    with pytest.raises(TypeError) as refused:
        encode({"key": Secret(KEY)})

    assert "canary" not in str(refused.value)


def test_a_copy_is_the_secret_itself() -> None:
    secret = Secret(KEY)

    assert copy.copy(secret) is secret
    assert copy.deepcopy({"key": secret})["key"] is secret
