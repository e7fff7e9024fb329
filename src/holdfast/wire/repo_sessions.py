"""JSON forms of `/api` in camelCase: sessions bound to a repository, and their messages.

Messages have three roles here. The forms of `/v1` are `sessions.py` and `messages.py`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.domain.agent_processes import ProcessState, process_state
from holdfast.domain.ids import LOCAL_OWNER, CallId, RepoId, SessionId
from holdfast.domain.messages import (
    Compaction,
    Media,
    Message,
    Notice,
    NoticeCode,
    Plan,
    Role,
    ToolCall,
    ToolResult,
)
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import OnBusy, Session, Status
from holdfast.services.messages import UnfinishedAnswer
from holdfast.wire.messages import error_text
from holdfast.wire.scalars import Instant, Uuid, format_microseconds, format_time, parse_time
from holdfast.wire.sessions import session_metadata

StatusWord = Literal["active", "completed", "cancelled", "error"]
STATUS_WORDS: Final[Mapping[Status, StatusWord]] = {
    Status.PENDING: "active",
    Status.RUNNING: "active",
    Status.IDLE: "active",
    Status.COMPLETED: "completed",
    Status.CANCELLED: "cancelled",
    Status.FAILED: "error",
}
_WORD: Final = "[ ]*(?:active|completed|cancelled|error)[ ]*"
Statuses = Annotated[
    str,
    Meta(
        description="Values of `status`, separated by commas.",
        extra_json_schema={"pattern": f"^{_WORD}(?:,{_WORD})*$"},
    ),
]
Since = Annotated[
    str,
    Meta(
        description="A time with its offset, or Unix milliseconds.",
        extra_json_schema={"anyOf": [{"format": "date-time"}, {"pattern": "^[0-9]{1,15}$"}]},
    ),
]


class ProcessForm(Struct, frozen=True, kw_only=True, rename="camel"):
    """The agent's process; it may exit and be started again while the session continues."""

    state: ProcessState = ProcessState.NOT_STARTED
    exit_code: int | None = None


class AgentSession(Struct, frozen=True, kw_only=True, rename="camel"):
    """A session, without its messages."""

    id: Uuid
    repo_id: Uuid
    status: StatusWord
    created_at: Instant
    updated_at: Instant
    title: str | None
    metadata: dict[str, Any]
    process: ProcessForm
    turn: int
    settled: int
    last_sequence: int


class AgentMessage(Struct, frozen=True, kw_only=True, rename="camel"):
    """A message; text with `partial` true has no sequence number yet."""

    id: Uuid
    session_id: Uuid
    role: Literal["user", "agent", "system"]
    content: dict[str, Any]
    timestamp: Instant
    sequence: int | None
    turn: int


class RepoForm(Struct, frozen=True, kw_only=True, rename="camel"):
    """A repository."""

    id: Uuid
    name: str
    path: str
    created_at: Instant


class RepositoryForm(Struct, frozen=True, kw_only=True):
    """A repository with the field names of `/v1`, as `--json` prints it."""

    id: Uuid
    name: str
    path: str
    created_at: Instant


class AgentSessionList(Struct, frozen=True, kw_only=True):
    """A page of sessions, and the total number of matches."""

    sessions: tuple[AgentSession, ...]
    total: int
    limit: int
    offset: int


class AgentSessionDetails(AgentSession, frozen=True, kw_only=True, rename="camel"):
    """A session with its repository and all its messages."""

    repo: RepoForm
    messages: tuple[AgentMessage, ...]


class RepoList(Struct, frozen=True):
    """All repositories, by name."""

    repos: tuple[RepoForm, ...]


