"""The `Runtime` of ACP agents: one turn is one `session/prompt` and everything up to its reply.

Reads the agent's messages during the turn. Starting the process is in `launcher.py`, answering
its requests in `agent_requests.py`.

"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from holdfast.acp.client.agent_requests import AgentRequestHandler
from holdfast.acp.client.agent_session import AgentConversation
from holdfast.acp.client.launcher import AgentLauncher, describe_exit, has_terminals
from holdfast.acp.client.lenient_json import read_object
from holdfast.acp.client.process_registry import AgentSlot, ProcessRegistry
from holdfast.acp.client.prompt import (
    Block,
    build_prompt,
    read_prompt_capabilities,
    text_block,
    transcript,
    turn_messages,
)
from holdfast.acp.client.session_setup import AgentNotReady
from holdfast.acp.client.stop_reasons import is_unknown_session
from holdfast.acp.client.translator import Translator, turn_facts
from holdfast.acp.client.turn_context import TurnContext
from holdfast.acp.client.unreported_changes import WorktreeWatch
from holdfast.acp.rpc.connection import AnswerMarker, ConnectionLost, Item, RequestRefused
from holdfast.acp.rpc.framing import JsonRpcNotification, JsonRpcRequest, Junk
from holdfast.domain.agent_processes import ProcessExit, ProcessState, parse_program_options
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.drafts import Draft, MessageDraft, Outcome, TitleChange
from holdfast.domain.errors import Code, Internal
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.ids import uuid7
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.sessions import OnExceed, StopReason, title_of
from holdfast.domain.time import microseconds
from holdfast.ports.runtime import Emit, TurnEnd, TurnInput
from holdfast.ports.system import Clock, Randomness
from holdfast.ports.tools import OutputStore, RepositoryFiles

log = logging.getLogger(__name__)
Drafts = tuple[Draft | Outcome, ...]
# Limits the drafts of one transaction; further updates wait for the next one.
_TOGETHER: Final = 256
# After a dropped line, this much silence means that the dropped line was the reply.
_AFTER_A_DROPPED_LINE: Final = 5.0
# How often activity is recorded when updates produce no rows.
ACTIVITY_SECONDS: Final = 1.0


class Forgotten(Exception):  # noqa: N818 — it says what is, not what went wrong
    """The agent has lost the session, and the prompt has produced no output yet."""


class Gone(Exception):  # noqa: N818 — it says what is, not what went wrong
    """The connection to the agent was lost during its turn."""


class Playing:
    """A prompt in flight: `prompt` is the future of its reply, `is_over` is set on the reply."""

    def __init__(
        self,
        context: TurnContext,
        host: AgentRequestHandler,
        *,
        silence: float,
        shelf: OutputStore | None,
    ) -> None:
        self.prompt: asyncio.Future[Any] | None = None
        self.is_over = False
        self._context = context
        self._host = host
        self._translator = context.translator
        self._connection = context.agent_session.connection
        self._silence = silence
        self._shelf = shelf
        self._is_first = False
        self._excused_at = 0.0
        self._is_silence_reported = False
        self._dropped_at: float | None = None
        self._written_at = 0.0
        self._has_said_something = False

    async def batches(self, blocks: Sequence[Any]) -> AsyncGenerator[Drafts, None]:
        """Send the prompt and yield its drafts; the last batch ends with an outcome.

        Raises `Forgotten` or `Gone`; in both cases no outcome was yielded.
        """
        agent_session = self._context.agent_session
        params = {"sessionId": agent_session.session, "prompt": list(blocks)}
        try:
            self.prompt = await self._connection.begin("session/prompt", params)
        except ConnectionLost:
            raise Gone from None
        self._is_first, agent_session.is_prompted = not agent_session.is_prompted, True
        self._excused_at = self._context.now()
        while True:
            item = await self._next()
            # Queued drafts first, because drafts of this item must not overtake them.
            while (written := self._context.outbox.taken()) is not None:
                yield await self._ready(tuple(written))
            if isinstance(item, AnswerMarker) and item.future is self.prompt:
                self.is_over = True
                yield await self._ready(self._ended())
                return
            async with aclosing(self._heard(item)) as batches:
                async for batch in batches:
                    yield await self._ready(batch)
            if self.is_over:
                return
            if self._translator.is_flooded:
                yield self._translator.flooded()
                return

    async def _heard(self, item: Item | None) -> AsyncGenerator[Drafts, None]:
        """Yield the drafts of one received item, or those that are due after a timeout."""
        if isinstance(item, JsonRpcRequest):
            if item.method == "session/request_permission":
                self._translator.weigh(item.size)
            async with aclosing(self._host.take(item)) as batches:
                async for batch in batches:
                    self._has_said_something = True
                    yield tuple(batch)
        elif isinstance(item, JsonRpcNotification):
            if found := self._updates(item):
                yield self._with_the_end(found)
            elif self._context.now() >= self._written_at + ACTIVITY_SECONDS:
                # Activity without rows must still count, or the session would be taken for idle.
                self._written_at = self._context.now()
                await self._context.touch()
        elif isinstance(item, Junk):
            self._dropped_at = self._connection.heard_at
        elif item is None and (found := self._due()):
            yield found

    def _updates(self, item: JsonRpcNotification) -> Drafts:
        """Process an update and all queued ones, so that they are written in one transaction."""
        drafts = list(self._update(item))
        # Nothing is awaited in this loop, so no concurrent handler can queue drafts in between.
        while len(drafts) < _TOGETHER and (more := self._connection.ready()) is not None:
            drafts += self._update(more)
        return tuple(drafts)

    def _update(self, item: JsonRpcNotification) -> Drafts:
        if item.method != "session/update":
            return ()
        if read_object(item.params).get("sessionId") != self._context.agent_session.session:
            self._context.agent_session.hear(item.params, size=item.size)
            return ()
        now = self._context.now()
        return self._joined(self._translator.update(item.params, now=now, size=item.size))

    def _with_the_end(self, said: Drafts) -> Drafts:
        """Append the end of the turn when the reply has already arrived.

        Not while a request of the agent is open, because its handler may still write drafts.
        """
        if self._connection.owed or self._translator.is_flooded:
            return said
        answer = self._connection.answered()
        is_ours = answer is not None and answer.future is self.prompt
        if answer is None or not is_ours or isinstance(answer.future.exception(), ConnectionLost):
            return said
        self.is_over = True
        return (*said, *self._ended())

    def _ended(self) -> Drafts:
        """Return the last batch according to the agent's reply."""
        if self.prompt is None:
            raise Gone
        try:
            return self._translator.ended(self.prompt.result())
        except RequestRefused as refused:
            is_first = self._is_first and not self._context.agent_session.is_fresh
            is_lost = is_unknown_session(refused.error, is_first_prompt=is_first)
            if is_lost and not self._has_said_something:
                raise Forgotten from None
            return self._translator.refused(refused.error)
        except ConnectionLost:
            raise Gone from None

    def _due(self) -> Drafts:
        """Return drafts whose delay has passed, or the notice about a silent agent."""
        now = self._context.now()
        found = self._joined(self._translator.flush(now=now))
        if self._connection.owed:
            # The silence timeout is suspended while the agent waits for our answer.
            self._excused_at = now
        elif self._is_cut_off(now):
            return (*found, *self._translator.died(_CUT_OFF))
        elif now >= self._quiet_since() + self._silence and not self._is_silence_reported:
            self._is_silence_reported = True
            return (*found, _silent(self._silence))
        return found

    def _is_cut_off(self, now: float) -> bool:
        return self._dropped_at is not None and now >= self._quiet_since() + _AFTER_A_DROPPED_LINE

    def _quiet_since(self) -> float:
        return max(self._connection.heard_at, self._excused_at)

    def _joined(self, batches: list[tuple[Draft, ...]]) -> Drafts:
        if batches:
            self._has_said_something = True
        # Written in one batch, so that drafts of concurrent handlers cannot come between them.
        return batches[0] if len(batches) == 1 else tuple(d for each in batches for d in each)

    async def _ready(self, batch: Drafts) -> Drafts:
        """Store the media of a batch before the batch is yielded."""
        self._written_at = self._context.now()
        for each in self._translator.contents():
            if self._shelf is not None:
                await self._shelf.keep(each.content, mime_type=each.mime_type)
        return batch

    async def _next(self) -> Item | None:
        """Return the next item; `None` after a timeout or when a handler has queued drafts."""
        try:
            async with asyncio.timeout_at(self._wake_at()):
                if not self._connection.owed:
                    return await self._taken()
                return await self._taken_beside()
        except TimeoutError:
            return None

    async def _taken(self) -> Item:
        async for item in self._connection.incoming():
            return item
        raise Gone

    async def _taken_beside(self) -> Item | None:
        """Wait for the agent and for queued drafts at once; loses no item of either."""
        loop = asyncio.get_running_loop()
        taking = loop.create_task(self._taken())
        writing = loop.create_task(self._context.outbox.filled())
        try:
            await asyncio.wait({taking, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (taking, writing):
                task.cancel()
            await asyncio.wait({taking, writing})
        # The item is already out of the inbox, so it must be returned even if both tasks finished.
        return None if taking.cancelled() else taking.result()

    def _wake_at(self) -> float | None:
        times = [self._translator.deadline]
        if not self._is_silence_reported:
            times.append(
                max(self._quiet_since(), self._context.now() - self._silence) + self._silence
            )
        if self._dropped_at is not None:
            times.append(self._quiet_since() + _AFTER_A_DROPPED_LINE)
        found = [each for each in times if each is not None]
        return min(found, default=None)


_CUT_OFF: Final = Failure(
    code=FailureCode.AGENT_LINE_TOO_LONG,
    message="The agent sent a line longer than acp.line_limit, and nothing after it.",
)


def _silent(seconds: float) -> MessageDraft:
    text = f"The agent has sent nothing for {seconds:g} s; its turn continues."
    notice = Notice(code=NoticeCode.AGENT_SILENT, text=text)
    return MessageDraft(role=Role.SYSTEM, parts=(notice,))


Batch = Sequence[Draft | Outcome]


class ProgramRuntime:
    """A `Runtime` for external agent programs."""

    def __init__(
        self,
        registry: ProcessRegistry,
        launcher: AgentLauncher,
        files: RepositoryFiles,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._registry = registry
        self._launcher = launcher
        self._files = files
        self._clock = clock
        self._randomness = randomness

    async def run(self, turn: TurnInput, emit: Emit) -> TurnEnd:
        """Run the turn: send one prompt with all user messages of the turn."""
        async with aclosing(self._batches(turn)) as batches:
            async for batch in batches:
                # Only the last draft of the last batch is an outcome.
                drafts = tuple(each for each in batch if not isinstance(each, Outcome))
                if isinstance(outcome := batch[-1], Outcome):
                    return TurnEnd(outcome=outcome, drafts=drafts)
                await emit(drafts)
        raise Internal(Code.INTERNAL, "The turn of an agent program stopped without an outcome.")

    async def _batches(self, turn: TurnInput) -> AsyncGenerator[Batch, None]:
        if turn.process_slot is None:
            raise Internal(Code.INTERNAL, "An agent program requires a working folder.")
        slot = self._registry.slot(turn.process_slot)
        await slot.lock.acquire()
        while not self._registry.has(slot):
            # The process was ended while we waited for the lock, and the registry has a new slot.
            slot.lock.release()
            slot = self._registry.slot(turn.process_slot)
            await slot.lock.acquire()
        try:
            await slot.wake()
            async with aclosing(self._attempts(slot, turn)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            slot.lock.release()

    async def compact(self, turn: TurnInput) -> Sequence[Draft]:
        """Return nothing: an external agent manages its own context window."""
        return ()

    async def _attempts(self, slot: AgentSlot, turn: TurnInput) -> AsyncGenerator[Batch, None]:
        try:
            if (spent := _spent(turn)) is not None:
                yield (spent,)
                return
            notices = () if slot.agent_session else await self._launcher.prepare(slot, turn)
            tree = WorktreeWatch(slot.folder, partial(self._files.status, slot.folder))
            await tree.begin()
            try:
                async with aclosing(self._closed(slot, turn, notices, tree)) as batches:
                    async for batch in batches:
                        yield batch
            except Forgotten:
                again = await self._launcher.again(slot, turn)
                async with aclosing(self._closed(slot, turn, again, tree)) as batches:
                    async for batch in batches:
                        yield batch
        except AgentNotReady as failed:
            failure, evidence = failed.failure, failed.evidence
            yield (
                Outcome(
                    stop_reason=StopReason.ERROR, failure=failure, is_lost=True, evidence=evidence
                ),
            )
        finally:
            # Only now, so that the end of a turn does not wait for the raw log.
            if slot.agent_session is not None and slot.agent_session.raw is not None:
                slot.agent_session.raw.hasten()
            slot.rest()

    async def _closed(
        self, slot: AgentSlot, turn: TurnInput, notices: Batch, tree: WorktreeWatch
    ) -> AsyncGenerator[Batch, None]:
        """Yield the batches of a prompt; add the title and worktree notices to the last one."""
        async with aclosing(self._played(slot, turn, notices)) as batches:
            async for batch in batches:
                tree.note(batch)
                *drafts, last = batch
                if not isinstance(last, Outcome):
                    yield batch
                    continue
                # After a lost process the turn must end at once, without a scan of the worktree.
                changes = () if last.is_lost else await tree.notices()
                yield (*drafts, *_titled(slot, turn), *changes, last)

    async def _played(
        self, slot: AgentSlot, turn: TurnInput, notices: Batch
    ) -> AsyncGenerator[Batch, None]:
        agent_session = slot.present()
        context = self._context(slot, agent_session, turn)
        host = AgentRequestHandler(context, has_terminals=has_terminals(turn))
        playing = Playing(context, host, silence=self._launcher.deadlines.silence, shelf=turn.shelf)
        try:
            prompt = await build_prompt(
                turn_messages(turn.history, turn.turn),
                read_prompt_capabilities(agent_session.introduction),
                shelf=turn.shelf,
                put=slot.process_slot.put,
            )
            if said := (*notices, *prompt.notices):
                yield said
            blocks = (*_before(agent_session, turn), *prompt.blocks)
            async with aclosing(playing.batches(blocks)) as batches:
                async for batch in batches:
                    agent_session.agent_state = context.translator.agent_state
                    yield batch
        except Gone:
            yield await self._died(slot, context.translator)
        finally:
            agent_session.agent_state = context.translator.agent_state
            context.outbox.close()
            if (
                playing.prompt is not None
                and not playing.is_over
                and slot.agent_session is not None
            ):
                slot.abandon(playing.prompt, host.hush, self._launcher.deadlines.cancel)

    def _context(
        self, slot: AgentSlot, agent_session: AgentConversation, turn: TurnInput
    ) -> TurnContext:
        model = turn.models[0]
        facts = turn_facts(
            turn, session=slot.process_slot.session, model_id=model.id, model=model.ref
        )
        runtime = turn.agent.runtime
        if not isinstance(runtime, AcpRuntime) or slot.start is None:
            raise Internal(Code.INTERNAL, "A turn of an agent program requires a program to start.")
        return TurnContext(
            agent_session=agent_session,
            translator=Translator(
                facts, agent_state=agent_session.agent_state, new_id=self._new_id
            ),
            approver=turn.approver,
            files=self._files,
            options=parse_program_options(runtime),
            start=slot.start,
            new_id=self._new_id,
            touch=partial(slot.keep, ProcessState.READY, is_activity=True),
        )

    async def _died(self, slot: AgentSlot, translator: Translator) -> Batch:
        """Return the last batch of a turn whose process is gone."""
        agent_session = slot.present()
        end = await slot.fall()
        *drafts, outcome = translator.died(_failure(end))
        if not isinstance(outcome, Outcome):
            return (*drafts, outcome)
        tail = agent_session.program.stderr_tail
        return (*drafts, replace(outcome, is_lost=True, evidence=tail))

    def _new_id(self) -> str:
        return uuid7(microseconds(self._clock.now()) // 1000, self._randomness.bits(74))


def _spent(turn: TurnInput) -> Outcome | None:
    """Return the outcome if the budget is spent; checked only before the prompt is sent."""
    budget = turn.budget
    is_over = budget is not None and turn.spent >= budget.microcents
    if budget is None or not is_over or budget.on_exceed is OnExceed.WARN:
        return None
    failure = Failure(
        code=FailureCode.BUDGET_EXCEEDED,
        message="The session's budget is used up; raise it, or open another session.",
    )
    return Outcome(stop_reason=StopReason.BUDGET, failure=failure)


def _before(agent_session: AgentConversation, turn: TurnInput) -> Iterator[Block]:
    """Yield the blocks that precede the first prompt of a new agent session."""
    if agent_session.is_prompted or not agent_session.is_fresh:
        return
    if turn.agent.system_prompt.strip():
        yield text_block(turn.agent.system_prompt)
    if record := transcript(turn.history, turn=turn.turn):
        yield text_block(record)


def _titled(slot: AgentSlot, turn: TurnInput) -> Iterator[Draft]:
    """Yield the agent's title; it replaces only an automatic title or the agent's last one."""
    title = slot.new_title()
    first = next((row for row in turn.history if row.role is Role.USER), None)
    if title:
        automatic = title_of(first.text) if first is not None else None
        yield TitleChange(title=title[:255], instead=(None, automatic, slot.title))
        slot.title = title[:255]


def _failure(end: ProcessExit) -> Failure:
    """Return the failure of a turn whose process is gone."""
    code = FailureCode.AGENT_STUCK if end.reason == "stuck" else FailureCode.AGENT_DIED
    why = {
        "stuck": "it stopped reading",
        "stdout_closed": "it closed its output",
    }.get(end.reason, describe_exit(end))
    message = f"The agent's program exited during its turn ({why}); fork the session to continue."
    return Failure(code=code, message=message)
