"""Export a session as JSONL, Markdown or a workflow, with known secrets removed."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar, assert_never

import msgspec
from msgspec import Struct

from holdfast.domain.agents import Agent, LlmRuntime, file_form
from holdfast.domain.commits import last_event
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.events import Event, SessionExported
from holdfast.domain.ids import ModelId, Owner, SessionId
from holdfast.domain.messages import (
    Compaction,
    Media,
    Message,
    Notice,
    Output,
    Part,
    Plan,
    Reasoning,
    Role,
    Step,
    Text,
    ToolCall,
    ToolResult,
    Withdrawn,
    describe_withdrawal,
    to_exported_message,
)
from holdfast.domain.models import model_of
from holdfast.domain.secrets import Scrubber
from holdfast.domain.sessions import Session, SessionState
from holdfast.domain.text import require_text
from holdfast.ports.store import Store, Tx
from holdfast.services.batches import MessageBatch, read_batches
from holdfast.services.journal import Journal, SessionWriter, session_not_found
from holdfast.services.models import Models, models_beyond_llm
from holdfast.workflows.export import export, open_model, transcript
from holdfast.workflows.model import Workflow

# Size of a piece of a streamed workflow file.
PIECE: Final = 64 << 10


class WorkflowFormat(Struct, frozen=True, kw_only=True):
    """Reader and writer of workflow files, injected because this layer knows no file grammar."""

    write: Callable[[Workflow], str]
    read: Callable[[str], Workflow]
    largest: int


class WorkflowTexts:
    """Creates workflow files from sessions."""

    def __init__(self, models: Models, default: str, file_format: WorkflowFormat) -> None:
        """`default` is the model for an agent without one, in a session without an answer."""
        self._models = models
        self._default = model_of(default)
        self._file_format = file_format

    async def refs(self, agent: Agent) -> dict[ModelId, str]:
        """Return the readable names of the models, and of an agent's own."""
        known = (self._default, *models_beyond_llm(agent), *await self._models.list())
        return {model.id: model.ref for model in known}

    def size_of(self, rows: list[Message], refs: Mapping[ModelId, str]) -> int:
        """Return the least number of bytes that the rows take in a workflow file."""
        return len(self._file_format.write(Workflow({"messages": transcript(rows, refs)})).encode())

    def require_size(self, size: int) -> None:
        """Refuse rows that no workflow file can hold."""
        if size > self._file_format.largest:
            raise _too_large(size, self._file_format.largest)

    def text_of(
        self, session: Session, rows: list[Message], refs: Mapping[ModelId, str]
    ) -> tuple[Workflow, str]:
        """Return the workflow of a session and its text; takes seconds for a long session."""
        return self._read_again(session, rows, refs, self._agent(session, rows, refs))

    def _read_again(
        self,
        session: Session,
        rows: list[Message],
        refs: Mapping[ModelId, str],
        agent: dict[str, Any] | None,
    ) -> tuple[Workflow, str]:
        workflow = export(session, rows, refs, agent)
        text = self._file_format.write(workflow)
        size = len(text.encode())
        self.require_size(size)
        try:
            self._file_format.read(text)
        except Invalid as error:
            # An agent that was not created from a file may have values that a file cannot hold.
            if agent is not None:
                return self._read_again(session, rows, refs, None)
            if error.code is Code.YAML_INVALID:
                raise _too_large(size, self._file_format.largest, error.message) from None
            raise
        return workflow, text

    def _agent(
        self, session: Session, rows: list[Message], refs: Mapping[ModelId, str]
    ) -> dict[str, Any] | None:
        """Return the agent snapshot in file form; `None` if it has no such form."""
        runtime = session.agent.runtime
        if not isinstance(runtime, LlmRuntime) or not session.agent.system_prompt:
            return None
        asked = open_model(session, rows, self._default.id)
        named = {each.model_id: refs.get(each.model_id, each.model_id) for each in runtime.models}
        return file_form(session.agent, named, default=refs.get(asked, asked))


def _too_large(size: int, largest: int, problem: str = "") -> Invalid:
    fact = problem or f"It has at least {size:,} bytes, and {largest:,} are allowed."
    return Invalid(
        Code.WORKFLOW_TOO_LARGE,
        f"The session is too large for a workflow file. {fact} Export its beginning (--through "
        "N), or use another format (--format jsonl or markdown).",
        {"bytes": size, "largest": largest},
    )


T = TypeVar("T")
U = TypeVar("U")


class ExportFormat(StrEnum):
    """Export formats of a session."""

    JSONL = "jsonl"
    MARKDOWN = "markdown"
    WORKFLOW = "workflow"


