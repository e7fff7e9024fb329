"""Steps of a script in which an agent asks us for something, and the answers to it."""

from typing import Any

from holdfast.domain.approvals import ApprovalScope, ApprovalState, Decision
from tests.acp.harness import END

YES = Decision(state=ApprovalState.ALLOWED, by="me")
NAY = Decision(state=ApprovalState.DENIED, by="me")
EVER = Decision(state=ApprovalState.ALLOWED, by="me", scope=ApprovalScope.SESSION)

ONCE = {"optionId": "yes", "name": "Yes", "kind": "allow_once"}
ALWAYS = {"optionId": "ever", "name": "Always", "kind": "allow_always"}
NO = {"optionId": "no", "name": "No", "kind": "reject_once"}
NEVER = {"optionId": "never", "name": "Never", "kind": "reject_always"}
ALL = [ONCE, ALWAYS, NO, NEVER]
CANCELLED = {"outcome": {"outcome": "cancelled"}}


def chosen(id_: str) -> dict[str, Any]:
    """Return the answer that selects an option."""
    return {"outcome": {"outcome": "selected", "optionId": id_}}


def prompt(*steps: Any) -> dict[str, Any]:
    """Return a script whose prompt does these steps and ends."""
    return {"session/prompt": [*steps, END]}


def turns(*steps: list[Any]) -> dict[str, Any]:
    """Return a script whose prompts do these steps, one list after the other."""
    return {"session/prompt": [[*each, END] for each in steps]}


def does(method: str, name: str = "it", *, wait: bool = True, **params: Any) -> dict[str, Any]:
    """Return the step that asks us for something."""
    told = {"sessionId": "$session", **params}
    return {"ask": {"method": method, "params": told, "as": name, "wait": wait}}


def write(path: object, content: str = "x", name: str = "write", **more: Any) -> dict[str, Any]:
    """Return the step that has us write a file."""
    return does("fs/write_text_file", name, path=str(path), content=content, **more)


def command(name: str, *argv: str, **more: Any) -> dict[str, Any]:
    """Return the step that has us run a command; its terminal is `$name` afterwards."""
    step = does("terminal/create", name, command=argv[0], args=list(argv[1:]), **more)
    step["ask"]["save"] = {name: "terminalId"}
    return step


def runs(line: str, name: str, **more: Any) -> dict[str, Any]:
    """Return the step that has a line of shell run; its terminal is `$name` afterwards."""
    return command(name, "sh", "-c", line, **more)


def asking(
    options: list[dict[str, Any]] | None = None, *, name: str = "asked", **call: Any
) -> dict[str, Any]:
    """Return the step that asks for a permission."""
    told = {"toolCallId": f"call-{name}", "title": "Run it", "kind": "execute",
            "rawInput": {"command": "make"}, **call}  # fmt: skip
    options = ALL if options is None else options
    return does("session/request_permission", name, toolCall=told, options=options)


def beside(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step that asks and does not wait."""
    return {"ask": {**step["ask"], "wait": False}}
