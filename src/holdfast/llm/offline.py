"""`offline:holdfast`, a rule-based model without key or network: arithmetic, simple tool calls.

It matches patterns and has no knowledge; its first answer states that.
"""

import re
import shlex
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from decimal import Decimal, localcontext
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
    StepStop,
    Stopped,
    TextDelta,
)

LONGEST: Final = 200
DEEPEST: Final = 32
BITS_MOST: Final = 1024
_TOKEN: Final = re.compile(r"\s*(\*\*|//|[-+*/%()]|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*")
_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]*)?(?:\.[0-9]+)?")
_SIGNIFICANT: Final = 12


class UnreadableError(ValueError):
    """The text is not an arithmetic expression."""


class UncomputableError(ValueError):
    """The expression has no result here; the message says why."""


def calculate(expression: str) -> Fraction:
    """Return the exact value of an expression; raises `UnreadableError` or `UncomputableError`."""
    reader = _Reader(_tokens(expression))
    value = reader.total(depth=0)
    reader.expect_end()
    return value


def format_number(value: Fraction) -> str:
    """Format a value: `4`, `0.25`, or rounded as `≈ 3.33333333333`."""
    if value.denominator == 1:
        return str(value.numerator)
    with localcontext(prec=_SIGNIFICANT):
        rounded = Decimal(value.numerator) / Decimal(value.denominator)
    text = str(rounded.normalize())
    return text if Fraction(rounded) == value else f"≈ {text}"


def _tokens(expression: str) -> list[str]:
    if len(expression) > LONGEST:
        raise UnreadableError
    tokens, place = [], 0
    while place < len(expression):
        found = _TOKEN.match(expression, place)
        if found is None:
            raise UnreadableError
        tokens.append(found[1])
        place = found.end()
    return tokens


class _Reader:
    """Recursive-descent parser, one method per operator precedence."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._place = 0

    def total(self, *, depth: int) -> Fraction:
        value = self._product(depth)
        while operator := self._one_of("+", "-"):
            other = self._product(depth)
            value = _limit_bits(value + other if operator == "+" else value - other)
        return value

    def expect_end(self) -> None:
        if self._place < len(self._tokens):
            raise UnreadableError

    def _product(self, depth: int) -> Fraction:
        value = self._signed(depth)
        while operator := self._one_of("*", "//", "/", "%"):
            value = _limit_bits(_multiply(value, operator, self._signed(depth)))
        return value

    def _signed(self, depth: int) -> Fraction:
        sign = 1
        while operator := self._one_of("+", "-"):
            sign = -sign if operator == "-" else sign
        return sign * self._power(depth)

    def _power(self, depth: int) -> Fraction:
        value = self._atom(depth)
        # Right-associative, and the exponent may have a sign.
        return _raise_power(value, self._signed(depth + 1)) if self._one_of("**") else value

    def _atom(self, depth: int) -> Fraction:
        if depth > DEEPEST:
            raise UncomputableError("it is nested too deeply for me")
        if self._one_of("("):
            value = self.total(depth=depth + 1)
            if not self._one_of(")"):
                raise UnreadableError
            return value
        return self._number()

    def _number(self) -> Fraction:
        token = self._tokens[self._place] if self._place < len(self._tokens) else ""
        if not token or not _NUMBER.fullmatch(token):
            raise UnreadableError
        self._place += 1
        return Fraction(token)

    def _one_of(self, *operators: str) -> str | None:
        if self._place == len(self._tokens) or self._tokens[self._place] not in operators:
            return None
        self._place += 1
        return self._tokens[self._place - 1]


def _multiply(value: Fraction, operator: str, other: Fraction) -> Fraction:
    if operator == "*":
        return value * other
    if not other:
        raise UncomputableError("nothing can be divided by zero")
    if operator == "/":
        return value / other
    return Fraction(value // other) if operator == "//" else value % other


def _raise_power(value: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise UncomputableError("I only know whole exponents")
    if not value and exponent < 0:
        raise UncomputableError("nothing can be divided by zero")
    # Estimated first, because computing a huge power would take too long.
    if (_bits(value) - 1) * abs(exponent.numerator) > BITS_MOST:
        raise UncomputableError(_TOO_LARGE)
    return _limit_bits(Fraction(value**exponent.numerator))


def _limit_bits(value: Fraction) -> Fraction:
    if _bits(value) > BITS_MOST:
        raise UncomputableError(_TOO_LARGE)
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


_TOO_LARGE: Final = "the numbers become too large for me"
Arguments = dict[str, Any]


class OfflineToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a sentence requests."""

    tool: str
    arguments: Arguments


