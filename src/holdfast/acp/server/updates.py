"""Translates events into ACP updates: one table, the format of tool calls, and minimal state."""

import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.acp.server.content import text_block
from holdfast.domain.approvals import Approval, ApprovalState
from holdfast.domain.costs import Usage
from holdfast.domain.events import (
    ApprovalAnswered,
    Channel,
    Payload,
    PlanChanged,
    SessionCompacted,
    StepDelta,
    ToolEnded,
    ToolStarted,
)
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Location,
    Message,
    Notice,
    NoticeCode,
    PlanStep,
    ResultStatus,
    ToolCall,
    ToolError,
    ToolResult,
)

Form = dict[str, Any]
Values = Mapping[str, Any]
TITLE_LONGEST: Final = 200
KINDS: Final = frozenset(
    {"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode"}
)
_OWN_KINDS: Final[Mapping[str, str]] = {
    "read_file": "read",
    "read_output": "read",
    "list_directory": "read",
    "git_status": "read",
    "find_text": "search",
    "write_file": "edit",
    "edit_file": "edit",
    "run_command": "execute",
    "git_commit": "execute",
    "http_request": "fetch",
}
_ABOUT_FILES: Final = frozenset({"read_file", "write_file", "edit_file", "list_directory"})
# Fields of a result that may hold text.
_WORDS: Final = ("content", "text", "output", "stdout", "stderr", "body", "diff")


def tool_call_form(call: ToolCall, folder: str) -> Form:
    """Return the client's form of a call; relative paths are resolved against the folder."""
    form: Form = {
        "title": call.title or call_title(call.name, call.arguments),
        "kind": call.kind if call.kind in KINDS else tool_kind(call.name),
        "rawInput": call.arguments,
    }
    if found := _locations(call, folder):
        form["locations"] = found
    return form


def result_form(status: ResultStatus, result: Any, error: ToolError | None) -> Form:
    """Return the client's form of a result; any status but OK is `failed`."""
    form: Form = {"status": "completed" if status is ResultStatus.OK else "failed"}
    if result is not None:
        form["rawOutput"] = result
    words = error.message if error is not None else _words(result)
    if not words and status is ResultStatus.UNKNOWN:
        words = "The outcome of this call is unknown."
    if words:
        form["content"] = [text_item(words)]
    return form


def text_item(text: str) -> Form:
    """Return a text as content of a call."""
    return {"type": "content", "content": {"type": "text", "text": text}}


def tool_kind(name: str) -> str:
    """Return the protocol's tool kind for a tool."""
    return name if name in KINDS else _OWN_KINDS.get(name, "other")


def call_title(name: str, arguments: Values) -> str:
    """Return a one-line title of a call."""
    build_title = _TITLES.get(name)
    try:
        title = build_title(arguments) if build_title else name
    # A model may omit required arguments; the call is displayed before it is refused.
    except (KeyError, TypeError):
        title = name
    line = " ".join(title.split())
    return line if len(line) <= TITLE_LONGEST else f"{line[: TITLE_LONGEST - 1]}…"


def _command(arguments: Values) -> str:
    return shlex.join([arguments["command"], *arguments.get("args", ())])


_TITLES: Final[Mapping[str, Callable[[Values], str]]] = {
    "read_file": lambda given: f"Read {given['path']}",
    "list_directory": lambda given: f"List {given.get('path', '.')}",
    "find_text": lambda given: f"Find {given['pattern']} in {given.get('path', '.')}",
    "write_file": lambda given: f"Write {given['path']}",
    "edit_file": lambda given: f"Edit {given['path']}",
    "git_status": lambda given: f"git {given.get('show', 'status')}",
    "git_commit": lambda given: f"Commit: {str(given['message']).partition(chr(10))[0]}",
    "run_command": _command,
    "http_request": lambda given: f"{given.get('method', 'GET')} {given['url']}",
}


def _locations(call: ToolCall, folder: str) -> list[Form]:
    locations = call.locations
    path = call.arguments.get("path")
    if not locations and call.name in _ABOUT_FILES and isinstance(path, str) and path:
        line = call.arguments.get("start_line")
        locations = (Location(path=path, line=line if isinstance(line, int) else None),)
    found: list[Form] = []
    for location in locations:
        form: Form = {"path": os.path.normpath(os.path.join(folder, location.path))}
        found.append(form if location.line is None else form | {"line": location.line})
    return found


def _words(result: Any) -> str:
    if result is None or isinstance(result, str):
        return result or ""
    if isinstance(result, dict):
        said = [result[key] for key in _WORDS if isinstance(result.get(key), str)]
        if any(said):
            return "\n".join(each for each in said if each)
    return msgspec.json.encode(result).decode()


Update = dict[str, Any]
COMPACTED: Final = (
    "The conversation has become long: from now on its beginning is replaced by "
    "a summary. All messages are kept in the history."
)
# Only notices that a user can act on; the history holds all of them.
SHOWN_NOTICES: Final = frozenset(
    {
        NoticeCode.BUDGET,
        NoticeCode.BUDGET_WARNING,
        NoticeCode.TURN_LIMIT,
        NoticeCode.TOOL_UNAVAILABLE,
        NoticeCode.MCP_UNAVAILABLE,
        NoticeCode.UNKNOWN_VARIABLE,
        NoticeCode.AGENT_FAILED,
        NoticeCode.AGENT_SILENT,
        NoticeCode.AGENT_OPTION_REFUSED,
    }
)
_MICROCENTS: Final = 100_000_000


