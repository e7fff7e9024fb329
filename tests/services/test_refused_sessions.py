"""Openings that are refused, each by its own name."""

import pytest

from holdfast.api import Holdfast
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import Owner
from holdfast.domain.sessions import SessionRequest
from tests.builders import an_id
from tests.marks import each_case

pytestmark = pytest.mark.anyio

ID = an_id(70)
STRANGER = Owner("stranger")


async def test_an_id_that_is_no_uuid_is_refused(quiet: Holdfast) -> None:
    with pytest.raises(Invalid) as caught:
        await quiet.open(id="seven")

    assert caught.value.code is Code.INVALID_ID


@each_case("ref", ["nobody", ID, "not a slug", ""])
async def test_an_unknown_agent_is_not_found(quiet: Holdfast, ref: str) -> None:
    with pytest.raises(NotFound) as caught:
        await quiet.sessions.open(quiet.owner, ref)

    assert caught.value.code is Code.AGENT_NOT_FOUND


async def test_an_archived_agent_opens_nothing_and_its_sessions_go_on(quiet: Holdfast) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})
    session = await quiet.open("helper")
    await quiet.agents.archive(quiet.owner, "helper")

    with pytest.raises(Conflict) as caught:
        await quiet.open(agent.id)

    assert caught.value.code is Code.AGENT_ARCHIVED
    assert (await quiet.send(session.id, "still there?")).sequence == 1


async def test_an_agent_with_a_program_of_its_own_needs_a_repository(quiet: Holdfast) -> None:
    runtime = AcpRuntime(command="gemini")
    await quiet.agents.create(quiet.owner, {"name": "Cli", "runtime": runtime})

    with pytest.raises(Invalid) as caught:
        await quiet.open("cli")

    assert caught.value.code is Code.REPO_REQUIRED


@each_case("model", [an_id(72), "nonsense", "offline:other"])
async def test_a_model_that_cannot_be_asked_is_refused(quiet: Holdfast, model: str) -> None:
    with pytest.raises(Invalid) as caught:
        await quiet.open(request=SessionRequest(model=model))

    assert caught.value.code is Code.MODEL_NOT_FOUND