def match_tool_call(text: str, request: LlmRequest) -> OfflineToolCall | str | None:
    """Return the call that a text requests, or a message if its tool is not available."""
    for pattern, tool, arguments in _TOOL_PATTERNS:
        found = re.fullmatch(pattern, text.strip(), re.IGNORECASE | re.DOTALL)
        wanted = arguments(found) if found else None
        if wanted is None:
            continue
        if any(offered.name == tool for offered in request.tools):
            return OfflineToolCall(tool=tool, arguments=wanted)
        return f"I have no tool for that here. {_REMEDIES.get(tool, '')}".strip()
    return None


def report_results(request: LlmRequest) -> str | None:
    """Return an answer from the newest tool results; None if the last message is a user's."""
    results: list[LlmMessage] = []
    for message in reversed(request.messages):
        if message.role != "tool":
            break
        results.append(message)
    return "\n\n".join(_result_text(result) for result in reversed(results)) or None


def _result_text(result: LlmMessage) -> str:
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
        # A truncated or foreign result is shown as it is.
        return result.text


def _report_file(found: Mapping[str, Any]) -> str:
    shown = f"lines {found['start_line']} to {found['end_line']} of {found['total_lines']}"
    return f"{shown}:\n\n{found['content']}"


def _report_listing(found: Mapping[str, Any]) -> str:
    entries = [
        f"{entry['path']}{'/' if entry['type'] == 'directory' else ''}"
        for entry in found["entries"]
    ]
    withheld = f"\n({found['withheld']} more are protected.)" if found.get("withheld") else ""
    return ("\n".join(entries) or "Nothing is there.") + withheld


def _report_matches(found: Mapping[str, Any]) -> str:
    lines = [f"{each['path']}:{each['line']}: {each['text']}" for each in found["matches"]]
    return "\n".join(lines) or "I found nothing."


def _report_command(found: Mapping[str, Any]) -> str:
    said = f"{found['stdout']}{found['stderr']}".strip()
    return f"It ended with {found['exit_code']}.\n\n{said}".strip()


_REPORTS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "read_file": _report_file,
    "list_directory": _report_listing,
    "find_text": _report_matches,
    "write_file": lambda found: f"I wrote {found['bytes_written']} bytes to {found['path']}.",
    "run_command": _report_command,
    "git_status": _report_command,
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


def _command_arguments(found: re.Match[str]) -> Arguments | None:
    words = _words(found["line"])
    return {"command": words[0], "args": words[1:]} if words else None


def _search_arguments(found: re.Match[str]) -> Arguments:
    # Literal search, because users of this model do not expect a regular expression.
    return {"pattern": re.escape(found["what"].strip()), "path": found["where"] or "."}


