"""What an agent says of itself reaches its turns; the configuration speaks where it is silent."""

from pathlib import Path

import pytest

from holdfast import open_holdfast
from holdfast.app import Environment
from holdfast.config import Chat, Config
from holdfast.domain.agents import LlmRuntime, Memory, ReasoningEffort
from tests.houses import open_house, played
from tests.stand_ins import GatedRuntime

pytestmark = pytest.mark.anyio


async def test_an_agents_window_is_the_window_of_its_turns(
    home: Path, outside: Environment
) -> None:
    runtime = GatedRuntime()
    remembers = LlmRuntime(memory=Memory(type="window", window_size=4))
    async with open_house(home, runtime, outside=outside) as house:
        await house.agents.create(house.owner, {"name": "Helper", "runtime": remembers})
        session = await house.open("helper")
        await house.send(session.id, "hello")
        await played(house, session.id)

    assert runtime.turns[0].limits.max_messages == 4


@pytest.mark.parametrize(
    ("own", "effort"), [(None, ReasoningEffort.LOW), (ReasoningEffort.MAX, ReasoningEffort.MAX)]
)
async def test_how_hard_to_think_is_configured_where_the_agent_is_silent(
    home: Path, outside: Environment, own: ReasoningEffort | None, effort: ReasoningEffort
) -> None:
    config = Config(home=home, chat=Chat(reasoning_effort=ReasoningEffort.LOW))
    async with open_holdfast(config=config, outside=outside) as house:
        fields = {"name": "Helper", "runtime": LlmRuntime(reasoning_effort=own)}
        await house.agents.create(house.owner, fields)
        session = await house.open("helper")

    assert session.agent.runtime == LlmRuntime(reasoning_effort=effort)
