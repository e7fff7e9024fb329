"""The session with an agent process: its connection, its state, and the agent's session id.

Updates that arrive before that id is known are buffered, within limits.

"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from holdfast.acp.client.agent_process import AgentProcess, ClosingMessages, Terminals
from holdfast.acp.client.agent_state import STATE_UPDATES, AgentState, state_after_update
from holdfast.acp.client.lenient_json import read_object
from holdfast.acp.client.prompt import is_offered
from holdfast.acp.client.raw_log import RawLog
from holdfast.acp.rpc.connection import AnswerMarker, Item
from holdfast.acp.rpc.framing import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ConnectionLost,
    JsonRpcError,
    JsonRpcNotification,
    JsonRpcRequest,
)
from holdfast.domain.agent_processes import ProcessExit

EARLY_UPDATES_MOST: Final = 1_000
EARLY_BYTES_MOST: Final = 8 << 20
EARLY_SECONDS: Final = 30.0


class EarlyUpdates:
    """A bounded buffer for updates of sessions that are not known yet, in order.

    Times are in seconds of any monotonic clock. `dropped` counts updates that did not fit.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._kept: deque[tuple[Any, int]] = deque()
        self._size = 0
        self._until: float | None = None

    def add(self, params: object, *, size: int, now: float) -> None:
        """Buffer an update of `size` bytes; drops the oldest ones above the limits."""
        if self.clear_if_expired(now):
            return
        self._kept.append((params, size))
        self._size += size
        while len(self._kept) > EARLY_UPDATES_MOST or self._size > EARLY_BYTES_MOST:
            self._size -= self._kept.popleft()[1]
            self.dropped += 1

    def claim(self, session_id: str, *, now: float) -> list[Any]:
        """Return the updates of a session that is known now; the others stay buffered."""
        self.clear_if_expired(now)
        self._until = now + EARLY_SECONDS
        waiting, self._kept = self._kept, deque()
        claimed = []
        for params, size in waiting:
            if read_object(params).get("sessionId") == session_id:
                claimed.append(params)
                self._size -= size
            else:
                self._kept.append((params, size))
        return claimed

    def clear_if_expired(self, now: float) -> bool:
        """Clear the buffer once its time is over; return whether it is."""
        is_over = self._until is not None and now > self._until
        if is_over:
            self._kept.clear()
            self._size = 0
        return is_over


# Answer to a permission request that will not be decided any more.
NOT_DECIDED: Final[Mapping[str, Any]] = {"outcome": {"outcome": "cancelled"}}
HOSTED: Final = frozenset(
    {
        "session/request_permission",
        "fs/read_text_file",
        "fs/write_text_file",
        *(f"terminal/{verb}" for verb in ("create", "output", "wait_for_exit", "kill", "release")),
    }
)
# Executed without redaction: a secret in a file we write is part of its intended content.
LITERAL_METHODS: Final = HOSTED - {"session/request_permission"}


class AcpSession:
    """An agent process and its last known state; `agent_session_id` is the agent's own id."""

    def __init__(
        self,
        agent_process: AgentProcess,
        agent_state: AgentState,
        raw: RawLog | None = None,
    ) -> None:
        """`raw` logs the agent's lines."""
        self.agent_process = agent_process
        self.raw = raw
        self.connection = agent_process.connection
        self.agent_session_id: str | None = None
        self.agent_state = agent_state
        self.introduction: Mapping[str, Any] = {}
        self.auth_methods: tuple[Mapping[str, Any], ...] = ()
        # Ignored items, counted by reason.
        self.ignored: Counter[str] = Counter()
        self.is_fresh = True
        self.is_prompted = False
        self.terminals = Terminals()
        self._early = EarlyUpdates()

    async def end(self, closing_messages: ClosingMessages | None) -> ProcessExit:
        """End the process and its terminals."""
        await self.terminals.aclose()
        end = await self.agent_process.end(closing_messages=closing_messages)
        if self.raw is not None:
            await self.raw.aclose()
        return end

    def can(self, *path: str) -> bool:
        """Return whether the agent offers a capability, given by its path."""
        found: object = self.introduction.get("agentCapabilities")
        for name in path:
            found = read_object(found).get(name)
        return is_offered(found)

    async def ask(self, method: str, params: Any, *, within: float) -> Any:
        """Send a request and process other items until its reply arrives.

        Raises `RequestRefused`, `ConnectionLost` or `TimeoutError`.
        """
        async with asyncio.timeout(within):
            answer = await self.connection.begin(method, params)
            async for item in self.connection.incoming():
                if isinstance(item, AnswerMarker) and item.future is answer:
                    return answer.result()
                await self.process(item)
        raise ConnectionLost("ended")

    async def process(self, item: Item) -> None:
        """Process an item while no prompt is in flight."""
        if isinstance(item, JsonRpcRequest):
            await self._refuse(item)
        elif isinstance(item, JsonRpcNotification) and item.method == "session/update":
            self.process_update(item.params, size=item.size)
        else:
            self.ignored[type(item).__name__.lower()] += 1

    def set_session(self, session: str) -> None:
        """Set the session id and process the updates that were buffered for it."""
        self.agent_session_id = session
        for params in self._early.claim(session, now=_now()):
            self.process_update(params)

    def process_update(self, params: object, *, size: int = 0) -> None:
        """Process an update between turns: apply state, ignore replayed messages.

        `size` is the length of its line in bytes.
        """
        found = read_object(params)
        if self.agent_session_id is None or found.get("sessionId") != self.agent_session_id:
            self._early.add(params, size=size, now=_now())
            return
        self._early.clear_if_expired(_now())
        update = read_object(found.get("update"))
        kind = update.get("sessionUpdate")
        if isinstance(kind, str) and kind in STATE_UPDATES:
            self.agent_state = state_after_update(self.agent_state, update)
        else:
            self.ignored["replayed"] += 1

    async def _refuse(self, request: JsonRpcRequest) -> None:
        """Refuse a request between turns, because no approval can be asked for it."""
        error: JsonRpcError | None = JsonRpcError(INTERNAL_ERROR, "no turn is running")
        if request.method not in HOSTED:
            error = JsonRpcError(METHOD_NOT_FOUND, "method not found")
        elif read_object(request.params).get("sessionId") != self.agent_session_id:
            error = JsonRpcError(INVALID_PARAMS, "unknown session")
        elif request.method == "session/request_permission":
            error = None
        # The task that waits for the end of the process handles a lost connection.
        with suppress(ConnectionLost):
            if error is None:
                await self.connection.answer(request, NOT_DECIDED)
            else:
                await self.connection.refuse(request, error)


def _now() -> float:
    return asyncio.get_running_loop().time()
