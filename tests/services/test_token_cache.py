"""What is known of tokens: for how long it is believed, and what is never kept."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.tokens import Scope, Token
from holdfast.services.tokens import CACHED_TOKENS_MOST, FRESH_MS, LONGEST_MS, TokenCache
from tests.builders import a_token
from tests.stand_ins import Gate, SettableClock

pytestmark = pytest.mark.anyio


class Truth:
    """What the store would say, and how often it was asked."""

    def __init__(self, token: Token | None = None) -> None:
        self.token = token
        self.looks = 0

    async def look(self) -> Token | None:
        self.looks += 1
        return self.token


async def test_a_look_that_was_under_way_when_a_token_changed_is_not_kept(
    clock: SettableClock,
) -> None:
    known, gate, truth = TokenCache(clock), Gate(), Truth()

    async def slow() -> Token | None:
        await gate.passed()
        return a_token()

    looking = asyncio.create_task(known.ask("id", slow))
    await gate.reached()
    known.forget()
    gate.open()

    assert await looking == a_token()
    assert await known.ask("id", truth.look) is None
    assert truth.looks == 1


async def test_a_change_that_is_seen_by_one_name_is_known_by_the_other(
    clock: SettableClock,
) -> None:
    known, truth = TokenCache(clock), Truth(a_token(scope=Scope.WRITE))
    await known.ask("id", truth.look)
    clock.advance(milliseconds=FRESH_MS // 2)
    await known.ask(b"digest", truth.look)
    truth.token = narrowed = a_token(scope=Scope.READ)
    clock.advance(milliseconds=FRESH_MS // 2)

    assert await known.ask("id", truth.look) == narrowed
    assert await known.ask(b"digest", truth.look) == narrowed


async def test_a_look_that_fails_is_taken_again(clock: SettableClock) -> None:
    known, truth = TokenCache(clock), Truth(a_token())

    async def fails() -> Token | None:
        raise LookupError

    with pytest.raises(LookupError):
        await known.ask("id", fails)

    assert await known.ask("id", truth.look) == a_token()


async def test_what_was_read_is_as_old_as_the_question(clock: SettableClock) -> None:
    known, truth = TokenCache(clock), Truth()

    async def slow() -> Token | None:
        clock.advance(milliseconds=LONGEST_MS)
        return a_token()

    await known.ask("id", slow)

    assert await known.ask("id", truth.look) is None


async def test_a_token_that_appears_is_no_longer_missing(clock: SettableClock) -> None:
    known, truth = TokenCache(clock), Truth()
    await known.ask("id", truth.look)
    truth.token = a_token()
    clock.advance(milliseconds=LONGEST_MS)

    assert await known.ask("id", truth.look) == a_token()
    assert await known.ask("id", truth.look) == a_token()
    assert truth.looks == 2


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(0, 3_000)), max_size=40)
)
def test_nothing_is_believed_for_longer_than_two_seconds(
    steps: list[tuple[str, bool, int]],
) -> None:
    clock = SettableClock()
    known = TokenCache(clock)
    # For each key, since when the store has said so.
    truths: dict[str, tuple[Truth, int]] = {}

    async def play() -> None:
        for key, is_there, passed in steps:
            truth, since = truths.get(key, (Truth(), 0))
            if (truth.token is not None) != is_there:
                truth.token, since = a_token() if is_there else None, clock.boot
            truths[key] = (truth, since)
            clock.advance(milliseconds=passed)
            told = await known.ask(key, truth.look)
            assert told == truth.token or clock.boot - since < LONGEST_MS

    asyncio.run(play())


async def test_of_each_kind_only_so_many_are_kept(clock: SettableClock) -> None:
    known = TokenCache(clock)
    found, missing = Truth(a_token()), Truth()
    for number in range(2 * CACHED_TOKENS_MOST):
        await known.ask(f"found {number}", found.look)
        await known.ask(f"missing {number}", missing.look)
    for truth in (found, missing):
        truth.looks = 0

    for number in reversed(range(2 * CACHED_TOKENS_MOST)):
        await known.ask(f"found {number}", found.look)
        await known.ask(f"missing {number}", missing.look)

    assert (found.looks, missing.looks) == (CACHED_TOKENS_MOST, CACHED_TOKENS_MOST)
