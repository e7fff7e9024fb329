"""Getting a program ready for a prompt: started, introduced, and in the right conversation."""

import asyncio
import logging
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.acp.process.launching import Start
from holdfast.acp.process.program import AGENT_BOUNDS
from holdfast.acp.process.starting import Yard, start_of
from holdfast.acp.runtime.companions import left_out, told_of
from holdfast.acp.runtime.fleet import Fleet, Slip
from holdfast.acp.runtime.gangway import Gangway, program_options, runtime_of, unavailable
from holdfast.acp.runtime.ladder import NotReady, Rung, Wish, climb
from holdfast.acp.runtime.options import apply_options
from holdfast.acp.runtime.raw_lines import Scribe
from holdfast.acp.translate.told import Told, told_from
from holdfast.acp.transport.connection import Lost
from holdfast.domain.agent_processes import ALIVE, ProcessExit, ProcessState
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

log = logging.getLogger(__name__)

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
    ) -> Wish:
        return Wish(
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

    async def _climbed(self, slip: Slip, turn: TurnInput, wish: Wish, told: Told) -> Rung:
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
