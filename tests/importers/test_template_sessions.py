"""No template owns a zone: what one has gathered goes to an agent of its own, and stays there."""

import logging
from typing import Any

import pytest
from msgspec.structs import asdict

from holdfast.api import Holdfast
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, HoldfastError, StorageFull
from holdfast.domain.sessions import SessionRequest
from holdfast.importers.template_sessions import (
    TemplatePromoteStats,
    TemplatePromotion,
    is_template,
)
from holdfast.zones.model import TEMPLATE_PROMOTE_MARKER_V1
from tests.houses import raw
from tests.marks import demands
from tests.zones.test_archives import contents
from tests.zones.test_merge import found

pytestmark = pytest.mark.anyio


async def promoted(house: Holdfast) -> TemplatePromoteStats:
    return await TemplatePromotion(house.store, house.zones.stamping).promote(house.config.home)


async def a_template(house: Holdfast, **fields: Any) -> Any:
    wanted = {"name": "Starter", "tags": ("template", "x"), "system_prompt": "Be kind.", **fields}
    return await house.agents.create(house.owner, wanted)


@demands("S4-120", "S4-120b")
async def test_a_template_with_zones_is_promoted_once(quiet: Holdfast) -> None:
    template = await a_template(quiet)
    await quiet.zones.write_state(quiet.owner, template.id, "old")
    await quiet.zones.archive(quiet.owner, template.id)
    session = await quiet.open(template.slug, SessionRequest(title="My work"))
    await quiet.zones.append_output(quiet.owner, template.id, "line")
    before = await contents(quiet, template.id)

    first = await promoted(quiet)
    second = await promoted(quiet)

    target = await quiet.agents.get(quiet.owner, f"template-promote-v1-{template.id}")
    assert first == TemplatePromoteStats(
        templates_scanned=1, templates_promoted=1, archives_moved=1, instances_repointed=1
    )
    assert second == TemplatePromoteStats()
    assert (target.name, target.tags, target.system_prompt) == (
        "My work",
        ("x", "promoted"),
        "Be kind.",
    )
    renamed = {name.replace(template.id, target.id): text for name, text in before.items()}
    assert await contents(quiet, target.id) == renamed
    assert await contents(quiet, template.id) == {}
    moved = await quiet.sessions.get(quiet.owner, session.id)
    assert (moved.agent_id, moved.agent) == (target.id, session.agent)
    assert (await quiet.zones.show(quiet.owner, target.id)).session_id == session.id
    await quiet.sessions.close(quiet.owner, session.id)
    assert len(await quiet.zones.list_archives(quiet.owner, target.id)) == 2
    assert await quiet.store.check() == []


async def test_a_zone_that_grows_later_goes_to_the_same_agent(quiet: Holdfast) -> None:
    template = await a_template(quiet)
    await quiet.zones.write_state(quiet.owner, template.id, "1")
    await promoted(quiet)
    target = await quiet.agents.get(quiet.owner, f"template-promote-v1-{template.id}")
    await quiet.agents.update(quiet.owner, target.id, {"name": "Renamed"})
    await quiet.zones.write_state(quiet.owner, template.id, "2")

    again = await promoted(quiet)

    assert again.templates_promoted == 1
    assert (await quiet.agents.get(quiet.owner, target.id)).name == "Renamed"
    assert sorted((await contents(quiet, target.id)).values()) == ["1", "2"]


async def test_orphans_copies_and_agents_to_be_used_are_left_alone(quiet: Holdfast) -> None:
    template = await a_template(quiet)
    copy = await quiet.agents.create(quiet.owner, {"name": "Starter", "tags": ("mine",)})
    runtime = AcpRuntime(command="program")
    program = await quiet.agents.create(quiet.owner, {"name": "Program", "runtime": runtime})
    orphans = ("orphan", "00000000-0000-7000-8000-000000000000")
    for id in ("holdfast", copy.id, program.id, *orphans):
        await quiet.agents.seed(quiet.owner, id)
        await quiet.zones.write_state(quiet.owner, id, "mine")
    before = await found(quiet)

    assert await promoted(quiet) == TemplatePromoteStats()
    assert await found(quiet) == before
    assert (await quiet.agents.get(quiet.owner, template.id)).tags == ("template", "x")


