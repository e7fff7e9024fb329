"""A session as one client has it open: events become updates, prompts become messages.

Approvals are also sent to the client; the first answer from any surface counts.

"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.acp.rpc.connection import AcpConnection
from holdfast.acp.rpc.framing import INTERNAL_ERROR, ConnectionLost, JsonRpcError, RequestRefused
from holdfast.acp.server.errors import error_data
from holdfast.acp.server.notifications import SessionNotifier
from holdfast.acp.server.updates import UpdateTranslator, usage_form
from holdfast.api import Holdfast
from holdfast.domain.approvals import (
    ALLOW_ALWAYS,
    ALLOW_ONCE,
    Approval,
    ApprovalScope,
    ApprovalState,
    Decision,
    Question,
)
from holdfast.domain.costs import Usage
from holdfast.domain.errors import Code, Conflict, HoldfastError, Internal
from holdfast.domain.events import (
    ApprovalAnswered,
    ApprovalRequested,
    Event,
    FailureCode,
    Gap,
    MessageAppended,
    SessionClosed,
    StepEnded,
    StepStarted,
    TurnEnded,
    TurnStarted,
)
from holdfast.domain.ids import ApprovalId, SessionId
from holdfast.domain.messages import Part, Role
from holdfast.domain.sessions import (
    FEW_TURNS,
    TURN_CAP_LARGEST,
    Session,
    StopReason,
    may_have_few_turns,
)

CANCELLED: Final = "cancelled"
STOPS: Final[Mapping[StopReason, str]] = {
    StopReason.STOP: "end_turn",
    StopReason.LENGTH: "max_tokens",
    StopReason.TURN_LIMIT: "max_turn_requests",
    StopReason.BUDGET: "max_turn_requests",
    StopReason.REFUSAL: "refusal",
    StopReason.ABORTED: CANCELLED,
    StopReason.INTERRUPTED: CANCELLED,
}


class PendingPrompt:
    """One `session/prompt` until its reply; `turn` is set once its message is stored."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.turn: int | None = None
        self.is_cancelled = False
        # Whether the event of its message was received.
        self.is_received = False
        self.ended: asyncio.Future[TurnEnded | None] = asyncio.get_running_loop().create_future()
        self.answered = asyncio.Event()

    def resolve(self, ended: TurnEnded | None) -> None:
        """Set the end of its turn; `None` means that the turn will not run."""
        if not self.ended.done():
            self.ended.set_result(ended)

    def fail(self, error: Exception) -> None:
        """Set the error because of which the end of its turn cannot be known."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def result(self, ended: TurnEnded | None) -> dict[str, Any]:
        """Return the reply; raises `RequestRefused` for a failed turn."""
        if ended is None:
            return prompt_result(StopReason.ABORTED, Usage())
        if ended.stop_reason is StopReason.ERROR and not self.is_cancelled:
            raise RequestRefused(_turn_error(ended))
        return prompt_result(ended.stop_reason, ended.usage)


def prompt_result(stop: StopReason, usage: Usage) -> dict[str, Any]:
    """Return the reply to a prompt, with the protocol's stop reason and Holdfast's."""
    return {
        "stopReason": STOPS.get(stop, CANCELLED),
        "usage": usage_form(usage),
        "_meta": {"holdfast": {"stop": stop.value}},
    }


def _turn_error(ended: TurnEnded) -> JsonRpcError:
    failure = ended.failure
    code = failure.code if failure else FailureCode.INTERNAL
    message = failure.message if failure else "The turn failed."
    return JsonRpcError(INTERNAL_ERROR, message, error_data(code, message))


log = logging.getLogger(__name__)
BY: Final = "acp"
REJECT_ONCE: Final = "reject_once"
REQUEST: Final = "session/request_permission"
_NO_TURNS: Final = (
    "(This session has used its {} turns, so the message was not sent. Raise its turn cap with "
    "`holdfast sessions update {} --turn-cap N`; `[limits].attended_turn_cap` is the cap of new "
    "sessions.)"
)


class PermissionOutcome(Struct, frozen=True, rename="camel"):
    """The option that the user selected, or that the request was cancelled."""

    outcome: str
    option_id: str | None = None


class PermissionReply(Struct, frozen=True):
    """The client's reply to a permission request."""

    outcome: PermissionOutcome