# File extension and media type of each format.
FILES: Final[Mapping[ExportFormat, tuple[str, str]]] = {
    ExportFormat.JSONL: ("jsonl", "application/x-ndjson"),
    ExportFormat.MARKDOWN: ("md", "text/markdown; charset=utf-8"),
    ExportFormat.WORKFLOW: ("relavium.yaml", "application/yaml"),
}


class Export(Struct, frozen=True, kw_only=True):
    """An exported file; a workflow also as a value."""

    file_name: str
    media_type: str
    content: bytes
    workflow: Workflow | None = None


Pieces = AsyncGenerator[bytes, None]
Batches = AsyncGenerator[MessageBatch, None]


class ExportStream(Struct, frozen=True, kw_only=True):
    """An exported file with streamed content."""

    file_name: str
    media_type: str
    pieces: Pieces
    workflow: Workflow | None = None


_TARGET: Final = {"shortest": 1, "longest": 4_096}
Line = Callable[[Message, bool], object]
_encoder: Final = msgspec.json.Encoder()


def _as_stored(row: Message, _: bool) -> object:
    return to_exported_message(row)


async def _family(
    owner: Owner, session_id: SessionId, tx: Tx
) -> tuple[Session, SessionState, list[SessionId]]:
    """Return a session with its state and the sessions that it has opened."""
    found = await tx.sessions.get(owner, session_id)
    if found is None:
        raise session_not_found()
    session, head = found
    children = await tx.sessions.children(head.key) if session.children else ()
    return session, head, [child.session_id for child in children]


def _tree_note(session: Session, children: Sequence[SessionId]) -> str:
    """Return where a session stands in its tree; nothing for one that stands alone."""
    notes = []
    if session.parent is not None:
        call = f" by the call {session.parent.call_id}" if session.parent.call_id else ""
        notes.append(f"Started by the session {session.parent.session_id}{call}.")
    if children:
        notes.append(f"It has started the sessions {', '.join(children)}.")
    return f"\n_{' '.join(notes)}_\n" if notes else ""


