"""What the owner of a session may change, and what stays as it was opened."""

from typing import Any

import pytest

from holdfast.api import Holdfast
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.sessions import SessionRequest, StopReason
from tests.houses import current, played
from tests.marks import demands, each_case
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio


async def test_title_tags_approval_and_metadata_can_be_changed(
    quiet: Holdfast, clock: SettableClock
) -> None:
    session = await quiet.open(request=SessionRequest(title="Old", tags=("a",)))
    clock.advance(minutes=1)

    changed = await quiet.sessions.update(
        quiet.owner,
        session.id,
        {"title": "New", "tags": ["b", "c"], "approval": "auto", "metadata": {"n": 1}},
    )

    assert (changed.title, changed.tags) == ("New", ("b", "c"))
    assert (changed.approval, changed.metadata) == (ApprovalMode.AUTO, {"n": 1})
    assert changed == await current(quiet, session)


async def test_a_raised_turn_cap_lets_the_session_go_on(holdfast: Holdfast) -> None:
    session = await holdfast.open(request=SessionRequest(turn_cap=1))
    stops = []
    for text in ("one", "two"):
        await holdfast.send(session.id, text)
        await played(holdfast, session.id)
        stops.append((await current(holdfast, session)).last_stop)

    await holdfast.sessions.update(holdfast.owner, session.id, {"turn_cap": 2})
    await holdfast.send(session.id, "three")
    await played(holdfast, session.id)

    stops.append((await current(holdfast, session)).last_stop)
    assert stops == [StopReason.STOP, StopReason.TURN_LIMIT, StopReason.STOP]


@each_case("cap", [0, -1, 1_000_001, None, True, "many"])
async def test_a_turn_cap_that_is_none_changes_nothing(quiet: Holdfast, cap: Any) -> None:
    session = await quiet.open()

    with pytest.raises(Invalid) as caught:
        await quiet.sessions.update(quiet.owner, session.id, {"turn_cap": cap})

    assert caught.value.code is Code.INVALID_INPUT
    assert (await current(quiet, session)).turn_cap == 50


async def test_what_is_not_named_stays(quiet: Holdfast) -> None:
    wishes = SessionRequest(title="Old", tags=("a",), metadata={"n": 1})
    session = await quiet.open(request=wishes)

    changed = await quiet.sessions.update(quiet.owner, session.id, {"title": None})

    assert (changed.title, changed.tags, changed.metadata) == (None, ("a",), {"n": 1})


async def test_a_title_that_was_taken_away_comes_back_with_the_next_message(
    quiet: Holdfast,
) -> None:
    session = await quiet.open(request=SessionRequest(title="Old"))
    await quiet.sessions.update(quiet.owner, session.id, {"title": None})

    await quiet.send(session.id, "hello")

    assert (await current(quiet, session)).title == "hello"


@demands("S0-001c")
@each_case("field", ["agent", "agent_id", "context", "status", "repo_id", "nonsense"])
async def test_nothing_else_can_be_changed(quiet: Holdfast, field: str) -> None:
    session = await quiet.open()

    with pytest.raises(Invalid) as caught:
        await quiet.sessions.update(quiet.owner, session.id, {field: "x"})

    assert caught.value.code is Code.INVALID_INPUT
    assert await current(quiet, session) == session


@each_case(
    ("change", "code"),
    [
        ({"title": ""}, Code.INVALID_TEXT),
        ({"title": "x" * 256}, Code.INVALID_TEXT),
        ({"title": 5}, Code.INVALID_INPUT),
        ({"tags": ["a", "a"]}, Code.INVALID_INPUT),
        ({"tags": "a"}, Code.INVALID_INPUT),
        ({"tags": [""]}, Code.INVALID_TEXT),
        ({"tags": [5]}, Code.INVALID_INPUT),
        ({"approval": "sometimes"}, Code.INVALID_INPUT),
        ({"metadata": "text"}, Code.INVALID_INPUT),
        ({"metadata": {"x": "y" * (16 << 10)}}, Code.INVALID_INPUT),
    ],
)
async def test_a_change_that_is_not_valid_leaves_the_session_as_it_was(
    quiet: Holdfast, change: dict[str, Any], code: Code
) -> None:
    session = await quiet.open()

    with pytest.raises(Invalid) as caught:
        await quiet.sessions.update(quiet.owner, session.id, change)

    assert caught.value.code is code
    assert await current(quiet, session) == session
