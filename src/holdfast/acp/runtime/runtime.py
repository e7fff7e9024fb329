"""Somebody else's agent behind a session: its program is started, prompted, and heard to the end.

Like our own loop it writes nothing down itself, it yields drafts. The abort signal is the closing
of the generator; the program is then told to stop, and lives on if it does.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from msgspec.structs import replace

from holdfast.acp.runtime.boarding import Boarding, came_out
from holdfast.acp.runtime.conversation import Conversation
from holdfast.acp.runtime.fleet import Fleet, Slip
from holdfast.acp.runtime.gangway import has_terminals
from holdfast.acp.runtime.host import Host
from holdfast.acp.runtime.ladder import NotReady
from holdfast.acp.runtime.playing import Forgotten, Gone, Playing
from holdfast.acp.runtime.stage import Stage
from holdfast.acp.runtime.worktree import Worktree
from holdfast.acp.translate.prompt_blocks import Block, messages_of, prompt_of, taken_of, text_block
from holdfast.acp.translate.transcripts import transcript
from holdfast.acp.translate.translator import Translator, ground_of
from holdfast.domain.agent_processes import ProcessExit, ProcessState, parse_program_options
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.drafts import Draft, Outcome, TitleChange
from holdfast.domain.errors import Code, Internal
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.ids import uuid7
from holdfast.domain.messages import Role
from holdfast.domain.sessions import OnExceed, StopReason, title_of
from holdfast.domain.time import microseconds
from holdfast.ports import Clock, Randomness, RepositoryFiles, TurnInput

Batch = Sequence[Draft]


class ProgramRuntime:
    """A `Runtime` for agents that are somebody else's program."""

    def __init__(
        self,
        fleet: Fleet,
        boarding: Boarding,
        files: RepositoryFiles,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._fleet = fleet
        self._boarding = boarding
        self._files = files
        self._clock = clock
        self._randomness = randomness

    async def run(self, turn: TurnInput) -> AsyncGenerator[Batch, None]:
        """Play the turn: one prompt with everything that was said to the agent."""
        if turn.process_slot is None:
            raise Internal(Code.INTERNAL, "A program has no place to be in.")
        slip = self._fleet.slip(turn.process_slot)
        await slip.lock.acquire()
        while not self._fleet.has(slip):
            # The program was put to an end while we waited; there is a new place since.
            slip.lock.release()
            slip = self._fleet.slip(turn.process_slot)
            await slip.lock.acquire()
        try:
            await slip.wake()
            async with aclosing(self._attempts(slip, turn)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            slip.lock.release()

    async def compact(self, turn: TurnInput) -> Batch:
        """Fold nothing: what a program remembers is its own business."""
        return ()

    async def _attempts(self, slip: Slip, turn: TurnInput) -> AsyncGenerator[Batch, None]:
        try:
            if (spent := _spent(turn)) is not None:
                yield (spent,)
                return
            notices = () if slip.conversation else await self._boarding.board(slip, turn)
            tree = Worktree(slip.folder, partial(self._files.status, slip.folder))
            await tree.begin()
            try:
                async with aclosing(self._closed(slip, turn, notices, tree)) as batches:
                    async for batch in batches:
                        yield batch
            except Forgotten:
                again = await self._boarding.again(slip, turn)
                async with aclosing(self._closed(slip, turn, again, tree)) as batches:
                    async for batch in batches:
                        yield batch
        except NotReady as failed:
            failure, evidence = failed.failure, failed.evidence
            yield (
                Outcome(
                    stop_reason=StopReason.ERROR, failure=failure, is_lost=True, evidence=evidence
                ),
            )
        finally:
            # Not before: the last words of a turn must not have to wait for a copy of them.
            if slip.conversation is not None and slip.conversation.raw is not None:
                slip.conversation.raw.hasten()
            slip.rest()

    async def _closed(
        self, slip: Slip, turn: TurnInput, notices: Batch, tree: Worktree
    ) -> AsyncGenerator[Batch, None]:
        """Yield the batches of a prompt; the last one also says what else there is to say."""
        async with aclosing(self._played(slip, turn, notices)) as batches:
            async for batch in batches:
                tree.note(batch)
                *drafts, last = batch
                if not isinstance(last, Outcome):
                    yield batch
                    continue
                # Of one whose agent is gone nobody should have to wait for more.
                changes = () if last.is_lost else await tree.notices()
                yield (*drafts, *_titled(slip, turn), *changes, last)

    async def _played(
        self, slip: Slip, turn: TurnInput, notices: Batch
    ) -> AsyncGenerator[Batch, None]:
        conversation = slip.present()
        stage = self._stage(slip, conversation, turn)
        host = Host(stage, has_terminals=has_terminals(turn))
        playing = Playing(stage, host, silence=self._boarding.deadlines.silence, shelf=turn.shelf)
        try:
            prompt = await prompt_of(
                messages_of(turn.history, turn.turn),
                taken_of(conversation.introduction),
                shelf=turn.shelf,
                put=slip.process_slot.put,
            )
            if said := (*notices, *prompt.notices):
                yield said
            blocks = (*_before(conversation, turn), *prompt.blocks)
            async with aclosing(playing.batches(blocks)) as batches:
                async for batch in batches:
                    conversation.told = stage.translator.told
                    yield batch
        except Gone:
            yield await self._died(slip, stage.translator)
        finally:
            conversation.told = stage.translator.told
            stage.outbox.close()
            if playing.prompt is not None and not playing.is_over and slip.conversation is not None:
                slip.abandon(playing.prompt, host.hush, self._boarding.deadlines.cancel)

    def _stage(self, slip: Slip, conversation: Conversation, turn: TurnInput) -> Stage:
        model = turn.models[0]
        ground = ground_of(
            turn, session=slip.process_slot.session, model_id=model.id, model=model.ref
        )
        runtime = turn.agent.runtime
        if not isinstance(runtime, AcpRuntime) or slip.start is None:
            raise Internal(Code.INTERNAL, "A turn of a program needs one.")
        return Stage(
            conversation=conversation,
            translator=Translator(ground, told=conversation.told, new_id=self._new_id),
            approver=turn.approver,
            files=self._files,
            options=parse_program_options(runtime),
            start=slip.start,
            new_id=self._new_id,
            touch=partial(slip.keep, ProcessState.READY, is_activity=True),
        )

    async def _died(self, slip: Slip, translator: Translator) -> Batch:
        """Return the last batch of a turn whose program is gone."""
        conversation = slip.present()
        end = await slip.fall()
        if conversation.seat is not None and end.reason == "ended":
            # For somebody else's sake: the next prompt starts another one.
            return translator.died(_FOR_ANOTHER)
        *drafts, outcome = translator.died(_failure(end))
        if not isinstance(outcome, Outcome):
            return (*drafts, outcome)
        tail = conversation.program.stderr_tail
        return (*drafts, replace(outcome, is_lost=True, evidence=tail))

    def _new_id(self) -> str:
        return uuid7(microseconds(self._clock.now()) // 1000, self._randomness.bits(74))


def _spent(turn: TurnInput) -> Outcome | None:
    """Return how a turn ends that the session has no money for; nobody can stop it midway."""
    budget = turn.budget
    is_over = budget is not None and turn.spent >= budget.microcents
    if budget is None or not is_over or budget.on_exceed is OnExceed.WARN:
        return None
    failure = Failure(
        code=FailureCode.BUDGET_EXCEEDED,
        message="The session's budget is spent; raise it, or open another session.",
    )
    return Outcome(stop_reason=StopReason.BUDGET, failure=failure)


def _before(conversation: Conversation, turn: TurnInput) -> Iterator[Block]:
    """Yield what a fresh conversation is told before its first prompt."""
    if conversation.is_prompted or not conversation.is_fresh:
        return
    if turn.agent.system_prompt.strip():
        yield text_block(turn.agent.system_prompt)
    if record := transcript(turn.history, turn=turn.turn):
        yield text_block(record)


def _titled(slip: Slip, turn: TurnInput) -> Iterator[Draft]:
    """Yield the title that the agent has given, in the place of one that nobody gave."""
    title = slip.told_title()
    first = next((row for row in turn.history if row.role is Role.USER), None)
    if title:
        automatic = title_of(first.text) if first is not None else None
        yield TitleChange(title=title[:255], instead=(None, automatic, slip.title))
        slip.title = title[:255]


_FOR_ANOTHER: Final = Failure(
    code=FailureCode.AGENT_DIED,
    message="The agent's program was ended, because the turn of another session that shares it did "
    "not stop when it was told to; say it again.",
)


def _failure(end: ProcessExit) -> Failure:
    """Return why a turn ended whose program is gone."""
    code = FailureCode.AGENT_STUCK if end.reason == "stuck" else FailureCode.AGENT_DIED
    why = {
        "stuck": "it read nothing any more",
        "stdout_closed": "it closed its output",
    }.get(end.reason, came_out(end))
    message = (
        f"The agent's program ended in the middle of its turn ({why}); fork the session to go on."
    )
    return Failure(code=code, message=message)
