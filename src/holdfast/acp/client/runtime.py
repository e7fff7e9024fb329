"""The `Runtime` of ACP agents: one turn is one `session/prompt` and everything up to its reply.

Reads the agent's messages during the turn. Starting the process is in `launcher.py`, answering
its requests in `agent_requests.py`.

"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.acp.client.agent_requests import AgentRequestHandler
from holdfast.acp.client.agent_session import AcpSession
from holdfast.acp.client.launcher import (
    AgentLauncher,
    describe_exit,
    has_terminals,
    program_options,
)
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
from holdfast.acp.client.stop_reasons import FLOODED, is_unknown_session
from holdfast.acp.client.translator import Translator, turn_facts
from holdfast.acp.client.turn_context import Batch, DraftQueue, TurnContext
from holdfast.acp.client.unreported_changes import WorktreeWatch
from holdfast.acp.rpc.connection import AnswerMarker, Item
from holdfast.acp.rpc.framing import (
    ConnectionLost,
    JsonRpcNotification,
    JsonRpcRequest,
    Junk,
    RequestRefused,
)
from holdfast.domain.agent_processes import ProcessExit, ProcessState
from holdfast.domain.drafts import Draft, MessageDraft, Outcome, TitleChange, notice_draft
from holdfast.domain.errors import Code, Internal
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.messages import NoticeCode, Role
from holdfast.domain.sessions import OnExceed, StopReason, describe_editor, title_of
from holdfast.ports.runtime import Emit, TurnEnd, TurnInput
from holdfast.ports.tools import RepositoryFiles

log = logging.getLogger(__name__)
# Limits the drafts of one transaction; further updates wait for the next one.
_BATCH_MOST: Final = 256
# After a dropped line, this much silence means that the dropped line was the reply.
_AFTER_A_DROPPED_LINE: Final = 5.0
# How often activity is recorded when updates produce no rows.
ACTIVITY_SECONDS: Final = 1.0


class SessionLost(Exception):  # noqa: N818 — it says what is, not what went wrong
    """The agent has lost the session, and the prompt has produced no output yet."""


class AgentDisconnected(Exception):  # noqa: N818 — it says what is, not what went wrong
    """The connection to the agent was lost during its turn."""


class RunningPrompt:
    """A prompt in flight: `prompt` is the future of its reply, `is_over` is set on the reply."""

    def __init__(
        self, context: TurnContext, requests: AgentRequestHandler, *, silence: float
    ) -> None:
        self.prompt: asyncio.Future[Any] | None = None
        self.is_over = False
        self._context = context
        self._requests = requests
        self._translator = context.translator
        self._connection = context.agent_session.connection
        self._silence = silence
        self._is_first = False
        self._silence_starts_at = 0.0
        self._is_silence_reported = False
        self._dropped_at: float | None = None
        self._touched_at = 0.0

    async def run(self, blocks: Sequence[Block]) -> TurnEnd:
        """Send the prompt and write its drafts until it ends.

        Raises `SessionLost` or `AgentDisconnected`.
        """
        agent_session = self._context.agent_session
        params = {"sessionId": agent_session.agent_session_id, "prompt": list(blocks)}
        try:
            self.prompt = await self._connection.begin("session/prompt", params)
        except ConnectionLost:
            raise AgentDisconnected from None
        self._is_first, agent_session.is_prompted = not agent_session.is_prompted, True
        self._silence_starts_at = self._context.now()
        while True:
            end = await self._process(await self._next())
            if end is None and self._translator.is_flooded:
                end = self._translator.fail(FLOODED)
            if end is not None:
                return end

    async def _next(self) -> Item | None:
        """Return the next item; `None` after a timeout, or when handlers have queued drafts."""
        drafts = self._context.drafts
        if not drafts:
            try:
                async with asyncio.timeout_at(self._wake_at()):
                    if not await self._connection.wait():
                        raise AgentDisconnected
            except TimeoutError:
                return None
        # Queued drafts first, because drafts of the next item must not overtake them.
        await drafts.write()
        return self._connection.next()

    async def _process(self, item: Item | None) -> TurnEnd | None:
        """Write the drafts of an item, or those that are due; return the end of the turn."""
        if isinstance(item, AnswerMarker):
            return self._end() if item.future is self.prompt else None
        if isinstance(item, JsonRpcRequest):
            if item.method == "session/request_permission":
                self._translator.weigh(item.size)
            await self._requests.begin(item)
        elif isinstance(item, JsonRpcNotification):
            return await self._update(item)
        elif isinstance(item, Junk):
            self._dropped_at = self._connection.heard_at
        else:
            return await self._write_due()
        return None

    async def _update(self, item: JsonRpcNotification) -> TurnEnd | None:
        """Write the drafts of an update and of all queued ones in one transaction."""
        drafts = [*self._translate(item)]
        # Nothing is awaited in this loop, so no concurrent handler can queue drafts in between.
        while len(drafts) < _BATCH_MOST and (more := self._connection.next_notification()):
            drafts += self._translate(more)
        if drafts:
            if (end := self._end_at_once()) is not None:
                return replace(end, drafts=(*drafts, *end.drafts))
            await self._context.drafts.write(drafts)
        else:
            await self._touch()
        return None

    async def _touch(self) -> None:
        """Record activity without rows, or the session would be taken for idle."""
        now = self._context.now()
        if now >= max(self._touched_at, self._context.drafts.written_at) + ACTIVITY_SECONDS:
            self._touched_at = now
            await self._context.touch()

    def _translate(self, item: JsonRpcNotification) -> Batch:
        if item.method != "session/update":
            return ()
        if (
            read_object(item.params).get("sessionId")
            != self._context.agent_session.agent_session_id
        ):
            self._context.agent_session.process_update(item.params, size=item.size)
            return ()
        return self._translator.update(item.params, now=self._context.now(), size=item.size)

    def _end_at_once(self) -> TurnEnd | None:
        """Return the end of the turn when the reply has already arrived.

        Not while a request of the agent is open, because its handler may still write drafts.
        """
        if self._connection.unanswered or self._translator.is_flooded or self.prompt is None:
            return None
        if not self._connection.is_answered(self.prompt):
            return None
        self._connection.next()
        return self._end()

    def _end(self) -> TurnEnd:
        """Return the end of the turn according to the agent's reply."""
        self.is_over = True
        if self.prompt is None:
            raise AgentDisconnected
        try:
            return self._translator.end(self.prompt.result())
        except RequestRefused as refused:
            is_first = self._is_first and not self._context.agent_session.is_fresh
            is_lost = is_unknown_session(refused.error, is_first_prompt=is_first)
            if is_lost and not self._translator.has_output:
                raise SessionLost from None
            return self._translator.end_with_error(refused.error)
        except ConnectionLost:
            raise AgentDisconnected from None

    async def _write_due(self) -> TurnEnd | None:
        """Write drafts whose delay has passed, and the notice about a silent agent."""
        now = self._context.now()
        drafts = self._translator.flush(now=now)
        if self._connection.unanswered:
            # The silence timeout is suspended while the agent waits for our answer.
            self._silence_starts_at = now
        elif self._has_lost_reply(now):
            end = self._translator.fail(_CUT_OFF)
            return replace(end, drafts=(*drafts, *end.drafts))
        elif now >= self._quiet_since() + self._silence and not self._is_silence_reported:
            self._is_silence_reported = True
            drafts = (*drafts, _silence_notice(self._silence))
        await self._context.drafts.write(drafts)
        return None

    def _has_lost_reply(self, now: float) -> bool:
        return self._dropped_at is not None and now >= self._quiet_since() + _AFTER_A_DROPPED_LINE

    def _quiet_since(self) -> float:
        return max(self._connection.heard_at, self._silence_starts_at)

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


