"""Runs of pydantic-ai whose model requests and tool calls happen once, whatever is killed.

A turn of a conversation keeps a journal: the result of each step in order, and each tool call by
its id. A turn that was cut off and is entered again with the same prompt reads both.
"""

import json
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

import msgspec
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    BoundDurableOperation,
    DurabilityEngineSpec,
    DurableOperation,
    DurableOperationBackend,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
)

from holdfast.domain.errors import Code, Conflict
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Effect
from holdfast.integrations.bridge import Bridge
from holdfast.integrations.calls import DurableCall, DurableResult, OnUnknown, run_durable_call
from holdfast.integrations.records import ForeignEntry, ForeignWriter

# The journal of the turn that is open; its records are forgotten when the turn has ended.
STEPS: Final = "steps"
RUN: Final = "run"
_REQUEST: Final = "request"
# A tool that has only asked for something has not run yet.
_PAUSED: Final = frozenset({"approval_required", "call_deferred"})


class JournaledTurn:
    """The turn of a conversation that this task plays."""

    def __init__(
        self,
        bridge: Bridge,
        session_id: SessionId,
        run_id: str,
        kept: Mapping[str, tuple[str, bytes]],
        *,
        conversation_id: str,
    ) -> None:
        """`kept` are the steps of the turn before it was cut off: name and result, by key."""
        self.bridge = bridge
        self.session_id = session_id
        self.run_id = run_id
        self.conversation_id = conversation_id
        # The last result of a run of the conversation, until it is saved.
        self.unsaved: Any = None
        self._kept = kept
        self._steps: Counter[str] = Counter()
        self._runs = 0

    def next_run_id(self) -> str:
        """Return the id of the next run of an agent in this turn, equal for every attempt."""
        self._runs += 1
        return self.run_id if self._runs == 1 else f"{self.run_id}:{self._runs}"

    async def step(
        self, name: str, body: Callable[[], Awaitable[Any]], *, is_request: bool = False
    ) -> Any:
        """Return the recorded result of a step, or run it and record it.

        Requests to a model are counted in order; other steps by their name.
        """
        family = _REQUEST if is_request else name
        self._steps[family] += 1
        number = self._steps[family]
        key = f"{family}#{number}"
        if key in self._kept:
            known, raw = self._kept[key]
            if known != name:
                raise Conflict(
                    Code.REPLAY_MISMATCH,
                    f"Request {number} of the turn was {known} and is {name} now; run the agent "
                    "as it was, or begin another turn with another prompt.",
                    {"recorded": known, "asked": name},
                )
            return msgspec.json.decode(raw)
        result = await body()
        entry = ForeignEntry(kind=name, raw=msgspec.json.encode(result), key=key)

        async def add(writer: ForeignWriter) -> None:
            await writer.add(STEPS, [entry])

        sessions = self.bridge.parts.sessions
        await self.bridge.run(lambda: sessions.write(self.session_id, add, settles=False))
        return result


current: Final[ContextVar[JournaledTurn]] = ContextVar("holdfast_pydantic_ai_turn")
_params: Final[ContextVar[Any]] = ContextVar("holdfast_pydantic_ai_params")


class HoldfastDurability(BaseDurabilityCapability[Any]):
    """Capability that makes an agent durable inside `HoldfastConversationStore.turn`."""

    engine_spec = DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="turn",
        codec=JSON_CODEC,
        journal_discovery=False,
    )

    def __init__(
        self,
        *,
        effects: Mapping[str, Effect | str] | None = None,
        on_unknown: OnUnknown = "result",
        **options: Any,
    ) -> None:
        """`effects` says by the name of a tool what running it twice would do."""
        super().__init__(**options)
        self._effects = {name: Effect(effect) for name, effect in (effects or {}).items()}
        self._on_unknown = on_unknown
        self._has_warned = False

    @property
    def in_durable_context(self) -> bool:
        """Whether the agent runs inside a turn of a conversation store."""
        return current.get(None) is not None

    def get_default_run_id(self) -> str | None:
        """Return the id of the run, which is equal when the turn is entered again."""
        turn = current.get(None)
        if turn is not None:
            return turn.next_run_id()
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "The agent has HoldfastDurability and runs outside a turn, so nothing of the run "
                "is durable; use `async with store.turn(...)`.",
                stacklevel=2,
            )
        return None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the id of a conversation that has none."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def after_run(self, ctx: Any, *, result: Any) -> Any:
        """Note the result, which is saved when the turn is left."""
        turn = current.get(None)
        if turn is not None and result.conversation.conversation_id == turn.conversation_id:
            turn.unsaved = result
        return await super().after_run(ctx, result=result)

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """Return what runs the operations of the agent."""
        return _Backend(self.name, self._effects, self._on_unknown)


class _Backend(JournalCallableOperationBackend[None]):
    """Runs tool calls as durable calls and everything else as steps."""

    def __init__(
        self, agent_name: str, effects: Mapping[str, Effect], on_unknown: OnUnknown
    ) -> None:
        config = RoleBasedOperationConfig[None](model=None, event=None, capability=None, tool=None)
        super().__init__(agent_name=agent_name, config=config)
        self._effects = effects
        self._on_unknown = on_unknown

    def bind(self, operation: DurableOperation[Any, Any, Any]) -> Any:
        return _Bound(super().bind(operation))

    async def execute(
        self,
        *,
        operation_id: Any,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: None,
    ) -> object:
        turn = current.get()
        if isinstance(operation_id, ToolsetCallToolId):
            return await self._call(turn, _params.get(), body)
        is_request = isinstance(operation_id, ModelRequestId)
        return await turn.step(name, body, is_request=is_request)

    async def _call(
        self, turn: JournaledTurn, params: Any, body: Callable[[], Awaitable[object]]
    ) -> object:
        call_id = params.ctx.tool_call_id
        asked = DurableCall(
            # What an approval is asked for with is no run of the tool.
            id=f"{call_id}:approved" if params.ctx.tool_call_approved else call_id,
            name=params.name,
            arguments=JSON_CODEC.dump(dict[str, Any], params.tool_args),
            effect=self._effects.get(params.name, Effect.UNSAFE),
        )

        async def run(_: str) -> DurableResult:
            payload = await body()
            return DurableResult(
                raw=msgspec.json.encode(payload), value=_result_of(payload), error=_error(payload)
            )

        answer = await run_durable_call(
            turn.bridge, turn.session_id, asked, run, on_unknown=self._on_unknown
        )
        if answer.raw:
            return msgspec.json.decode(answer.raw)
        text = answer.text or f"{params.name} failed."
        if answer.status is ResultStatus.SKIPPED:
            return {"kind": "model_retry", "message": text}
        return {"kind": "tool_failed", "message": text}


class _Bound(BoundDurableOperation[Any, Any, Any]):
    """An operation whose parameters the backend may read while it runs."""

    def __init__(self, inner: BoundDurableOperation[Any, Any, Any]) -> None:
        self._inner = inner

    @property
    def operation(self) -> DurableOperation[Any, Any, Any]:
        return self._inner.operation

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        token = _params.set(params)
        try:
            return await self._inner(params, config=config)
        finally:
            _params.reset(token)


def _result_of(payload: Any) -> Any:
    is_result = isinstance(payload, dict) and "result" in payload
    return payload["result"] if is_result else payload


def _error(payload: Any) -> str | None:
    kind = payload.get("kind") if isinstance(payload, dict) else None
    if kind in _PAUSED:
        return f"The call waits: {kind.replace('_', ' ')}."
    if kind in {"tool_return", "tool_content_result", None}:
        return None
    return str(payload.get("message") or json.dumps(payload))
