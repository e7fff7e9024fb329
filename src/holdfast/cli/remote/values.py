"""Converts API forms to domain values: one function per type."""

from datetime import datetime

from msgspec import UnsetType
from msgspec.structs import asdict, replace

from holdfast.domain.agents import AcpRuntime, Agent, LlmRuntime, ModelChoice, Runtime
from holdfast.domain.approvals import Approval, ApprovalScope, Question
from holdfast.domain.calls import Call, CallState
from holdfast.domain.costs import CostReport, CostSum, Usage
from holdfast.domain.ids import (
    LOCAL_OWNER,
    AgentId,
    ApprovalId,
    CallId,
    MessageId,
    ModelId,
    RepoId,
    SessionId,
)
from holdfast.domain.messages import Media, Message, Part, Text
from holdfast.domain.models import Model, Prices
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import Budget, ForkPoint, Session
from holdfast.domain.tools import Grant, ToolSpec, tool_fields
from holdfast.wire.agents import AcpRuntimeForm, AgentForm
from holdfast.wire.approvals import ApprovalForm
from holdfast.wire.calls import CallForm
from holdfast.wire.costs import CostGroupForm, CostList, CostTotalForm, UsageForm
from holdfast.wire.messages import MediaPart, MessageForm, TextPart
from holdfast.wire.models import ModelForm
from holdfast.wire.repo_sessions import RepoForm
from holdfast.wire.sessions import SessionForm, context_of

# A server returns only the caller's own objects and does not name their owner.
OWNER = LOCAL_OWNER


def agent_of(form: AgentForm) -> Agent:
    """Return an agent."""
    return Agent(
        id=AgentId(form.id),
        owner=OWNER,
        slug=form.slug,
        name=form.name,
        description=form.description,
        system_prompt=form.system_prompt,
        runtime=_runtime(form),
        tools=tuple(ToolSpec(**tool_fields(tool)) for tool in form.tools),
        mcp_servers=() if isinstance(form.mcp_servers, UnsetType) else form.mcp_servers,
        grant=None if form.grant is None else Grant(**asdict(form.grant)),
        recovery=form.recovery,
        extra={} if isinstance(form.extra, UnsetType) else form.extra,
        tags=form.tags,
        status=form.status,
        created_at=_time(form.created_at),
        updated_at=_time(form.updated_at),
    )


def _runtime(form: AgentForm) -> Runtime:
    if isinstance(form.runtime, AcpRuntimeForm):
        return AcpRuntime(**asdict(form.runtime))
    first = () if form.default_model_id is None else (form.default_model_id,)
    ids = (*first, *form.fallback_model_ids)
    told = form.max_attempts
    attempts = (None,) * len(ids) if isinstance(told, UnsetType) else told
    return LlmRuntime(
        models=tuple(
            ModelChoice(model_id=ModelId(id_), max_attempts=most)
            for id_, most in zip(ids, attempts, strict=True)
        ),
        temperature=form.temperature,
        max_tokens=form.max_tokens,
        reasoning_effort=form.runtime.reasoning_effort,
        retry=form.runtime.retry,
        memory=form.runtime.memory,
    )


def session_of(form: SessionForm) -> Session:
    """Return a session; its agent has only the fields that a session form contains."""
    return Session(
        id=SessionId(form.id),
        owner=OWNER,
        agent_id=AgentId(form.agent_id),
        agent=_snapshot(form),
        repo_id=None if form.repo_id is None else RepoId(form.repo_id),
        title=form.title,
        tags=form.tags,
        model_id=None if form.model_id is None else ModelId(form.model_id),
        context=context_of(form.context),
        approval=form.approval,
        status=form.state,
        last_stop=form.last_stop,
        reason=form.reason,
        turn=form.turn,
        settled=form.settled,
        turn_cap=form.turn_cap,
        budget=None if form.budget is None else Budget(**asdict(form.budget)),
        forked_from=_fork_point(form),
        usage=usage_of(form.usage),
        microcents=form.cost.microcents or 0,
        message_count=form.message_count,
        last_event=form.last_event,
        created_at=_time(form.created_at),
        updated_at=_time(form.updated_at),
        started_at=_time_or_none(form.started_at),
        finished_at=_time_or_none(form.finished_at),
        metadata=form.metadata,
    )


def _fork_point(form: SessionForm) -> ForkPoint | None:
    fork = form.forked_from
    if fork is None:
        return None
    return ForkPoint(session_id=SessionId(fork.session_id), sequence=fork.sequence)


