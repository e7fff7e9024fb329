"""Leases and the processes that hold them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.leases import DURATION_MS, RENEWAL_MS, Holder, parse_holder
from tests.builders import a_holder
from tests.marks import each_case

WORDS = st.text(alphabet="0123456789abcdef-", min_size=1, max_size=36)


@given(WORDS, WORDS, st.integers(0), st.integers(0), WORDS)
def test_a_stored_holder_is_read_as_it_was(
    boot: str, space: str, pid: int, started: int, nonce: str
) -> None:
    holder = Holder(boot=boot, space=space, pid=pid, started=started, nonce=nonce)

    assert parse_holder(str(holder)) == holder


def test_a_holder_is_stored_as_one_readable_line() -> None:
    assert str(a_holder(boot="b", space="s", pid=1, started=2, nonce="n")) == "b/s/1/2/n"


@each_case("text", ["", "b/s/1/2", "b/s/1/2/n/more", "b/s/one/2/n"])
def test_what_no_process_wrote_is_not_a_holder(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|literal"):
        parse_holder(text)


def test_a_holder_may_miss_two_renewals_and_keep_its_lease() -> None:
    assert (RENEWAL_MS, DURATION_MS) == (1_000, 4_000)
    assert 3 * RENEWAL_MS < DURATION_MS
