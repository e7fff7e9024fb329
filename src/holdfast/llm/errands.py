"""Errands: what the offline model does with tools, by rules as simple as its others.

A sentence becomes one call, and its result becomes the answer; no sentence becomes two calls.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.ports import LlmMessage, LlmRequest

Arguments = dict[str, Any]


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a sentence asks for."""

    tool: str
    arguments: Arguments


def errand_of(text: str, request: LlmRequest) -> Errand | str | None:
    """Return the call that a text asks for; a sentence where its tool is not at hand."""
    for pattern, tool, arguments in _ERRANDS:
        found = re.fullmatch(pattern, text.strip(), re.IGNORECASE | re.DOTALL)
        wanted = arguments(found) if found else None
        if wanted is None:
            continue
        if any(offered.name == tool for offered in request.tools):
            return Errand(tool=tool, arguments=wanted)
        return f"I have no tool for that here. {_REMEDIES.get(tool, '')}".strip()
    return None


def report(request: LlmRequest) -> str | None:
    """Return the answer that the newest results make; nothing when a person spoke last."""
    results: list[LlmMessage] = []
    for message in reversed(request.messages):
        if message.role != "tool":
            break
        results.append(message)
    return "\n\n".join(_told(result) for result in reversed(results)) or None


def _told(result: LlmMessage) -> str:
    if result.is_error:
        return f"I could not do that: {result.text}"
    try:
        found = msgspec.json.decode(result.text)
    except msgspec.DecodeError:
        return result.text
    tell = _REPORTS.get(result.name or "")
    try:
        return tell(found) if tell else result.text
    except (KeyError, TypeError, AttributeError):
        # A result that was cut, or that is not ours: better as it is than not at all.
        return result.text


def _read(found: Mapping[str, Any]) -> str:
    shown = f"lines {found['start_line']} to {found['end_line']} of {found['total_lines']}"
    return f"{shown}:\n\n{found['content']}"


def _listed(found: Mapping[str, Any]) -> str:
    entries = [
        f"{entry['path']}{'/' if entry['type'] == 'directory' else ''}"
        for entry in found["entries"]
    ]
    withheld = f"\n({found['withheld']} more are protected.)" if found.get("withheld") else ""
    return ("\n".join(entries) or "Nothing is there.") + withheld


def _matched(found: Mapping[str, Any]) -> str:
    lines = [f"{each['path']}:{each['line']}: {each['text']}" for each in found["matches"]]
    return "\n".join(lines) or "I found nothing."


def _ran(found: Mapping[str, Any]) -> str:
    said = f"{found['stdout']}{found['stderr']}".strip()
    return f"It ended with {found['exit_code']}.\n\n{said}".strip()


_REPORTS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "read_file": _read,
    "list_directory": _listed,
    "find_text": _matched,
    "write_file": lambda found: f"I wrote {found['bytes_written']} bytes to {found['path']}.",
    "run_command": _ran,
    "git_status": _ran,
    "http_request": lambda found: f"The answer is {found['status']}:\n\n{found['body']}",
}

_REMEDIES: Final[Mapping[str, str]] = {
    "run_command": "List the command in [chat].allowed_commands of holdfast.toml first, and in the "
    "agent's grant if it has one of its own.",
    "http_request": "List the host in [chat].allowed_domains of holdfast.toml first, and in the "
    "agent's grant if it has one of its own.",
}


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _command(found: re.Match[str]) -> Arguments | None:
    words = _words(found["line"])
    return {"command": words[0], "args": words[1:]} if words else None


def _searched(found: re.Match[str]) -> Arguments:
    # Taken by the letter: whoever asks a few rules for something does not mean a pattern.
    return {"pattern": re.escape(found["what"].strip()), "path": found["where"] or "."}


_PLACE: Final = r"(?P<where>\S+)"
_ERRANDS: Final[tuple[tuple[str, str, Callable[[re.Match[str]], Arguments | None]], ...]] = (
    (
        rf"(?:read|show|open|print)(?: me)?(?: the)?(?: file)? {_PLACE}",
        "read_file",
        lambda found: {"path": found["where"]},
    ),
    (
        rf"(?:list|ls)(?: the)?(?: files| folder| directory)?(?: (?:in |of )?{_PLACE})?",
        "list_directory",
        lambda found: {"path": found["where"] or "."},
    ),
    (
        rf"(?:search(?: for)?|find|grep) (?P<what>.+?)(?: in {_PLACE})?",
        "find_text",
        _searched,
    ),
    (
        rf"write(?: to)?(?: the)?(?: file)? {_PLACE}:(?P<text>.*)",
        "write_file",
        lambda found: {"path": found["where"], "content": found["text"].strip() + "\n"},
    ),
    (r"git (?P<show>status|log|diff)", "git_status", lambda found: {"show": found["show"]}),
    (r"(?:run|execute):? (?P<line>.+)", "run_command", _command),
    (r"(?:fetch|get) (?P<url>https://\S+)", "http_request", lambda found: {"url": found["url"]}),
)