_PLACE: Final = r"(?P<where>\S+)"
_TOOL_PATTERNS: Final[tuple[tuple[str, str, Callable[[re.Match[str]], Arguments | None]], ...]] = (
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
        _search_arguments,
    ),
    (
        rf"write(?: to)?(?: the)?(?: file)? {_PLACE}:(?P<text>.*)",
        "write_file",
        lambda found: {"path": found["where"], "content": found["text"].strip() + "\n"},
    ),
    (r"git (?P<show>status|log|diff)", "git_status", lambda found: {"show": found["show"]}),
    (r"(?:run|execute):? (?P<line>.+)", "run_command", _command_arguments),
    (r"(?:fetch|get) (?P<url>https://\S+)", "http_request", lambda found: {"url": found["url"]}),
)
_KEYS: Final = (
    "For a language model set OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY and "
    "HOLDFAST_MODEL=provider:name."
)
NOTE: Final = (
    f"(I am Holdfast's offline model and follow a few rules; say help to see them. {_KEYS})"
)
HELP: Final = f"""I am Holdfast's offline model: a few rules, no knowledge, no network. I can
- calculate: What is (3.5*4)/2?
- repeat after me: a text
- count the words: a text (or the letters)
- reverse: a text (or upper case, lower case, sort)
- tell how many messages this conversation has
- tell what you said first, or before
- tell your name, once you have said: my name is …
- find the date, if you have written one; I have no clock
- with tools: read FILE, list FOLDER, search for TEXT in FOLDER, write FILE: a text, git status,
  run COMMAND, fetch URL

{_KEYS}"""
_ONLY: Final = f"There is one offline model, {OFFLINE}; choose that."
_ECHO_LONGEST: Final = 2_000
_RULES_LONGEST: Final = 10_000


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
        tool_call = _tool_answer(request)
        if isinstance(tool_call, OfflineToolCall):
            for delta in _call_deltas(tool_call, request):
                yield delta
            return
        text = tool_call or answer(request)
        for word in split_words(text):
            yield TextDelta(text=word)
        yield Stopped(reason=StepStop.STOP, usage=count_usage(request, output=text))


def _tool_answer(request: LlmRequest) -> OfflineToolCall | str | None:
    """Return a tool call, the answer from tool results, or None if no tool is involved."""
    if told := report_results(request):
        return told
    said = _user_texts(request)
    newest = said[-1].rpartition("\n\n")[2] if said else ""
    return match_tool_call(newest, request) if len(newest) <= _RULES_LONGEST else None


def _call_deltas(tool_call: OfflineToolCall, request: LlmRequest) -> Iterator[LlmDelta]:
    call_id = f"call_{request.ordinal}"
    arguments = msgspec.json.encode(tool_call.arguments).decode()
    yield CallStarted(id=call_id, name=tool_call.tool)
    yield CallArguments(id=call_id, text=arguments)
    yield CallEnded(id=call_id)
    yield Stopped(reason=StepStop.TOOL_USE, usage=count_usage(request, output=arguments))


def answer(request: LlmRequest) -> str:
    """Return the answer; the first one also says what the model is."""
    said = _user_texts(request)
    newest = said[-1] if said else ""
    reply = _by_rules(newest, said[:-1], request)
    if reply is None:
        reply = f"I have no rule for that. You wrote: {_short(newest)}" if newest else "I am here."
    is_first = all(message.role != "assistant" for message in request.messages)
    return f"{reply}\n\n{NOTE}" if is_first and reply != HELP else reply


def _by_rules(newest: str, earlier: list[str], request: LlmRequest) -> str | None:
    # Length limit, because a pattern may scan every character more than once.
    if len(newest) > _RULES_LONGEST:
        return None
    # Unanswered messages arrive merged into one; its last paragraph is the newest.
    for text in dict.fromkeys([newest, newest.rpartition("\n\n")[2]]):
        for pattern, rule in _RULES:
            found = _search(pattern, text)
            reply = rule(found, earlier, request) if found else None
            if reply is not None:
                return reply
    return None


def _user_texts(request: LlmRequest) -> list[str]:
    return [message.text.strip() for message in request.messages if message.role == "user"]


def _short(text: str) -> str:
    return text if len(text) <= _ECHO_LONGEST else f"{text[:_ECHO_LONGEST]}…"


_OPERATOR_WORDS: Final = {
    "divided by": "/",
    "plus": "+",
    "minus": "-",
    "times": "*",
    "^": "**",
    "×": "*",
    "÷": "/",
    "−": "-",
}


def _sum(found: re.Match[str], _: list[str], __: LlmRequest) -> str | None:
    expression = found["sum"].lower().rstrip(" .")
    # Not for truncated expressions, dates and plain numbers, because the answer would be wrong.
    is_whole = len(found["sum"]) <= LONGEST and not _search(_DATE, expression)
    if not is_whole or re.fullmatch(r"[0-9.]*", expression):
        return None
    for word, operator in _OPERATOR_WORDS.items():
        expression = expression.replace(word, operator)
    expression = " ".join(expression.split())
    try:
        value = calculate(expression)
    except UnreadableError:
        return None
    except UncomputableError as error:
        return f"I cannot work out {expression}: {error}."
    result = format_number(value)
    return f"{expression} {result}" if result.startswith("≈") else f"{expression} = {result}"


