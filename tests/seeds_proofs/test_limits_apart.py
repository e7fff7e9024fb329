"""Three limits, none of which is another one: turns, rounds of tools, rows of a request."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast import Holdfast, Session, open_holdfast
from holdfast.config.settings import Chat
from holdfast.domain.events import Event, TurnEnded
from holdfast.domain.messages import Role
from holdfast.domain.sessions import Status, StopReason
from tests.houses import current, payloads, played
from tests.marks import demands
from tests.tooled import a_config, asks, call, ledger, says, started

pytestmark = pytest.mark.anyio


async def endings(house: Holdfast, session: Session) -> list[StopReason]:
    """Return how each turn of a session ended."""
    page = await house.events.list(house.owner, session.id, limit=10_000)
    news = payloads([each for each in page.items if isinstance(each, Event)])
    return [each.stop_reason for each in news if isinstance(each, TurnEnded)]


async def first_seen(home: Path, window: int | None) -> str:
    """Say four things, and return what the model then takes for the first of them."""
    config = a_config(home, chat=Chat(max_messages=window))
    async with open_holdfast(config=config) as house:
        session = await started(house, home.parent / "desk", text="repeat after me: one")
        for text in ("repeat after me: two", "repeat after me: three", "what did I say first?"):
            await played(house, session.id)
            await house.send(session.id, text)
        rows = await played(house, session.id)

        assert [row.role for row in rows] == [Role.USER, Role.ASSISTANT] * 4
        assert await endings(house, session) == [StopReason.STOP] * 4
        assert (await current(house, session)).status is Status.IDLE
    return rows[-1].text.splitlines()[0]


@demands("S0-136")
async def test_a_window_shortens_what_the_model_sees_and_ends_and_writes_nothing(
    tmp_path: Path,
) -> None:
    seen = {window: await first_seen(tmp_path / str(window) / "home", window) for window in (3, 5)}
    whole = await first_seen(tmp_path / "whole" / "home", None)

    assert whole == "You said: repeat after me: one"
    assert seen[5] == "You said: repeat after me: two"
    assert seen[3] == "You said: repeat after me: three"


@demands("S0-119")
async def test_turns_rounds_and_rows_are_counted_apart(home: Path) -> None:
    desk = home.parent / "desk"
    desk.mkdir(parents=True)
    (desk / "a.txt").write_text("hello\n")
    look = asks(call("read_file", path="a.txt"))
    config = replace(
        a_config(home, look, says("one"), look, look, says("three"), chat=Chat(max_messages=1)),
        max_tool_rounds=1,
    )
    requests = []
    async with open_holdfast(config=config) as house:
        session = await started(house, desk, turn_cap=3)
        for text in ("two", "three", "four"):
            await played(house, session.id)
            requests.append(len(await ledger(house, session)))
            await house.send(session.id, text)
        rows = await played(house, session.id)
        requests.append(len(await ledger(house, session)))
        after = await current(house, session)
        ends = await endings(house, session)

    # A round too many ends the second turn, one turn too many the fourth; the rows end none.
    limit = StopReason.TURN_LIMIT
    assert ends == [StopReason.STOP, limit, StopReason.STOP, limit]
    assert requests == [2, 4, 5, 5]
    assert [row.text for row in rows if row.role is Role.USER] == ["go", "two", "three", "four"]
    assert after.status is Status.IDLE
