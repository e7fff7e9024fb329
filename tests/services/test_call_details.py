"""What somebody else's agent says of a call after its row was written."""

from pathlib import Path

import pytest

from holdfast.app import Environment
from holdfast.domain.calls import CallState
from holdfast.domain.drafts import CallDetails, Outcome
from holdfast.domain.events import TurnEnded
from holdfast.domain.messages import ToolCall
from holdfast.domain.sessions import StopReason
from tests.houses import news_until, open_house
from tests.stand_ins import GatedRuntime, a_start, an_intent

pytestmark = pytest.mark.anyio


async def test_details_of_a_call_are_kept_with_the_call_and_its_row_stays(
    home: Path, outside: Environment
) -> None:
    intent, start = an_intent(), a_start()
    details = CallDetails(call_id=start.call_id, arguments={"command": "ls"})
    play = [(intent, start), (details,), (Outcome(stop_reason=StopReason.ERROR),)]
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "go")
        await news_until(house, session.id, TurnEnded)

        [call] = (await house.calls.list(house.owner, session.id)).items
        rows = (await house.messages.list(house.owner, session.id)).items

    written = [part for row in rows for part in row.parts if isinstance(part, ToolCall)]
    assert (call.arguments, call.state) == ({"command": "ls"}, CallState.STARTED)
    assert written == list(intent.parts)
