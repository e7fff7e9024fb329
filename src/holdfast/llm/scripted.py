"""`scripted:FILE`, a model whose answers come from a validated file: for tests, demos and docs."""

import asyncio
import json
import os
import re
import stat
from bisect import bisect_left
from collections.abc import AsyncGenerator
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from holdfast.domain.costs import Usage
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.models import Model
from holdfast.llm.text_chunks import count_usage, split_pieces, split_words
from holdfast.parsing import regex as parsing_regex
from holdfast.parsing.strict_json import StrictJsonError, decode_strictly
from holdfast.parsing.yaml import DEEPEST, LARGEST, YamlError, read_yaml
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    LlmDelta,
    LlmReasoningDelta,
    LlmRequest,
    LlmTextDelta,
    ReasoningEnded,
    StepStop,
    Stopped,
)

Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Positive = Annotated[int, Meta(ge=1, le=1_000_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=3_600_000)]


class ScriptedCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call; arguments given as text are streamed unchanged, even if they are not JSON."""

    id: Annotated[str, Meta(min_length=1)] | None = None
    name: Annotated[str, Meta(min_length=1)]
    arguments: dict[str, Any] | str = {}


class ScriptedError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure of the provider."""

    kind: FailureKind
    status: Annotated[int, Meta(ge=100, le=599)] | None = None
    retry_after: Annotated[float, Meta(ge=0)] | None = None


class ScriptedUsage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The token usage that the provider reports."""

    input: Count = 0
    output: Count = 0
    cache_read: Count = 0
    cache_write: Count = 0
    reasoning: Count = 0


class ScriptedStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One response, possibly empty; an error follows after the other content."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    error: FailureKind | ScriptedError | None = None
    delay_ms: Milliseconds = 0
    chunks: Positive | None = None
    repeat: Positive = 1
    usage: ScriptedUsage | None = None


class ScriptedRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Maps a user's text to a step; the step is a number in `steps`, or inline."""

    contains: Annotated[str, Meta(min_length=1)] | None = None
    regex: str | None = None
    step: Positive | ScriptedStep


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A validated script."""

    steps: tuple[ScriptedStep, ...] = ()
    match: tuple[ScriptedRule, ...] = ()

    @cached_property
    def _ends(self) -> list[int]:
        """The last ordinal of each step."""
        return list(accumulate(step.repeat for step in self.steps))

    def step_for(self, ordinal: int) -> ScriptedStep | None:
        """Return the step for the request with this ordinal; None if no step is left."""
        place = bisect_left(self._ends, ordinal)
        return self.steps[place] if place < len(self.steps) else None

    def rule_for(self, text: str) -> ScriptedStep | None:
        """Return the step of the first matching rule."""
        for rule in self.match:
            if _matches(rule, text):
                return self.steps[rule.step - 1] if isinstance(rule.step, int) else rule.step
        return None


# Created at import time, because msgspec crashes if two threads prepare a type at once.
msgspec.json.Decoder(Script)


def read_script(name: str) -> Script:
    """Read and validate a script file; raises `Invalid` with file and position."""
    try:
        raw = _parse(name, _content(name))
        if isinstance(raw, list):
            raw = {"steps": raw}
        script = msgspec.convert(raw, Script)
        _check(script)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at ")
        # msgspec's message would repeat the value instead of listing the choices.
        message = _KINDS if problem.startswith("Invalid enum value") else problem
        raise script_error(name, _place(path.strip("`")), message) from None
    except _RuleError as error:
        raise script_error(name, _place(error.path), error.problem) from None
    return script


def script_error(name: str, place: str, problem: str) -> Invalid:
    """Return the error for an invalid script."""
    where = f"{name}, {place}" if place else name
    return Invalid(
        Code.SCRIPT_INVALID,
        f"The script {where}: {problem.rstrip('.')}. Correct the file or choose another model.",
        {"file": name, "place": place},
    )


class _RuleError(ValueError):
    """A violation that the types cannot express, at a path of the script."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem


