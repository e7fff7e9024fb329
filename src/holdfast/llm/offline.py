"""`offline:holdfast`, a rule-based model without key or network, for a first try and for tests.

It matches patterns and has no knowledge; its first answer states that.
"""

import ast
import operator
import re
import shlex
from collections.abc import AsyncGenerator, Callable, Mapping
from fractions import Fraction
from typing import Any, Final

import msgspec

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.models import OFFLINE, Model
from holdfast.llm.text_chunks import count_usage, split_words
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    LlmDelta,
    LlmMessage,
    LlmRequest,
    LlmTextDelta,
    StepStop,
    Stopped,
)

_KEYS: Final = (
    "For a language model set OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY and "
    "HOLDFAST_MODEL=provider:name."
)
NOTE: Final = (
    f"(I am Holdfast's offline model and follow a few rules; say help to see them. {_KEYS})"
)
HELP: Final = f"""I am Holdfast's offline model: a few rules, no knowledge, no network. I can
- calculate with + - * / and parentheses: What is (3.5*4)/2?
- repeat after me: a text
- count the words: a text
- tell how many messages this conversation has
- tell what you said first, or before
- tell your name, once you have said: my name is …
- with tools: read FILE, list FOLDER, search for TEXT in FOLDER, write FILE: a text, git status,
  run COMMAND, fetch URL

{_KEYS}"""
_ONLY: Final = f"There is one offline model, {OFFLINE}; choose that."
_ECHO_LONGEST: Final = 2_000
# A pattern may scan every character more than once.
_RULES_LONGEST: Final = 10_000
Arguments = dict[str, Any]


class OfflineToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a sentence requests."""

    tool: str
    arguments: Arguments


class OfflineModel:
    """Answers by rules, immediately and without cost."""

    def check(self, model: Model) -> None:
        """Raise `Invalid` for any other model name."""
        if model.ref != OFFLINE:
            raise Invalid(Code.MODEL_NOT_FOUND, _ONLY, {"field": "model"})

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Stream the answer word by word."""
        if request.model.ref != OFFLINE:
            yield Failed(kind=FailureKind.BAD_REQUEST, message=_ONLY)
            return
        reply = _report_results(request) or match_tool_call(_user_texts(request)[-1], request)
        if isinstance(reply, OfflineToolCall):
            arguments = msgspec.json.encode(reply.arguments).decode()
            call_id = f"call_{request.ordinal}"
            yield CallStarted(id=call_id, name=reply.tool)
            yield CallArguments(id=call_id, text=arguments)
            yield CallEnded(id=call_id)
            yield Stopped(reason=StepStop.TOOL_USE, usage=count_usage(request, output=arguments))
            return
        text = reply or answer(request)
        for word in split_words(text):
            yield LlmTextDelta(text=word)
        yield Stopped(reason=StepStop.STOP, usage=count_usage(request, output=text))


def _user_texts(request: LlmRequest) -> list[str]:
    return [each.text.strip() for each in request.messages if each.role == "user"] or [""]


def answer(request: LlmRequest) -> str:
    """Return the answer of the rules; the first one also says what the model is."""
    *earlier, newest = _user_texts(request)
    reply = _by_rules(newest, earlier, request) if len(newest) <= _RULES_LONGEST else None
    if reply is None:
        reply = f"I have no rule for that. You wrote: {_short(newest)}" if newest else "I am here."
    is_first = all(message.role != "assistant" for message in request.messages)
    return f"{reply}\n\n{NOTE}" if is_first and reply != HELP else reply


def _by_rules(newest: str, earlier: list[str], request: LlmRequest) -> str | None:
    # Unanswered messages arrive merged into one; its last paragraph is the newest.
    for text in dict.fromkeys([newest, newest.rpartition("\n\n")[2]]):
        for pattern, rule in _RULES:
            found = re.search(pattern, text, re.IGNORECASE | re.DOTALL)
            reply = rule(found, earlier, request) if found else None
            if reply is not None:
                return reply
    return None


