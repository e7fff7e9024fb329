"""So many claims in a minute for each owner, and then a wait that is told."""

from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.domain.errors import Code, LimitReached
from holdfast.domain.ids import LOCAL_OWNER, Owner
from holdfast.observations.service import PER_MINUTE, SubmissionRates
from tests.observations.claims import MINIMAL, a_payload, imported
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio


def test_beyond_the_limit_there_is_a_wait(clock: SettableClock) -> None:
    rates = SubmissionRates(clock)
    for _ in range(PER_MINUTE - 1):
        rates.count(LOCAL_OWNER)
    clock.advance(seconds=20)
    rates.count(LOCAL_OWNER)

    with pytest.raises(LimitReached) as caught:
        rates.count(LOCAL_OWNER)
    rates.count(Owner("ada"))

    assert caught.value.code is Code.RATE_LIMITED
    assert caught.value.details == {"limit": 600, "retry_after": 40}
    clock.advance(seconds=40)
    for _ in range(PER_MINUTE - 1):
        rates.count(LOCAL_OWNER)
    with pytest.raises(LimitReached):
        rates.count(LOCAL_OWNER)


def test_none_is_no_limit(clock: SettableClock) -> None:
    rates = SubmissionRates(clock, 0)

    for _ in range(2 * PER_MINUTE):
        rates.count(LOCAL_OWNER)


async def test_the_limit_is_configured_and_imports_are_free(
    home: Path, outside: Environment
) -> None:
    config = Config(home=home, observations_per_minute=1)
    async with open_holdfast(config=config, outside=outside, scope=RunScope.NONE) as house:
        await house.observations.submit(house.owner, MINIMAL)
        with pytest.raises(LimitReached):
            await house.observations.submit(house.owner, a_payload(duration=1))
        for number in range(3):
            payload = a_payload(duration=number + 1)
            claim = imported(payload, f"{number}", outside.clock.now())
            await house.observations.import_(house.owner, claim)
        history = await house.observations.show(house.owner, "abc123")

    assert history.observations_total == 4
