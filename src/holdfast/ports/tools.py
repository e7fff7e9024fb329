"""Tools as the engine uses them: planned first, asked about by others, then run.

Planning changes nothing; running does the one act that was planned, or refuses because what it
aimed at has changed. Approvals are no business of a toolbox.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.secrets import Secret
from holdfast.domain.tools import Effect, Grant, ToolClass
from holdfast.ports.llm import LlmTool


class OutputStore(Protocol):
    """Where a session keeps large or replaced contents, each under a handle made of its hash."""

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        """Store the content and return its `media://` handle; it is on disk when this returns."""

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> "Slice | None":
        """Return a part of a content that this session has kept; `None` for any other handle."""


class Slice(Struct, frozen=True, kw_only=True):
    """A part of a kept content, and how long the whole is."""

    content: bytes
    start: int
    total: int


class ToolWorkspace(Struct, frozen=True, kw_only=True):
    """Where the calls of a session act and how far they reach: all that a tool learns of it."""

    # An opaque name, for what lives as long as the session does: connections to servers.
    session: str
    working_dir: str
    # A private folder for what is temporary; it is there when a call runs.
    scratch: str
    # The agent's, the session's, the configuration's: each of them has to allow a call.
    grants: tuple[Grant, ...]
    tools: frozenset[str]
    servers: tuple[Mapping[str, Any], ...] = ()
    # Servers that the person who talks has named: to name one is to agree to it.
    guests: tuple[Mapping[str, Any], ...] = ()
    shelf: OutputStore


class ClientMcpServer(Struct, frozen=True, kw_only=True):
    """An MCP server that somebody else's agent starts or reaches by itself.

    `values` are the variables of a command, or the headers for an address.
    """

    name: str
    transport: Literal["stdio", "http", "sse"]
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""
    values: Mapping[str, Secret] = {}


class ClientMcpServers(Struct, frozen=True, kw_only=True):
    """The servers that go along with a program, and in sentences which cannot."""

    companions: tuple[ClientMcpServer, ...] = ()
    troubles: tuple[str, ...] = ()


class McpServerSource(Protocol):
    """Who goes along with programs."""

    async def of(self, place: ToolWorkspace) -> ClientMcpServers:
        """Return the servers of a place, as far as somebody has agreed to each of them."""


class RequestedCall(Struct, frozen=True, kw_only=True):
    """A call as the model asked for it."""

    id: str
    name: str
    arguments: dict[str, Any]
    idempotency_key: str


class PlannedCall(Struct, frozen=True, kw_only=True):
    """A call that may run as soon as whoever has to be asked agrees.

    `digest` covers the tool, its arguments, the working directory and every target outside of the
    arguments that decides what the act does. `memory` names what an answer "for this session"
    would cover; without it only this one call can be allowed.
    """

    asked: RequestedCall
    effect: Effect
    tool_class: ToolClass
    digest: str
    question: str
    preview: Mapping[str, str] = {}
    memory: str | None = None


class CallOutcome(Struct, frozen=True, kw_only=True):
    """How a call came out; also how one was refused before it ran."""

    status: ResultStatus
    result: Any = None
    error: ToolError | None = None


class Toolbox(Protocol):
    """Every tool that can be had."""

    def effect(self, name: str, arguments: Mapping[str, Any]) -> Effect:
        """Return what running the call twice would do; `unsafe` for what nobody knows."""

    async def offers(self, place: ToolWorkspace) -> tuple[LlmTool, ...]:
        """Return the tools that are granted and can be had at this place."""

    async def troubles(self, place: ToolWorkspace) -> tuple[str, ...]:
        """Return what is missing here that was meant to be there, in sentences for a person."""

    async def plan(self, place: ToolWorkspace, asked: RequestedCall) -> PlannedCall | CallOutcome:
        """Judge a call by everything but its approval; a `Done` refuses it."""

    async def run(self, place: ToolWorkspace, planned: PlannedCall) -> CallOutcome:
        """Do what was planned, if it is still the same; cancelling stops it, leaving no process."""

    async def leave(self, session: str) -> None:
        """Let go of what lives as long as the session."""


Trouble = Literal["outside", "missing", "not_a_file", "not_text", "too_large", "failed"]


class FileProblem(Exception):  # noqa: N818 — it is an answer, and most often no error
    """Why a file cannot be read or written; told to the program, so it names nothing outside."""

    def __init__(self, kind: Trouble, message: str) -> None:
        super().__init__(message)
        self.kind: Trouble = kind
        self.message = message


class PlannedWrite(Struct, frozen=True, kw_only=True):
    """A write that may be done: what it is, and the digests of what is there and what would be.

    `question` shows the change whole; `memory` names what a yes for the whole session would cover.
    """

    path: str
    tool_class: ToolClass
    before: str | None
    after: str
    question: str
    memory: str | None = None


# Before the name of each variable of a command that is run covered.
COVERED_VARIABLE: Final = "+"


class RepositoryFiles(Protocol):
    """Files below a repository's folder; every verb raises `FileTrouble`."""

    async def read(self, folder: str, path: str) -> str:
        """Return the text of a file, by its absolute path."""

    async def plan(self, folder: str, path: str, content: str) -> PlannedWrite:
        """Judge a write; nothing is changed."""

    async def write(self, folder: str, planned: PlannedWrite, content: str) -> None:
        """Write a file whole, if what is there is still what was planned with."""

    async def change(self, path: str, before: str | None, after: str) -> str:
        """Return a change of a file as whoever is asked is shown it: whole, nothing hidden."""

    async def folder(self, folder: str, path: str) -> str:
        """Return the real path of a folder inside the repository."""

    async def covering(self, folder: str) -> tuple[str, ...] | None:
        """Return what runs a command so that protected paths hold for it: the words before it.

        The command's variables then have `COVERED_VARIABLE` before their names. `None` where
        protected paths do not hold, and no words where the user has said that this may be.
        """

    async def class_of(self, folder: str, paths: tuple[str, ...]) -> ToolClass:
        """Return what changing these files is; what lies outside is never a plain write."""

    async def status(self, folder: str) -> Mapping[str, str] | None:
        """Return what differs from what is committed, by path; nothing if nobody can tell."""
