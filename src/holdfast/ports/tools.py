"""Tools as the engine uses them: plan a call, get it approved, then run it.

Planning changes nothing. Running performs exactly the planned action, or refuses it because the
target has changed since (TOCTOU). A toolbox does not handle approvals.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct

from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.secrets import Secret
from holdfast.domain.tools import Effect, Grant, ToolClass, ToolSpec
from holdfast.ports.llm import LlmTool


class OutputStore(Protocol):
    """Storage for a session's large or replaced contents, each under a handle made of its hash."""

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        """Store the content and return its `media://` handle; it is on disk when this returns."""

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> "Slice | None":
        """Return part of a content that this session stored; `None` for any other handle."""


class Slice(Struct, frozen=True, kw_only=True):
    """A part of a stored content, and the length of the whole."""

    content: bytes
    start: int
    total: int


class ToolWorkspace(Struct, frozen=True, kw_only=True):
    """Where a session's calls act and how far they reach: all that a tool knows of the session."""

    # An opaque name for resources that live as long as the session, such as MCP connections.
    session: str
    # For functions of the program itself, which may know which session calls them.
    owner: str = ""
    session_id: str = ""
    working_dir: str
    # A private temporary folder; it exists while a call runs.
    scratch: str
    # The agent's, the session's and the configuration's grant: each of them must allow a call.
    grants: tuple[Grant, ...]
    tools: frozenset[str]
    # Definitions of tools that a client runs, by name.
    client_tools: Mapping[str, ToolSpec] = {}
    # The agents that the session may start.
    agents: tuple[str, ...] = ()
    # Whether a turn that waits may be paused; a block of a program cannot be left and entered.
    may_pause: bool = True
    servers: tuple[Mapping[str, Any], ...] = ()
    # MCP servers named by the user's client; naming one implies consent to it.
    session_servers: tuple[Mapping[str, Any], ...] = ()
    shelf: OutputStore


class ClientMcpServer(Struct, frozen=True, kw_only=True):
    """An MCP server that an external agent starts or connects to itself.

    `values` are environment variables for a command, or headers for an address.
    """

    name: str
    transport: Literal["stdio", "http", "sse"]
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""
    values: Mapping[str, Secret] = {}


class ClientMcpServers(Struct, frozen=True, kw_only=True):
    """The MCP servers passed to an agent process, and a sentence for each that cannot be passed."""

    companions: tuple[ClientMcpServer, ...] = ()
    troubles: tuple[str, ...] = ()


class McpServerSource(Protocol):
    """Selects the MCP servers to pass to agent processes."""

    async def of(self, workspace: ToolWorkspace) -> ClientMcpServers:
        """Return the servers of a workspace that the user has consented to."""


class RequestedCall(Struct, frozen=True, kw_only=True):
    """A call as the model requested it."""

    id: str
    name: str
    arguments: dict[str, Any]
    idempotency_key: str
    turn: int = 0
    # Counts the starts of the call, 1 unless a crash has cut off an earlier one.
    attempt: int = 1
    # Whether an earlier process requested it, so that the tool may have changed since.
    is_resumed: bool = False
    # Reports progress as an event: a text, and the fraction that is done.
    report: Callable[[str, float | None], None] | None = None


class CallSlot(Protocol):
    """A place that a call has to take before it starts."""

    def try_take(self) -> bool:
        """Take the place if it is free."""

    async def take(self) -> "CallOutcome | None":
        """Wait for the place; an outcome means that the call cannot run."""

    def release(self) -> None:
        """Give the place back; it is kept while the work of the call still runs."""


class PlannedCall(Struct, frozen=True, kw_only=True):
    """A call that may run once it is approved.

    `digest` covers the tool, its arguments, the working directory and every target outside the
    arguments that decides what the call does. `memory` names what an answer "for this session"
    covers; without it, only this one call can be allowed.
    """

    asked: RequestedCall
    effect: Effect
    tool_class: ToolClass
    digest: str
    question: str
    preview: Mapping[str, str] = {}
    memory: str | None = None
    # The tool's own rule: `ask`, or `mode` to let the session's mode decide about a function.
    approval: str | None = None
    slot: CallSlot | None = None
    # A client runs the call, and has this many seconds to answer.
    client_timeout: float | None = None
    # Work that was started goes on: after a pause or a crash the call is not started again.
    goes_on: bool = False


class CallOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a call, including one refused before it ran."""

    status: ResultStatus
    result: Any = None
    error: ToolError | None = None


class Toolbox(Protocol):
    """All available tools."""

    def effect(self, name: str, arguments: Mapping[str, Any], workspace: ToolWorkspace) -> Effect:
        """Return the effect of running the call twice; `unsafe` if it is not known."""

    def is_parallel(self, name: str, workspace: ToolWorkspace) -> bool:
        """Return whether calls of the tool may run at once with adjacent ones of a model step."""

    async def offers(self, workspace: ToolWorkspace) -> tuple[LlmTool, ...]:
        """Return the tools that are granted and available in this workspace."""

    async def troubles(self, workspace: ToolWorkspace) -> tuple[str, ...]:
        """Return which configured tools are unavailable here, in sentences for the user."""

    async def plan(
        self, workspace: ToolWorkspace, asked: RequestedCall
    ) -> PlannedCall | CallOutcome:
        """Validate a call except for its approval; a returned `CallOutcome` refuses it."""

    async def run(self, workspace: ToolWorkspace, planned: PlannedCall) -> CallOutcome:
        """Run the planned call if its target is unchanged; cancellation leaves no process."""

    async def leave(self, session: str) -> None:
        """Release the resources that live as long as the session."""


Trouble = Literal["outside", "missing", "not_a_file", "not_text", "too_large", "failed"]


class FileProblem(Exception):  # noqa: N818 — a result of the call, usually not an error
    """Why a file cannot be read or written; sent to the agent, so it names no path outside."""

    def __init__(self, kind: Trouble, message: str) -> None:
        super().__init__(message)
        self.kind: Trouble = kind
        self.message = message


class PlannedWrite(Struct, frozen=True, kw_only=True):
    """A permitted write: its class, and the digests of the current and the new content.

    `question` shows the whole change; `memory` names what an approval for the session covers.
    """

    path: str
    tool_class: ToolClass
    before: str | None
    after: str
    question: str
    memory: str | None = None


class RepositoryFiles(Protocol):
    """Files below a repository's folder; every method may raise `FileProblem`."""

    async def read(self, folder: str, path: str) -> str:
        """Return the text of a file, given its absolute path."""

    async def plan(self, folder: str, path: str, content: str) -> PlannedWrite:
        """Validate a write; nothing is changed."""

    async def write(self, folder: str, planned: PlannedWrite, content: str) -> None:
        """Write the whole file, if its content is still the planned one; else refuse (TOCTOU)."""

    async def change(self, path: str, before: str | None, after: str) -> str:
        """Return the diff of a file shown for approval: complete, hidden characters escaped."""

    async def folder(self, folder: str, path: str) -> str:
        """Return the real path of a folder inside the repository."""

    async def class_of(self, folder: str, paths: tuple[str, ...]) -> ToolClass:
        """Return the tool class of changing these files; a path outside is never a plain write."""

    async def status(self, folder: str) -> Mapping[str, str] | None:
        """Return the uncommitted changes by path; `None` if the status cannot be determined."""
