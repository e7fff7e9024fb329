"""The agent processes of this server: at most one per session, and each of them is ended."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import asdict

from holdfast.acp.client.agent_command import AgentStart
from holdfast.acp.client.agent_process import ClosingMessages, reap
from holdfast.acp.client.agent_session import AcpSession
from holdfast.acp.rpc.connection import AnswerMarker
from holdfast.acp.rpc.framing import ConnectionLost
from holdfast.domain.agent_processes import ProcessEnding, ProcessExit, ProcessRecord, ProcessState
from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.ports.agent_processes import ProcessSlot
from holdfast.process.process_table import is_leaving

log = logging.getLogger(__name__)

# Answers the permission requests that the agent still waits for.
WithdrawRequests = Callable[[], Awaitable[None]]

# An end may take ten seconds in all, of which the process itself may need seven.
_SETTLED_SECONDS: Final = 3.0
_HURRY_SECONDS: Final = 1.0
_CLOSING_SECONDS: Final = 1.5


class AgentSlot:
    """The process slot of one session: one process and one turn at a time."""

    def __init__(self, process_slot: ProcessSlot) -> None:
        self.process_slot = process_slot
        self.lock = asyncio.Lock()
        self.agent_session: AcpSession | None = None
        self.start: AgentStart | None = None
        # The last title received from the agent.
        self.title: str | None = None
        self._kept: dict[str, Any] = {}
        self._idle_reader: asyncio.Task[None] | None = None
        self._cancelling: asyncio.Task[None] | None = None

    @property
    def folder(self) -> str:
        """Return the repository in which the process was started."""
        return self.start.folder if self.start is not None else ""

    def present(self) -> AcpSession:
        """Return the conversation with the process; raises `ConnectionLost` if there is none."""
        if self.agent_session is None:
            raise ConnectionLost("exited")
        return self.agent_session

    def new_title(self) -> str | None:
        """Return the agent's title for the session, if it has changed."""
        title = self.agent_session.agent_state.title if self.agent_session is not None else None
        return title if title != self.title else None

    def process_record(self, state: ProcessState, end: ProcessExit | None = None) -> ProcessRecord:
        """Return the record of the process, as it is stored."""
        found = self.agent_session
        if found is None:
            return ProcessRecord(state=state, exit=end)
        return ProcessRecord(
            state=state,
            agent_session=found.agent_session_id,
            birth=found.agent_process.birth,
            exit=end,
            about=self._about(found),
        )

    def _about(self, agent_session: AcpSession) -> dict[str, Any]:
        sandbox = {} if self.start is None else {"sandbox": self.start.sandbox.description}
        return describe_agent(agent_session) | sandbox

    async def keep(self, state: ProcessState, *, is_activity: bool = False) -> None:
        """Store the record of the process."""
        process_record = self.process_record(state)
        await self.process_slot.keep(process_record, is_activity=is_activity)
        self._kept = process_record.about

    def start_idle_reader(self) -> None:
        """Consume messages in the background until the next turn, unless a cancel is pending."""
        if self.agent_session is None or (
            self._cancelling is not None and not self._cancelling.done()
        ):
            return
        self._idle_reader = asyncio.get_running_loop().create_task(self._read_idle())

    async def stop_idle_reader(self) -> None:
        """Take over the connection from the background tasks; detects an exit between turns."""
        cancelling = self._cancelling
        if cancelling is not None:
            await asyncio.wait({cancelling})
        await _stop_task(self._idle_reader)
        self._idle_reader = None
        found = self.agent_session
        # Read from the process table, because the exit notification may be delayed: an exit between
        # two turns must not fail the next turn.
        birth = found.agent_process.birth if found is not None else None
        if birth is not None and birth.started and is_leaving(birth.pid):
            await self.drop_process()

    def abandon(
        self, prompt: "asyncio.Future[Any]", withdraw_requests: WithdrawRequests, seconds: float
    ) -> None:
        """Cancel an abandoned prompt in the background; end the process if it does not stop."""
        work = self._cancel_prompt(prompt, withdraw_requests, seconds)
        self._cancelling = asyncio.get_running_loop().create_task(work)

    async def drop_process(self) -> ProcessExit:
        """Remove a process whose connection was lost; waits briefly for its exit status."""
        if self.agent_session is not None:
            await asyncio.wait([self.agent_session.agent_process.exited], timeout=_CLOSING_SECONDS)
        return await self.stop(None)

    async def stop(self, closing_messages: ClosingMessages | None) -> ProcessExit:
        """End the process and wait until it is gone."""
        found = self.agent_session
        if found is None:
            return ProcessExit()
        end = await found.end(closing_messages)
        process_record = self.process_record(ProcessState.EXITED, end)
        if self.agent_session is found:
            self.agent_session = None
        with suppress(HoldfastError):
            await self.process_slot.keep(process_record)
        return end

    async def end(self, why: ProcessEnding, *, seconds: float) -> None:
        """End the process, after an abandoned prompt had so many seconds to stop."""
        if self._cancelling is not None:
            await asyncio.wait({self._cancelling}, timeout=seconds)
            await _stop_task(self._cancelling)
        await _stop_task(self._idle_reader)
        await self.stop(self._closing_messages(why))

    def _closing_messages(self, why: ProcessEnding) -> ClosingMessages | None:
        """Return a coroutine that sends the last messages the agent supports, if any."""
        found = self.agent_session
        if found is None or found.agent_session_id is None:
            return None
        params = {"sessionId": found.agent_session_id}
        verb = "delete" if why is ProcessEnding.DELETED else "close"
        is_offered = found.can("sessionCapabilities", verb)

        async def send_closing_messages() -> None:
            if why is ProcessEnding.IDLE:
                await found.connection.notify("session/cancel", params)
            if is_offered:
                await found.connection.request(f"session/{verb}", params)

        return send_closing_messages

    async def _read_idle(self) -> None:
        found = self.agent_session
        if found is None:
            return
        try:
            await self._save_changes(found)
            async for item in found.connection.incoming():
                await found.process(item)
                await self._save_changes(found)
        except Exception:
            log.exception("the output of an agent process could not be read")
        # The process exited by itself; the next prompt starts a new one.
        await self.stop(None)

    async def _save_changes(self, conversation: AcpSession) -> None:
        if self._about(conversation) != self._kept:
            with suppress(HoldfastError):
                await self.keep(ProcessState.READY, is_activity=True)

    async def _cancel_prompt(
        self, prompt: "asyncio.Future[Any]", withdraw_requests: WithdrawRequests, seconds: float
    ) -> None:
        found = self.agent_session
        if found is None:
            return
        is_answered = False
        try:
            async with asyncio.timeout(seconds):
                await withdraw_requests()
                await found.connection.notify(
                    "session/cancel", {"sessionId": found.agent_session_id}
                )
                async for item in found.connection.incoming():
                    if isinstance(item, AnswerMarker) and item.future is prompt:
                        is_answered = True
                        break
                    await found.process(item)
        except (TimeoutError, ConnectionLost):
            log.info("the agent did not stop when asked to")
        except Exception:
            log.exception("an agent process could not be stopped")
        if is_answered:
            self._idle_reader = asyncio.get_running_loop().create_task(self._read_idle())
        else:
            # A process that ignores a cancel must not continue unobserved.
            await self.stop(None)


