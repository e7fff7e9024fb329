"""A record outside: one row to a line, or a page to read; without secrets, and without a trace."""

from pathlib import Path

import msgspec
import pytest

from holdfast.api import Holdfast
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import CallId, Owner, SessionId
from holdfast.domain.messages import (
    Media,
    MessageRecord,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
    to_exported_message,
)
from holdfast.domain.secrets import Secret
from holdfast.domain.sessions import ForkRequest, Session, SessionRequest
from holdfast.workflows.session_export import Export, ExportFormat
from tests.builders import an_id
from tests.houses import current

pytestmark = pytest.mark.anyio

SECRET = "correct-horse-battery"
DRAFTS = (
    MessageDraft(role=Role.ASSISTANT, parts=(Reasoning(text="hm\nyes"), Text(text="I look."))),
    MessageDraft(
        role=Role.TOOL_CALL,
        parts=(ToolCall(id=CallId("c1"), name="read", arguments={"path": "a ``` b"}),),
    ),
    MessageDraft(
        role=Role.TOOL_RESULT,
        parts=(ToolResult(call_id=CallId("c1"), name="", status=ResultStatus.OK, result="line\n"),),
    ),
    MessageDraft(role=Role.TOOL_CALL, parts=(ToolCall(id=CallId("c2"), name="rm", arguments={}),)),
    MessageDraft(
        role=Role.TOOL_RESULT,
        parts=(
            ToolResult(
                call_id=CallId("c2"),
                name="",
                status=ResultStatus.DENIED,
                error=ToolError(code="denied", message="no"),
            ),
        ),
    ),
)


@pytest.fixture
async def session(quiet: Holdfast) -> Session:
    """Write a session down that has a bit of everything."""
    session = await quiet.open(request=SessionRequest(title="A\n talk"))
    await quiet.send(session.id, "hello")
    for draft in DRAFTS:
        await quiet.messages.record(quiet.owner, session.id, draft)
    ref = await quiet.media.keep(quiet.owner, session.id, b"picture", mime_type="image/png")
    await quiet.send(session.id, (Media(mime_type="image/png", ref=ref, name="a.png"),))
    await quiet.sessions.close(quiet.owner, session.id)
    return await current(quiet, session)


async def _exported(
    house: Holdfast, session: Session, form: ExportFormat, through: int | None = None
) -> Export:
    return await house.exports.export(house.owner, session.id, form, through=through)


async def test_a_record_is_one_row_to_a_line(quiet: Holdfast, session: Session) -> None:
    export = await _exported(quiet, session, ExportFormat.JSONL)

    assert (export.file_name, export.media_type) == (f"{session.id}.jsonl", "application/x-ndjson")
    lines = export.content.split(b"\n")
    assert lines.pop() == b""
    rows = await quiet.read(session.id)
    found = [msgspec.json.decode(line, type=MessageRecord) for line in lines]
    assert found == [to_exported_message(row) for row in rows]
    assert set(msgspec.json.decode(lines[0])) >= {"created_at", "hash"}


@pytest.mark.parametrize("form", [ExportFormat.JSONL, ExportFormat.MARKDOWN])
async def test_a_record_may_be_cut_at_a_row(
    quiet: Holdfast, session: Session, form: ExportFormat
) -> None:
    whole = await _exported(quiet, session, form)

    for through, rest in ((0, None), (3, None), (99, whole)):
        export = await _exported(quiet, session, form, through)
        assert whole.content.startswith(export.content)
        assert (export == whole) is (rest is not None)


async def test_a_page_to_read_tells_everything_in_its_order(
    quiet: Holdfast, session: Session
) -> None:
    export = await _exported(quiet, session, ExportFormat.MARKDOWN)

    at = "(2026-01-02 03:04:05 UTC)"
    ref = (await quiet.read(session.id))[6].parts[0]
    assert isinstance(ref, Media)
    assert (export.file_name, export.media_type) == (
        f"{session.id}.md",
        "text/markdown; charset=utf-8",
    )
    assert export.content.decode() == (
        "# A talk\n\n"
        f"## 1. User {at}\n\nhello\n\n"
        f"## 2. Assistant {at}\n\n> hm\n> yes\n\nI look.\n\n"
        f'## 3. Tool call {at}\n\n`read` (c1)\n\n````json\n{{\n  "path": "a ``` b"\n}}\n````\n\n'
        f"## 4. Tool result {at}\n\nok (c1)\n\n```\nline\n\n```\n\n"
        f"## 5. Tool call {at}\n\n`rm` (c2)\n\n```json\n{{}}\n```\n\n"
        f"## 6. Tool result {at}\n\ndenied (c2)\n\nno\n\n"
        f"## 7. User {at}\n\n[a.png]({ref.ref})\n\n"
        f"## 8. System {at}\n\nSession completed.\n"
    )


@pytest.mark.parametrize("form", ExportFormat)
async def test_exporting_changes_nothing(
    quiet: Holdfast, session: Session, form: ExportFormat
) -> None:
    first = await _exported(quiet, session, form)

    assert await _exported(quiet, session, form) == first
    assert await current(quiet, session) == session


@pytest.mark.parametrize("form", ExportFormat)
async def test_a_fork_is_exported_with_what_it_inherits(
    quiet: Holdfast, session: Session, form: ExportFormat
) -> None:
    fork = (await quiet.sessions.make_fork(quiet.owner, session.id, ForkRequest(at=2))).value
    await quiet.send(fork.id, "own words")

    content = (await _exported(quiet, fork, form)).content

    assert content.index(b"hello") < content.index(b"I look.") < content.index(b"own words")


@pytest.mark.parametrize("form", ExportFormat)
async def test_secrets_that_became_known_since_are_masked(
    quiet: Holdfast, form: ExportFormat
) -> None:
    session = await quiet.open()
    await quiet.send(session.id, f"it is {SECRET}, and AKIAIOSFODNN7EXAMPLE")
    quiet.secrets.remember("door", Secret(SECRET))

    content = (await _exported(quiet, session, form)).content

    assert SECRET.encode() not in content
    # A workflow keeps what was typed, whatever it looks like; its author reviews it.
    assert (b"AKIAIOSFODNN7EXAMPLE" in content) is (form is ExportFormat.WORKFLOW)
    assert b"it is " in content


@pytest.mark.parametrize("form", ExportFormat)
async def test_a_foreign_session_looks_like_none(
    quiet: Holdfast, session: Session, form: ExportFormat
) -> None:
    for owner, wanted in ((Owner("stranger"), session.id), (quiet.owner, SessionId(an_id(1)))):
        with pytest.raises(NotFound) as caught:
            await quiet.exports.export(owner, wanted, form)
        assert caught.value.code is Code.SESSION_NOT_FOUND


async def test_a_session_without_a_title_or_rows_is_a_page_all_the_same(
    quiet: Holdfast, tmp_path: Path
) -> None:
    session = await quiet.open()

    assert (await _exported(quiet, session, ExportFormat.JSONL)).content == b""
    page = await _exported(quiet, session, ExportFormat.MARKDOWN)
    assert page.content.decode() == f"# Session {session.id}\n"