class UpdateTranslator:
    """Translates the events of one session into updates, in order."""

    def __init__(self, folder: str) -> None:
        """`folder` is the session's working directory, against which paths are resolved."""
        self._folder = folder
        # Calls from their rows, because start and end events have fewer details.
        self._calls: dict[CallId, ToolCall] = {}
        self._known: set[str] = set()

    def learn(self, row: Message) -> None:
        """Remember the call of a row until it has ended."""
        self._calls |= {part.id: part for part in row.parts if isinstance(part, ToolCall)}

    def of(self, payload: Payload) -> list[Update]:
        """Return the updates of an event; most events have none."""
        found: list[Update] = []
        match payload:
            case StepDelta():
                found = [_chunk(payload)]
            case ToolStarted(call_id=call_id):
                call = self._calls.get(call_id) or _started_call(payload)
                found = [self._tool_call(call, "in_progress")]
            case ToolEnded():
                found = self._result_update(payload)
            case ApprovalAnswered(call_id=None):
                found = self._close_budget_question(payload)
            case PlanChanged(steps=steps):
                found = [plan_update(steps)]
            case SessionCompacted(message_id=message_id):
                found = [message_chunk(COMPACTED, message_id)]
            case _:
                pass
        return found

    def approval_update(self, approval: Approval) -> Update:
        """Return the call of a question, with the question as its content."""
        question = approval.question
        id_ = question.call_id or approval.id
        self._known.add(id_)
        call = self._calls.get(CallId(id_)) or ToolCall(
            id=CallId(id_), name=question.tool, arguments=question.arguments
        )
        shown = tool_call_form(call, self._folder)
        content = [text_item(question.question)]
        return {"toolCallId": id_, **shown, "status": "pending", "content": content}

    def row(self, row: Message) -> list[Update]:
        """Return the updates of a row with a call, a result or a notice."""
        found: list[Update] = []
        for part in row.parts:
            match part:
                case ToolCall():
                    self.learn(row)
                    found.append(self._tool_call(part, "pending"))
                case ToolResult(call_id=id_, status=status, result=result, error=error):
                    self._calls.pop(id_, None)
                    self._known.discard(id_)
                    found.append(_call_update(id_, result_form(status, result, error)))
                case Notice(code=code, text=text) if code in SHOWN_NOTICES:
                    found.append(message_chunk(text, row.id))
                case _:
                    pass
        return found

    def _tool_call(self, call: ToolCall, status: str) -> Update:
        self._known.add(call.id)
        head = {"sessionUpdate": "tool_call", "toolCallId": call.id}
        return head | tool_call_form(call, self._folder) | {"status": status}

    def _result_update(self, ended: ToolEnded) -> list[Update]:
        done = result_form(ended.status, ended.result, ended.failure)
        call = self._calls.pop(ended.call_id, None)
        if ended.call_id in self._known:
            self._known.discard(ended.call_id)
            return [_call_update(ended.call_id, done)]
        # Refused before it began, so the client does not know the call yet.
        shown = call or ToolCall(id=ended.call_id, name=ended.name, arguments={})
        return [self._tool_call(shown, "pending"), _call_update(ended.call_id, done)]

    def _close_budget_question(self, answered: ApprovalAnswered) -> list[Update]:
        """Close a budget question, which has no call whose end would close it."""
        if answered.approval_id not in self._known:
            return []
        self._known.discard(answered.approval_id)
        is_allowed = answered.decision == ApprovalState.ALLOWED
        return [
            _call_update(answered.approval_id, {"status": "completed" if is_allowed else "failed"})
        ]


def message_chunk(text: str, message_id: str | None) -> Update:
    """Return a text chunk of the agent."""
    return _text_update("agent_message_chunk", text, message_id)


def thought_chunk(text: str, message_id: str | None) -> Update:
    """Return a reasoning chunk of the agent."""
    return _text_update("agent_thought_chunk", text, message_id)


def plan_update(steps: tuple[PlanStep, ...]) -> Update:
    """Return a whole plan, which replaces the previous one."""
    entries = [
        {"content": step.text, "priority": step.priority, "status": step.status} for step in steps
    ]
    return {"sessionUpdate": "plan", "entries": entries}


def usage_update(usage: Usage, window: int, microcents: int | None) -> Update:
    """Return the usage of the context window, and the cost of the session if it is known."""
    update: Update = {"sessionUpdate": "usage_update", "used": total_tokens(usage), "size": window}
    if microcents is not None:
        update["cost"] = {"amount": microcents / _MICROCENTS, "currency": "USD"}
    return update


def usage_form(usage: Usage) -> dict[str, int]:
    """Return the token counts of a turn."""
    return {
        "totalTokens": total_tokens(usage),
        "inputTokens": usage.input,
        "outputTokens": usage.output,
        "thoughtTokens": usage.reasoning,
        "cachedReadTokens": usage.cache_read,
        "cachedWriteTokens": usage.cache_write,
    }


def total_tokens(usage: Usage) -> int:
    """Return the total of tokens; reasoning tokens are part of the output."""
    return usage.input + usage.output + usage.cache_read + usage.cache_write


def _chunk(delta: StepDelta) -> Update:
    chunk = message_chunk if delta.channel is Channel.TEXT else thought_chunk
    return chunk(delta.text, delta.message_id)


def _text_update(kind: str, text: str, message_id: str | None) -> Update:
    update: Update = {"sessionUpdate": kind, "content": text_block(text)}
    return update if message_id is None else update | {"messageId": message_id}


def _call_update(call_id: str, done: dict[str, Any]) -> Update:
    return {"sessionUpdate": "tool_call_update", "toolCallId": call_id, **done}


def _started_call(started: ToolStarted) -> ToolCall:
    return ToolCall(id=started.call_id, name=started.name, arguments=started.arguments)
