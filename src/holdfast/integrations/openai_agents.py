"""Sessions of the OpenAI Agents SDK in Holdfast, and function tools whose effects happen once.

`HoldfastSession` is a session of the SDK. `session.run()` gives the hooks that record what the
model asks for before any tool runs, and lets the tools of `durable_tools` know their session.
"""

import copy
import json
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final
from uuid import uuid4

from agents import FunctionTool, ModelResponse, RunHooks, Tool, ToolOutputText
from agents.items import ItemHelpers
from agents.memory.session_settings import (
    SessionSettings,
    coerce_session_settings,
    resolve_session_limit,
)
from agents.models.default_models import get_default_model
from agents.tool import ToolOutputFileContent, ToolOutputImage
from agents.version import __version__ as installed
from msgspec.structs import replace

from holdfast.domain.calls import CallState
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import Outcome
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.events import Failure, FailureCode, ToolStarted
from holdfast.domain.ids import CallId, SessionId
from holdfast.domain.messages import ResultStatus
from holdfast.domain.recordings import Disposition, ForeignRecord
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import Effect
from holdfast.integrations.bridge import Bridge
from holdfast.integrations.calls import (
    CALLS,
    NOT_RUN,
    UNKNOWN_OUTCOME,
    DurableCall,
    DurableResult,
    OnUnknown,
    run_durable_call,
)
from holdfast.integrations.openai_items import (
    CALLS_HERE,
    ITEMS,
    answer_item,
    encode_item,
    entry_of,
    kind_of,
    match_key,
    parse_arguments,
)
from holdfast.integrations.records import (
    ForeignCost,
    ForeignEntry,
    ForeignWriter,
    Framework,
    require_version,
)

FRAMEWORK: Final = Framework(name="openai-agents", version=installed)
require_version(FRAMEWORK, "0.24", "0.25", extra="openai-agents")