class ClientApprovals:
    """Sends each question to the client once; the first answer from any surface counts."""

    def __init__(
        self,
        backend: Holdfast,
        connection: AcpConnection,
        session_id: SessionId,
        start: Callable[..., asyncio.Task[None]],
    ) -> None:
        """`start` runs a task that lives as long as the client holds the session."""
        self._backend = backend
        self._connection = connection
        self._session_id = session_id
        self._start = start
        self._open: dict[ApprovalId, asyncio.Task[None] | None] = {}

    async def ask_all(self, translator: UpdateTranslator) -> None:
        """Ask all open questions of the session, also those of other clients' turns."""
        found = await self._backend.approvals.list(
            self._backend.owner, self._session_id, state=ApprovalState.WAITING
        )
        for approval in found.items:
            await self.ask(approval.id, translator)

    async def ask(self, approval_id: ApprovalId, translator: UpdateTranslator) -> None:
        """Send a question to the client, unless it was already sent or answered."""
        if approval_id in self._open:
            return
        # Set before the first await (race): the event and a new prompt may both ask this question.
        self._open[approval_id] = None
        backend, session_id = self._backend, self._session_id
        approval = await backend.approvals.get(backend.owner, session_id, approval_id)
        if approval.state is not ApprovalState.WAITING:
            return
        params = {
            "sessionId": session_id,
            "toolCall": translator.approval_update(approval),
            "options": choices_of(approval.question),
        }
        try:
            future = await self._connection.begin(REQUEST, params)
        except ConnectionLost:
            return
        self._open[approval_id] = self._start(self._forward_answer(approval, future))

    async def raises_cap(self, cap: int, new_cap: int) -> bool:
        """Ask the user whether the session may have more turns."""
        params = {
            "sessionId": self._session_id,
            "toolCall": {
                "toolCallId": f"turn_cap_{cap}",
                "title": f"This session has used its {cap} turns",
                "kind": "other",
                "status": "pending",
            },
            "options": [
                {"optionId": ALLOW_ONCE, "name": f"Raise to {new_cap} turns", "kind": ALLOW_ONCE},
                {"optionId": REJECT_ONCE, "name": "Do not send", "kind": REJECT_ONCE},
            ],
        }
        try:
            reply = await (await self._connection.begin(REQUEST, params))
            outcome = msgspec.convert(reply, PermissionReply).outcome
        except (ConnectionLost, RequestRefused, msgspec.ValidationError):
            # An error reply is not consent.
            return False
        return outcome.outcome == "selected" and outcome.option_id == ALLOW_ONCE

    def withdraw(self, approval_id: ApprovalId) -> None:
        """Stop waiting for the client's answer, because there is another one."""
        task = self._open.get(approval_id)
        if task is not None:
            task.cancel()

    async def _forward_answer(self, approval: Approval, future: asyncio.Future[Any]) -> None:
        try:
            answer = read_answer(approval.question, await future)
        except RequestRefused:
            # An error reply is not consent.
            answer = Decision(state=ApprovalState.DENIED, by=BY)
        except ConnectionLost:
            return
        try:
            await self._backend.approvals.answer(
                self._backend.owner,
                self._session_id,
                approval.id,
                answer,
                digest=approval.question.digest,
            )
        # Another surface answered first, or the turn has ended.
        except HoldfastError as error:
            log.info("an answer arrived too late: %s", error.message)


def choices_of(question: Question) -> list[dict[str, str]]:
    """Return the options of a question: those of its agent, otherwise Holdfast's."""
    if question.choices:
        return [
            {"optionId": each.id, "name": each.name, "kind": each.kind} for each in question.choices
        ]
    once = {"optionId": ALLOW_ONCE, "name": "Allow once", "kind": ALLOW_ONCE}
    always = {"optionId": ALLOW_ALWAYS, "name": "Allow for this session", "kind": ALLOW_ALWAYS}
    never = {"optionId": REJECT_ONCE, "name": "Reject", "kind": REJECT_ONCE}
    return [once, *([always] if question.memory is not None else []), never]


