"""Runs functions as the tools of agents: takes calls, claims them, runs them and answers.

A call runs only under a claim. A request whose answer was lost is repeated with the same ids.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from holdfast.domain.calls import Call
from holdfast.domain.errors import (
    Code,
    Denied,
    HoldfastError,
    Internal,
    Invalid,
    LimitReached,
    NotFound,
    StorageFull,
    Unavailable,
)
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.text import did_you_mean
from holdfast.domain.tools import Effect, ResultCode, ToolClass, ToolSpec, tool_fields
from holdfast.functions.calls import FunctionCall, FunctionRunner
from holdfast.functions.registry import AnyTool, merge_tools
from holdfast.functions.signatures import InvalidArgumentsError
from holdfast.functions.tool import as_tool
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, ToolWorkspace
from holdfast.services.background_tasks import Background, sleep_despite_memory_error
from holdfast.services.calls import CallAnswer
from holdfast.workers.model import WAIT_LONGEST, ClaimRequest, OfferedCall, WorkerRequest

if TYPE_CHECKING:
    from holdfast.api import Holdfast

log = logging.getLogger(__name__)
T = TypeVar("T")

# A third of a claim's lease, so that two renewals may be late.
EXTEND_SECONDS: Final = 5.0
# Between attempts to reach a server or a store that does not answer.
PAUSE_SECONDS: Final = 0.5
PROGRESS_INTERVAL: Final = 0.25
# How many sessions with functions of their own are kept; the oldest ones are left out.
SESSIONS_MOST: Final = 1_000
_PASSING: Final = (Unavailable, LimitReached, StorageFull, Internal)


@dataclass(kw_only=True, eq=False)
class _Run:
    """One call that this process runs or is about to."""

    call: Call
    tool: AnyTool
    claim: str
    is_claimed: bool
    has_begun: bool = False
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True)
class _Shelf:
    """Keeps contents of a call with its session."""

    hf: "Holdfast"
    session_id: SessionId

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        return await self.hf.media.keep(
            self.hf.owner, self.session_id, content, mime_type=mime_type
        )

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> None:
        raise NotImplementedError("a function does not read contents")


class ToolServer:
    """A worker: functions of this process, and the calls that it runs with them."""

    def __init__(
        self,
        hf: "Holdfast",
        *,
        agents: Iterable[str] = (),
        concurrency: int = 8,
        grace: float = 10.0,
        update: bool = False,
        name: str | None = None,
    ) -> None:
        self._hf = hf
        self._agents = tuple(agents)
        self._concurrency = concurrency
        self._grace = grace
        self._update = update
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._id = str(uuid4())
        self._shared: dict[str, AnyTool] = {}
        self._sessions: dict[SessionId, dict[str, AnyTool]] = {}
        self._runner = FunctionRunner(threads=max(concurrency, 1), settle_late=self._settle_late)
        self._runs: list[_Run] = []
        # The claims of unsafe calls, whose functions may return after the end of the call.
        self._claims: dict[tuple[str, str], str] = {}

    async def add(self, tools: Iterable[Callable[..., Any]], session: str | None = None) -> None:
        """Add functions, for one session or for all; refuses those that are defined otherwise."""
        given = [as_tool(each) for each in tools]
        shared, sessions = self._shared, self._sessions
        if session is None:
            shared = merge_tools(shared, given, "This worker")
        else:
            own = merge_tools(sessions.get(SessionId(session), {}), given, f"Session {session}")
            sessions = {**sessions, SessionId(session): own}
            for oldest in list(sessions)[:-SESSIONS_MOST]:
                del sessions[oldest]
        await self._register(shared, sessions)
        self._shared, self._sessions = shared, sessions

    async def require_defined(self, tools: Iterable[Callable[..., Any]], agent: str) -> None:
        """Refuse functions that the agent does not define: they would never be called."""
        try:
            found = await self._hf.agents.get(self._hf.owner, agent)
        except Denied:
            # A token of the scope `tools` cannot read agents.
            return
        defined = [tool.name for tool in found.tools if tool.is_client_run]
        missing = [each.name for each in map(as_tool, tools) if each.name not in defined]
        if missing:
            similar = did_you_mean(missing[0], defined)
            raise Invalid(
                Code.UNKNOWN_TOOL,
                f"Agent {found.slug} does not define {', '.join(missing)}{similar}; it defines "
                f"{', '.join(defined) or 'no tools'}. Add `{missing[0]}.definition` to its tools.",
                {"field": "tools", "tool": missing[0]},
            )

    async def run(self) -> None:
        """Take calls and run them until cancelled."""
        async with Background() as tasks:
            try:
                while True:
                    await self._take(tasks)
            finally:
                await self._stop()
                self._runner.close()

    async def _register(
        self, shared: dict[str, AnyTool], sessions: dict[SessionId, dict[str, AnyTool]]
    ) -> None:
        tools = {tool.name: tool for own in sessions.values() for tool in own.values()} | shared
        named = {
            name: tuple(each for each, own in sessions.items() if name in own)
            for name in tools
            if name not in shared
        }
        request = WorkerRequest(
            name=self._name,
            tools=tuple(ToolSpec(**tool_fields(tool.definition)) for tool in tools.values()),
            sessions=named,
            agents=self._agents,
            update=self._update,
        )
        await self._hf.workers.register(self._hf.owner, request, id=self._id)

    async def _take(self, tasks: Background) -> None:
        """Take as many calls as there is room for; waits until there are some."""
        running = [run.task for run in self._runs if run.task is not None]
        if len(self._runs) >= self._concurrency:
            await asyncio.wait(running, timeout=EXTEND_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        room = self._concurrency - len(self._runs)
        # With a call at work it must come back in time to extend the claim.
        wait = EXTEND_SECONDS if self._runs else WAIT_LONGEST
        try:
            work = await self._hf.workers.next(
                self._hf.owner,
                self._id,
                claims=[run.claim for run in self._runs if run.is_claimed],
                limit=max(room, 0),
                wait_s=wait if room > 0 else 0,
                claim=True,
            )
        except NotFound:
            # It was not heard of for too long.
            await _repeat(lambda: self._register(self._shared, self._sessions))
            return
        except _PASSING as error:
            log.warning("calls cannot be taken: %s", error.message)
            await sleep_despite_memory_error(PAUSE_SECONDS)
            return
        for run in [each for each in self._runs if each.is_claimed]:
            is_over = run.claim in work.lost
            if is_over or (run.call.id in work.cancelled and await self._has_ended(run)):
                self._cancel(run)
        for offered in work.calls:
            self._begin(offered, tasks)

    def _begin(self, offered: OfferedCall, tasks: Background) -> None:
        call = offered.call
        own = self._sessions.get(call.session_id, {})
        tool = own.get(call.name) or self._shared.get(call.name)
        if tool is None:
            return
        run = _Run(
            call=call,
            tool=tool,
            claim=offered.claim or str(uuid4()),
            is_claimed=offered.claim is not None,
        )
        self._runs.append(run)
        run.task = tasks.start(self._run(run))
        run.task.add_done_callback(lambda _: self._runs.remove(run) if run in self._runs else None)

    async def _has_ended(self, run: _Run) -> bool:
        """Return whether a call has ended; one of another session may have the same id."""
        hf, call = self._hf, run.call
        try:
            extension = await hf.workers.extend_claim(hf.owner, call.session_id, call.id, run.claim)
        except HoldfastError as error:
            return not isinstance(error, _PASSING)
        return extension.is_cancelled

    def _cancel(self, run: _Run) -> None:
        """Stop a call that has ended or is another worker's now; nothing is answered."""
        if run in self._runs:
            self._runs.remove(run)
        if run.task is not None:
            run.task.cancel()

    async def _run(self, run: _Run) -> None:
        hf, call = self._hf, run.call
        try:
            if not run.is_claimed:
                wanted = ClaimRequest(claim=run.claim, worker=self._name)
                run.call = call = await _repeat(
                    lambda: hf.workers.claim(hf.owner, call.session_id, call.id, wanted)
                )
                run.is_claimed = True
            outcome = await self._outcome(run)
            try:
                await self._answer(run, outcome)
            except Invalid as error:
                # Larger than a server accepts, for example; it has run, and must not run again.
                text = f"{call.name} was run, but its result cannot be recorded: {error.message}"
                await self._answer(run, _refused(ResultCode.FAILED, text))
        except HoldfastError as error:
            # Another client was quicker, or the call has ended.
            log.info("call %s is not run here any more: %s", call.id, error.message)

    async def _answer(self, run: _Run, outcome: CallOutcome) -> None:
        hf, call = self._hf, run.call
        answer = _answer_of(outcome, run.claim)
        await _repeat(lambda: hf.calls.answer(hf.owner, call.session_id, call.id, answer))

    async def _outcome(self, run: _Run) -> CallOutcome:
        """Run the function of a claimed call."""
        call, tool = run.call, run.tool
        try:
            values = tool.signature.convert(call.arguments)
        except InvalidArgumentsError as error:
            return _refused(ResultCode.INVALID_ARGUMENTS, f"The arguments are not valid: {error}.")
        slot = self._runner.slot(tool)
        if slot is not None and (refused := await slot.take()):
            return refused
        reports = _Reports(self._hf, run)
        planned = PlannedCall(
            asked=RequestedCall(
                id=call.id,
                name=call.name,
                arguments=call.arguments,
                idempotency_key=call.idempotency_key,
                turn=call.turn,
                attempt=call.attempt,
                report=reports.report,
            ),
            effect=call.effect,
            tool_class=ToolClass.FUNCTION,
            digest=tool.digest,
            question="",
            slot=slot,
        )
        workspace = self._workspace(call)
        run.has_begun = True
        self._claims[(call.session_id, call.id)] = run.claim
        try:
            outcome = await self._runner.run(
                FunctionCall(tool=tool, values=values, workspace=workspace, planned=planned)
            )
        finally:
            reports.close()
            if slot is not None:
                slot.release()
        if outcome.status is not ResultStatus.UNKNOWN:
            self._claims.pop((call.session_id, call.id), None)
        return outcome

    def _workspace(self, call: Call) -> ToolWorkspace:
        return ToolWorkspace(
            session=call.session_id,
            owner=self._hf.owner,
            session_id=call.session_id,
            working_dir="",
            scratch="",
            grants=(),
            tools=frozenset(),
            shelf=_Shelf(self._hf, call.session_id),
        )

    async def _settle_late(self, owner: str, session_id: str, call_id: str, result: Any) -> None:
        """Answer the call of a function that returned after its call had ended."""
        claim = self._claims.pop((session_id, call_id), None)
        answer = CallAnswer(status=ResultStatus.OK, result=result, claim=claim)
        await _repeat(
            lambda: self._hf.calls.answer(Owner(owner), SessionId(session_id), call_id, answer)
        )

    async def _stop(self) -> None:
        """Give back what has not begun, let the rest end for a while, and say what is unknown."""
        await self._leave([run for run in self._runs if not run.has_begun])
        if tasks := [run.task for run in self._runs if run.task is not None]:
            await asyncio.wait(tasks, timeout=self._grace)
        await self._leave(list(self._runs))
        with suppress(HoldfastError):
            await self._hf.workers.close(self._hf.owner, self._id)

    async def _leave(self, runs: list[_Run]) -> None:
        for run in runs:
            self._cancel(run)
        if tasks := [run.task for run in runs if run.task is not None]:
            await asyncio.wait(tasks)
        for run in runs:
            # Whatever is not said now is found out when the lease has run out.
            with suppress(HoldfastError):
                await self._give_back(run)

    async def _give_back(self, run: _Run) -> None:
        hf, call = self._hf, run.call
        if run.has_begun and call.effect is Effect.UNSAFE:
            text = "the worker was stopped while the call ran"
            await self._answer(run, _refused(ResultCode.UNKNOWN, text, ResultStatus.UNKNOWN))
        else:
            await hf.workers.release(hf.owner, call.session_id, call.id, run.claim)


