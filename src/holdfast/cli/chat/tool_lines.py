"""Tool calls in one line each, and the recorded result of a call."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.domain.calls import Call, CallState
from holdfast.domain.messages import ResultStatus, ToolError, ToolResult
from holdfast.domain.text import one_line

if TYPE_CHECKING:
    from holdfast.api import Holdfast


ARGUMENT_LONGEST: Final = 200
SUMMARY_LONGEST: Final = 120
REASON_LONGEST: Final = 1_000
Values = Mapping[str, Any]


def call_line(name: str, arguments: Values) -> str:
    """Return the tool and its main argument: a path, a command, a URL."""
    tell = _ESSENTIALS.get(name)
    try:
        said = tell(arguments) if tell else _compact(arguments)
    # A model may omit required arguments; the call is refused, and shown with what it has.
    except (KeyError, StopIteration, TypeError):
        said = _compact(arguments)
    return f"{name} {one_line(said, longest=ARGUMENT_LONGEST)}".strip()


def outcome(name: str, status: ResultStatus, result: Any, error: ToolError | None) -> str:
    """Return the outcome of a call, with the reason if it failed."""
    if error is not None:
        return f"{status} ({error.code}): {one_line(error.message, longest=REASON_LONGEST)}"
    summary = one_line(_summary(name, result), longest=SUMMARY_LONGEST)
    return f"{status}, {summary}" if summary else status.value


def _summary(name: str, result: Any) -> str:
    tell = _SUMMARIES.get(name)
    try:
        return tell(result) if tell else _compact(result)
    except (KeyError, TypeError):
        # A truncated result has another form.
        return _compact(result)


def _compact(value: Any) -> str:
    if value is None or value == {}:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _command(arguments: Values) -> str:
    import shlex

    return shlex.join([arguments["command"], *arguments.get("args", ())])


def _pluralize(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _exit_summary(result: Values) -> str:
    late = ", stopped by the timeout" if result.get("timed_out") else ""
    return f"exit code {result['exit_code']}{late}"


def _path(arguments: Values) -> str:
    return str(arguments["path"])


def _acp_call(arguments: Values) -> str:
    """Return what an external agent does, by its first known field."""
    found = next(
        arguments[name] for name in _MAIN_ARGUMENTS if isinstance(arguments.get(name), str)
    )
    return str(found)


_MAIN_ARGUMENTS: Final = ("command", "file_path", "filePath", "path", "url", "query", "title")
# Kinds of calls: most ACP agents name no tool.
_KINDS: Final = ("delete", "edit", "execute", "fetch", "move", "other", "read", "search", "think")
_ESSENTIALS: Final[Mapping[str, Callable[[Values], str]]] = {
    "read_file": _path,
    "list_directory": lambda given: str(given.get("path", ".")),
    "find_text": lambda given: f"{given['pattern']} in {given.get('path', '.')}",
    "write_file": _path,
    "edit_file": _path,
    "git_status": lambda given: str(given.get("show", "status")),
    "git_commit": lambda given: str(given["message"]).partition("\n")[0],
    "run_command": _command,
    "http_request": lambda given: f"{given.get('method', 'GET')} {given['url']}",
    **dict.fromkeys((*_KINDS, "fs.write_text_file", "terminal.create"), _acp_call),
}
_SUMMARIES: Final[Mapping[str, Callable[[Values], str]]] = {
    "read_file": lambda found: (
        f"lines {found['start_line']} to {found['end_line']} of {found['total_lines']}"
    ),
    "list_directory": lambda found: _pluralize(len(found["entries"]), "entry", "entries"),
    "find_text": lambda found: _pluralize(len(found["matches"]), "match", "matches"),
    "write_file": lambda found: _pluralize(found["bytes_written"], "byte", "bytes") + " written",
    "edit_file": lambda found: _pluralize(found["replaced"], "place", "places") + " changed",
    "git_status": _exit_summary,
    "run_command": _exit_summary,
    "http_request": lambda found: f"status {found['status']}",
}


async def result_of(holdfast: "Holdfast", call: Call) -> ToolResult | None:
    """Return the result of a call, if it has one."""
    number = call.result_sequence
    if number is None:
        return None
    page = await holdfast.messages.list(holdfast.owner, call.session_id, after=number - 1, limit=1)
    parts = [part for message in page.items for part in message.parts]
    return next((part for part in parts if isinstance(part, ToolResult)), None)


async def call_status(holdfast: "Holdfast", call: Call) -> str:
    """Return the state of a call, including failed and never run."""
    if call.settlement is not None:
        return call.settlement.value
    if call.state is not CallState.FINISHED:
        return call.state.value
    result = await result_of(holdfast, call)
    if result is None or result.status is ResultStatus.OK:
        return call.state.value
    return result.status.value
