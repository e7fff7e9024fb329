"""Tools and steps of nodes that have their effect once, whatever is killed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from langchain_core.messages import ToolMessage
from langgraph.errors import GraphInterrupt
from msgspec import Struct

from holdfast.domain.errors import Code, Conflict, Invalid, Unavailable
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.domain.tools import Effect
from holdfast.integrations.bridge import Bridge
from holdfast.integrations.calls import DurableCall, DurableResult, OnUnknown, run_durable_call
from holdfast.ports.store import Tx

# How long a durable call waits for the checkpoint that it belongs to.
SAVED_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.01
Config = Any


class DurableNodes:
    """What nodes of a graph call to do something once; a part of `HoldfastSaver`."""

    serde: Any
    bridge: Bridge
    effects: Mapping[str, Effect]
    on_unknown: OnUnknown
    allow_unsaved: bool

    async def open_thread(self, thread_id: str) -> SessionId:
        """Return the session of a thread."""
        raise NotImplementedError

    async def aguard(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool call so that it has its effect once; the `awrap_tool_call` of a tool node."""
        call, config = request.tool_call, _runtime_config(request.runtime)
        asked = DurableCall(
            id=str(call["id"]),
            name=call["name"],
            arguments=dict(call["args"]),
            effect=self.effects.get(call["name"], Effect.UNSAFE),
        )
        session_id = await self._ready(config, asked)
        answer = await self._run(session_id, asked, lambda: execute(request))
        if isinstance(answer, UnrecordedAnswer):
            return ToolMessage(
                content=answer.text, name=asked.name, tool_call_id=asked.id, status="error"
            )
        return answer

    def guard(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        """Run a tool call so that it has its effect once; the `wrap_tool_call` of a tool node."""

        async def apart(wanted: Any) -> Any:
            # In a thread of its own, because a blocking tool may start an event loop.
            return await asyncio.to_thread(execute, wanted)

        return asyncio.run(self.aguard(request, apart))

    async def step(
        self,
        config: Config,
        name: str,
        run: Callable[[], Awaitable[Any]],
        *,
        effect: Effect | str = Effect.UNSAFE,
    ) -> Any:
        """Do something in a node so that it has its effect once, also when the node runs again."""
        task_id = (config.get("configurable") or {}).get("__pregel_task_id")
        if not task_id:
            raise _no_session(f"The step {name}")
        asked = DurableCall(id=f"{task_id}:{name}", name=name, arguments={}, effect=Effect(effect))
        answer = await self._run(await self._ready(config, asked), asked, run)
        if isinstance(answer, UnrecordedAnswer):
            raise Conflict(Code.CALL_UNKNOWN, answer.text, {"call_id": asked.id})
        return answer

    async def _run(
        self, session_id: SessionId, asked: DurableCall, work: Callable[[], Awaitable[Any]]
    ) -> Any:
        values: list[Any] = []
        failures: list[BaseException] = []

        async def run(_: str) -> DurableResult:
            try:
                values.append(await work())
            except GraphInterrupt:
                failures.append(_cannot_interrupt(asked.name))
            except Exception as error:  # noqa: BLE001 — recorded, and raised below
                failures.append(error)
            if failures:
                kind = type(failures[0]).__name__
                return DurableResult(raw=b"", error=f"{asked.name} failed with {kind}.")
            return self._result(asked.name, values[0])

        answer = await run_durable_call(
            self.bridge, session_id, asked, run, on_unknown=self.on_unknown
        )
        if failures:
            raise failures[0]
        if values:
            return values[0]
        if answer.raw:
            kind, _, content = answer.raw.partition(b"\n")
            return self.serde.loads_typed((kind.decode(), content))
        return UnrecordedAnswer(answer.text or f"{asked.name} failed.")

    def _result(self, name: str, value: Any) -> DurableResult:
        try:
            kind, content = self.serde.dumps_typed(value)
        except Exception:  # noqa: BLE001 — whatever a serializer raises
            text = f"{name} has returned what cannot be stored; make it return JSON."
            return DurableResult(raw=b"", error=text)
        shown = getattr(value, "content", None)
        shown = shown if isinstance(shown, str) else str(value)
        is_failed = getattr(value, "status", None) == "error"
        return DurableResult(
            raw=kind.encode() + b"\n" + content, value=shown, error=shown if is_failed else None
        )

    async def _ready(self, config: Config, asked: DurableCall) -> SessionId:
        """Return the session of a durable call when the checkpoints it belongs to are on disk."""
        given = config.get("configurable") or {}
        thread_id = given.get("thread_id")
        if not thread_id:
            raise _no_session(f"The durable tool {asked.name}")
        is_bound = asked.effect is Effect.UNSAFE and not self.allow_unsaved
        if is_bound and given.get("__pregel_durability") == "exit":
            raise Invalid(
                Code.DURABILITY_EXIT,
                f'{asked.name} is durable, but with durability="exit" no checkpoint is saved '
                'before it runs; use durability="sync".',
            )
        needed = dict(given.get("checkpoint_map") or {}) if is_bound else {}

        async def open_() -> SessionId:
            session_id = await self.open_thread(str(thread_id))
            await self._await_saved(session_id, needed, asked.name)
            return session_id

        return await self.bridge.run(open_)

    async def _await_saved(
        self, session_id: SessionId, needed: Mapping[str, str], name: str
    ) -> None:
        async def missing(tx: Tx, key: SessionKey) -> list[str]:
            found = [(each, await tx.graphs.one(key, each, needed[each])) for each in needed]
            return [namespace for namespace, row in found if row is None]

        until = asyncio.get_running_loop().time() + SAVED_SECONDS
        while needed:
            left = await self.bridge.parts.sessions.read(session_id, missing)
            if not left:
                return
            if asyncio.get_running_loop().time() > until:
                raise Unavailable(
                    Code.CHECKPOINT_NOT_SAVED,
                    f"{name} was not run: the checkpoint of {left[0] or 'the graph'} is not saved. "
                    'Use durability="sync", and do not compile its graph with checkpointer=False; '
                    "or pass allow_unsaved=True, and a resumed run cannot match the call.",
                )
            await asyncio.sleep(_POLL_SECONDS)


class UnrecordedAnswer(Struct, frozen=True):
    """The text about a call that has no recorded value."""

    text: str


def _runtime_config(runtime: Any) -> Config:
    return getattr(runtime, "config", None) or {}


def _no_session(what: str) -> Invalid:
    return Invalid(
        Code.NO_SESSION,
        f"{what} runs only in a graph with a thread_id and a HoldfastSaver as its checkpointer.",
    )


def _cannot_interrupt(name: str) -> Invalid:
    return Invalid(
        Code.OPTION_NOT_OFFERED,
        f"The durable tool {name} cannot interrupt the graph, because it would run again; "
        "interrupt in a node before it.",
    )