def read_answer(question: Question, result: Any) -> Decision:
    """Return the client's answer; anything but an offered approval is a denial."""
    denied = Decision(state=ApprovalState.DENIED, by=BY)
    try:
        outcome = msgspec.convert(result, PermissionReply).outcome
    except msgspec.ValidationError:
        return denied
    kinds = {each["optionId"]: each["kind"] for each in choices_of(question)}
    taken = outcome.option_id if outcome.outcome == "selected" else None
    kind = kinds.get(taken or "")
    choice = taken if question.choices and kind is not None else None
    if kind == ALLOW_ALWAYS and question.memory is not None:
        return Decision(
            state=ApprovalState.ALLOWED, by=BY, scope=ApprovalScope.SESSION, choice=choice
        )
    if kind in {ALLOW_ONCE, ALLOW_ALWAYS}:
        return Decision(state=ApprovalState.ALLOWED, by=BY, choice=choice)
    return msgspec.structs.replace(denied, choice=choice)


Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class ClientSession:
    """One client's hold on a session; releasing it does not change the session."""

    def __init__(
        self,
        backend: Holdfast,
        connection: AcpConnection,
        notifier: SessionNotifier,
        *,
        after: int,
        remarks: tuple[str, ...],
        spawn: Spawn,
    ) -> None:
        """Follow `after` an event; `spawn` runs a task as long as the client is connected."""
        self.session_id = notifier.session.id
        # Serializes the requests of a session in the order of their arrival.
        self.turnstile = asyncio.Lock()
        self.notifier = notifier
        self._backend = backend
        self._spawn = spawn
        self._cursor = after
        self._remarks = remarks
        self._approvals = ClientApprovals(backend, connection, self.session_id, self._start)
        self._prompts: list[PendingPrompt] = []
        # Turns that no prompt here waits for any more, and turns that also have other senders.
        self._given_up: set[int] = set()
        self._recalled: set[str] = set()
        self._shared = {notifier.session.turn}
        self._ended: dict[int, TurnEnded] = {}
        self._following: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Return whether a prompt waits for its reply."""
        return bool(self._prompts)

    def follow(self) -> None:
        """Start sending events as updates; restarts a stream that has broken off."""
        if self._following is None or self._following.done():
            self._following = self._start(self._follow())

    async def release(self) -> None:
        """Cancel all tasks of this hold."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def begin(self, message_id: str) -> PendingPrompt:
        """Register a prompt; from now on `cancel` includes it."""
        prompt = PendingPrompt(message_id)
        self._prompts.append(prompt)
        self.notifier.own.add(message_id)
        return prompt

    async def run(self, prompt: PendingPrompt, parts: tuple[Part, ...]) -> dict[str, Any]:
        """Send the message of a prompt; return its reply once all updates of its turn are sent."""
        async with self.turnstile:
            if prompt.is_cancelled:
                return prompt_result(StopReason.ABORTED, Usage())
            remarks, self._remarks = self._remarks, ()
            await self.notifier.remark(remarks)
            if not await self._may_send():
                return prompt_result(StopReason.TURN_LIMIT, Usage())
            await self._send(prompt, parts)
        self.follow()
        await self._approvals.ask_all(self.notifier.translator)
        return prompt.result(await prompt.ended)

    def drop(self, prompt: PendingPrompt) -> None:
        """Remove a prompt that is answered or was never sent."""
        self._prompts.remove(prompt)
        prompt.answered.set()

    def cancel(self) -> None:
        """Stop every registered prompt; turns of other clients continue."""
        self._give_up(self._prompts)

    def leave(self) -> None:
        """Stop turns that only this client has asked for, because it will not read the answer."""
        for prompt in self._prompts:
            if prompt.turn in self._shared:
                prompt.resolve(None)
        self._give_up([each for each in self._prompts if not each.ended.done()])

    def withdraw(self, prompt: PendingPrompt) -> None:
        """Stop one prompt only."""
        if prompt.turn is None:
            # Its message may still be stored; then the event of the message names the turn to stop.
            self._recalled.add(prompt.message_id)
            self.follow()
        self._give_up([prompt])

    async def wait_for_replies(self) -> None:
        """Wait until every prompt is answered."""
        while self._prompts:
            await self._prompts[0].answered.wait()

    async def _may_send(self) -> bool:
        """Return whether the turn cap allows a message; past it, the user is asked to raise it."""
        backend = self._backend
        session = await backend.sessions.get(backend.owner, self.session_id)
        if not may_have_few_turns(session):
            return True
        resumed = await backend.sessions.resume(backend.owner, self.session_id)
        left = resumed.turns_left - (session.turn - session.settled)
        if left > 0:
            if left <= FEW_TURNS:
                await self.notifier.remark([f"(Turns left in this session: {left - 1}.)"])
            return True
        wanted = min(session.turn_cap + (await backend.defaults()).turn_cap, TURN_CAP_LARGEST)
        if await self._approvals.raises_cap(session.turn_cap, wanted):
            changes = {"turn_cap": wanted}
            await backend.sessions.update(backend.owner, self.session_id, changes)
            return True
        await self.notifier.remark([_NO_TURNS.format(session.turn_cap, self.session_id)])
        return False

    async def _send(self, prompt: PendingPrompt, parts: tuple[Part, ...]) -> None:
        backend, id_ = self._backend, prompt.message_id
        try:
            message = await backend.send(self.session_id, parts, id=id_)
        except Conflict as error:
            if error.code is not Code.SESSION_CLOSED:
                raise
            await backend.sessions.resume(backend.owner, self.session_id)
            message = await backend.send(self.session_id, parts, id=id_)
        turn = prompt.turn = message.turn
        # The end of the turn may arrive before the reply to `send` (race).
        if (ended := self._ended.get(turn)) is not None:
            prompt.resolve(ended)
        if prompt.is_cancelled:
            self._given_up.add(turn)
            await self._stop([prompt])

    def _give_up(self, prompts: Sequence[PendingPrompt]) -> None:
        for prompt in prompts:
            prompt.is_cancelled = True
        sent = [each for each in prompts if each.turn is not None]
        if sent:
            self._given_up.update(each.turn or 0 for each in sent)
            self._start(self._stop(sent))

    async def _stop(self, prompts: Sequence[PendingPrompt]) -> None:
        """Interrupt the turns of the prompts, in order; does not touch other turns."""
        for turn in sorted({each.turn or 0 for each in prompts}):
            found = await self._interrupt(turn)
            if turn > found.settled + 1:
                # A turn of another sender runs first and may take long, so answer now.
                self._answer_cancelled(turn)

    async def _interrupt(self, turn: int) -> Session:
        backend = self._backend
        stopped = await backend.sessions.interrupt(backend.owner, self.session_id, turn=turn)
        return stopped.session

    async def _follow(self) -> None:
        """Send events as updates until the client releases it or the session is deleted."""
        try:
            events = self._backend.follow(self.session_id, after=self._cursor)
            async with aclosing(events):
                async for item in events:
                    await self._process(item)
                    self._cursor = item.to_sequence if isinstance(item, Gap) else item.sequence
        except HoldfastError as error:
            self._fail(error)
        except Exception:
            self._fail(Internal(Code.INTERNAL, "The session's events cannot be sent any more."))
            raise

    def _fail(self, error: HoldfastError) -> None:
        for prompt in self._prompts:
            prompt.fail(error)

    async def _process(self, item: Event | Gap) -> None:
        if isinstance(item, Gap):
            await self._on_gap(item)
            return
        payload = item.payload
        match payload:
            case MessageAppended(message_id=message_id, role=role):
                self._note(message_id)
                if role is Role.USER:
                    self._attribute(message_id, item.turn or 0)
                await self.notifier.send_message(payload)
            case ApprovalRequested(approval_id=approval_id):
                # Only while a prompt of this client is open; other senders have their own surfaces.
                if self._prompts:
                    await self._approvals.ask(approval_id, self.notifier.translator)
            case ApprovalAnswered(approval_id=approval_id):
                self._approvals.withdraw(approval_id)
                await self.notifier.send_event(payload)
            case StepStarted() | StepEnded():
                await self.notifier.send_usage(payload)
            case TurnStarted():
                await self._on_turn_begun(item.turn or 0)
            case TurnEnded():
                await self.notifier.send_changes()
                self._remember(item.turn or 0, payload)
                await self._resolve_prompts(self._up_to(item.turn or 0), payload)
            case SessionClosed():
                # A message that was sent after this event has reopened the session.
                await self._resolve_prompts(
                    [each for each in self._prompts if each.is_received], None
                )
            case _:
                await self.notifier.send_event(payload)

    async def _on_turn_begun(self, turn: int) -> None:
        if turn in self._given_up and self._is_wanted(turn):
            self._answer_cancelled(turn)
        elif turn in self._given_up:
            self._start(self._interrupt(turn))
        # The first message sets the title of the session.
        if self.notifier.session.title is None:
            await self.notifier.send_changes()

    async def _on_gap(self, gap: Gap) -> None:
        """Settle prompts whose turn ended inside a gap, if no events follow the gap."""
        await self.notifier.send_changes()
        session = self.notifier.session
        if gap.to_sequence >= session.last_event:
            ended = TurnEnded(stop_reason=session.last_stop or StopReason.STOP)
            await self._resolve_prompts(self._up_to(session.settled), ended)

    def _answer_cancelled(self, turn: int) -> None:
        """Answer the cancelled prompts of a turn; the turn itself is not changed."""
        for prompt in self._prompts:
            if prompt.turn == turn and prompt.is_cancelled:
                prompt.resolve(None)

    def _is_wanted(self, turn: int) -> bool:
        """Return whether a turn that begins is still wanted, by this client or another."""
        # A prompt with a stored message but no turn yet belongs to this turn: all queued ones do.
        waiting = [each for each in self._prompts if each.is_received and not each.is_cancelled]
        return turn in self._shared or any(each.turn in {None, turn} for each in waiting)

    def _remember(self, turn: int, ended: TurnEnded) -> None:
        """Remember the end of a turn while there are prompts whose turn is not known."""
        self._given_up.discard(turn)
        self._shared.discard(turn)
        if all(each.turn is not None for each in self._prompts):
            self._ended.clear()
        else:
            self._ended[turn] = ended

    def _attribute(self, message_id: str, turn: int) -> None:
        """Record whether a message's turn was withdrawn here or is wanted by another sender."""
        if message_id in self._recalled:
            self._recalled.discard(message_id)
            self._given_up.add(turn)
        elif message_id not in self.notifier.own:
            self._shared.add(turn)

    def _note(self, message_id: str) -> None:
        for prompt in self._prompts:
            prompt.is_received |= prompt.message_id == message_id

    def _up_to(self, turn: int) -> list[PendingPrompt]:
        # Turns settle in order, so the end of a later turn settles the earlier ones.
        sent = [each for each in self._prompts if each.turn is not None]
        return [each for each in sent if (each.turn or 0) <= turn]

    async def _resolve_prompts(
        self, done: Sequence[PendingPrompt], ended: TurnEnded | None
    ) -> None:
        for prompt in done:
            prompt.resolve(ended)
        for prompt in done:
            # Further updates must follow the reply, so wait until it is sent.
            await prompt.answered.wait()

    def _start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        task = self._spawn(_ignore_errors(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before it starts never awaits its coroutine, so close it.
        task.add_done_callback(lambda _: work.close())
        return task


async def _ignore_errors(work: Coroutine[Any, Any, object]) -> None:
    """Run background work; an error in it is logged and must not end the connection."""
    try:
        await work
    except HoldfastError as error:
        log.warning("a task for a client failed: %s", error.message)
    except Exception:
        log.exception("internal error while serving a client")