class Exports:
    """Exports sessions for their owner; read-only except for `record`."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        workflows: WorkflowTexts,
        scrubber: Callable[[], Scrubber] = Scrubber,
    ) -> None:
        self._store = store
        self._journal = journal
        self._workflows = workflows
        self._scrubber = scrubber
        # Concurrent exports would only compete for the interpreter lock and delay other requests.
        self._one_at_a_time = asyncio.Semaphore(1)

    async def export(
        self,
        owner: Owner,
        session_id: SessionId,
        form: ExportFormat,
        *,
        through: int | None = None,
        line: Line = _as_stored,
    ) -> Export:
        """Return the messages up to `through`, inherited ones first; by default all of them.

        `line` converts a message for JSONL; its second argument is whether the text was cut off.
        """
        stream = await self.stream(owner, session_id, form, through=through, line=line)
        return Export(
            file_name=stream.file_name,
            media_type=stream.media_type,
            content=b"".join([piece async for piece in stream.pieces]),
            workflow=stream.workflow,
        )

    async def stream(
        self,
        owner: Owner,
        session_id: SessionId,
        form: ExportFormat,
        *,
        through: int | None = None,
        line: Line = _as_stored,
    ) -> ExportStream:
        """Return the same file as a stream; each piece is built in a thread on demand."""
        session, head, children = await self._store.read(partial(_family, owner, session_id))
        last = head.messages if through is None else max(through, 0)
        batches = read_batches(self._store, head, 1, last)
        match form:
            case ExportFormat.JSONL:
                return _file(session, form, self._lines(batches, line))
            case ExportFormat.MARKDOWN:
                return _file(session, form, self._sections(session, batches, children))
            case ExportFormat.WORKFLOW:
                return await self._workflow(session, batches)
            case _:
                assert_never(form)

    async def record(self, owner: Owner, session_id: SessionId, target: str) -> Event:
        """Record the target of a workflow export as an event; the session is unchanged."""
        payload = SessionExported(target=require_text(target, field="target", **_TARGET))

        async def compose(writer: SessionWriter) -> Event:
            writer.add_event(payload, touch=False)
            return last_event(writer.commit())

        return await self._journal.write(owner, session_id, compose)

    async def _lines(self, batches: Batches, line: Line) -> Pieces:
        def lines(batch: MessageBatch) -> bytes:
            forms = [line(row, row.id in batch.interrupted) for row in batch.rows]
            return b"".join(self._redact_json(_encoder.encode(each)) + b"\n" for each in forms)

        async for batch in batches:
            yield await self._build(lines, batch)

    async def _sections(
        self, session: Session, batches: Batches, children: Sequence[SessionId]
    ) -> Pieces:
        def sections(batch: MessageBatch) -> bytes:
            scrubber = self._scrubber()
            texts = (scrubber.redact_and_mask(_section(row)) for row in batch.rows)
            return "".join(f"\n{text}" for text in texts).encode()

        title = " ".join((session.title or f"Session {session.id}").split())
        head = f"# {title}\n{_tree_note(session, children)}"
        yield self._scrubber().redact_and_mask(head).encode()
        async for batch in batches:
            yield await self._build(sections, batch)

    async def _workflow(self, session: Session, batches: Batches) -> ExportStream:
        scrubber = self._scrubber()
        refs = await self._workflows.refs(session.agent)

        def redact(batch: MessageBatch) -> tuple[list[Message], int]:
            # Redacted before the export, because a masked id or name would be invalid in the file.
            rows = [scrubber.redact_value(row) for row in batch.rows]
            return rows, self._workflows.size_of(rows, refs)

        rows: list[Message] = []
        size = 0
        async with aclosing(batches):
            async for batch in batches:
                more, weight = await self._build(redact, batch)
                size += weight
                self._workflows.require_size(size)
                rows += more
        made, text = await self._build(
            lambda kept: self._workflows.text_of(scrubber.redact_value(session), kept, refs), rows
        )
        _, media_type = FILES[ExportFormat.WORKFLOW]
        return ExportStream(
            file_name=made.file_name, media_type=media_type, pieces=_whole(text), workflow=made
        )

    async def _build(self, make: Callable[[U], T], rows: U) -> T:
        async with self._one_at_a_time:
            return await asyncio.to_thread(make, rows)

    def _redact_json(self, encoded: bytes) -> bytes:
        """Return JSON with secrets removed and masked."""
        scrubber = self._scrubber()
        return scrubber.mask(scrubber.redact_json(encoded))


async def _whole(text: str) -> Pieces:
    content = text.encode()
    for start in range(0, len(content), PIECE):
        yield content[start : start + PIECE]


_ROLE_TITLES: Final[Mapping[Role, str]] = {
    Role.USER: "User",
    Role.ASSISTANT: "Assistant",
    Role.TOOL_CALL: "Tool call",
    Role.TOOL_RESULT: "Tool result",
    Role.SYSTEM: "System",
}


def _file(session: Session, form: ExportFormat, pieces: Pieces) -> ExportStream:
    ending, media_type = FILES[form]
    return ExportStream(file_name=f"{session.id}.{ending}", media_type=media_type, pieces=pieces)


def _section(row: Message) -> str:
    at = row.created_at.strftime("%Y-%m-%d %H:%M:%S UTC")
    body = "\n\n".join(filter(None, map(_paragraph, row.parts)))
    return f"## {row.sequence}. {_ROLE_TITLES[row.role]} ({at})\n\n{body}\n"


def _paragraph(part: Part) -> str:
    match part:
        case Text(text=text) | Notice(text=text):
            markdown = text
        case Reasoning():
            markdown = "\n".join(f"> {line}" for line in part.text.splitlines())
        case Media():
            markdown = f"[{part.name or part.mime_type}]({part.ref})"
        case ToolCall():
            markdown = f"`{part.name}` ({part.id})\n\n{_fence(part.arguments)}"
        case ToolResult():
            markdown = _outcome(part)
        case Plan():
            markdown = "\n".join(f"- [{_mark(step.status)}] {step.text}" for step in part.steps)
        case Output():
            # The text beside it contains the value.
            markdown = ""
        case Step():
            markdown = f"Step `{part.name}`: {part.status}"
        case Withdrawn():
            markdown = describe_withdrawal(part)
        case Compaction():
            markdown = f"Summary of messages 1 to {part.dropped_through}:\n\n{part.summary}"
        case _:
            assert_never(part)
    return markdown


def _outcome(part: ToolResult) -> str:
    why = part.error.message if part.error else ""
    shown = _fence(part.result) if part.result is not None else ""
    return "\n\n".join(filter(None, [f"{part.status} ({part.call_id})", why, shown]))


def _mark(status: str) -> str:
    return "x" if status == "completed" else " "


def _fence(value: Any) -> str:
    """Return a value in a code fence longer than any fence inside it."""
    language = "" if isinstance(value, str) else "json"
    text = value if isinstance(value, str) else _indent(value)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def _indent(value: Any) -> str:
    return msgspec.json.format(_encoder.encode(value), indent=2).decode()
