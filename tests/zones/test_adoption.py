"""An agent that is made under a name finds what was left under that name before it was there."""

from pathlib import Path

import pytest

from holdfast.api import Holdfast
from holdfast.domain.errors import Conflict
from holdfast.domain.ids import Owner
from tests.houses import raw
from tests.importers.blocks import a_folder, agent_block
from tests.importers.test_block_zones import brought
from tests.zones.test_archives import contents
from tests.zones.test_merge import found, laid_out

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")


async def test_a_new_agent_has_what_lay_under_its_slug(quiet: Holdfast) -> None:
    await quiet.zones.append_output(quiet.owner, "helper", "first")
    await quiet.zones.archive(quiet.owner, "helper")
    await quiet.zones.write_state(quiet.owner, "helper", "second")
    await quiet.zones.write_state(quiet.owner, "helper-2", "another's")
    await quiet.zones.write_state(STRANGER, "helper", "a stranger's")
    before = await contents(quiet, "helper")

    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})

    moved = {name.replace(":helper:", f":{agent.id}:"): text for name, text in before.items()}
    assert await contents(quiet, agent.id) == moved
    assert await contents(quiet, "helper") == {}
    assert (await quiet.zones.read_state(quiet.owner, "helper")).content == "second"
    assert len(await quiet.zones.list_archives(quiet.owner, agent.id)) == 1
    assert (await quiet.zones.read_state(quiet.owner, "helper-2")).content == "another's"
    assert (await quiet.zones.read_state(STRANGER, "helper")).content == "a stranger's"
    assert await quiet.store.check() == []


async def test_what_lay_under_its_id_and_its_slug_is_all_there(quiet: Holdfast) -> None:
    id = "0192f0c1-0000-7000-8000-000000000001"
    await laid_out(
        quiet,
        {
            f"agent:{id}:current": {"output": (b"by id", 5)},
            "agent:helper:current": {"output": (b"by slug", 6)},
            "agent:helper:archive:01": {"output": (b"no archive", 1)},
        },
    )

    for _ in range(2):
        await quiet.agents.create(quiet.owner, {"name": "Helper"}, id=id)

    assert await found(quiet) == {
        f"agent:{id}:current": {"output": (b"by slug", 6)},
        f"agent:{id}:archive:5": {"output": (b"by id", 5)},
        "agent:helper:archive:01": {"output": (b"no archive", 1)},
    }


async def test_a_slug_that_is_anothers_id_takes_nothing_from_it(quiet: Holdfast) -> None:
    first = await quiet.agents.create(quiet.owner, {"name": "First"})
    await quiet.zones.write_state(quiet.owner, first.id, "mine")

    second = await quiet.agents.create(quiet.owner, {"name": "Second", "slug": first.id})

    assert (await quiet.zones.read_state(quiet.owner, first.id)).content == "mine"
    assert await contents(quiet, second.id) == {}


async def test_an_agent_that_is_not_made_takes_nothing(quiet: Holdfast) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})
    await quiet.zones.write_state(quiet.owner, agent.id, "its own")

    with pytest.raises(Conflict):
        await quiet.agents.create(quiet.owner, {"name": "Other", "slug": "helper"})
    await quiet.zones.write_state(quiet.owner, "later", "left")
    await quiet.agents.update(quiet.owner, agent.id, {"slug": "later"})

    # A name that changes moves nothing; what lay under it is found when nobody has it again.
    assert (await quiet.zones.read_state(quiet.owner, "later")).content == "its own"
    await quiet.agents.update(quiet.owner, agent.id, {"slug": "helper"})
    assert (await quiet.zones.read_state(quiet.owner, "later")).content == "left"


async def test_a_damaged_zone_keeps_nobody_from_an_agent(
    quiet: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    await quiet.zones.append_output(quiet.owner, "helper", "damaged")
    with raw(quiet.config.home) as file:
        file.execute("UPDATE zone_files SET size = size + 1")
    await quiet.zones.archive(quiet.owner, "helper-2")

    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})

    assert (await quiet.zones.show(quiet.owner, "helper")).zone == f"agent:{agent.id}:current"
    assert "a zone was not moved to its agent: agent:helper:current output" in caplog.text


async def test_an_agent_that_is_there_without_being_made_finds_it_too(quiet: Holdfast) -> None:
    await quiet.zones.append_output(quiet.owner, "holdfast", "left")

    session = await quiet.open()

    desk = await quiet.zones.show(quiet.owner, "holdfast")
    assert (desk.session_id, desk.files) == (session.id, ())
    (archive,) = await quiet.zones.list_archives(quiet.owner, session.agent_id)
    assert (archive.size, archive.has_output) == (5, True)


async def test_what_an_importer_brought_waits_for_its_agent(
    quiet: Holdfast, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path / "old")
    agent_block(folder, "b1", "helper", b"brought")
    await brought(quiet, folder)

    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})

    assert sorted(await contents(quiet, agent.id)) == [
        f"agent:{agent.id}:archive:100 output.state.json",
        f"agent:{agent.id}:current output.state.json",
    ]