_session: ContextVar["HoldfastSession"] = ContextVar("holdfast_openai_session")
_OUTPUTS: Final = {
    kind.__name__: kind for kind in (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
}


class HoldfastSession:
    """A session of the SDK whose items are in a Holdfast, open in this process."""

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        hf: Any,
        *,
        agent: str = "openai-agents",
        session_settings: SessionSettings | dict[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """`agent` is the name under which the session is listed; `metadata` is kept with it."""
        self.session_id = session_id
        self.session_settings = coerce_session_settings(session_settings or SessionSettings())
        self.bridge = Bridge(hf, "HoldfastSession")
        self._agent = agent
        self._metadata = metadata
        self._known: SessionId | None = None
        self._is_closed = False
        # How many runs are inside `run`.
        self._runs = 0

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items of the session, or the last ones."""
        self._require_open()
        limit = resolve_session_limit(limit, self.session_settings)
        if limit == 0:
            return []

        async def read() -> list[ForeignRecord]:
            session_id = await self._open_session()
            view = await self._parts.sessions.live(session_id, ITEMS)
            if not self._runs and view.ahead():
                await self._adopt(session_id)
                view = await self._parts.sessions.live(session_id, ITEMS)
            return list(view)

        records = await self.bridge.run(read)
        wanted = records[-limit:] if limit is not None and limit > 0 else records
        return [json.loads(record.raw) for record in wanted]

    async def add_items(self, items: list[Any]) -> None:
        """Append items; all of them or none are on disk."""
        self._require_open()
        entries = [(entry_of(item), item) for item in items]
        if not entries:
            return

        async def add(writer: ForeignWriter) -> None:
            view = await writer.view(ITEMS)
            ahead = view.ahead() if self._runs else []
            # The step is saved: what was recorded of it before gives way to the SDK's own items.
            is_step = any(not _is_input(item) for _, item in entries)
            known = {record.key: record.message_id for record in ahead}
            if is_step:
                await writer.forget(ITEMS, ahead)
            await writer.add(ITEMS, [_known(entry, item, known) for entry, item in entries])

        await self._write(add)

    async def pop_item(self) -> Any:
        """Remove and return the last item; it stays in the record of the session."""
        self._require_open()

        async def pop(writer: ForeignWriter) -> bytes | None:
            newest = (await writer.view(ITEMS)).newest()
            if newest is None:
                return None
            await writer.withdraw(ITEMS, [newest], "pop")
            return newest.raw

        raw = await self._write(pop)
        return None if raw is None else json.loads(raw)

    async def clear_session(self) -> None:
        """Remove all items; they stay in the record of the session."""
        self._require_open()

        async def clear(writer: ForeignWriter) -> None:
            await writer.withdraw(ITEMS, list(await writer.view(ITEMS)), "clear")

        await self._write(clear)

    def close(self) -> None:
        """Make every method raise from now on; the store stays open."""
        self._is_closed = True

    async def delete(self) -> None:
        """Delete the session with its record; its id may be used for a new one."""
        self._require_open()

        async def delete() -> None:
            await self._parts.sessions.delete(await self._open_session())
            self._known = None

        await self.bridge.run(delete)

    @asynccontextmanager
    async def run(self) -> AsyncIterator["HoldfastHooks"]:
        """Bracket `Runner.run(…, session=session, hooks=hooks)`; leaving it ends the turn."""
        self._require_open()

        async def enter() -> SessionId:
            session_id = await self._open_session()
            if not self._runs:
                await self._adopt(session_id)
            self._runs += 1
            await self._parts.calls.enter(session_id)
            return session_id

        session_id = await self.bridge.run(enter)
        token = _session.set(self)
        outcome = _ABORTED
        try:
            yield HoldfastHooks(self)
            outcome = _ENDED
        except Exception as error:
            outcome = _failed_outcome(error)
            raise
        finally:
            _session.reset(token)

            async def leave() -> None:
                self._runs -= 1
                await self._parts.calls.leave(session_id)
                await self._parts.sessions.end_turn(session_id, outcome)

            await self.bridge.run(leave)

    async def record(
        self, response: ModelResponse, cost: ForeignCost, durable_names: Container[str]
    ) -> None:
        """Write what a model has answered before the SDK acts on it, and what it cost."""

        async def write(writer: ForeignWriter) -> None:
            for output in response.output:
                item = _plain(output)
                await _add_ahead(writer, item)
                # Nothing says when a tool starts that is not durable; it may have, from here on.
                if kind_of(item) in CALLS_HERE and item.get("name") not in durable_names:
                    await _start(writer, CallId(str(item.get("call_id"))))
            await writer.charge(cost)

        await self._write(write)

    async def guarded(
        self, tool: FunctionTool, context: Any, arguments: str, options: "_Durable"
    ) -> Any:
        """Run a function tool so that it has its effect once."""
        call = DurableCall(
            id=context.tool_call_id,
            name=tool.name,
            arguments=parse_arguments(arguments),
            effect=options.effect,
        )
        item = {
            "type": "function_call",
            "call_id": call.id,
            "name": tool.name,
            "arguments": arguments,
        }
        values: list[Any] = []
        failures: list[Exception] = []

        async def run(_: str) -> DurableResult:
            try:
                values.append(await options.invoke(context, arguments))
            except Exception as error:  # noqa: BLE001 — recorded, and raised below
                failures.append(error)
                return DurableResult(
                    raw=b"null", error=f"{tool.name} failed with {type(error).__name__}."
                )
            return DurableResult(raw=_dump(values[0]), value=_plain_value(values[0]))

        async def before(writer: ForeignWriter) -> None:
            if await writer.writer.load_call(CallId(call.id)) is None:
                await _add_ahead(writer, item)

        async def after(writer: ForeignWriter, result: DurableResult | None) -> None:
            if result is not None and result.error is None:
                await _add_ahead(writer, _output_item(context, item, values[0]))

        answer = await run_durable_call(
            self.bridge,
            await self.bridge.run(self._open_session),
            call,
            run,
            on_unknown=options.on_unknown,
            before=before,
            after=after,
        )
        if failures:
            raise failures[0]
        if values:
            return values[0]
        if answer.raw is None or answer.status is not ResultStatus.OK:
            return answer.text or f"{tool.name} failed."
        return _load(answer.raw)

    @property
    def _parts(self) -> Any:
        return self.bridge.parts

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("The session is closed; make a new HoldfastSession.")

    async def _open_session(self) -> SessionId:
        if self._known is None:
            self._known = await self._parts.sessions.open(
                FRAMEWORK, self.session_id, agent=self._agent, metadata=self._metadata
            )
        return self._known

    async def _write(self, compose: Any) -> Any:
        async def write() -> Any:
            try:
                return await self._parts.sessions.write(await self._open_session(), compose)
            except NotFound:
                # The session was deleted; its id names a new one now.
                self._known = None
                return await self._parts.sessions.write(await self._open_session(), compose)

        return await self.bridge.run(write)

    async def _adopt(self, session_id: SessionId) -> None:
        """Make what a run that is gone had recorded a part of the history, with an answer each."""
        if not await self._parts.calls.settle(session_id):
            return

        async def adopt(writer: ForeignWriter) -> None:
            ahead = (await writer.view(ITEMS)).ahead()
            if not ahead:
                return
            items = [json.loads(record.raw) for record in ahead]
            answered = {item["call_id"] for item in items if kind_of(item).endswith("_output")}
            await writer.forget(ITEMS, ahead)
            for record, item in zip(ahead, items, strict=True):
                is_open = kind_of(item) in CALLS_HERE and item.get("call_id") not in answered
                answer = answer_item(item, "") if is_open else None
                if is_open and answer is None:
                    continue
                await writer.add(ITEMS, [_synthetic(record.kind, record.raw, record.message_id)])
                if answer is not None:
                    answer["output"] = await _decide(writer, CallId(item["call_id"]))
                    entry = replace(entry_of(answer), disposition=Disposition.SYNTHETIC)
                    await writer.add(ITEMS, [entry])

        await self._parts.sessions.write(session_id, adopt)


class HoldfastHooks(RunHooks[Any]):  # type: ignore[misc]
    """Hooks of one run; `session.run()` gives them."""

    def __init__(self, session: HoldfastSession) -> None:
        self._session = session
        self._id = uuid4().hex
        self._steps = 0

    async def on_llm_end(self, context: Any, agent: Any, response: ModelResponse) -> None:
        """Record the answer of a model, its calls included, before a tool runs."""
        self._steps += 1
        cost = ForeignCost(
            request_id=response.response_id or f"{self._id}:{self._steps}",
            model=_model_name(agent.model),
            usage=_usage(response),
        )
        durable_names = {tool.name for tool in agent.tools if hasattr(tool, _MARK)}
        await self._session.record(response, cost, durable_names)


class _Durable:
    """How a tool was wrapped."""

    def __init__(self, tool: FunctionTool, effect: Effect, on_unknown: OnUnknown) -> None:
        self.invoke = tool.on_invoke_tool
        self.effect = effect
        self.on_unknown = on_unknown

    async def __call__(self, tool: FunctionTool, context: Any, arguments: str) -> Any:
        session = _session.get(None)
        if session is None:
            raise Invalid(
                Code.NO_SESSION,
                f"The durable tool {tool.name} runs only inside `async with session.run()`.",
                {"tool": tool.name},
            )
        return await session.guarded(tool, context, arguments, self)


def durable(
    tool: FunctionTool, *, effect: Effect | str = "unsafe", on_unknown: OnUnknown = "result"
) -> FunctionTool:
    """Return a function tool whose calls are on disk before they run.

    `effect` says what running a call twice would do: `pure`, `idempotent` or `unsafe`.
    """
    if not isinstance(tool, FunctionTool):
        raise Invalid(
            Code.TOOL_INVALID,
            f"Only function tools can be durable; {getattr(tool, 'name', tool)!s} runs elsewhere.",
        )
    if hasattr(tool, _MARK):
        return tool
    wrapped = copy.copy(tool)
    options = _Durable(tool, Effect(effect), on_unknown)

    async def invoke(context: Any, arguments: str) -> Any:
        return await options(wrapped, context, arguments)

    wrapped.on_invoke_tool = invoke
    setattr(wrapped, _MARK, True)
    return wrapped


def durable_tools(tools: Iterable[Tool]) -> list[Tool]:
    """Return tools with every function tool among them durable; the others stay as they are."""
    return [durable(tool) if isinstance(tool, FunctionTool) else tool for tool in tools]


_MARK: Final = "_holdfast_durable"
_ENDED: Final = Outcome(stop_reason=StopReason.STOP)
_ABORTED: Final = Outcome(stop_reason=StopReason.ABORTED)


def _failed_outcome(error: Exception) -> Outcome:
    text = f"The run failed with {type(error).__name__}."
    failure = Failure(code=FailureCode.LOOP_FAILED, message=text)
    return Outcome(stop_reason=StopReason.ERROR, failure=failure)


def _is_input(item: Any) -> bool:
    return isinstance(item, Mapping) and str(item.get("role")) in {"user", "system", "developer"}


def _known(entry: ForeignEntry, item: Any, known: Mapping[str, Any]) -> ForeignEntry:
    """Return an entry that refers to the message which was made of it before."""
    message_id = known.get(f"a:{match_key(item)}") if isinstance(item, Mapping) else None
    if message_id is None:
        return entry
    return replace(entry, drafts=(), media=(), message_id=message_id)


async def _add_ahead(writer: ForeignWriter, item: Mapping[str, Any]) -> None:
    entry = entry_of(item)
    key = f"a:{match_key(item)}"
    await writer.add(ITEMS, [replace(entry, key=key, disposition=Disposition.AHEAD)])


async def _start(writer: ForeignWriter, call_id: CallId) -> None:
    call = await writer.writer.load_call(call_id)
    if call is not None and call.state is CallState.INTENDED:
        event = ToolStarted(call_id=call.id, name=call.name, arguments=call.arguments)
        writer.writer.add_event(event, call.turn)


def _synthetic(kind: str, raw: bytes, message_id: Any) -> ForeignEntry:
    return ForeignEntry(
        kind=kind, raw=raw, message_id=message_id, disposition=Disposition.SYNTHETIC
    )


async def _decide(writer: ForeignWriter, call_id: CallId) -> str:
    """Return what the history says of a call whose run is gone."""
    call = await writer.writer.load_call(call_id)
    if call is None or call.state is CallState.INTENDED:
        return NOT_RUN
    if call.state is CallState.FINISHED:
        kept = await writer.tx.foreign.of_key(writer.key, CALLS, call_id)
        value = _load(kept[-1].raw) if kept else None
        return NOT_RUN if value is None else value if isinstance(value, str) else str(value)
    is_unsafe = call.effect is Effect.UNSAFE or call.state is not CallState.STARTED
    return UNKNOWN_OUTCOME if is_unsafe else NOT_RUN


def _plain(item: Any) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    found: dict[str, Any] = item.model_dump(mode="json", exclude_unset=True)
    return found


def _output_item(context: Any, call: Mapping[str, Any], value: Any) -> dict[str, Any]:
    tool_call = getattr(context, "tool_call", None)
    if tool_call is not None:
        return dict(ItemHelpers.tool_call_output_item(tool_call, value))
    return answer_item(call, value if isinstance(value, str) else str(value)) or {}


def _dump(value: Any) -> bytes:
    """Return a result of a tool as bytes that `_load` makes the same value of."""
    kind = type(value).__name__
    if _OUTPUTS.get(kind) is type(value):
        return encode_item({"type": kind, "value": value.model_dump(mode="json")})
    if isinstance(value, list) and any(type(each) in _OUTPUTS.values() for each in value):
        return encode_item({"type": "list", "value": [json.loads(_dump(each)) for each in value]})
    try:
        return encode_item({"type": "json", "value": value})
    except Invalid:
        # What the SDK shows the model of such a value.
        return encode_item({"type": "json", "value": str(value)})


def _load(raw: bytes) -> Any:
    return _loaded(json.loads(raw))


def _loaded(kept: Mapping[str, Any]) -> Any:
    kind, value = kept["type"], kept["value"]
    if kind == "list":
        return [_loaded(each) for each in value]
    return _OUTPUTS[kind](**value) if kind in _OUTPUTS else value


def _plain_value(value: Any) -> Any:
    kept = json.loads(_dump(value))
    return kept["value"] if kept["type"] == "json" else kept


def _usage(response: ModelResponse) -> Usage:
    used = response.usage
    details, made = used.input_tokens_details, used.output_tokens_details
    cached = getattr(details, "cached_tokens", 0) or 0
    written = getattr(details, "cache_write_tokens", 0) or 0
    return Usage(
        # Ours are apart from the cached ones, and theirs include them.
        input=max((used.input_tokens or 0) - cached - written, 0),
        output=used.output_tokens or 0,
        cache_read=cached,
        cache_write=written,
        reasoning=getattr(made, "reasoning_tokens", 0) or 0,
    )


def _model_name(model: Any) -> str:
    name = model if isinstance(model, str) else getattr(model, "model", None)
    if model is None:
        name = get_default_model()
    if not isinstance(name, str) or not name:
        return f"openai-agents:{type(model).__name__}"
    provider, slash, rest = name.partition("/")
    return f"{provider}:{rest}" if slash and rest else f"openai:{name}"
