"""Reading only some rows of the record: by who speaks, by turn, and which texts were cut off."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.drafts import MessageDraft, Outcome
from holdfast.domain.messages import Message, Role, Text
from holdfast.domain.queries import MessageQuery
from holdfast.domain.sessions import ForkRequest, Session, StopReason
from tests.builders import a_tool_result
from tests.houses import House, open_house, played
from tests.marks import each_case
from tests.stand_ins import Gate, GatedRuntime, a_start, an_answer, an_intent

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RESULT = MessageDraft(role=Role.TOOL_RESULT, parts=(a_tool_result(),))
FAILED = Outcome(stop_reason=StopReason.ERROR)


def _text(text: str) -> MessageDraft:
    return MessageDraft(role=Role.ASSISTANT, parts=(Text(text=text),))


# Rows 1 to 5, 6 to 9, 10 and 11; the second turn breaks off after two texts.
PLAYS = (
    [(_text("I look."), an_intent(), a_start()), (RESULT,), an_answer("found")],
    [(_text("first"),), (_text("broken"),), (FAILED,)],
    [an_answer("well")],
)


@pytest.fixture
async def house(home: Path, outside: Environment) -> AsyncIterator[House]:
    """Open a home whose turns are written above."""
    async with open_house(home, GatedRuntime(*PLAYS), outside=outside) as house:
        yield house


@pytest.fixture
async def session(house: House) -> Session:
    """Play three turns."""
    session = await house.open()
    for text in ("one", "two", "three"):
        await house.send(session.id, text)
        await played(house, session.id)
    return session


async def _interrupted(house: House, session: Session, **query: Any) -> list[Message]:
    scan = await house.messages.scan(house.owner, session.id, MessageQuery(**query))
    return [
        row async for batch in scan.batches() for row in batch.rows if row.id in batch.interrupted
    ]


async def _page(house: Holdfast, session: Session, **query: Any) -> tuple[list[int], str | None]:
    page = await house.messages.page(house.owner, session.id, MessageQuery(**query))
    return [row.sequence for row in page.items], page.next_cursor


@each_case(
    "case",
    [
        ({}, list(range(1, 12)), None),
        ({"roles": (Role.USER,)}, [1, 6, 10], None),
        ({"roles": (Role.TOOL_CALL, Role.TOOL_RESULT)}, [3, 4], None),
        ({"turn": 2}, [6, 7, 8, 9], None),
        ({"turn": 0}, [], None),
        ({"turn": 2, "roles": (Role.ASSISTANT,)}, [7, 8], None),
        ({"roles": (Role.ASSISTANT,), "limit": 2}, [2, 5], "5"),
        ({"roles": (Role.ASSISTANT,), "limit": 3, "after": 5}, [7, 8, 11], None),
        ({"roles": (Role.ASSISTANT,), "limit": 2, "before": 11}, [7, 8], None),
        ({"roles": (Role.USER,), "before": 6}, [1], None),
        ({"roles": (Role.SYSTEM,), "before": 9}, [], None),
        ({"limit": 11}, list(range(1, 12)), None),
        ({"limit": 10}, list(range(1, 11)), "10"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 3, 1_000])
async def test_a_page_holds_the_rows_that_match(
    house: House,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[dict[str, Any], list[int], str | None],
    chunk: int,
) -> None:
    monkeypatch.setattr("holdfast.services.batches.BATCH_ROWS", chunk)
    query, numbers, cursor = case

    assert await _page(house, session, **query) == (numbers, cursor)


async def test_a_fork_is_filtered_through_what_it_inherits(house: House, session: Session) -> None:
    fork = (await house.sessions.make_fork(house.owner, session.id, ForkRequest(at=7))).value
    await house.send(fork.id, "own")
    await played(house, fork.id)

    assert await _page(house, fork, roles=(Role.USER,)) == ([1, 6, 8], None)
    rows = await house.read(fork.id)
    assert {row.sequence for row in rows if row.session_id != fork.id} == set(range(1, 8))


@pytest.mark.parametrize("chunk", [1, 3, 1_000])
@each_case(
    "query",
    [{}, {"limit": 8}, {"after": 7, "limit": 1}, {"roles": (Role.ASSISTANT,)}, {"turn": 2}],
)
async def test_a_text_that_was_cut_off_is_known_on_every_page(
    house: House,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    query: dict[str, Any],
    chunk: int,
) -> None:
    monkeypatch.setattr("holdfast.services.batches.BATCH_ROWS", chunk)
    found = await _interrupted(house, session, **query)

    assert [row.text for row in found] == ["broken"]
    for row in found:
        assert await house.messages.is_interrupted(house.owner, session.id, row)


@each_case("query", [{"limit": 7}, {"after": 8}, {"roles": (Role.USER,)}])
async def test_other_texts_were_not_cut_off(
    house: House, session: Session, query: dict[str, Any]
) -> None:
    assert await _interrupted(house, session, **query) == []


async def test_no_rows_hold_no_text_that_was_cut_off(house: House, session: Session) -> None:
    assert await _interrupted(house, session, after=1_000) == []


async def test_text_that_is_still_streamed_is_in_no_list(home: Path, outside: Environment) -> None:
    gate = Gate()
    play = [(_text("said"),), gate, an_answer("done")]
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        rows: tuple[Message, ...] = await house.read(session.id)
        assert [row.text for row in rows] == ["hello", "said"]
        assert await _interrupted(house, session) == []