class RepoPost(Struct, frozen=True, kw_only=True):
    """A repository to register."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    name: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class AgentSessionPost(Struct, frozen=True, kw_only=True, rename="camel"):
    """A session to open."""

    repo_id: Annotated[str, Meta(max_length=255)]
    agent_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    title: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    id: Uuid | None = None


class PromptPost(Struct, frozen=True, kw_only=True, rename="camel"):
    """A prompt for the agent."""

    text: str
    id: Uuid | None = None
    on_busy: OnBusy = OnBusy.QUEUE


class PromptAccepted(Struct, frozen=True, kw_only=True, rename="camel"):
    """The prompt is stored; its turn follows."""

    accepted: bool = True
    message_id: Uuid
    sequence: int
    turn: int


class AgentSessionsQuery(Struct, frozen=True, kw_only=True, rename="camel"):
    """Filters of a list of sessions."""

    repo_id: str | None = None
    status: Statuses | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    offset: Annotated[int, Meta(ge=0, le=(1 << 53))] = 0
    before: str | None = None


class AgentMessagesQuery(Struct, frozen=True, kw_only=True):
    """Filters of a list of messages."""

    since: Since | None = None
    after: Annotated[int, Meta(ge=0, le=(1 << 62))] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] | None = None
    partial: bool = True


def session_form(session: Session) -> AgentSession:
    """Return the form of a session."""
    return AgentSession(**_fields(session))


def whole_form(
    session: Session, repo: Repo, messages: tuple[AgentMessage, ...]
) -> AgentSessionDetails:
    """Return the form of a session with its repository and messages."""
    return AgentSessionDetails(**_fields(session), repo=repo_form(repo), messages=messages)


def repo_form(repo: Repo) -> RepoForm:
    """Return the form of a repository."""
    return RepoForm(
        id=repo.id, name=repo.name, path=repo.path, created_at=format_time(repo.created_at)
    )


def repository_form(repo: Repo) -> RepositoryForm:
    """Return the form of a repository with the field names of `/v1`."""
    return RepositoryForm(
        id=repo.id, name=repo.name, path=repo.path, created_at=format_time(repo.created_at)
    )


def _process_form(session: Session) -> ProcessForm:
    program = session.program
    return ProcessForm(
        state=process_state(program, is_running=session.status is Status.RUNNING),
        exit_code=program.exit.code if program is not None and program.exit is not None else None,
    )


def _fields(session: Session) -> dict[str, Any]:
    # Clients of `/api` expect the reason of the end in the metadata.
    reason = {} if session.reason is None else {"reason": session.reason}
    return {
        "id": session.id,
        "repo_id": session.repo_id,
        "status": STATUS_WORDS[session.status],
        "created_at": format_time(session.created_at),
        "updated_at": format_time(session.updated_at),
        "title": session.title,
        "metadata": {**session_metadata(session), **reason},
        "process": _process_form(session),
        "turn": session.turn,
        "settled": session.settled,
        "last_sequence": session.message_count,
    }


Content = dict[str, Any]


def build_agent_messages(
    session_id: SessionId, messages: Iterable[Message], *, without: Collection[CallId] = ()
) -> list[AgentMessage]:
    """Return the rows of a session's messages, by sequence number.

    A call moves to the position of its result once it has one, so a reader that continues after a
    sequence number receives it again, complete. `without` are calls whose results are not among the
    messages.
    """
    rows: dict[str, AgentMessage] = {}
    open_calls: dict[str, AgentMessage] = {}
    for message in messages:
        match message.parts:
            case (ToolCall() as call,) if call.id in without:
                pass
            case (ToolCall() as call,):
                row = _row(session_id, message, "system", _call_content(call))
                open_calls[call.id] = rows[message.id] = row
            case (ToolResult() as result,):
                begun = open_calls.pop(result.call_id, None)
                if begun is not None:
                    del rows[begun.id]
                    rows[begun.id] = _complete_call_row(session_id, begun, message, result)
            case _:
                rows |= {row.id: row for row in _rows_of_message(session_id, message)}
    return list(rows.values())


def partial_row(session_id: SessionId, unfinished: UnfinishedAnswer) -> AgentMessage:
    """Return the row of text that is still being streamed."""
    return AgentMessage(
        id=unfinished.id,
        session_id=session_id,
        role="agent",
        content={"type": "text", "text": unfinished.text, "partial": True},
        timestamp=format_time(unfinished.at),
        sequence=None,
        turn=unfinished.turn,
    )


def _rows_of_message(session_id: SessionId, message: Message) -> list[AgentMessage]:
    media = [part.ref for part in message.parts if isinstance(part, Media)]
    attached: Content = {"media": media} if media else {}
    match message.role:
        case Role.USER:
            content = {"type": "text", "text": message.text, **attached}
            return [_row(session_id, message, "user", content)]
        case Role.ASSISTANT if message.text or media:
            content = {"type": "text", "text": message.text, "partial": False, **attached}
            return [_row(session_id, message, "agent", content)]
        case Role.SYSTEM:
            return [_row(session_id, message, "system", _system_content(message))]
        case _:
            # Reasoning is not shown here.
            return []


def _system_content(message: Message) -> Content:
    match message.parts:
        case (Plan(steps=steps),):
            plan_steps = [
                {"content": step.text, "priority": step.priority, "status": step.status}
                for step in steps
            ]
            return {"type": "plan", "steps": plan_steps}
        case (Notice(code=NoticeCode.ERROR, text=text),):
            return {"type": "text", "text": f"Turn failed: {text}", "code": NoticeCode.ERROR}
        case (Notice(code=code, text=text),):
            return {"type": "text", "text": text, "code": code}
        case (Compaction(summary=summary),):
            return {"type": "text", "text": summary, "code": "compaction"}
        case _:
            return {"type": "text", "text": message.text}


def _call_content(call: ToolCall) -> Content:
    title = {} if call.title is None else {"title": call.title}
    return {"type": "tool", "tool": call.name, **title, "args": call.arguments, "result": None}


def _complete_call_row(
    session_id: SessionId, call_row: AgentMessage, message: Message, result: ToolResult
) -> AgentMessage:
    came = {
        "status": result.status,
        "output": result.result,
        "error": error_text(result.status, result.error),
    }
    return AgentMessage(
        id=call_row.id,
        session_id=session_id,
        role="system",
        content={**call_row.content, "result": came},
        timestamp=format_microseconds(message.at),
        sequence=message.sequence,
        turn=message.turn,
    )


def _row(session_id: SessionId, message: Message, role: Any, content: Content) -> AgentMessage:
    return AgentMessage(
        id=message.id,
        session_id=session_id,
        role=role,
        content=content,
        timestamp=format_microseconds(message.at),
        sequence=message.sequence,
        turn=message.turn,
    )


def repo_of(form: RepoForm) -> Repo:
    """Return the repository of a form; its owner is the caller."""
    return Repo(
        id=RepoId(form.id),
        owner=LOCAL_OWNER,
        name=form.name,
        path=form.path,
        created_at=parse_time(form.created_at),
    )
