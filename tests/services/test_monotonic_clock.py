"""A time that does not jump: a clock that is set is believed only after a while."""

from datetime import timedelta

from holdfast.services.maintenance import MonotonicClock
from tests.builders import AT
from tests.stand_ins import SettableClock

PATIENCE = timedelta(minutes=30)
DAY = timedelta(days=1)


def test_it_follows_a_clock_that_nobody_sets(clock: SettableClock) -> None:
    steady = MonotonicClock(clock)
    assert steady.now(PATIENCE) == AT

    clock.advance(days=3)

    assert steady.now(PATIENCE) == AT + 3 * DAY


def test_a_clock_set_forward_is_not_believed_at_once(clock: SettableClock) -> None:
    steady = MonotonicClock(clock)
    clock.wall += DAY

    assert steady.now(PATIENCE) == AT
    clock.advance(minutes=29)
    assert steady.now(PATIENCE) == AT + timedelta(minutes=29)


def test_a_clock_that_stays_set_is_believed_after_a_while(clock: SettableClock) -> None:
    steady = MonotonicClock(clock)
    clock.wall += DAY
    steady.now(PATIENCE)

    clock.advance(minutes=30)

    assert steady.now(PATIENCE) == clock.now() == AT + DAY + timedelta(minutes=30)


def test_a_clock_that_is_set_back_again_was_never_wrong(clock: SettableClock) -> None:
    steady = MonotonicClock(clock)
    clock.wall += DAY
    steady.now(PATIENCE)
    clock.wall -= DAY
    clock.advance(hours=1)

    assert steady.now(PATIENCE) == AT + timedelta(hours=1)
    clock.wall += DAY
    assert steady.now(PATIENCE) == AT + timedelta(hours=1)


def test_a_clock_set_back_is_believed_because_it_is_earlier(clock: SettableClock) -> None:
    steady = MonotonicClock(clock)
    clock.wall -= DAY

    assert steady.now(PATIENCE) == AT - DAY


def test_a_small_step_is_no_jump(clock: SettableClock) -> None:
    steady = MonotonicClock(clock)
    clock.wall += timedelta(seconds=30)

    assert steady.now(PATIENCE) == AT
    clock.wall -= timedelta(seconds=45)
    assert steady.now(PATIENCE) == AT - timedelta(seconds=15)
