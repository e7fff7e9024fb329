"""Gets an agent's program ready for a prompt: started or joined, initialized, in the right session.

Retries a failed start. The steps of the protocol are in `session_setup.py`.

"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.acp.client.agent_command import Yard, start_of
from holdfast.acp.client.agent_process import AGENT_BOUNDS, Program
from holdfast.acp.client.agent_session import LITERAL, Conversation
from holdfast.acp.client.agent_state import Told, told_from
from holdfast.acp.client.multiplex import SharedProgram, Shares, share_key
from holdfast.acp.client.process_registry import Fleet, Slip
from holdfast.acp.client.raw_log import RawLines, Scribe
from holdfast.acp.client.session_setup import (
    NotReady,
    Rung,
    SessionSetup,
    apply_options,
    climb,
    introduce,
    left_out,
    told_of,
)
from holdfast.acp.rpc.connection import Bounds, Lost
from holdfast.acp.rpc.redaction import Censor
from holdfast.domain.agent_processes import (
    ALIVE,
    ProcessExit,
    ProcessState,
    ProgramOptions,
    parse_program_options,
)
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Denied, HoldfastError, Invalid, NotFound
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.turns import turns
from holdfast.ports import (
    ClientMcpServer,
    ClientMcpServers,
    McpServerSource,
    TurnInput,
)
from holdfast.process.agent_child import NotStarted, Start

log = logging.getLogger(__name__)


class Gangway:
    """Starts programs and joins those that are shared."""

    def __init__(self, shares: Shares, yard: Yard, scribe: Scribe | None, bounds: Bounds) -> None:
        self._shares = shares
        self._yard = yard
        self._scribe = scribe
        self._bounds = bounds

    async def met(
        self, slip: Slip, turn: TurnInput, wish: SessionSetup, told: Told
    ) -> Conversation:
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


# A start that fails for what may pass is tried again after so many seconds, and then once more.
RETRIES: Final = (1.0, 4.0)


class Deadlines(Struct, frozen=True, kw_only=True):
    """How long each phase may take, in seconds."""

    start: float = 30.0
    session: float = 60.0
    option: float = 10.0
    silence: float = 60.0
    cancel: float = 5.0
    write: float = 30.0


class Outfit(Struct, frozen=True, kw_only=True):
    """What programs are brought aboard with: how they start, and who goes along with them."""

    yard: Yard
    companions: McpServerSource
    line_limit: int
    # Who puts all that a program says on the desk of its session; nobody, where nobody wants it.
    scribe: Scribe | None = None


class Boarding:
    """Brings programs aboard: the one place that starts them."""

    def __init__(self, fleet: Fleet, outfit: Outfit, deadlines: Deadlines) -> None:
        self._fleet = fleet
        self._outfit = outfit
        self.deadlines = deadlines
        bounds = replace(AGENT_BOUNDS, line=outfit.line_limit, write_seconds=deadlines.write)
        self._gangway = Gangway(fleet.shares, outfit.yard, outfit.scribe, bounds)

    async def board(self, slip: Slip, turn: TurnInput) -> tuple[MessageDraft, ...]:
        """Make a program ready for the turn's prompt; return what the record should say of it.

        Raises `NotReady` with what the program left to tell why.
        """
        for seconds in (*RETRIES, None):
            try:
                return await self._started(slip, turn)
            except NotReady as failed:
                if not failed.can_pass or seconds is None:
                    raise
                log.info("the agent is started again in %g s: %s", seconds, failed)
                await asyncio.sleep(seconds)
        raise AssertionError("the last attempt returns or raises")

    async def again(self, slip: Slip, turn: TurnInput) -> tuple[MessageDraft, ...]:
        """Begin anew with a program that has lost the conversation and is still there."""
        conversation = slip.present()
        conversation.session, conversation.is_prompted = None, False
        company = await self._company(turn)
        try:
            await climb(conversation, self._wish(slip, turn, None, company.companions), set())
            options = program_options(turn)
            await apply_options(conversation, options, within=self.deadlines.option)
        except Lost as lost:
            raise await _died(slip, lost) from None
        await slip.keep(ProcessState.READY)
        return _restarted("session/new")

    def _wish(
        self,
        slip: Slip,
        turn: TurnInput,
        known: str | None,
        companions: tuple[ClientMcpServer, ...],
    ) -> SessionSetup:
        return SessionSetup(
            folder=slip.folder,
            known=known,
            is_answered=any(each.is_answered for each in turns(turn.history)),
            auth_method=program_options(turn).auth_method,
            command=runtime_of(turn).command,
            companions=companions,
            start_seconds=self.deadlines.start,
            session_seconds=self.deadlines.session,
        )

    async def _started(self, slip: Slip, turn: TurnInput) -> tuple[MessageDraft, ...]:
        known = await slip.process_slot.known()
        if known.state in ALIVE and (known.birth is None or not known.birth.mark):
            # Somebody else's who held the session before us: there is one program for a session.
            # One that is shared may be others'; whoever looks after it lets the session go.
            await self._fleet.reap(known, slip.process_slot.session)
        company = await self._company(turn)
        slip.start = await self._prepared(slip, turn, company)
        is_new = known.agent_session is None
        told = Told() if is_new else told_from(known.told)
        slip.title = told.title
        wish = self._wish(slip, turn, known.agent_session, company.companions)
        rung = await self._climbed(slip, turn, wish, told)
        try:
            options, within = program_options(turn), self.deadlines.option
            refused = await apply_options(slip.present(), options, within=within)
            left = left_out(slip.present(), company.companions)
            notices = (*told_of((*company.troubles, *left), turn.history), *refused)
        except Lost:
            raise await _died(slip) from None
        except BaseException:
            await slip.stop(None)
            raise
        await slip.keep(ProcessState.READY)
        return (*(() if is_new else _restarted(rung)), *notices)

    async def _company(self, turn: TurnInput) -> ClientMcpServers:
        """Return the servers that go along, asked anew for each start: consent may have changed."""
        return await self._outfit.companions.of(turn.place) if turn.place else ClientMcpServers()

    async def _prepared(self, slip: Slip, turn: TurnInput, company: ClientMcpServers) -> Start:
        try:
            return await start_of(
                self._outfit.yard,
                runtime_of(turn),
                await slip.process_slot.folder(),
                slip.process_slot.session,
                has_servers=bool(company.companions),
            )
        except (Denied, Invalid, NotFound) as error:
            raise NotReady(unavailable(error.message)) from None
        except HoldfastError as error:
            if error.code is not Code.AGENT_UNAVAILABLE:
                raise
            raise NotReady(unavailable(error.message)) from None

    async def _climbed(self, slip: Slip, turn: TurnInput, wish: SessionSetup, told: Told) -> Rung:
        tried: set[Rung] = set()
        while True:
            try:
                conversation = await self._gangway.met(slip, turn, wish, told)
                return await climb(conversation, wish, tried)
            except Lost as lost:
                died = await _died(slip, lost)
                # It died of this rung; the next one may hold another program.
                if not tried or "session/new" in tried:
                    raise died from None
            except NotReady as failed:
                failed.evidence = failed.evidence or await _ended(slip)
                raise
            except BaseException:
                await slip.stop(None)
                raise


async def _died(slip: Slip, lost: Lost | None = None) -> NotReady:
    """Return why a program cannot be used that was lost before its first prompt."""
    program, is_joined = slip.present().program, slip.present().is_joined
    end = await slip.fall()
    tail = program.stderr_tail
    if lost is not None and lost.reason == "noise":
        message = "The program speaks something else than the protocol; it may be no agent."
        failure = Failure(code=FailureCode.AGENT_PROTOCOL, message=message)
    else:
        code = FailureCode.AGENT_STUCK if end.reason == "stuck" else FailureCode.AGENT_DIED
        message = f"The agent's program ended before it was ready ({came_out(end)})."
        failure = Failure(code=code, message=message)
    # It may have died of somebody else who shares it.
    can_pass = is_joined or (end.signal is not None and end.reason == "exited")
    died = NotReady(failure, can_pass=can_pass)
    died.evidence = tail
    return died


async def _ended(slip: Slip) -> str:
    """End the program that is here, if any, and return what it complained."""
    found = slip.conversation
    if found is None:
        return ""
    await slip.stop(None)
    return found.program.stderr_tail


def came_out(end: ProcessExit) -> str:
    """Return in words how a program ended."""
    if end.signal is not None:
        return f"signal {end.signal}"
    return f"exit code {end.code}" if end.code is not None else end.reason or "nobody knows how"


def _restarted(rung: Rung) -> tuple[MessageDraft, ...]:
    if rung == "session/resume":
        return ()
    told = {
        "session/load": "The agent was started again and has loaded the conversation.",
        "session/new": "The agent was started again and had lost the conversation; it was given "
        "the record of it.",
    }[rung]
    notice = Notice(code=NoticeCode.AGENT_RESTARTED, text=told)
    return (MessageDraft(role=Role.SYSTEM, parts=(notice,)),)
