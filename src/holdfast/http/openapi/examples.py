"""One example of each response type: domain values, converted by the forms of `wire/`."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.agent_processes import KnownProgram
from holdfast.domain.agents import AcpRuntime, Agent, LlmRuntime, ModelChoice
from holdfast.domain.approvals import Approval, ApprovalMode, Question
from holdfast.domain.calls import Call, CallState
from holdfast.domain.costs import CostReport, CostSum, Usage
from holdfast.domain.errors import Code, NotFound
from holdfast.domain.events import Event, MessageAppended
from holdfast.domain.ids import (
    LOCAL_OWNER,
    AgentId,
    ApprovalId,
    CallId,
    EventId,
    MessageId,
    ObservationId,
    RepoId,
    SessionId,
)
from holdfast.domain.messages import Message, Role, Text
from holdfast.domain.models import OFFLINE, Prices, model_of
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import Session, SessionContext, Status, StopReason
from holdfast.domain.tools import Effect, ToolClass, ToolSpec
from holdfast.observations.model import Entity, EntityType, Observation, ObservationKind, Subject
from holdfast.observations.queries import (
    Action,
    EntityPage,
    History,
    ObservationPage,
    Removal,
    SubmitResult,
    TimelinePage,
    checkpoint_of,
)
from holdfast.observations.timeline import EventType, TimelineEvent
from holdfast.search.query import Hit
from holdfast.services.session_views import SessionOverview
from holdfast.services.sessions import Verification
from holdfast.wire.agents import AgentList, KnownProgramList, agent_form, program_form
from holdfast.wire.approvals import ApprovalList, approval_form
from holdfast.wire.calls import CallList, call_form
from holdfast.wire.costs import costs_form
from holdfast.wire.errors import error_form
from holdfast.wire.events import Deltas, EventList, event_forms
from holdfast.wire.messages import MessageList, message_form
from holdfast.wire.models import DefaultsForm, ModelList, model_form
from holdfast.wire.observations import (
    entity_list,
    history_form,
    history_list,
    observation_list,
    removal_form,
    timeline_form,
)
from holdfast.wire.repo_sessions import (
    AgentSessionList,
    PromptAccepted,
    RepoList,
    repo_form,
    rows_of,
    whole_form,
)
from holdfast.wire.repo_sessions import session_form as agent_session_form
from holdfast.wire.search import HitList, hit_form
from holdfast.wire.session_actions import (
    Compacted,
    Exported,
    Interrupted,
    resumed_form,
    verified_form,
)
from holdfast.wire.sessions import SessionList, session_form
from holdfast.wire.zones import (
    DeletedForm,
    OutputAppendedForm,
    RestoredForm,
    StateForm,
    StateWrittenForm,
    archive_form,
    archived_form,
    archives_form,
    lines_form,
    replay_form,
    zone_form,
)
from holdfast.zones.lines import Lines
from holdfast.zones.model import ActiveZone, Archive, ArchiveResult, ArchiveSummary, ZoneFile
from holdfast.zones.replay import Replay, ReplaySource

_AT: Final = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
_LATER: Final = datetime(2026, 1, 2, 3, 4, 7, 123, tzinfo=UTC)
_AGENT_ID: Final = AgentId("019b7ca9-8f2e-7111-8aaa-000000000001")
_SESSION_ID: Final = SessionId("019b7ca9-8f2e-7222-8aaa-000000000002")
_MESSAGE_ID: Final = MessageId("019b7ca9-8f2e-7333-8aaa-000000000003")
_CALL_ID: Final = CallId("call_1")
_ARGUMENTS: Final = {"command": "ls", "args": ["-l"]}

_MODEL: Final = msgspec.structs.replace(model_of(OFFLINE), prices=Prices(input=0, output=0))
_AGENT: Final = Agent(
    id=_AGENT_ID,
    owner=LOCAL_OWNER,
    slug="code-assistant",
    name="Code assistant",
    system_prompt="You are terse.",
    runtime=LlmRuntime(models=(ModelChoice(model_id=_MODEL.id),), temperature=0.2),
    tools=(ToolSpec(name="read_file"),),
    tags=("demo",),
    created_at=_AT,
    updated_at=_AT,
)
_SPENT: Final = CostSum(
    key=_MODEL.id, requests=1, usage=Usage(input=12, output=5), microcents=4_200
)
_REPO: Final = Repo(
    id=RepoId("019b7ca9-8f2e-7666-8aaa-000000000006"),
    owner=LOCAL_OWNER,
    name="sums",
    path="/srv/work/sums",
    created_at=_AT,
)
_SESSION: Final = Session(
    id=_SESSION_ID,
    owner=LOCAL_OWNER,
    agent_id=_AGENT_ID,
    agent=_AGENT,
    repo_id=_REPO.id,
    title="Sums",
    tags=("demo",),
    context=SessionContext(working_dir=_REPO.path),
    status=Status.IDLE,
    last_stop=StopReason.STOP,
    turn=1,
    settled=1,
    message_count=2,
    last_event=7,
    created_at=_AT,
    started_at=_AT,
    updated_at=_LATER,
    finished_at=_LATER,
)
_MESSAGES: Final = (
    Message(
        id=_MESSAGE_ID,
        session_id=_SESSION_ID,
        sequence=1,
        turn=1,
        role=Role.USER,
        parts=(Text(text="How much is 2+2?"),),
        created_at=_AT,
        hash="",
    ),
    Message(
        id=MessageId("019b7ca9-8f2e-7333-8aaa-000000000004"),
        session_id=_SESSION_ID,
        sequence=2,
        turn=1,
        role=Role.ASSISTANT,
        parts=(Text(text="4"),),
        model_id=_MODEL.id,
        created_at=_LATER,
        hash="",
    ),
)
_EVENT: Final = Event(
    id=EventId("019b7ca9-8f2e-7444-8aaa-000000000004"),
    session_id=_SESSION_ID,
    sequence=2,
    turn=1,
    at=_AT,
    payload=MessageAppended(message_id=_MESSAGE_ID, role=Role.USER, sequence=1),
)
_APPROVAL: Final = Approval(
    session_id=_SESSION_ID,
    question=Question(
        id=ApprovalId("019b7ca9-8f2e-7555-8aaa-000000000005"),
        call_id=_CALL_ID,
        tool="run_command",
        tool_class=ToolClass.PROCESS,
        arguments=_ARGUMENTS,
        question="Run `ls -l`?",
        digest="5f2b",
        memory='process:["ls","-l"]',
    ),
    asked_at=_AT,
)
_CALL: Final = Call(
    id=_CALL_ID,
    session_id=_SESSION_ID,
    turn=1,
    name="run_command",
    arguments=_ARGUMENTS,
    effect=Effect.UNSAFE,
    state=CallState.UNKNOWN,
    idempotency_key="b1946ac9",
    sequence=2,
    result_sequence=3,
    started_at=_AT,
)
_HIT: Final = Hit(
    session_id=_SESSION_ID,
    agent_id=_AGENT_ID,
    message_id=_MESSAGE_ID,
    message_sequence=2,
    turn=1,
    role=Role.ASSISTANT,
    snippet="The [tide] is high at noon.",
    score=0.1667,
    created_at=_AT,
)
_PROGRAM: Final = KnownProgram(
    preset="gemini",
    title="Gemini CLI",
    path=None,
    version=None,
    install="npm install -g @google/gemini-cli",
    runtime=AcpRuntime(
        command="gemini",
        args=("--acp",),
        env_names=("GEMINI_API_KEY",),
        options={"preset": "gemini"},
    ),
)


def _session_examples() -> tuple[Struct, ...]:
    overview = SessionOverview(session=_SESSION, spent=_SPENT)
    session = session_form(overview)
    message = message_form(_MESSAGES[0], _SESSION_ID)
    event = event_forms(_EVENT, Deltas.STEP)[0]
    agent, approval, call = agent_form(_AGENT), approval_form(_APPROVAL), call_form(_CALL)
    model, hit = model_form(_MODEL), hit_form(_HIT)
    report = CostReport(groups=(_SPENT,), total=_SPENT)
    verified = Verification(session_id=_SESSION_ID, messages=2, head="0" * 64)
    missing = NotFound(
        Code.SESSION_NOT_FOUND, "There is no such session; GET /v1/sessions lists yours."
    )
    return (
        *(agent, AgentList((agent,), None), KnownProgramList((program_form(_PROGRAM),))),
        *(approval, ApprovalList((approval,), None), call, CallList((call,), None)),
        *(session, SessionList((session,), None), resumed_form(overview, 49)),
        Compacted(compacted=True, session=session),
        Interrupted(session=session, interrupted=True, turn=1),
        Exported(target="plan.relavium.yaml", sequence=12),
        *(message, MessageList((message,), None), event, EventList((event,), (), None)),
        *(model, ModelList((model,)), hit, HitList((hit,), None)),
        DefaultsForm(model=OFFLINE, approval=ApprovalMode.ASK, tools=("read_file",)),
        *(costs_form(report), verified_form(verified), error_form(missing)),
    )


def _repo_session_examples() -> tuple[Struct, ...]:
    session, repo = agent_session_form(_SESSION), repo_form(_REPO)
    rows = tuple(rows_of(_SESSION_ID, _MESSAGES))
    return (
        *(session, rows[-1], repo, RepoList((repo,)), whole_form(_SESSION, _REPO, rows)),
        AgentSessionList(sessions=(session,), total=1, limit=20, offset=0),
        PromptAccepted(message_id=_MESSAGE_ID, sequence=1, turn=1),
    )


_OBSERVATION_ID: Final = ObservationId("obs_4f6122a30d2ef3d0db94b0a3c8b1430a")
_SOURCES: Final = (str(_OBSERVATION_ID),)
_SUBJECT: Final = Subject(LOCAL_OWNER, EntityType.AGENT_SESSION, "abc123")
_CHECKPOINT: Final = {
    "name": "spec_complete",
    "timestamp": "2025-12-31T11:15:00Z",
    "state": {"spec": "ready"},
}
_FIELDS: Final[dict[str, Any]] = {
    "session_id": _SUBJECT.key,
    "actions": [{"type": "create_feature_unit", "result": "success"}],
    "checkpoints": [_CHECKPOINT],
    "started_at": "2025-12-31T11:00:00Z",
}
_ENTITY: Final = Entity(
    entity_id=_SUBJECT.entity_id,
    entity_type=_SUBJECT.entity_type,
    key=_SUBJECT.key,
    snapshot={**_FIELDS, "outcomes": []},
    provenance={**dict.fromkeys(_FIELDS, _SOURCES), "outcomes": ()},
    provenance_items={"actions": (_SOURCES,), "checkpoints": (_SOURCES,), "outcomes": ()},
    observation_count=1,
    last_observation_at=_AT,
)
_DECISION: Final = {
    "decision": "Use SQLite by default",
    "rationale": "Nothing has to be installed.",
    "timestamp": "2025-12-31T11:20:00Z",
}


def _history_examples() -> tuple[Struct, ...]:
    observation = Observation(
        id=_OBSERVATION_ID,
        subject=_SUBJECT,
        entity_id=_ENTITY.entity_id,
        ordinal=1,
        fields=_FIELDS,
        content_hash="6b3ae90e760788a70594e7cba07bd2fec49c123c75d89d662f68a50cf3657750",
        kind=ObservationKind.SUBMIT,
        source="curl/8.5.0",
        observed_at=_AT,
        created_at=_AT,
    )
    decided = Subject(LOCAL_OWNER, EntityType.AGENT_DECISION, _DECISION["decision"])
    decision = msgspec.structs.replace(
        _ENTITY,
        entity_id=decided.entity_id,
        entity_type=decided.entity_type,
        snapshot=_DECISION,
        provenance=dict.fromkeys(_DECISION, _SOURCES),
        provenance_items={},
    )
    event = TimelineEvent(
        id="tle_9b54bdb56286bef34e866588",
        timestamp="2025-12-31T11:15:00.000Z",
        event_type=EventType.CHECKPOINT_REACHED,
        description="Checkpoint: spec_complete",
        entity_id=_ENTITY.entity_id,
        entity_type=_ENTITY.entity_type,
        session_id=_ENTITY.key,
        source_field="checkpoints",
        provenance=_SOURCES,
        details={"name": "spec_complete", "has_state": True},
    )
    removal = Removal(entity_id=_ENTITY.entity_id, observation_id=_OBSERVATION_ID, deleted=True)
    return (
        checkpoint_of(_ENTITY, "spec_complete"),
        entity_list(EntityPage(items=(decision,), total=1)),
        history_form(History(entity=_ENTITY, observations=(observation,), observations_total=1)),
        history_list(EntityPage(items=(_ENTITY,), total=1)),
        observation_list(ObservationPage(items=(observation,), total=1)),
        removal_form(removal),
        SubmitResult(
            entity_id=_ENTITY.entity_id,
            observation_id=_OBSERVATION_ID,
            observation_count=1,
            action=Action.CREATED,
            deduplicated=False,
            warnings=(),
        ),
        timeline_form(TimelinePage(events=(event,), total=1)),
    )


def _zone_examples() -> tuple[Struct, ...]:
    at, generation = 1_767_323_045_678, "8296baa9455e3e70"
    zone, archive = f"agent:{_AGENT_ID}:current", f"agent:{_AGENT_ID}:archive:{at}"
    line = '{"type":"user","text":"hello"}'
    size = len(line) + 1
    file = ZoneFile(
        zone=zone,
        name="output",
        size=size,
        lines=1,
        created_ms=at,
        modified_ms=at,
        generation=generation,
    )
    shown = Lines(lines=(line,), start=0, total=1, generation=generation, torn=False)
    summary = ArchiveSummary(
        archive_zoneid=archive,
        archived_at_ms=at,
        preview="hello",
        node_count=1,
        size=size,
        lines=1,
        has_state=False,
        has_output=True,
        schema_version=None,
    )
    replay = Replay(
        source=ReplaySource.TAIL,
        lines=shown.lines,
        nodes=(),
        start=0,
        total=1,
        overlay={},
        generation=generation,
        torn=False,
    )
    archived = ArchiveResult(archive_zoneid=archive, archived_at_ms=at, files={"output": size})
    kept = Archive(archive_zoneid=archive, archived_at_ms=at, content=None, files=(file,))
    return (
        *(archive_form(kept), archives_form((summary,)), archived_form(archived)),
        zone_form(ActiveZone(zone=zone, session_id=_SESSION_ID, files=(file,))),
        *(lines_form(shown), replay_form(replay), DeletedForm(deleted=True)),
        OutputAppendedForm(zone=zone, offset=0, bytes_written=size),
        RestoredForm(zone=zone, restored_from=archive, displaced=None),
        StateForm(zone=zone, content=None, modified_ms=None),
        StateWrittenForm(zone=zone, bytes_written=19, modified_ms=at),
    )


# By type name.
EXAMPLES: Final[Mapping[str, Any]] = {
    "Health": {"status": "ok"},
    **{
        type(form).__name__: msgspec.json.decode(msgspec.json.encode(form))
        for form in (
            *_session_examples(),
            *_repo_session_examples(),
            *_history_examples(),
            *_zone_examples(),
        )
    },
}
