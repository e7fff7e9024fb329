"""What the fake model answers: the words of the prompt decide.

`use tool`, `write`, `slow`, `think`, `error 401`, `hang`, `break` and `huge` are the words, and
anything else is answered with five short pieces. A command or a path follows its word on the same
line: `use tool: touch here`, `write: /srv/file`.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.ports.llm import StepStop
from tests.interop.asked import Asked, Tool
from tests.llm.dialects import Call, Saying, Thought

SHELLS: Final = ("bash", "Bash", "run_shell_command", "shell", "exec_command", "terminal")
SHELLS_MORE: Final = ("execute", "shell_command", "local_shell", "container.exec")
WRITERS: Final = ("write", "Write", "write_file", "create_file", "write_to_file")
COMMAND: Final = "touch made-by-a-tool"
SLOW_PIECES: Final = 100
SLOW_SECONDS: Final = 0.3
HUGE: Final = 1 << 20

_TOOL: Final = re.compile(r"\buse tool\b(?:: *(?P<command>[^\n]+))?")
_WRITE: Final = re.compile(r"\bwrite\b(?:: *(?P<path>\S+))?")
_ERROR: Final = re.compile(r"\berror (?P<status>401|429|500)\b")


@dataclass(frozen=True)
class Answer:
    """What is said, and how: a pause before each piece, and an end that need not come.

    `end` is `whole`, `cut` (the connection closes in the middle) or `hang` (nothing follows).
    """

    saying: Saying = field(default_factory=Saying)
    pause: float = 0.0
    end: str = "whole"
    # An HTTP status instead of an answer.
    refusal: int | None = None


def answer_to(asked: Asked) -> Answer:
    """Return the answer that the prompt's words ask for."""
    if asked.answer_schema is not None:
        return _told(json.dumps(value_of(asked.answer_schema)))
    prompt = asked.prompt
    if found := _ERROR.search(prompt):
        return Answer(refusal=int(found["status"]))
    if found := _TOOL.search(prompt):
        return _after(asked) or _called(asked, SHELLS + SHELLS_MORE, found["command"] or COMMAND)
    if found := _WRITE.search(prompt):
        return _after(asked) or _called(asked, WRITERS, found["path"] or "written-by-a-tool")
    return _spoken(prompt)


def _spoken(prompt: str) -> Answer:
    def has(word: str) -> bool:
        return re.search(rf"\b{word}\b", prompt) is not None

    if has("slow"):
        pieces = tuple(f"piece {number} " for number in range(SLOW_PIECES))
        return Answer(Saying(text=pieces), pause=SLOW_SECONDS)
    if has("hang"):
        return Answer(Saying(text=("before ", "the silence")), end="hang")
    if has("break"):
        return Answer(Saying(text=("before ", "the break ", "and after")), end="cut")
    if has("huge"):
        return _told("x" * HUGE)
    if has("think"):
        thought = Thought(("Let me ", "see."), "signed")
        return Answer(Saying(thoughts=(thought,), text=("Thought ", "about ", "it.")))
    return Answer(Saying(text=("One, ", "two, ", "three, ", "four, ", "five.")))


def _told(text: str) -> Answer:
    return Answer(Saying(text=(text,)))


def _after(asked: Asked) -> Answer | None:
    """Return what is said once the tool was used, whatever came of it."""
    return _told("The tool was used.") if asked.has_result else None


def _called(asked: Asked, names: tuple[str, ...], subject: str) -> Answer:
    offered = {tool.name: tool for tool in asked.tools}
    tool = next((offered[name] for name in names if name in offered), None)
    if tool is None:
        return _told("No such tool is offered.")
    text = json.dumps(arguments_of(tool, subject))
    half = len(text) // 2
    call = Call(id="call_1", name=tool.name, pieces=(text[:half], text[half:]))
    return Answer(Saying(text=("Let me do that.",), calls=(call,), stop=StepStop.TOOL_USE))


def arguments_of(tool: Tool, subject: str) -> dict[str, Any]:
    """Return arguments that fit the tool's schema and are about the command or the file."""
    known = tool.schema.get("properties") or {}
    given = {name: value_of(known.get(name) or {}) for name in tool.schema.get("required") or ()}
    for name, schema in known.items():
        if name in {"command", "cmd"}:
            given[name] = ["bash", "-lc", subject] if _is_list(schema) else subject
        elif name in {"file_path", "filePath", "path"}:
            given[name] = subject
        elif name in {"content", "contents"}:
            given[name] = "written by a tool\n"
        # Asks to leave the program's own sandbox, so that a person is asked first.
        elif name == "sandbox_permissions":
            given |= {name: "require_escalated", "justification": "as asked"}
    return given


def value_of(schema: dict[str, Any]) -> Any:
    """Return some value that fits a schema."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    name = str(kind[0] if isinstance(kind, list) else kind or "string").lower()
    if name == "object":
        known = schema.get("properties") or {}
        return {each: value_of(known.get(each) or {}) for each in schema.get("required") or known}
    simple: dict[str, Any] = {"array": [], "number": 1, "integer": 1, "boolean": False}
    return simple.get(name, "as asked")


def _is_list(schema: dict[str, Any]) -> bool:
    return str(schema.get("type", "")).lower() == "array"
