"""The words of `/api`: sessions that are bound to a repository, in camelCase."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.domain.agent_processes import ProcessState, process_state
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import OnBusy, Session, Status
from holdfast.http.times import stamp
from holdfast.http.v1.scalars import Instant, Uuid
from holdfast.http.v1.sessions_forms import told_metadata

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
        description="Words of `status`, with commas between them.",
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
    """The agent's process, which is not the session: it may end and be started again."""

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
    """A message; one with `partial` text has no number yet."""

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


class AgentSessionList(Struct, frozen=True, kw_only=True):
    """A page of sessions, and how many match in all."""

    sessions: tuple[AgentSession, ...]
    total: int
    limit: int
    offset: int


class AgentSessionWhole(AgentSession, frozen=True, kw_only=True, rename="camel"):
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
    """What to tell the agent."""

    text: str
    id: Uuid | None = None
    on_busy: OnBusy = OnBusy.QUEUE


class PromptAccepted(Struct, frozen=True, kw_only=True, rename="camel"):
    """The prompt is on disk; its turn comes."""

    accepted: bool = True
    message_id: Uuid
    sequence: int
    turn: int


class AgentSessionsQuery(Struct, frozen=True, kw_only=True, rename="camel"):
    """Which sessions."""

    repo_id: str | None = None
    status: Statuses | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    offset: Annotated[int, Meta(ge=0, le=(1 << 53))] = 0
    before: str | None = None


class AgentMessagesQuery(Struct, frozen=True, kw_only=True):
    """Which messages."""

    since: Since | None = None
    after: Annotated[int, Meta(ge=0, le=(1 << 62))] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] | None = None
    partial: bool = True


def session_form(session: Session) -> AgentSession:
    """Return a session as `/api` shows it."""
    return AgentSession(**_fields(session))


def whole_form(
    session: Session, repo: Repo, messages: tuple[AgentMessage, ...]
) -> AgentSessionWhole:
    """Return a session with all that belongs to it."""
    return AgentSessionWhole(**_fields(session), repo=repo_form(repo), messages=messages)


def repo_form(repo: Repo) -> RepoForm:
    """Return a repository as `/api` shows it."""
    return RepoForm(id=repo.id, name=repo.name, path=repo.path, created_at=stamp(repo.created_at))


def _process_form(session: Session) -> ProcessForm:
    program = session.program
    return ProcessForm(
        state=process_state(program, is_running=session.status is Status.RUNNING),
        exit_code=program.exit.code if program is not None and program.exit is not None else None,
    )


def _fields(session: Session) -> dict[str, Any]:
    # Why it ended stands where clients of this surface look for it.
    reason = {} if session.reason is None else {"reason": session.reason}
    return {
        "id": session.id,
        "repo_id": session.repo_id,
        "status": STATUS_WORDS[session.status],
        "created_at": stamp(session.created_at),
        "updated_at": stamp(session.updated_at),
        "title": session.title,
        "metadata": {**told_metadata(session), **reason},
        "process": _process_form(session),
        "turn": session.turn,
        "settled": session.settled,
        "last_sequence": session.message_count,
    }