def _short(text: str) -> str:
    return text if len(text) <= _ECHO_LONGEST else f"{text[:_ECHO_LONGEST]}…"


def _sum(found: re.Match[str], *_: object) -> str | None:
    expression = found["sum"].strip()
    try:
        tree = ast.parse(expression, mode="eval").body
        # A plain number is not a question.
        value = _value(tree) if isinstance(tree, ast.BinOp) else None
    except ZeroDivisionError:
        return f"I cannot work out {expression}: nothing can be divided by zero."
    except (SyntaxError, KeyError, ValueError, RecursionError, MemoryError):
        return None
    if value is None:
        return None
    result = f"{float(value):.12g}" if value.denominator > 1 else str(value)
    return f"{expression} {'=' if Fraction(result) == value else '≈'} {result}"


def _value(node: ast.expr) -> Fraction:
    """Return the exact value of + - * / and numbers; raises `ValueError` for anything else."""
    match node:
        case ast.BinOp(left, operation, right):
            value: Fraction = _OPERATIONS[type(operation)](_value(left), _value(right))
            return value
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand)
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
    raise ValueError("not arithmetic")


_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _messages(_: object, earlier: list[str], request: LlmRequest) -> str:
    mine = sum(message.role == "assistant" for message in request.messages)
    yours = len(earlier) + 1
    return f"{yours + mine} messages so far: {yours} from you, {mine} from me."


def _recall(found: re.Match[str], earlier: list[str], _: object) -> str:
    if not earlier:
        return "You have said nothing before this."
    return f"You said: {_short(earlier[0 if found['which'].lower() == 'first' else -1])}"


def _name(_: object, earlier: list[str], __: object) -> str:
    for text in reversed(earlier):
        if found := re.search(_INTRODUCTION, text[:_RULES_LONGEST], re.IGNORECASE):
            return f"You said your name is {found['name']}."
    return "I do not know it; say: my name is …"


def _word_count(found: re.Match[str], *_: object) -> str:
    count = len(found["text"].split())
    return "1 word." if count == 1 else f"{count} words."


_Rule = Callable[[re.Match[str], list[str], LlmRequest], str | None]
_INTRODUCTION: Final = r"\bmy name is (?P<name>[^\W\d_][\w'’-]{0,63})"
# The first rule with an answer wins.
_RULES: Final[tuple[tuple[str, _Rule], ...]] = (
    (r"\A(?:/?help|what can you do)[\s?!.]*\Z", lambda *_: HELP),
    (
        r"\A(?:hello|hi|hey|good (?:morning|afternoon|evening))\b[^\n]{0,40}\Z",
        lambda *_: "Hello! I am Holdfast's offline model.",
    ),
    (r"\Arepeat after me:(?P<text>.*)", lambda found, *_: _short(found["text"].strip()) or "…"),
    (r"\Acount the words:(?P<text>.*)", _word_count),
    (r"\bhow many messages\b", _messages),
    (r"\bwhat did i say (?P<which>first|last|before)\b", _recall),
    (r"\bwhat is my name\b", _name),
    (
        _INTRODUCTION,
        lambda found, *_: f"Hello {found['name']}, I will find that as long as it is in here.",
    ),
    # Not a date, which would be read as a difference.
    (r"\A(?:what is |calculate )?(?!\d{4}-\d\d-)(?P<sum>[-+*/(). 0-9]{3,200}?)[=?.\s]*\Z", _sum),
)


def match_tool_call(text: str, request: LlmRequest) -> OfflineToolCall | str | None:
    """Return the call that a text requests, or a message if its tool is not available."""
    newest = text.rpartition("\n\n")[2].strip()
    if len(newest) > _RULES_LONGEST:
        return None
    for pattern, tool, arguments in _TOOL_PATTERNS:
        found = re.fullmatch(pattern, newest, re.IGNORECASE | re.DOTALL)
        wanted = arguments(found) if found else None
        if wanted is None:
            continue
        if any(offered.name == tool for offered in request.tools):
            return OfflineToolCall(tool=tool, arguments=wanted)
        return f"I have no tool for that here. {_REMEDIES.get(tool, '')}".strip()
    return None


