"""Meeting a program: it is started, or joined where others of its owner have it run already.

Who has met it knows who it is; nothing has been said of a conversation yet.
"""

import logging
from collections.abc import Mapping
from typing import Any

from holdfast.acp.process.launching import NotStarted, Start
from holdfast.acp.process.program import Program
from holdfast.acp.process.starting import Yard
from holdfast.acp.runtime.conversation import LITERAL, Conversation
from holdfast.acp.runtime.fleet import Slip
from holdfast.acp.runtime.ladder import NotReady, Wish, introduce
from holdfast.acp.runtime.raw_lines import RawLines, Scribe
from holdfast.acp.runtime.sharing import SharedProgram, Shares, share_key
from holdfast.acp.translate.told import Told
from holdfast.acp.transport.censors import Censor
from holdfast.acp.transport.connection import Bounds
from holdfast.domain.agent_processes import ProcessState, ProgramOptions, parse_program_options
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.events import Failure, FailureCode
from holdfast.ports import TurnInput

log = logging.getLogger(__name__)


class Gangway:
    """Starts programs and joins those that are shared."""

    def __init__(self, shares: Shares, yard: Yard, scribe: Scribe | None, bounds: Bounds) -> None:
        self._shares = shares
        self._yard = yard
        self._scribe = scribe
        self._bounds = bounds

    async def met(self, slip: Slip, turn: TurnInput, wish: Wish, told: Told) -> Conversation:
        """Return the conversation with a program that was introduced; `told` is what it told."""
        if slip.start is None:
            raise NotReady(unavailable("Nobody said how the program is started."))
        capabilities = capabilities_of(turn)
        if not program_options(turn).share:
            conversation = await self._alone(slip, slip.start, turn, told)
            await introduce(conversation, capabilities, wish)
            return conversation
        key = share_key(turn, slip.process_slot.owner, slip.start, capabilities)
        # Held until it is introduced: of several who come at once one starts it.
        async with self._shares.lock(key):
            shared = self._shares.find(key)
            if shared is not None:
                return await self._joined(slip, shared, turn, told)
            shared = await self._launched(slip, slip.start)
            conversation = await self._seated(slip, shared, turn, told)
            await introduce(conversation, capabilities, wish)
            shared.introduction = conversation.introduction
            self._shares.add(key, shared)
        return conversation

    async def _alone(self, slip: Slip, start: Start, turn: TurnInput, told: Told) -> Conversation:
        """Start a program for one session."""
        raw = self._raw(slip)
        try:
            program = await Program.spawn(
                start,
                bounds=self._bounds,
                on_line=raw.add if raw is not None else None,
                censor=self._censor(),
            )
        except BaseException as failed:
            if raw is not None:
                await raw.aclose()
            if not isinstance(failed, NotStarted):
                raise
            raise _not_started(failed) from None
        conversation = slip.conversation = Conversation(program, told, raw)
        await _noted(slip, turn, program, "agent.spawned")
        return conversation

    async def _launched(self, slip: Slip, start: Start) -> SharedProgram:
        """Start a program that others may join."""
        mark = f"shared-{slip.process_slot.session}"
        try:
            return await SharedProgram.spawn(start, mark, self._bounds, self._censor())
        except NotStarted as failed:
            raise _not_started(failed) from None

    async def _joined(
        self, slip: Slip, shared: SharedProgram, turn: TurnInput, told: Told
    ) -> Conversation:
        """Take a place in a program that was started for somebody else."""
        conversation = await self._seated(slip, shared, turn, told, is_joined=True)
        conversation.introduction = shared.introduction
        conversation.auth_methods = shared.introduction["authMethods"]
        return conversation

    async def _seated(
        self,
        slip: Slip,
        shared: SharedProgram,
        turn: TurnInput,
        told: Told,
        *,
        is_joined: bool = False,
    ) -> Conversation:
        raw = self._raw(slip)
        seat = shared.seat(raw.add if raw is not None else None)
        conversation = slip.conversation = Conversation(shared.program, told, raw, seat)
        conversation.is_joined = is_joined
        event = "agent.joined" if is_joined else "agent.spawned"
        await _noted(slip, turn, shared.program, event)
        return conversation

    def _raw(self, slip: Slip) -> RawLines | None:
        return RawLines(self._scribe, slip.process_slot.key) if self._scribe is not None else None

    def _censor(self) -> Censor:
        return Censor(self._yard.scrubber, LITERAL)


async def _noted(slip: Slip, turn: TurnInput, program: Program, event: str) -> None:
    """Write down whose program it is before anything is said: should we die now, it is ended."""
    fields = {
        "session_id": slip.process_slot.session,
        "agent": turn.agent.slug,
        "cwd": slip.folder,
        "pid": program.birth.pid,
        "argv0": slip.start.argv[0] if slip.start is not None else "",
    }
    log.info(event, extra={"fields": fields})
    await slip.keep(ProcessState.STARTING)


def capabilities_of(turn: TurnInput) -> Mapping[str, Any]:
    """Return what we do for the program in a session."""
    has_files = program_options(turn).fs
    return {
        "fs": {"readTextFile": has_files, "writeTextFile": has_files},
        "terminal": has_terminals(turn),
        "session": {"configOptions": {"boolean": {}}},
    }


def has_terminals(turn: TurnInput) -> bool:
    """Tell whether the program may have us run commands."""
    grant = turn.agent.grant
    may_run = grant is not None and bool(grant.commands or grant.command_globs)
    return may_run and program_options(turn).terminal


def runtime_of(turn: TurnInput) -> AcpRuntime:
    """Return how the agent's program is run."""
    runtime = turn.agent.runtime
    if not isinstance(runtime, AcpRuntime):
        raise NotReady(unavailable("The agent is no program."))
    return runtime


def program_options(turn: TurnInput) -> ProgramOptions:
    """Return what the agent's options say of its program."""
    return parse_program_options(runtime_of(turn))


def unavailable(message: str) -> Failure:
    """Return why a turn ends whose program cannot be had."""
    return Failure(code=FailureCode.AGENT_UNAVAILABLE, message=message)


def _not_started(failed: NotStarted) -> NotReady:
    message = f"The agent's program cannot be started: {failed.reason}."
    return NotReady(unavailable(message), can_pass=failed.can_pass)
