"""Schemas of an agent: what it may be sent, and what it has to answer."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Session, open_holdfast
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.messages import Notice, NoticeCode, Output, Role, Text
from holdfast.domain.sessions import SessionRequest, StopReason
from tests.houses import current, played
from tests.marks import demands, each_case
from tests.tooled import a_config, says

pytestmark = pytest.mark.anyio

SUM = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}


async def opened(house: Holdfast, **schemas: Any) -> Session:
    """Open a session with an agent that has schemas."""
    agent = await house.agents.create(
        house.owner, {"name": "Adder", "system_prompt": "Add.", "extra": schemas}
    )
    return await house.open(agent.slug, SessionRequest())


@demands("S0-440")
@each_case("text", ['{"sum": 5}', '```json\n{"sum": 5}\n```'])
async def test_the_value_of_an_answer_is_kept_beside_its_text(home: Path, text: str) -> None:
    async with open_holdfast(config=a_config(home, says(text))) as house:
        session = await opened(house, output_schema=SUM)
        await house.send(session.id, "2+3")
        rows = await played(house, session.id)

    assert rows[-1].parts == (Text(text=text), Output(value={"sum": 5}))


@demands("S0-440")
async def test_an_answer_that_does_not_match_is_asked_for_again(home: Path) -> None:
    steps = (says("Five."), says('{"sum": "5"}'), says('{"sum": 5}'))
    async with open_holdfast(config=a_config(home, *steps)) as house:
        session = await opened(house, output_schema=SUM)
        await house.send(session.id, "2+3")
        rows = await played(house, session.id)
        after = await current(house, session)

    told = [part.text for row in rows for part in row.parts if isinstance(part, Notice)]
    assert told == [
        "The answer does not match the output schema: it is not a single JSON value. Answer again.",
        'The answer does not match the output schema: at $.sum: type "integer". Answer again.',
    ]
    assert rows[-1].parts[-1] == Output(value={"sum": 5})
    assert after.last_stop is StopReason.STOP


@demands("S0-440")
async def test_a_model_that_never_matches_fails_the_turn(home: Path) -> None:
    async with open_holdfast(config=a_config(home, *[says("Five.")] * 3)) as house:
        session = await opened(house, output_schema=SUM)
        await house.send(session.id, "2+3")
        rows = await played(house, session.id)
        after = await current(house, session)

    assert after.last_stop is StopReason.ERROR
    assert [row.text for row in rows if row.role is Role.ASSISTANT] == ["Five."] * 3
    (closing,) = rows[-1].parts
    assert isinstance(closing, Notice)
    assert closing.code is NoticeCode.ERROR
    assert closing.text.startswith("output_invalid: The answer does not match the output schema")


@demands("S0-440")
async def test_a_message_that_does_not_match_is_refused_and_not_stored(home: Path) -> None:
    async with open_holdfast(config=a_config(home, says("ok"), says("ok"))) as house:
        session = await opened(house, input_schema=SUM)
        await house.send(session.id, '{"sum": 1}')
        before = await played(house, session.id)
        # Before and after the session is in memory the same rule applies.
        for wrong in ("2+3", '{"sum": "secret"}'):
            with pytest.raises(Invalid) as caught:
                await house.send(session.id, wrong)
            assert caught.value.code is Code.MESSAGE_INVALID
            assert "secret" not in caught.value.message
        assert await house.read(session.id) == before


@each_case(
    "schema",
    [
        {"type": "nonsense"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"required": 1},
        {"items": {"$ref": "http://127.0.0.1:1/x.json"}},
    ],
)
async def test_an_agent_with_a_schema_that_is_none_is_refused(
    quiet: Holdfast, schema: dict[str, Any]
) -> None:
    with pytest.raises(Invalid) as caught:
        await opened(quiet, output_schema=schema)

    assert caught.value.code is Code.AGENT_INVALID