def _command_arguments(found: re.Match[str]) -> Arguments | None:
    try:
        command, *words = shlex.split(found["line"])
    except ValueError:
        return None
    return {"command": command, "args": words}


def _search_arguments(found: re.Match[str]) -> Arguments:
    # Literal search, because users of this model do not expect a regular expression.
    return {"pattern": re.escape(found["what"].strip()), "path": found["where"] or "."}


_PLACE: Final = r"(?P<where>\S+)"
_TOOL_PATTERNS: Final[tuple[tuple[str, str, Callable[[re.Match[str]], Arguments | None]], ...]] = (
    (rf"(?:read|show)(?: file)? {_PLACE}", "read_file", lambda found: {"path": found["where"]}),
    (rf"list(?: {_PLACE})?", "list_directory", lambda found: {"path": found["where"] or "."}),
    (rf"search for (?P<what>.+?)(?: in {_PLACE})?", "find_text", _search_arguments),
    (
        rf"write {_PLACE}:(?P<text>.*)",
        "write_file",
        lambda found: {"path": found["where"], "content": found["text"].strip() + "\n"},
    ),
    (r"git (?P<show>status|log|diff)", "git_status", lambda found: {"show": found["show"]}),
    (r"run (?P<line>.+)", "run_command", _command_arguments),
    (r"fetch (?P<url>https://\S+)", "http_request", lambda found: {"url": found["url"]}),
)
_LIST_FIRST: Final = (
    "List the {} of holdfast.toml first, and in the agent's grant if it has one of its own."
)
_REMEDIES: Final[Mapping[str, str]] = {
    "run_command": _LIST_FIRST.format("command in [chat].allowed_commands"),
    "http_request": _LIST_FIRST.format("host in [chat].allowed_domains"),
}


def _report_results(request: LlmRequest) -> str | None:
    """Return an answer from the newest tool results; None if the last message is a user's."""
    results: list[str] = []
    for message in reversed(request.messages):
        if message.role != "tool":
            break
        results.insert(0, _result_text(message))
    return "\n\n".join(results) or None


def _result_text(result: LlmMessage) -> str:
    if result.is_error:
        return f"I could not do that: {result.text}"
    try:
        report = _REPORTS[result.name or ""]
        return report(msgspec.json.decode(result.text))
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        # A truncated or foreign result is shown as it is.
        return result.text


def _report_file(result: Mapping[str, Any]) -> str:
    shown = f"lines {result['start_line']} to {result['end_line']} of {result['total_lines']}"
    return f"{shown}:\n\n{result['content']}"


def _report_listing(result: Mapping[str, Any]) -> str:
    entries = [f"{each['path']}{'/' * (each['type'] == 'directory')}" for each in result["entries"]]
    withheld = f"\n({result['withheld']} more are protected.)" if result.get("withheld") else ""
    return ("\n".join(entries) or "Nothing is there.") + withheld


def _report_matches(result: Mapping[str, Any]) -> str:
    lines = [f"{each['path']}:{each['line']}: {each['text']}" for each in result["matches"]]
    return "\n".join(lines) or "I found nothing."


def _report_command(result: Mapping[str, Any]) -> str:
    output = f"{result['stdout']}{result['stderr']}".strip()
    return f"It ended with {result['exit_code']}.\n\n{output}".strip()


_REPORTS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "read_file": _report_file,
    "list_directory": _report_listing,
    "find_text": _report_matches,
    "write_file": lambda found: f"I wrote {found['bytes_written']} bytes to {found['path']}.",
    "run_command": _report_command,
    "git_status": _report_command,
    "http_request": lambda found: f"The answer is {found['status']}:\n\n{found['body']}",
}
