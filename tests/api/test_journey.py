"""One journey through the API, in this process and over HTTP: every value is the same.

Ids, times and folders are replaced by placeholders in the order in which they appear. What a server
does not send is listed in `OMITTED`.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from msgspec.structs import replace

from holdfast import (
    AskOptions,
    Chat,
    Config,
    Effect,
    Environment,
    Reasoning,
    RecordedDraft,
    ToolCall,
    TurnFailed,
    Usage,
    connect,
    open_holdfast,
)
from holdfast.api import Holdfast
from holdfast.domain.approvals import ApprovalState, Decision
from holdfast.domain.calls import CallState
from holdfast.domain.costs import CostGroup, CostQuery
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Conflict, HoldfastError, NotFound
from holdfast.domain.events import ApprovalRequested, ToolStarted
from holdfast.domain.ids import CallId, MessageId, SessionId
from holdfast.domain.messages import ResultStatus, Role, Text
from holdfast.domain.models import ModelRequest
from holdfast.domain.queries import AgentQuery, SessionQuery
from holdfast.domain.sessions import SessionContext, SessionRequest, Status
from holdfast.observations.model import EntityType
from holdfast.observations.queries import Correction, EntityQuery, HistoryQuery, TimelineQuery
from holdfast.search.query import SearchQuery
from holdfast.services.calls import CallAnswer, SettlementAction, SettlementRequest
from holdfast.services.session_lifecycle import DeletePolicy
from holdfast.services.session_views import SessionOverview
from holdfast.workflows.session_export import ExportFormat
from holdfast.zones.lines import LineQuery
from tests.cli.commands.test_calls import COMMAND
from tests.cli.commands.test_history import SESSION, UNIT
from tests.cli.remote_server import serve
from tests.houses import news_until, script
from tests.stand_ins import PATIENCE
from tests.tooled import asks, call, says

# A server process is started.
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# Over HTTP a session has of its agent only the slug, the name, the kind of runtime and the models,
# and no grant, tools or process; a message has no hash; an entity has no changes of its status
# (its timeline has them); a file of a zone does not say how it is stored.
OMITTED = frozenset(
    {
        *("hash", "grant", "tools", "program", "system_prompt", "status_changes"),
        *("key", "ended", "tail", "rest", "rest_checksum", "chain"),
    }
)
# Random or measured values that are no ids.
VARYING = frozenset(
    {
        *("generation", "digest", "idempotency_key", "head", "next_cursor"),
        *("created_ms", "modified_ms", "archived_at_ms", "duration_ms", "latency_ms"),
        *("at", "observed_ms"),
    }
)
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:ent|obs)_[0-9a-f]{24,32}")
TIME = re.compile(r"20(?!25)\d\d-\d\d-\d\d(?:T[\d:.]+(?:Z|\+00:00)| [\d:]+ UTC)")
ARCHIVE = re.compile(r"archive:\d+")


ASKED = "0192f0c1-0000-7000-8000-000000000001"


class Sum(msgspec.Struct):
    """The value of an answer."""

    sum: int


class Journal:
    """The values that the verbs returned, with placeholders for what differs by nature."""

    def __init__(self, folders: dict[str, str]) -> None:
        self.steps: list[tuple[str, Any]] = []
        self._folders = folders
        self._ids: dict[str, str] = {}

    def note(self, name: str, value: Any) -> None:
        """Keep the value that a verb returned."""
        self.steps.append((name, self._plain(msgspec.to_builtins(value))))

    def _plain(self, value: Any) -> Any:
        match value:
            case dict():
                return {
                    str(self._plain(key)): self._varying(each)
                    if key in VARYING
                    else self._plain(each)
                    for key, each in value.items()
                    if key not in OMITTED
                }
            case list() | tuple():
                return [self._plain(each) for each in value]
            case str():
                return self._text(value)
        return value

    def _text(self, text: str) -> str:
        for folder, name in self._folders.items():
            text = text.replace(folder, name)
        text = ARCHIVE.sub("archive:ms", TIME.sub("time", text))
        return ID.sub(lambda found: self._id(found[0]), text)

    def _varying(self, value: Any) -> Any:
        return None if value is None else "…"

    def _id(self, text: str) -> str:
        return self._ids.setdefault(text, f"id-{len(self._ids) + 1}")


class Traveller:
    """Runs the journey on one implementation and keeps what each verb returned."""

    def __init__(self, hf: Holdfast, folder: Path, journal: Journal) -> None:
        self.hf = hf
        self.folder = folder
        self.note = journal.note

    async def go(self, cut_off: SessionId) -> None:
        """Use every group of verbs."""
        await self._agents()
        session = await self._turn()
        await self._life(session)
        await self._settle(cut_off)
        await self._answer()
        await self._asks()
        await self._records()
        await self._history()
        await self._zones()
        await self._refusals(session)

    async def _agents(self) -> None:
        hf, owner = self.hf, self.hf.owner
        self.note("defaults", await hf.defaults())
        made = await hf.agents.create(owner, {"name": "Ada", "system_prompt": "Be terse."})
        self.note("create", (made, made.system_prompt))
        self.note("update", await hf.agents.update(owner, "ada", {"description": "Terse."}))
        fields = {"name": "Ada", "description": "Brief.", "tools": ["read_file"]}
        self.note("ensure", [await hf.agents.ensure(owner, fields) for _ in range(2)])
        self.note("agents", await hf.agents.list(AgentQuery(owner=owner)))
        self.note("archive", await hf.agents.archive(owner, made.id))
        self.note("get", await hf.agents.get(owner, "ada"))
        self.note("model", await hf.models.add(ModelRequest(provider="openai", name="gpt-next")))
        self.note("found", await hf.models.get("openai:gpt-next"))

    async def _turn(self) -> SessionId:
        hf, owner = self.hf, self.hf.owner
        steps = asks(call("write_file", "c1", path="a.txt", content="hold")), says("A calm tide.")
        place = SessionContext(working_dir=str(self.folder))
        model = script(self.folder, *map(dict, steps))
        request = SessionRequest(title="Sums", tags=("demo",), context=place, model=model)
        session = await hf.open(request=request)
        self.note("open", session)
        self.note("again", (await hf.open(request=request, id=session.id)).id)
        self.note("send", await hf.send(session.id, "go"))
        async with asyncio.timeout(PATIENCE), aclosing(hf.follow(session.id)) as items:
            async for item in items:
                if isinstance(getattr(item, "payload", None), ApprovalRequested):
                    break
        (waiting,) = (await hf.approvals.list(owner, state=ApprovalState.WAITING)).items
        self.note("approval", waiting)
        answer = Decision(state=ApprovalState.ALLOWED, by="http")
        digest = waiting.question.digest
        answered = await hf.approvals.answer(owner, session.id, waiting.id, answer, digest=digest)
        self.note("answer", answered)
        async with asyncio.timeout(PATIENCE):
            followed = [item async for item in hf.follow(session.id, until_settled=True)]
        self.note("follow", followed)
        self.note("events", await hf.events.list(owner, session.id, after=2, limit=3))
        self.note("approval answered", await hf.approvals.get(owner, session.id, waiting.id))
        self.note("calls", await hf.calls.list(owner, session.id, state=CallState.FINISHED))
        self.note("call", await hf.calls.get(owner, session.id, "c1"))
        return session.id

    async def _asks(self) -> None:
        hf = self.hf
        steps = (
            asks(call("write_file", "c1", path="b.txt", content="hold")),
            says("Done."),
        )
        model = script(self.folder, *map(dict, steps))
        (self.folder / "sums").mkdir()
        sums = script(self.folder / "sums", {"text": '{"sum": 5}'}, {"error": "bad_request"})
        place = SessionContext(working_dir=str(self.folder))
        options: AskOptions = {"model": model, "context": place, "tags": ("ask",)}
        async with asyncio.timeout(PATIENCE):
            waits = await hf.ask("Write.", key="k", on_wait="return", **options)
            self.note("waits", waits)
            items = hf.stream("Write.", key="k", approve=lambda _: True, **options)
            self.note("stream", [(type(item).__name__, item) async for item in items])
            again = await hf.ask("Write.", key="k", **options)
            self.note("asked again", (again, str(again), str(again.cost)))
            valued = await hf.ask("2+3", output=Sum, model=sums, id=ASKED)
            self.note("value", (valued, valued.value.sum))
            asked_there = await hf.ask("2+3", session=valued.session_id, output=Sum, id=ASKED)
            self.note("value again", asked_there)
            with pytest.raises(TurnFailed) as failed:
                await hf.ask("More.", session=valued.session_id)
            self.note("failed", (str(failed.value), failed.value.failure, failed.value.answer))
        session_id = valued.session_id
        refused = {
            "other prompt": lambda: hf.ask("Read.", key="k", **options),
            "other schema": lambda: hf.ask("2+3", session=session_id, output=int),
            "options": lambda: hf.ask("2+3", session=session_id, title="x"),
            "no session": lambda: hf.ask("2+3", session=ASKED),
        }
        for name, act in refused.items():
            with pytest.raises(HoldfastError) as raised:
                await act()
            self.note(f"ask: {name}", (raised.value.code, raised.value.message))

    async def _records(self) -> None:
        hf, owner = self.hf, self.hf.owner
        session = await hf.open()
        called = ToolCall(id=CallId("r1"), name="refund", arguments={"order": "17"})
        at = datetime(2025, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
        drafts = [
            RecordedDraft(role=Role.USER, parts=(Text(text="Refund 17."),), at=at),
            MessageDraft(role=Role.TOOL_CALL, parts=(called,), effect=Effect.IDEMPOTENT),
            RecordedDraft(
                role=Role.ASSISTANT,
                parts=(Reasoning(text="Done?"), Text(text="Perhaps.")),
                model="openai:gpt-next",
                usage=Usage(input=3, output=2),
            ),
        ]
        named = [replace(each, id=MessageId(str(uuid4()))) for each in drafts]
        self.note("recorded", await hf.record(session.id, named))
        self.note("recorded again", await hf.record(session.id, named))
        self.note("recorded rows", await hf.read(session.id))
        self.note("recorded events", await hf.events.list(owner, session.id))
        self.note("recorded calls", await hf.calls.list(owner, session.id))
        self.note("recorded into", await hf.sessions.get(owner, session.id))
        with pytest.raises(HoldfastError) as raised:
            await hf.record(session.id, drafts[1:2], on_open_calls="reject")
        self.note("record refused", (raised.value.code, raised.value.details))
        with pytest.raises(HoldfastError) as raised:
            await hf.record(session.id, drafts[1:2])
        self.note("call again", (raised.value.code, raised.value.message))

    async def _life(self, session_id: SessionId) -> None:
        hf, owner = self.hf, self.hf.owner
        self.note("read", await hf.read(session_id))
        page = await hf.messages.list(owner, session_id, after=1, limit=2)
        self.note("messages", page)
        self.note("message", await hf.messages.get(owner, session_id, page.items[0].id))
        draft = MessageDraft(role=Role.ASSISTANT, parts=(Text(text="From elsewhere."),))
        self.note("record", await hf.messages.record(owner, session_id, draft))
        changes = {"title": "Better", "model": "openai:gpt-next"}
        self.note("changed", await hf.sessions.update(owner, session_id, changes))
        fork = await hf.sessions.fork(owner, session_id, at=1, title="Other", tags=("fork",))
        self.note("fork", fork)
        self.note("list", await hf.sessions.list(SessionQuery(owner=owner, tags=("fork",))))
        self.note("find", await hf.sessions.find(owner, fork.id))
        self.note("verify", await hf.sessions.verify(owner, session_id))
        self.note("interrupt", await hf.sessions.interrupt(owner, session_id))
        status, reason = Status.CANCELLED, "done"
        self.note("close", await hf.sessions.close(owner, session_id, status=status, reason=reason))
        with pytest.raises(Conflict) as refused:
            await hf.send(session_id, "too late")
        self.note("send to a closed session", (refused.value.code, refused.value.message))
        self.note("resume", await hf.sessions.resume(owner, session_id))
        self._overview(await hf.session_views.get(owner, session_id))
        for each in (await hf.session_views.list(SessionQuery(owner=owner, limit=2))).items:
            self._overview(each)
        self.note("costs", await hf.costs.report(CostQuery(owner=owner, group_by=CostGroup.AGENT)))
        self.note("search", await hf.search.find(owner, SearchQuery(text="calm tide")))
        export = await hf.exports.export(owner, session_id, ExportFormat.MARKDOWN)
        self.note("export", (export.media_type, export.content.decode()))
        self.note("exported", await hf.exports.record(owner, session_id, "a.relavium.yaml"))
        self.note(
            "delete", await hf.sessions.delete(owner, session_id, policy=DeletePolicy.CASCADE)
        )

    def _overview(self, overview: SessionOverview) -> None:
        # Over HTTP a session says whether requests have no price, not how many.
        spent = overview.spent
        told = (overview.session, spent.usage, spent.microcents, spent.unpriced_requests > 0)
        self.note("overview", told)

    async def _settle(self, session_id: SessionId) -> None:
        hf, owner = self.hf, self.hf.owner
        (unknown,) = (await hf.calls.list(owner, state=CallState.UNKNOWN)).items
        self.note("unknown", unknown)
        skip = SettlementRequest(how=SettlementAction.SKIP, by="http", note="Not needed.")
        self.note("settle", await hf.calls.settle(owner, session_id, unknown.id, skip))
        self.note("settled", await hf.read(session_id))

    async def _answer(self) -> None:
        hf, owner = self.hf, self.hf.owner
        definition = {"name": "refund", "description": "Refund.", "parameters": {"type": "object"}}
        made = await hf.agents.create(owner, {"name": "Clerk", "tools": [definition]})
        self.note("definition", made)
        session = await hf.open(made.slug)
        for given in (
            CallAnswer(status=ResultStatus.OK, result={"refunded": True}),
            CallAnswer(status=ResultStatus.ERROR, error="Paid back already."),
        ):
            with pytest.raises(NotFound) as refused:
                await hf.calls.answer(owner, session.id, "c1", given)
            self.note("no such call", refused.value.body())

    async def _history(self) -> None:
        hf, owner = self.hf.observations, self.hf.owner
        self.note("submit", await hf.submit(owner, SESSION, idempotency_key="k", source="holdfast"))
        self.note("entity", await hf.submit_entity(owner, "feature_unit", UNIT, source="holdfast"))
        correction = Correction(session_id="abc123", field="duration", value=60)
        self.note("correct", await hf.correct(owner, correction, source="holdfast"))
        self.note("show", await hf.show(owner, "abc123"))
        self.note("query", await hf.query(owner, HistoryQuery(limit=1)))
        query = EntityQuery(entity_type=EntityType.FEATURE_UNIT, filters={"status": "planning"})
        self.note("entities", await hf.entities(owner, query))
        self.note("observations", await hf.list_observations(owner, "abc123"))
        self.note("checkpoint", await hf.checkpoint(owner, "abc123", "spec_complete"))
        self.note("timeline", await hf.timeline(owner, "FU-061", TimelineQuery(limit=2)))
        self.note("hide", await hf.delete(owner, "abc123", reason="private", source="holdfast"))
        self.note("restore", await hf.restore(owner, "abc123", source="holdfast"))

    async def _zones(self) -> None:
        zones, owner = self.hf.zones, self.hf.owner
        self.note("no state", await zones.read_state(owner, "a"))
        self.note("write", await zones.write_state(owner, "a", "{}", if_modified_ms=0))
        self.note("append", await zones.append_lines(owner, "a", ["1", "2"]))
        self.note("append one", await zones.append_session_output(owner, "a", "3"))
        self.note("state", await zones.read_session_state(owner, "a"))
        self.note("zone", await zones.show(owner, "a"))
        self.note("lines", await zones.read_lines(owner, "a", LineQuery(start=1)))
        content = await zones.read_content(owner, "a", "output")
        self.note("content", content.decode())
        self.note("replay", await zones.replay(owner, "a", page=1))
        async with aclosing(zones.follow(owner, "a", start=0)) as pages:
            self.note("zone followed", await anext(pages))
        archived = await zones.archive(owner, "a")
        assert archived is not None
        self.note("archived", archived)
        ms = archived.archived_at_ms
        self.note("archives", await zones.list_archives(owner, "a", limit=5))
        self.note("older archives", await zones.list_archives(owner, "a", before=ms))
        self.note("archive read", await zones.read_archive(owner, "a", ms))
        self.note("zone restored", await zones.restore_archive(owner, "a", ms))
        self.note("deleted", [await zones.delete_archive(owner, "a", ms) for _ in range(2)])

    async def _refusals(self, gone: SessionId) -> None:
        hf, owner = self.hf, self.hf.owner
        odd: Any = hf
        refused = {
            "gone": lambda: hf.sessions.get(owner, gone),
            "no agent": lambda: hf.open("nobody"),
            "empty": lambda: hf.send(gone, " "),
            "surrogate": lambda: hf.send(gone, "\ud800"),
            "type": lambda: odd.send(gone, 5),
            "busy": lambda: odd.send(gone, "x", on_busy="never"),
            "field": lambda: hf.sessions.update(owner, gone, {"owner": "me"}),
            "zone": lambda: hf.zones.show(owner, "../b"),
            "history": lambda: hf.observations.show(owner, "nobody"),
            "payload": lambda: hf.observations.submit(owner, {"session_id": "x"}),
            "words": lambda: hf.search.find(owner, SearchQuery(text="")),
            "archived": lambda: hf.open("ada"),
            "message": lambda: hf.messages.get(owner, gone, "x"),
        }
        for name, act in refused.items():
            with pytest.raises(HoldfastError) as raised:
                await act()
            error = raised.value
            kind = type(error).__name__
            self.note(f"refused: {name}", (kind, error.code, error.message, error.details))


async def cut_off(home: Path, folder: Path) -> SessionId:
    """Leave a session with a command whose outcome is unknown."""
    (folder / "work.sh").write_text("sleep 600\n")
    asked = asks(call("run_command", "c9", **COMMAND)), says("so be it")
    model = script(folder, *map(dict, asked))
    outside = Environment(is_attended=False, yes_to=frozenset({"run_command"}))
    config = Config(home=home, chat=Chat(allowed_commands=("sh work.sh",)))
    async with open_holdfast(config=config, outside=outside) as hf:
        place = SessionContext(working_dir=str(folder))
        session = await hf.open(request=SessionRequest(context=place, model=model))
        await hf.send(session.id, "go")
        await news_until(hf, session.id, ToolStarted)
    return session.id


@asynccontextmanager
async def local(home: Path) -> AsyncIterator[Holdfast]:
    """Open the store in this process."""
    async with open_holdfast(config=Config(home=home, workspace_root=home.parent)) as hf:
        yield hf


@asynccontextmanager
async def remote(home: Path) -> AsyncIterator[Holdfast]:
    """Connect to a server process."""
    with serve(home, AGENT_WORKSPACE_ROOT=str(home.parent)) as server:
        async with connect(server.url, server.secret) as hf:
            yield hf


async def travelled(
    tmp_path: Path, name: str, opened: AbstractAsyncContextManager[Holdfast], home: Path
) -> list[tuple[str, Any]]:
    """Return what each verb returned."""
    folder = tmp_path / name / "desk"
    folder.mkdir()
    session = await cut_off(home, folder)
    journal = Journal({str(folder): "DESK", str(home): "HOME"})
    async with opened as hf:
        await Traveller(hf, folder, journal).go(session)
    return journal.steps


async def test_both_implementations_return_the_same_values(tmp_path: Path) -> None:
    taken = {}
    for name, opens in {"local": local, "remote": remote}.items():
        home = tmp_path / name / "home"
        home.mkdir(parents=True, mode=0o700)
        taken[name] = await travelled(tmp_path, name, opens(home), home)

    here, there = taken["local"], taken["remote"]
    assert [step for step, _ in here] == [step for step, _ in there]
    differing = [
        line
        for (step, expected), (_, found) in zip(here, there, strict=True)
        for line in differences(step, expected, found)
    ]
    assert not differing, "\n".join(differing)


def differences(path: str, here: Any, there: Any) -> list[str]:
    """Return where two values differ, each as one line."""
    match here, there:
        case dict(), dict():
            keys = dict.fromkeys((*here, *there))
            return [
                line
                for key in keys
                for line in differences(f"{path}.{key}", here.get(key), there.get(key))
            ]
        case list(), list() if len(here) == len(there):
            return [
                line
                for number, (one, other) in enumerate(zip(here, there, strict=True))
                for line in differences(f"{path}[{number}]", one, other)
            ]
    return [] if here == there else [f"{path}: {here!r} here, {there!r} there"]