class _Reports:
    """Sends the progress of one call; a report that a newer one replaces is not sent."""

    def __init__(self, hf: "Holdfast", run: _Run) -> None:
        self._hf = hf
        self._run = run
        self._newest: tuple[str, float | None] | None = None
        self._sending: asyncio.Task[None] | None = None

    def report(self, text: str, fraction: float | None) -> None:
        """Accept a report; returns at once."""
        self._newest = text, fraction
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())

    def close(self) -> None:
        """End the reports."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        hf, run = self._hf, self._run
        while self._newest is not None:
            (text, fraction), self._newest = self._newest, None
            # The call itself meets the same error, or has its claim still.
            with suppress(HoldfastError):
                await hf.workers.progress(
                    hf.owner, run.call.session_id, run.call.id, run.claim, text, fraction=fraction
                )
            await asyncio.sleep(PROGRESS_INTERVAL)
        self._sending = None


async def _repeat(request: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request until it is answered; it has ids that make it idempotent."""
    while True:
        try:
            return await request()
        except _PASSING as error:
            log.warning("a call is asked about again: %s", error.message)
            await sleep_despite_memory_error(PAUSE_SECONDS)


def _answer_of(outcome: CallOutcome, claim: str) -> CallAnswer:
    text = outcome.error.message if outcome.error is not None else None
    try:
        return CallAnswer(status=outcome.status, result=outcome.result, error=text, claim=claim)
    except HoldfastError as error:
        return CallAnswer(status=ResultStatus.ERROR, error=error.message, claim=claim)


def _refused(code: ResultCode, text: str, status: ResultStatus = ResultStatus.ERROR) -> CallOutcome:
    return CallOutcome(status=status, error=ToolError(code=code, message=text))