def _messages(_: re.Match[str], earlier: list[str], request: LlmRequest) -> str:
    mine = sum(message.role == "assistant" for message in request.messages)
    yours = len(earlier) + 1
    return f"{yours + mine} messages so far: {yours} from you, {mine} from me."


def _recall(found: re.Match[str], earlier: list[str], _: LlmRequest) -> str:
    if not earlier:
        return "You have said nothing before this."
    recalled = earlier[0] if found["which"].lower() == "first" else earlier[-1]
    return f"You said: {_short(recalled)}"


def _name(_: re.Match[str], earlier: list[str], __: LlmRequest) -> str:
    for text in reversed(earlier):
        if told := _search(_INTRODUCTION, text[:_RULES_LONGEST]):
            return f"You said your name is {told['name']}."
    return "You have not told me; say: my name is …"


def _date(found: re.Match[str], _: list[str], __: LlmRequest) -> str:
    if written_date := _search(_DATE, found.string):
        return f"You wrote {written_date[0]}. I have no clock of my own."
    return "I have no clock, so I cannot tell; write the date and I will find it."


def _letters(text: str) -> int:
    return sum(character.isalpha() for character in text)


def _pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}." if count == 1 else f"{count} {noun}s."


_Rule = Callable[[re.Match[str], list[str], LlmRequest], str | None]


def _on_text(change: Callable[[str], str]) -> _Rule:
    return lambda found, _, __: change(_short(found["text"].strip()))


def _search(pattern: str, text: str) -> re.Match[str] | None:
    # Compiled at first use and cached by `re`, because most processes never use these.
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL)


_INTRODUCTION: Final = r"\bmy name is (?P<name>[^\W\d_][\w'’-]{0,63})"
_DATE: Final = (
    r"\b(?:[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"|[0-9]{1,2}\.? (?:january|february|march|april|may|june|july|august|september|october"
    r"|november|december)(?: [0-9]{4})?)\b"
)
_SUM: Final = r"(?P<sum>(?:plus|minus|times|divided by|[-0-9.+*/%()^×÷− ]){1,201})"
# The first rule with an answer wins, so specific rules come before general ones.
_RULES: Final[tuple[tuple[str, _Rule], ...]] = (
    (r"\A(?:/?help|what can you do)[\s?!.]*\Z", lambda *_: HELP),
    (
        r"\A(?:hello|hi|hey|good (?:morning|afternoon|evening))\b[^\n]{0,40}\Z",
        lambda *_: "Hello! I am Holdfast's offline model.",
    ),
    (r"\Arepeat after me:(?P<text>.*)", _on_text(lambda text: text or "…")),
    (
        r"\Acount (?:the )?words:(?P<text>.*)",
        lambda found, *_: _pluralize(len(found["text"].split()), "word"),
    ),
    (
        r"\Acount (?:the )?letters:(?P<text>.*)",
        lambda found, *_: _pluralize(_letters(found["text"]), "letter"),
    ),
    (r"\Areverse:(?P<text>.*)", _on_text(lambda text: text[::-1])),
    (r"\Aupper ?case:(?P<text>.*)", _on_text(str.upper)),
    (r"\Alower ?case:(?P<text>.*)", _on_text(str.lower)),
    (
        r"\Asort:(?P<text>.*)",
        _on_text(lambda text: " ".join(sorted(text.split(), key=str.casefold))),
    ),
    (r"\bhow many messages\b", _messages),
    (r"\bwhat did i say (?P<which>first|last|before)\b", _recall),
    (r"\b(?:what is|what's) my name\b", _name),
    (
        _INTRODUCTION,
        lambda found, *_: f"Hello {found['name']}, I will find that as long as it is in here.",
    ),
    (rf"\b(?:what is|what's|how much is|calculate|compute|work out):? {_SUM}", _sum),
    (rf"\A{_SUM}[=?\s]*\Z", _sum),
    (r"\b(?:what|which) (?:day|date|time|year)\b|\bwhat is the (?:date|time)\b", _date),
)
