"""A session as a workflow: read again before anybody gets it, written down, and nothing changed."""

from typing import Any

import pytest

from holdfast.api import Holdfast
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.events import Event, SessionExported
from holdfast.domain.ids import Owner
from holdfast.domain.secrets import Secret
from holdfast.domain.sessions import Session
from holdfast.parsing.workflow_files import parse_workflow
from holdfast.workflows.model import Workflow
from holdfast.workflows.session_export import ExportFormat
from tests.houses import current
from tests.marks import demands, each_case

pytestmark = pytest.mark.anyio


async def exported(house: Holdfast, session: Session, **more: Any) -> Workflow:
    """Return the workflow of a session, as its file says it."""
    form = ExportFormat.WORKFLOW
    export = await house.exports.export(house.owner, session.id, form, **more)
    assert export.workflow is not None
    assert export.file_name == export.workflow.file_name
    assert export.media_type == "application/yaml"
    assert parse_workflow(export.content.decode(), where="it") == export.workflow
    return export.workflow


@demands("S0-003", "S0-003e", "S0-004g")
async def test_an_export_is_written_down_and_leaves_the_session_as_it_was(quiet: Holdfast) -> None:
    session = await quiet.open()
    await quiet.send(session.id, "hello")
    before = await current(quiet, session)
    first = await exported(quiet, session)

    event = await quiet.exports.record(quiet.owner, session.id, "/desk/a.relavium.yaml")

    after = await current(quiet, session)
    assert event.payload == SessionExported(target="/desk/a.relavium.yaml")
    assert after.last_event == event.sequence == before.last_event + 1
    assert (after.status, after.updated_at) == (before.status, before.updated_at)
    assert after.message_count == before.message_count
    assert await exported(quiet, session) == first
    page = await quiet.events.list(quiet.owner, session.id, after=before.last_event)
    assert [each.payload for each in page.items if isinstance(each, Event)] == [event.payload]


async def test_what_comes_after_an_export_is_later_than_it(quiet: Holdfast) -> None:
    session = await quiet.open()
    event = await quiet.exports.record(quiet.owner, session.id, "x")

    row = await quiet.send(session.id, "hello")

    assert row.created_at >= event.at


async def test_an_agent_without_a_file_form_does_not_come_along(quiet: Holdfast) -> None:
    bare = await quiet.agents.create(quiet.owner, {"name": "Bare"})
    odd = await quiet.agents.create(
        quiet.owner, {"name": "Odd", "system_prompt": "x", "extra": {"input_schema": "none"}}
    )
    leaky = await quiet.agents.create(
        quiet.owner, {"name": "Leaky", "system_prompt": "sk-abcdefghij0123456789"}
    )
    for agent in (bare, odd, leaky):
        session = await quiet.open(agent.slug)
        assert "agents" not in (await exported(quiet, session)).body


async def test_a_program_does_not_come_along(quiet: Holdfast) -> None:
    session = await quiet.open()
    acp = {"runtime": AcpRuntime(command="x"), "grant": None}
    await quiet.agents.update(quiet.owner, "holdfast", acp)

    # The frozen one has a form, whatever has become of the agent since.
    assert list((await exported(quiet, session)).agents) == ["holdfast"]


@demands("S0-419", "S0-419b")
async def test_a_secret_that_became_known_since_is_not_in_it(quiet: Holdfast) -> None:
    session = await quiet.open()
    await quiet.send(session.id, "correct-horse-battery, it says")
    quiet.secrets.remember("door", Secret("correct-horse-battery"))

    workflow = await exported(quiet, session)

    assert "correct-horse" not in str(workflow.document)
    assert workflow.id == "secret-door-it-says"


async def test_a_long_session_is_exported_whole(quiet: Holdfast) -> None:
    session = await quiet.open()
    for number in range(3):
        await quiet.send(session.id, f"{number}{'x' * (1 << 20)}"[: 1 << 20])

    kept = (await exported(quiet, session)).body["metadata"]["relaviumExport"]["messages"]

    said = [row["content"][0]["text"] for row in kept if row["role"] == "user"]
    assert [(text[:2], len(text)) for text in said] == [(f"{n}x", 1 << 20) for n in range(3)]


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workflow files have 64 KiB at most."""
    monkeypatch.setattr("holdfast.app.WRITTEN_LARGEST", 64 << 10)


async def test_what_no_file_can_hold_is_refused_and_a_part_of_it_taken(
    small_files: None, quiet: Holdfast
) -> None:
    session = await quiet.open()
    for _ in range(3):
        await quiet.send(session.id, "x" * (32 << 10))

    with pytest.raises(Invalid, match=r"--through N.*--format jsonl") as refused:
        await exported(quiet, session)

    assert refused.value.code is Code.WORKFLOW_TOO_LARGE
    assert refused.value.details["bytes"] > refused.value.details["largest"] == 64 << 10
    assert list((await exported(quiet, session, through=0)).nodes) == ["input", "output"]


async def test_more_lines_than_a_file_may_have_are_refused(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await quiet.open()
    monkeypatch.setattr("holdfast.parsing.yaml.WRITTEN_LINES_MOST", 5)
    monkeypatch.setattr("holdfast.parsing.yaml.VALUES_MOST", 20)

    with pytest.raises(Invalid) as refused:
        await exported(quiet, session)

    assert refused.value.code is Code.WORKFLOW_TOO_LARGE


async def test_a_workflow_that_our_own_parser_refuses_is_nobodys(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await quiet.open()
    monkeypatch.setattr("holdfast.workflows.export.SCHEMA_VERSION", "2.0")

    with pytest.raises(Invalid) as refused:
        await exported(quiet, session)

    assert refused.value.code is Code.WORKFLOW_INVALID


@each_case("target", ["", "x" * 4_097, "a\x00", "\ud800"])
async def test_a_place_that_is_none_is_refused(quiet: Holdfast, target: str) -> None:
    session = await quiet.open()

    with pytest.raises(Invalid) as refused:
        await quiet.exports.record(quiet.owner, session.id, target)

    assert refused.value.code is Code.INVALID_TEXT
    assert await current(quiet, session) == session


async def test_a_stranger_writes_nothing_down(quiet: Holdfast) -> None:
    session = await quiet.open()

    with pytest.raises(NotFound):
        await quiet.exports.record(Owner("stranger"), session.id, "x")

    assert await current(quiet, session) == session
