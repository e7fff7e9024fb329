"""Tool calls as a client shows them: a title, a kind, the files they touch, what came of them."""

import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.domain.messages import Location, ResultStatus, ToolCall, ToolError

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
# Where the words of a result are, if it has any.
_WORDS: Final = ("content", "text", "output", "stdout", "stderr", "body", "diff")


def call_form(call: ToolCall, folder: str) -> Form:
    """Return what a client is told of a call; paths are absolute, those of ours by the folder."""
    form: Form = {
        "title": call.title or title_of(call.name, call.arguments),
        "kind": call.kind if call.kind in KINDS else kind_of(call.name),
        "rawInput": call.arguments,
    }
    if found := _locations(call, folder):
        form["locations"] = found
    return form


def result_form(status: ResultStatus, result: Any, error: ToolError | None) -> Form:
    """Return what a client is told of a result; what did not come out well has failed."""
    form: Form = {"status": "completed" if status is ResultStatus.OK else "failed"}
    if result is not None:
        form["rawOutput"] = result
    words = error.message if error is not None else _words(result)
    if not words and status is ResultStatus.UNKNOWN:
        words = "Whether this was done is not known."
    if words:
        form["content"] = [text_item(words)]
    return form


def text_item(text: str) -> Form:
    """Return words as the content of a call."""
    return {"type": "content", "content": {"type": "text", "text": text}}


def kind_of(name: str) -> str:
    """Return the protocol's word for what a tool does."""
    return name if name in KINDS else _OWN_KINDS.get(name, "other")


def title_of(name: str, arguments: Values) -> str:
    """Return a call on one line."""
    tell = _TITLES.get(name)
    try:
        said = tell(arguments) if tell else name
    # A model may leave out what a tool needs; the call is refused then, and shown before.
    except (KeyError, TypeError):
        said = name
    line = " ".join(said.split())
    return line if len(line) <= TITLE_LONGEST else f"{line[: TITLE_LONGEST - 1]}…"


def _command(given: Values) -> str:
    return shlex.join([given["command"], *given.get("args", ())])


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
    places = call.locations
    path = call.arguments.get("path")
    if not places and call.name in _ABOUT_FILES and isinstance(path, str) and path:
        line = call.arguments.get("start_line")
        places = (Location(path=path, line=line if isinstance(line, int) else None),)
    found: list[Form] = []
    for place in places:
        form: Form = {"path": os.path.normpath(os.path.join(folder, place.path))}
        found.append(form if place.line is None else form | {"line": place.line})
    return found


def _words(result: Any) -> str:
    if result is None or isinstance(result, str):
        return result or ""
    if isinstance(result, dict):
        said = [result[key] for key in _WORDS if isinstance(result.get(key), str)]
        if any(said):
            return "\n".join(each for each in said if each)
    return msgspec.json.encode(result).decode()