def _silence_notice(seconds: float) -> MessageDraft:
    text = f"The agent has sent nothing for {seconds:g} s; its turn continues."
    return notice_draft(NoticeCode.AGENT_SILENT, text)


class AcpAgentRuntime:
    """A `Runtime` for external agent programs."""

    writes_first = False

    def __init__(
        self,
        registry: ProcessRegistry,
        launcher: AgentLauncher,
        files: RepositoryFiles,
        new_id: Callable[[], str],
    ) -> None:
        self._registry = registry
        self._launcher = launcher
        self._files = files
        self._new_id = new_id

    async def run(self, turn: TurnInput, emit: Emit) -> TurnEnd:
        """Run the turn: send one prompt with all user messages of the turn."""
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
            await slot.stop_idle_reader()
            return await self._run(slot, turn, emit)
        finally:
            slot.lock.release()

    async def compact(self, turn: TurnInput) -> Batch:
        """Return nothing: an external agent manages its own context window."""
        return ()

    async def _run(self, slot: AgentSlot, turn: TurnInput, emit: Emit) -> TurnEnd:
        """Start the process if needed, send the prompt, and send it again to a new session if lost.

        Adds the title and the notice about unreported changes to the end of the turn.
        """
        try:
            if (spent := _budget_outcome(turn)) is not None:
                return TurnEnd(outcome=spent)
            notices = () if slot.agent_session else await self._launcher.prepare(slot, turn)
            tree = WorktreeWatch(slot.folder, partial(self._files.status, slot.folder))
            await tree.begin()
            if (raw := slot.present().raw) is not None:
                raw.add(_prompt_line(turn))

            async def emit_noted(batch: Batch) -> None:
                tree.note(batch)
                await emit(batch)

            try:
                end = await self._prompt(slot, turn, notices, emit_noted)
            except SessionLost:
                notices = await self._launcher.again(slot, turn)
                end = await self._prompt(slot, turn, notices, emit_noted)
            tree.note(end.drafts)
            # After a lost process the turn must end at once, without a scan of the worktree.
            changes = () if end.outcome.is_lost else await tree.notices()
            return replace(end, drafts=(*end.drafts, *_title_change(slot, turn), *changes))
        except AgentNotReady as failed:
            failure, evidence = failed.failure, failed.evidence
            return TurnEnd(
                outcome=Outcome(
                    stop_reason=StopReason.ERROR, failure=failure, is_lost=True, evidence=evidence
                )
            )
        finally:
            # Last, so that the rows of the turn do not wait for the raw log.
            if slot.agent_session is not None and slot.agent_session.raw is not None:
                slot.agent_session.raw.flush()
            slot.start_idle_reader()

    async def _prompt(
        self, slot: AgentSlot, turn: TurnInput, notices: Batch, emit: Emit
    ) -> TurnEnd:
        """Send the prompt and run it to its end; raises `SessionLost`."""
        agent_session = slot.present()
        context = self._context(slot, agent_session, turn, emit)
        requests = AgentRequestHandler(context, has_terminals=has_terminals(turn))
        running = RunningPrompt(context, requests, silence=self._launcher.deadlines.silence)
        try:
            prompt = await build_prompt(
                turn_messages(turn.history, turn.turn),
                read_prompt_capabilities(agent_session.introduction),
                store=turn.shelf,
                put=slot.process_slot.put,
            )
            await context.drafts.write((*notices, *prompt.notices))
            end = await running.run((*_preamble(agent_session, turn), *prompt.blocks))
            await _store_media(context.translator, turn)
            return end
        except AgentDisconnected:
            return await self._end_lost(slot, context)
        finally:
            agent_session.agent_state = context.translator.agent_state
            context.drafts.close()
            if running.prompt and not running.is_over and slot.agent_session is not None:
                cancel = self._launcher.deadlines.cancel
                slot.abandon(running.prompt, requests.withdraw, cancel)

    def _context(
        self, slot: AgentSlot, agent_session: AcpSession, turn: TurnInput, emit: Emit
    ) -> TurnContext:
        model = turn.models[0]
        facts = turn_facts(
            turn, session=slot.process_slot.session, model_id=model.id, model=model.ref
        )
        if slot.start is None:
            raise Internal(Code.INTERNAL, "A turn of an agent program requires a program to start.")
        translator = Translator(facts, agent_state=agent_session.agent_state, new_id=self._new_id)

        async def write(batch: Batch) -> None:
            agent_session.agent_state = translator.agent_state
            await _store_media(translator, turn)
            await emit(batch)

        return TurnContext(
            agent_session=agent_session,
            translator=translator,
            drafts=DraftQueue(write, agent_session.connection.wake),
            approver=turn.approver,
            files=self._files,
            options=program_options(turn),
            start=slot.start,
            new_id=self._new_id,
            touch=partial(slot.keep, ProcessState.READY, is_activity=True),
        )

    async def _end_lost(self, slot: AgentSlot, context: TurnContext) -> TurnEnd:
        """Return the end of a turn whose process is gone."""
        program = slot.present().agent_process
        # Handlers that were cancelled with the connection record the end of their calls.
        ending = asyncio.get_running_loop().create_task(slot.drop_process())
        failure = _failure(await context.drafts.write_until(ending))
        end = context.translator.fail(failure)
        outcome = replace(end.outcome, is_lost=True, evidence=program.stderr_tail)
        return replace(end, outcome=outcome)


def _budget_outcome(turn: TurnInput) -> Outcome | None:
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


def _prompt_line(turn: TurnInput) -> bytes:
    """Return the user's text as a line of the raw log, so that the log holds both sides."""
    texts = [message.text for message in turn_messages(turn.history, turn.turn)]
    line = {"type": "user", "message": "\n\n".join(filter(None, texts))}
    return msgspec.json.encode(line)


async def _store_media(translator: Translator, turn: TurnInput) -> None:
    """Store the media of the translated drafts, before the rows that refer to them."""
    for each in translator.contents():
        if turn.shelf is not None:
            await turn.shelf.keep(each.content, mime_type=each.media.mime_type)


def _preamble(agent_session: AcpSession, turn: TurnInput) -> Iterator[Block]:
    """Yield the blocks that precede the first prompt of a new agent session."""
    if agent_session.is_prompted or not agent_session.is_fresh:
        return
    if turn.agent.system_prompt.strip():
        yield text_block(turn.agent.system_prompt)
    if record := transcript(turn.history, turn=turn.turn):
        yield text_block(record)
    if remark := describe_editor(turn.context):
        yield text_block(remark)


def _title_change(slot: AgentSlot, turn: TurnInput) -> Iterator[Draft]:
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