class ProcessRegistry:
    """Implements the `ProcessPool` port."""

    def __init__(self) -> None:
        self._slots: dict[SessionKey, AgentSlot] = {}

    def slot(self, process_slot: ProcessSlot) -> AgentSlot:
        """Return the slot of a session, created on first use."""
        slot = self._slots.get(process_slot.key)
        if slot is None:
            slot = self._slots[process_slot.key] = AgentSlot(process_slot)
        slot.process_slot = process_slot
        return slot

    def has(self, slot: AgentSlot) -> bool:
        """Return whether this is the current slot of its session; an ended one is not."""
        return self._slots.get(slot.process_slot.key) is slot

    def held(self) -> frozenset[SessionKey]:
        """Return the sessions whose processes run here."""
        return frozenset(key for key, slot in self._slots.items() if slot.agent_session is not None)

    async def end(self, key: SessionKey, why: ProcessEnding = ProcessEnding.CLOSED) -> None:
        """End the process of a session, if it runs here."""
        slot = self._slots.get(key)
        if slot is None:
            return
        # The running turn holds the lock; it was interrupted before this call.
        async with slot.lock:
            await slot.end(why, seconds=_SETTLED_SECONDS)
            # A turn that waits for this lock checks with `has` whether the slot is still current.
            self._slots.pop(key, None)

    async def reap(self, process_record: ProcessRecord, session: SessionId) -> None:
        """End a process that another server has left behind (orphan)."""
        birth = process_record.birth
        if birth is not None and await reap(birth, session):
            fields = {"session_id": session, **asdict(birth)}
            log.warning("agent.reaped", extra={"fields": fields})

    async def aclose(self) -> None:
        """End all processes concurrently."""
        slots = self._slots.values()
        ends = [slot.end(ProcessEnding.CLOSED, seconds=_HURRY_SECONDS) for slot in slots]
        await asyncio.gather(*ends, return_exceptions=True)
        self._slots.clear()


def describe_agent(agent_session: AcpSession) -> dict[str, Any]:
    """Return the agent's description of itself and its state, as stored and displayed."""
    said = agent_session.introduction
    about = {
        "agent": said.get("agentInfo"),
        "capabilities": said.get("agentCapabilities"),
        "auth_methods": list(agent_session.auth_methods) or None,
    }
    return {
        name: value for name, value in about.items() if value
    } | agent_session.agent_state.to_record()


async def _stop_task(task: "asyncio.Task[None] | None") -> None:
    """Cancel a task and wait for its end."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait({task})