def _content(name: str) -> str:
    path = Path(name)
    try:
        # Checked before opening, because opening a FIFO blocks until there is a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise script_error(name, "", "it is not a file")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise script_error(name, "", f"it cannot be read ({error.strerror})") from None
    if len(content) > LARGEST:
        raise script_error(name, "", "it is larger than 2 MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise script_error(name, f"byte {error.start + 1}", "it is not UTF-8") from None


def _parse(name: str, content: str) -> Any:
    try:
        if not name.lower().endswith(".json"):
            return read_yaml(content)
        return decode_strictly(content.encode(), depth_most=DEEPEST, values_most=LARGEST)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise script_error(name, place, "this is not valid JSON") from None
    except YamlError as error:
        place = f"line {error.line}, column {error.column}" if error.line else ""
        raise script_error(name, place, error.problem) from None
    except StrictJsonError as error:
        raise script_error(name, "", str(error)) from None
    except ValueError:
        raise script_error(name, "", "a number is too long") from None


def _check(script: Script) -> None:
    if not script.steps and not script.match:
        raise _RuleError("$", "it has neither steps nor match rules")
    for number, step in enumerate(script.steps):
        _check_step(step, f"$.steps[{number}]")
    for number, rule in enumerate(script.match):
        _check_rule(rule, f"$.match[{number}]", steps=len(script.steps))


def _check_step(step: ScriptedStep, path: str) -> None:
    try:
        msgspec.json.encode(step)
    except UnicodeEncodeError:
        raise _RuleError(path, "a text contains a lone surrogate") from None


def _check_rule(rule: ScriptedRule, path: str, *, steps: int) -> None:
    if (rule.contains is None) is (rule.regex is None):
        raise _RuleError(path, "a rule must have either contains or regex")
    if isinstance(rule.step, ScriptedStep):
        _check_step(rule.step, f"{path}.step")
    elif rule.step > steps:
        raise _RuleError(f"{path}.step", f"there are only {steps} steps")
    try:
        _pattern(rule.regex or "")
    except parsing_regex.PatternError as error:
        raise _RuleError(f"{path}.regex", str(error)) from None


def _matches(rule: ScriptedRule, text: str) -> bool:
    if rule.contains is not None:
        return rule.contains in text
    return _pattern(rule.regex or "").is_in(text)


# Cached, because rules are tried for every request and compiling is slower than matching.
@lru_cache(maxsize=64)
def _pattern(regex: str) -> parsing_regex.Pattern:
    return parsing_regex.compile_pattern(regex)


_KINDS: Final = f"a kind of failure must be one of {', '.join(FailureKind)}"
_NAMES: Final = {"steps": "step", "match": "match rule", "tool_calls": "tool call"}
_SEGMENT: Final = re.compile(r"([^.\[\]]+)(?:\[(\d+)\])?")


def _place(path: str) -> str:
    """Format `$.steps[2].error.kind` as `step 3, error, kind`."""
    return ", ".join(
        f"{_NAMES.get(name, name)} {int(index) + 1}" if index else name
        for name, index in _SEGMENT.findall(path.removeprefix("$"))
    )


_KEPT_MOST: Final = 64
_id: Final = attrgetter("id")
_Stamp = tuple[int, int, int]


class ScriptedModel:
    """Runs scripts; a file is read again only when it has changed."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[_Stamp | None, Script]] = {}

    def check(self, model: Model) -> None:
        """Raise `Invalid` with file and position if a script cannot be read or is invalid."""
        self._load(model.name)

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Stream the step for a request; an invalid script yields a `bad_request` failure."""
        name = request.model.name
        try:
            stamp, script = self._kept.get(name, (None, None))
            if script is None or stamp is None or stamp != _file_stamp(name):
                # In a thread, because parsing a large file would block the event loop for seconds.
                script = await asyncio.to_thread(self._load, name)
            step = _choose_step(script, request)
        except Invalid as error:
            yield Failed(kind=FailureKind.BAD_REQUEST, message=error.message)
            return
        if step.delay_ms:
            await asyncio.sleep(step.delay_ms / 1000)
        for delta in _deltas(step, request):
            yield delta

    def _load(self, name: str) -> Script:
        # Taken before reading, so that a concurrent change is detected next time.
        stamp = _file_stamp(name)
        script = read_script(name)
        # Simple eviction: more scripts than this are rarely reused.
        if len(self._kept) >= _KEPT_MOST:
            self._kept.clear()
        self._kept[name] = stamp, script
        return script


def _file_stamp(name: str) -> _Stamp | None:
    try:
        seen = os.stat(name)
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _choose_step(script: Script, request: LlmRequest) -> ScriptedStep:
    # Rules apply only to user messages, not after a tool result.
    newest = request.messages[-1] if request.messages else None
    if script.match and newest is not None and newest.role == "user":
        step = script.rule_for(newest.text)
        if step is not None:
            return step
    if step := script.step_for(request.ordinal):
        return step
    problem = f"it has no step for request {request.ordinal} of the session"
    raise script_error(request.model.name, f"step {request.ordinal}", problem)


def _deltas(step: ScriptedStep, request: LlmRequest) -> list[LlmDelta]:
    deltas: list[LlmDelta] = []
    if step.reasoning:
        deltas += [LlmReasoningDelta(text=word) for word in split_words(step.reasoning)]
        deltas.append(ReasoningEnded())
    if step.text:
        pieces = split_pieces(step.text, step.chunks) if step.chunks else split_words(step.text)
        for piece in pieces:
            deltas.append(LlmTextDelta(text=piece))
    if step.tool_calls:
        deltas += _calls(step, request)
    if step.error is not None:
        deltas.append(_failure(step.error))
    else:
        reason = StepStop.TOOL_USE if step.tool_calls else StepStop.STOP
        deltas.append(Stopped(reason=reason, usage=_usage(step, request)))
    return deltas


def _calls(step: ScriptedStep, request: LlmRequest) -> list[LlmDelta]:
    deltas: list[LlmDelta] = []
    taken: set[str] = set()
    if any(map(_id, step.tool_calls)):
        taken = {call.id for message in request.messages for call in message.calls}
    for number, call in enumerate(step.tool_calls, start=1):
        made = f"call_{request.ordinal}_{number}"
        # A repeated step repeats its call ids, but ids must be unique in a session.
        call_id = made if call.id is None or call.id in taken else call.id
        taken.add(call_id)
        deltas.append(CallStarted(id=call_id, name=call.name))
        deltas.append(CallArguments(id=call_id, text=_argument_text(call.arguments)))
        deltas.append(CallEnded(id=call_id))
    return deltas


def _failure(failure: FailureKind | ScriptedError) -> Failed:
    error = failure if isinstance(failure, ScriptedError) else ScriptedError(kind=failure)
    return Failed(
        kind=error.kind,
        message=f"The script answers this request with the failure {error.kind}.",
        status=error.status,
        retry_after=error.retry_after,
    )


def _usage(step: ScriptedStep, request: LlmRequest) -> Usage:
    if step.usage is not None:
        return msgspec.convert(step.usage, Usage, from_attributes=True)
    arguments = [_argument_text(call.arguments) for call in step.tool_calls]
    return count_usage(request, output=" ".join([step.text, *arguments]), reasoning=step.reasoning)


def _argument_text(arguments: dict[str, object] | str) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
