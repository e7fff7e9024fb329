"""How many observations an owner may make in a minute, and what is told when there are more."""

from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.config import Config
from tests.http.v1.client import refusal, visiting
from tests.http.v1.test_history import MINIMAL
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio


async def test_too_many_are_told_to_wait_and_how_long(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    config = Config(home=home, observations_per_minute=3)
    async with (
        open_holdfast(config=config, outside=outside, scope=RunScope.NONE) as house,
        visiting(house) as visitor,
    ):
        other = await visitor.as_("somebody")
        first = [(await visitor.post("/v1/history", MINIMAL)).status for _ in range(2)]
        bad = await visitor.post("/v1/history", {})
        late = await visitor.post("/v1/history", MINIMAL)
        free = await other.post("/v1/history", MINIMAL)
        read = await visitor.get("/v1/history/abc123")
        clock.advance(seconds=61)
        again = await visitor.post("/v1/history", MINIMAL)

    assert (first, bad.status) == ([201, 200], 400)
    assert refusal(late) == (429, "rate_limited")
    assert late.document["details"] == {"limit": 3, "retry_after": 60}
    assert late.headers["retry-after"] == "60"
    assert (free.status, read.status, again.status) == (201, 200, 200)