async def test_an_agent_that_cannot_be_read_is_in_nobodys_way(quiet: Holdfast) -> None:
    damaged = await quiet.agents.create(quiet.owner, {"name": "Damaged"})
    template = await a_template(quiet)
    for agent in (damaged, template):
        await quiet.zones.write_state(quiet.owner, agent.id, "1")
    with raw(quiet.config.home) as file:
        file.execute("UPDATE agents SET checksum = checksum + 1 WHERE id = ?", (damaged.id,))
        assert file.changes() == 1

    assert await promoted(quiet) == TemplatePromoteStats(
        templates_scanned=1, templates_promoted=1, failures=1
    )
    assert len(await contents(quiet, damaged.id)) == 1


@demands("S4-122", "S4-122b")
async def test_every_run_logs_its_numbers_and_leaves_a_marker(
    quiet: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    marker = quiet.config.home / TEMPLATE_PROMOTE_MARKER_V1
    with caplog.at_level(logging.INFO, logger="holdfast.importers.template_sessions"):
        await promoted(quiet)

    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert vars(record)["fields"] == asdict(TemplatePromoteStats())
    assert marker.read_text() == "v1\n"


async def test_a_run_with_failures_leaves_no_marker(quiet: Holdfast) -> None:
    marker = quiet.config.home / TEMPLATE_PROMOTE_MARKER_V1
    damaged = await a_template(quiet)
    await quiet.zones.write_state(quiet.owner, damaged.id, "1")
    with raw(quiet.config.home) as file:
        file.execute("UPDATE agents SET checksum = checksum + 1 WHERE id = ?", (damaged.id,))

    assert (await promoted(quiet)).failures == 1
    assert not marker.exists()


async def test_a_marker_of_another_program_is_not_believed(quiet: Holdfast) -> None:
    (quiet.config.home / TEMPLATE_PROMOTE_MARKER_V1).write_text("v1\n")
    template = await a_template(quiet)
    await quiet.zones.write_state(quiet.owner, template.id, "1")

    assert (await promoted(quiet)).templates_promoted == 1
    assert await contents(quiet, template.id) == {}


async def test_an_imported_definition_says_itself_that_it_was_seeded(quiet: Holdfast) -> None:
    seeded = await a_template(quiet, tags=(), extra={"is_seeded": 1, "kept": True})
    await quiet.zones.write_state(quiet.owner, seeded.id, "1")

    stats = await promoted(quiet)

    target = await quiet.agents.get(quiet.owner, f"template-promote-v1-{seeded.id}")
    assert (stats.templates_promoted, target.extra) == (1, {"kept": True})
    assert not is_template(target)


@pytest.mark.parametrize("failing", range(4))
async def test_a_failure_at_any_step_converges_later(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    template = await a_template(quiet)
    session = await quiet.open(template.id)
    for text in ("1", "2"):
        await quiet.zones.write_state(quiet.owner, template.id, text)
        await quiet.zones.archive(quiet.owner, template.id)
    before = sorted((await contents(quiet, template.id)).values())
    write, number = quiet.store.write, iter(range(100))

    async def full(work: Any, **rest: Any) -> Any:
        if next(number) == failing:
            raise StorageFull(Code.STORAGE_FULL, "full")
        return await write(work, **rest)

    monkeypatch.setattr(quiet.store, "write", full)
    first = await promoted(quiet)
    second = await promoted(quiet)

    target = await quiet.agents.get(quiet.owner, f"template-promote-v1-{template.id}")
    assert (first.failures, first.templates_promoted) == (1, 0)
    assert (second.failures, second.templates_promoted) == (0, 1)
    assert sorted((await contents(quiet, target.id)).values()) == before
    assert await contents(quiet, template.id) == {}
    assert (await quiet.sessions.get(quiet.owner, session.id)).agent_id == target.id
    with pytest.raises(HoldfastError):
        await quiet.agents.get(quiet.owner, f"template-promote-v1-{target.id}")
