"""`offline:holdfast`, the model that is always there: a handful of rules, and honest about it.

It has no knowledge, no clock and no memory beyond the request, so equal requests get equal answers.
"""

import re
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Final

import msgspec

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.models import OFFLINE, Model
from holdfast.llm.arithmetic import LONGEST, UncomputableError, UnreadableError, calculate, written
from holdfast.llm.errands import Errand, errand_of, report
from holdfast.llm.words import counted, words
from holdfast.ports import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    LlmDelta,
    LlmRequest,
    StepStop,
    Stopped,
    TextDelta,
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


class Offline:
    """Answers by rules, at once and for nothing."""

    def check(self, model: Model) -> None:
        """Refuse any other name than the one there is."""
        if model.ref != OFFLINE:
            raise Invalid(Code.MODEL_NOT_FOUND, _ONLY, {"field": "model"})

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Stream the answer word by word."""
        if request.model.ref != OFFLINE:
            yield Failed(kind=FailureKind.BAD_REQUEST, message=_ONLY)
            return
        errand = _errand(request)
        if isinstance(errand, Errand):
            for delta in _called(errand, request):
                yield delta
            return
        text = errand or answer(request)
        for word in words(text):
            yield TextDelta(text=word)
        yield Stopped(reason=StepStop.STOP, usage=counted(request, output=text))


def _errand(request: LlmRequest) -> Errand | str | None:
    """Return what tools have to do with the answer: a call, what came of one, or nothing."""
    if told := report(request):
        return told
    said = _said(request)
    newest = said[-1].rpartition("\n\n")[2] if said else ""
    return errand_of(newest, request) if len(newest) <= _RULES_LONGEST else None


def _called(errand: Errand, request: LlmRequest) -> Iterator[LlmDelta]:
    call_id = f"call_{request.ordinal}"
    arguments = msgspec.json.encode(errand.arguments).decode()
    yield CallStarted(id=call_id, name=errand.tool)
    yield CallArguments(id=call_id, text=arguments)
    yield CallEnded(id=call_id)
    yield Stopped(reason=StepStop.TOOL_USE, usage=counted(request, output=arguments))


def answer(request: LlmRequest) -> str:
    """Return what the offline model has to say; its first answer also says what it is."""
    said = _said(request)
    newest = said[-1] if said else ""
    reply = _by_rules(newest, said[:-1], request)
    if reply is None:
        reply = f"I have no rule for that. You wrote: {_short(newest)}" if newest else "I am here."
    is_first = all(message.role != "assistant" for message in request.messages)
    return f"{reply}\n\n{NOTE}" if is_first and reply != HELP else reply


def _by_rules(newest: str, earlier: list[str], request: LlmRequest) -> str | None:
    # Bounded, because a pattern may look at every character more than once.
    if len(newest) > _RULES_LONGEST:
        return None
    # What was left unanswered comes merged into one message; its last paragraph is the newest.
    for text in dict.fromkeys([newest, newest.rpartition("\n\n")[2]]):
        for pattern, rule in _RULES:
            found = _search(pattern, text)
            reply = rule(found, earlier, request) if found else None
            if reply is not None:
                return reply
    return None


def _said(request: LlmRequest) -> list[str]:
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
    # A cut expression would give a wrong answer, a date is no subtraction, a number no question.
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
    result = written(value)
    return f"{expression} {result}" if result.startswith("≈") else f"{expression} = {result}"


def _messages(_: re.Match[str], earlier: list[str], request: LlmRequest) -> str:
    mine = sum(message.role == "assistant" for message in request.messages)
    yours = len(earlier) + 1
    return f"{yours + mine} messages so far: {yours} from you, {mine} from me."


def _recalled(found: re.Match[str], earlier: list[str], _: LlmRequest) -> str:
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


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}." if count == 1 else f"{count} {noun}s."


_Rule = Callable[[re.Match[str], list[str], LlmRequest], str | None]


def _on_text(change: Callable[[str], str]) -> _Rule:
    return lambda found, _, __: change(_short(found["text"].strip()))


def _search(pattern: str, text: str) -> re.Match[str] | None:
    # Compiled when first used and then kept by `re`, because most processes never come here.
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL)


_INTRODUCTION: Final = r"\bmy name is (?P<name>[^\W\d_][\w'’-]{0,63})"
_DATE: Final = (
    r"\b(?:[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"|[0-9]{1,2}\.? (?:january|february|march|april|may|june|july|august|september|october"
    r"|november|december)(?: [0-9]{4})?)\b"
)
_SUM: Final = r"(?P<sum>(?:plus|minus|times|divided by|[-0-9.+*/%()^×÷− ]){1,201})"

# The first rule that has an answer gives it, so the narrow ones stand above the wide ones.
_RULES: Final[tuple[tuple[str, _Rule], ...]] = (
    (r"\A(?:/?help|what can you do)[\s?!.]*\Z", lambda *_: HELP),
    (
        r"\A(?:hello|hi|hey|good (?:morning|afternoon|evening))\b[^\n]{0,40}\Z",
        lambda *_: "Hello! I am Holdfast's offline model.",
    ),
    (r"\Arepeat after me:(?P<text>.*)", _on_text(lambda text: text or "…")),
    (
        r"\Acount (?:the )?words:(?P<text>.*)",
        lambda found, *_: _counted(len(found["text"].split()), "word"),
    ),
    (
        r"\Acount (?:the )?letters:(?P<text>.*)",
        lambda found, *_: _counted(_letters(found["text"]), "letter"),
    ),
    (r"\Areverse:(?P<text>.*)", _on_text(lambda text: text[::-1])),
    (r"\Aupper ?case:(?P<text>.*)", _on_text(str.upper)),
    (r"\Alower ?case:(?P<text>.*)", _on_text(str.lower)),
    (
        r"\Asort:(?P<text>.*)",
        _on_text(lambda text: " ".join(sorted(text.split(), key=str.casefold))),
    ),
    (r"\bhow many messages\b", _messages),
    (r"\bwhat did i say (?P<which>first|last|before)\b", _recalled),
    (r"\b(?:what is|what's) my name\b", _name),
    (
        _INTRODUCTION,
        lambda found, *_: f"Hello {found['name']}, I will find that as long as it is in here.",
    ),
    (rf"\b(?:what is|what's|how much is|calculate|compute|work out):? {_SUM}", _sum),
    (rf"\A{_SUM}[=?\s]*\Z", _sum),
    (r"\b(?:what|which) (?:day|date|time|year)\b|\bwhat is the (?:date|time)\b", _date),
)