def _snapshot(form: SessionForm) -> Agent:
    told = form.agent
    chain = tuple(ModelChoice(model_id=ModelId(each)) for each in told.model_ids)
    return Agent(
        id=AgentId(form.agent_id),
        owner=OWNER,
        slug=told.slug,
        name=told.name,
        system_prompt="",
        # The command is not in the form; only the kind of runtime is shown.
        runtime=LlmRuntime(models=chain) if told.runtime == "llm" else AcpRuntime(command="-"),
        created_at=_time(form.created_at),
        updated_at=_time(form.created_at),
    )


def usage_of(form: UsageForm) -> Usage:
    """Return tokens by class; cache writes count as input here."""
    return Usage(
        input=form.input_tokens,
        output=form.output_tokens,
        cache_read=form.cached_input_tokens,
        reasoning=form.reasoning_tokens,
    )


def message_of(form: MessageForm) -> Message:
    """Return a message that was requested with all parts, or one with text only."""
    parts = form.parts
    return Message(
        id=MessageId(form.id),
        session_id=SessionId(form.session_id),
        sequence=form.sequence,
        turn=form.turn,
        role=form.role,
        # Without parts the content is complete: text only.
        parts=(Text(text=form.content["text"]),) if isinstance(parts, UnsetType) else parts,
        model_id=None if form.model_id is None else ModelId(form.model_id),
        created_at=_time(form.created_at),
        # Only the server can verify the hash chain.
        hash="",
    )


def parts_form(parts: tuple[Part, ...]) -> tuple[TextPart | MediaPart, ...]:
    """Return the parts of a user's message in the API format."""
    return tuple(
        MediaPart(**asdict(part)) if isinstance(part, Media) else TextPart(text=part.text)
        for part in parts
        if isinstance(part, Media | Text)
    )


def approval_of(form: ApprovalForm) -> Approval:
    """Return an approval, with its answer if there is one."""
    return Approval(
        session_id=SessionId(form.session_id),
        question=Question(
            id=ApprovalId(form.id),
            call_id=None if form.tool_call_id is None else CallId(form.tool_call_id),
            tool=form.tool,
            tool_class=form.tool_class,
            arguments=form.arguments,
            question=form.question,
            digest=form.digest,
            preview=form.preview,
            memory=form.covers,
            amount=form.amount,
        ),
        state=form.state,
        scope=form.scope or ApprovalScope.ONCE,
        answered_by=form.answered_by,
        note=form.note,
        asked_at=_time(form.created_at),
        expires_at=_time_or_none(form.expires_at),
        answered_at=_time_or_none(form.answered_at),
    )


def call_of(form: CallForm) -> Call:
    """Return a call; an unknown one with a settlement is settled."""
    return Call(
        id=CallId(form.id),
        session_id=SessionId(form.session_id),
        turn=form.turn,
        name=form.name,
        arguments=form.arguments,
        state=CallState(form.state) if form.settled is None else CallState.SETTLED,
        effect=form.effect,
        idempotency_key=form.idempotency_key,
        settlement=form.settled,
        sequence=form.message_sequence,
        result_sequence=form.result_sequence,
        started_at=_time_or_none(form.started_at),
        ended_at=_time_or_none(form.ended_at),
    )


def model_value(form: ModelForm) -> Model:
    """Return a model."""
    return Model(
        id=ModelId(form.id),
        provider=form.provider,
        name=form.name,
        context_window=form.context_window,
        prices=None if form.prices is None else Prices(**asdict(form.prices)),
        display_name=form.display_name,
        max_output=form.max_output,
        source=form.source,
    )


def repo_of(form: RepoForm) -> Repo:
    """Return a repository."""
    return Repo(
        id=RepoId(form.id),
        owner=OWNER,
        name=form.name,
        path=form.path,
        created_at=_time(form.created_at),
    )


def report_of(form: CostList) -> CostReport:
    """Return a cost report."""
    groups = tuple(replace(_sum(each.key, each), name=each.name) for each in form.data)
    return CostReport(groups=groups, total=_sum("", form.total))


def _sum(key: str, form: CostGroupForm | CostTotalForm) -> CostSum:
    return CostSum(
        key=key,
        requests=form.requests,
        usage=usage_of(form.usage),
        microcents=form.cost_microcents,
        unpriced_requests=form.unpriced_requests,
        estimated_requests=form.estimated_requests,
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _time_or_none(text: str | None) -> datetime | None:
    return None if text is None else _time(text)
