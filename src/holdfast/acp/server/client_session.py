"""A session as one client has it open: its events become updates, its prompts become messages.

Approvals are asked of the client; the first answer, from anywhere, counts.

"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.acp.rpc.connection import AcpConnection, ConnectionLost, RequestRefused
from holdfast.acp.rpc.framing import INTERNAL_ERROR, JsonRpcError
from holdfast.acp.server.api import AcpBackend
from holdfast.acp.server.errors import error_data
from holdfast.acp.server.notifications import SessionNotifier
from holdfast.acp.server.updates import UpdateTranslator, usage_form
from holdfast.domain.approvals import (
    ALLOW_ALWAYS,
    ALLOW_ONCE,
    Approval,
    ApprovalAnswer,
    ApprovalScope,
    ApprovalState,
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
from holdfast.domain.sessions import Session, StopReason

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
    """One `session/prompt` until it is answered; its turn is known once its message is written."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.turn: int | None = None
        self.is_cancelled = False
        # Its message was among the news that were told.
        self.is_heard = False
        self.ended: asyncio.Future[TurnEnded | None] = asyncio.get_running_loop().create_future()
        self.answered = asyncio.Event()

    def settle(self, ended: TurnEnded | None) -> None:
        """Note how its turn has ended; nothing means that it never will be played."""
        if not self.ended.done():
            self.ended.set_result(ended)

    def fail(self, error: Exception) -> None:
        """Note that nobody can tell how its turn ends."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def result(self, ended: TurnEnded | None) -> dict[str, Any]:
        """Return the answer, or raise the refusal of a turn that has failed."""
        if ended is None:
            return prompt_result(StopReason.ABORTED, Usage())
        if ended.stop_reason is StopReason.ERROR and not self.is_cancelled:
            raise RequestRefused(_turn_error(ended))
        return prompt_result(ended.stop_reason, ended.usage)


def prompt_result(stop: StopReason, usage: Usage) -> dict[str, Any]:
    """Return how a turn has stopped, in the protocol's words and in ours."""
    return {
        "stopReason": STOPS.get(stop, CANCELLED),
        "usage": usage_form(usage),
        "_meta": {"holdfast": {"stop": stop.value}},
    }


def _turn_error(ended: TurnEnded) -> JsonRpcError:
    failure = ended.failure
    code = failure.code if failure else FailureCode.INTERNAL
    message = failure.message if failure else "The turn has failed."
    return JsonRpcError(INTERNAL_ERROR, message, error_data(code, message))


log = logging.getLogger(__name__)
BY: Final = "acp"
REJECT_ONCE: Final = "reject_once"
REQUEST: Final = "session/request_permission"


class PermissionOutcome(Struct, frozen=True, rename="camel"):
    """Which option somebody took, or that nobody did."""

    outcome: str
    option_id: str | None = None


class PermissionReply(Struct, frozen=True):
    """The answer of a client."""

    outcome: PermissionOutcome


class ClientApprovals:
    """Asks each question once; an answer from elsewhere makes the client's one too late."""

    def __init__(
        self,
        backend: AcpBackend,
        connection: AcpConnection,
        session_id: SessionId,
        start: Callable[..., asyncio.Task[None]],
    ) -> None:
        """`start` runs what waits for an answer, as long as the session is held."""
        self._backend = backend
        self._connection = connection
        self._session_id = session_id
        self._start = start
        self._open: dict[ApprovalId, asyncio.Task[None] | None] = {}

    async def waiting(self, translator: UpdateTranslator) -> None:
        """Ask what waits, whoever's turn has asked it."""
        found = await self._backend.approvals.list(
            self._backend.owner, self._session_id, state=ApprovalState.WAITING
        )
        for approval in found.items:
            await self.ask(approval.id, translator)

    async def ask(self, approval_id: ApprovalId, translator: UpdateTranslator) -> None:
        """Put a question to the client, unless it is there already or has its answer."""
        if approval_id in self._open:
            return
        # Before anything is waited for: the news and a new prompt may both bring it here.
        self._open[approval_id] = None
        backend, session_id = self._backend, self._session_id
        approval = await backend.approvals.get(backend.owner, session_id, approval_id)
        if approval.state is not ApprovalState.WAITING:
            return
        params = {
            "sessionId": session_id,
            "toolCall": translator.asked(approval),
            "options": offered_choices(approval.question),
        }
        try:
            future = await self._connection.begin(REQUEST, params)
        except ConnectionLost:
            return
        self._open[approval_id] = self._start(self._heard(approval, future))

    def withdraw(self, approval_id: ApprovalId) -> None:
        """Wait no longer for an answer: there is one."""
        task = self._open.get(approval_id)
        if task is not None:
            task.cancel()

    async def _heard(self, approval: Approval, future: asyncio.Future[Any]) -> None:
        try:
            answer = read_answer(approval.question, await future)
        except RequestRefused:
            # Whoever cannot be asked has not agreed.
            answer = ApprovalAnswer(state=ApprovalState.DENIED, by=BY)
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
        # Somebody elsewhere was faster, or the turn has ended meanwhile.
        except HoldfastError as error:
            log.info("an answer came too late: %s", error.message)


def offered_choices(question: Question) -> list[dict[str, str]]:
    """Return the answers that a question takes: those of its agent, else our own."""
    if question.choices:
        return [
            {"optionId": each.id, "name": each.name, "kind": each.kind} for each in question.choices
        ]
    once = {"optionId": ALLOW_ONCE, "name": "Allow once", "kind": ALLOW_ONCE}
    always = {"optionId": ALLOW_ALWAYS, "name": "Allow for this session", "kind": ALLOW_ALWAYS}
    never = {"optionId": REJECT_ONCE, "name": "Reject", "kind": REJECT_ONCE}
    return [once, *([always] if question.memory is not None else []), never]


def read_answer(question: Question, result: Any) -> ApprovalAnswer:
    """Return what a client's answer means; whatever is not a yes that was offered is a no."""
    denied = ApprovalAnswer(state=ApprovalState.DENIED, by=BY)
    try:
        outcome = msgspec.convert(result, PermissionReply).outcome
    except msgspec.ValidationError:
        return denied
    kinds = {each["optionId"]: each["kind"] for each in offered_choices(question)}
    taken = outcome.option_id if outcome.outcome == "selected" else None
    kind = kinds.get(taken or "")
    choice = taken if question.choices and kind is not None else None
    if kind == ALLOW_ALWAYS and question.memory is not None:
        return ApprovalAnswer(
            state=ApprovalState.ALLOWED, by=BY, scope=ApprovalScope.SESSION, choice=choice
        )
    if kind in {ALLOW_ONCE, ALLOW_ALWAYS}:
        return ApprovalAnswer(state=ApprovalState.ALLOWED, by=BY, choice=choice)
    return msgspec.structs.replace(denied, choice=choice)


Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class FollowStart(Struct, frozen=True, kw_only=True):
    """Where a hold begins: behind an event, and with what the person should know at once."""

    after: int
    remarks: tuple[str, ...] = ()


class ClientSession:
    """What one client has of a session; to let go of it changes nothing in the session."""

    def __init__(
        self,
        backend: AcpBackend,
        connection: AcpConnection,
        notifier: SessionNotifier,
        start: FollowStart,
        spawn: Spawn,
    ) -> None:
        """`spawn` runs a task as long as the client is there."""
        self.session_id = notifier.session.id
        # What is asked of a session is done in the order in which it was asked.
        self.turnstile = asyncio.Lock()
        self.notifier = notifier
        self._backend = backend
        self._spawn = spawn
        self._cursor = start.after
        self._remarks = start.remarks
        self._asking = ClientApprovals(backend, connection, self.session_id, self._start)
        self._prompts: list[PendingPrompt] = []
        # Turns that nobody here waits for any more, and turns in which others have spoken, too.
        self._given_up: set[int] = set()
        self._recalled: set[str] = set()
        self._shared = {notifier.session.turn}
        self._ended: dict[int, TurnEnded] = {}
        self._following: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Tell whether a prompt waits for its answer."""
        return bool(self._prompts)

    def follow(self) -> None:
        """Tell the news from now on; once more if they have broken off."""
        if self._following is None or self._following.done():
            self._following = self._start(self._follow())

    async def release(self) -> None:
        """Let go of the session."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def begin(self, message_id: str) -> PendingPrompt:
        """Take a prompt in; from here on a cancel means it, too."""
        prompt = PendingPrompt(message_id)
        self._prompts.append(prompt)
        self.notifier.own.add(message_id)
        return prompt

    async def play(self, prompt: PendingPrompt, parts: tuple[Part, ...]) -> dict[str, Any]:
        """Send a prompt's message; return its answer when all of its turn was told."""
        async with self.turnstile:
            if prompt.is_cancelled:
                return prompt_result(StopReason.ABORTED, Usage())
            remarks, self._remarks = self._remarks, ()
            await self.notifier.remark(remarks)
            await self._send(prompt, parts)
        self.follow()
        await self._asking.waiting(self.notifier.translator)
        return prompt.result(await prompt.ended)

    def drop(self, prompt: PendingPrompt) -> None:
        """Let go of a prompt: it is answered, or never was sent."""
        self._prompts.remove(prompt)
        prompt.answered.set()

    def cancel(self) -> None:
        """Stop every prompt that was taken in; what runs for others goes on."""
        self._give_up(self._prompts)

    def leave(self) -> None:
        """Stop what was asked here and nowhere else, because nobody will hear the answer."""
        for prompt in self._prompts:
            if prompt.turn in self._shared:
                prompt.settle(None)
        self._give_up([each for each in self._prompts if not each.ended.done()])

    def take_back(self, prompt: PendingPrompt) -> None:
        """Stop one prompt, and none beside it."""
        if prompt.turn is None:
            # Its message may be written all the same; then the news say in which turn.
            self._recalled.add(prompt.message_id)
            self.follow()
        self._give_up([prompt])

    async def settled(self) -> None:
        """Wait until every prompt is answered."""
        while self._prompts:
            await self._prompts[0].answered.wait()

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
        # The news may have been faster than the answer of whoever wrote the message down.
        if (ended := self._ended.get(turn)) is not None:
            prompt.settle(ended)
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
        """Stop the turns of prompts, the one that runs first; no other turn is touched."""
        for turn in sorted({each.turn or 0 for each in prompts}):
            found = await self._interrupt(turn)
            if turn > found.settled + 1:
                # Somebody else's turn runs before it, and may take its time.
                self._answer_cancelled(turn)

    async def _interrupt(self, turn: int) -> Session:
        backend = self._backend
        stopped = await backend.sessions.interrupt(backend.owner, self.session_id, turn=turn)
        return stopped.session

    async def _follow(self) -> None:
        """Tell the news until the session is let go of, or gone."""
        try:
            news = self._backend.follow(self.session_id, after=self._cursor)
            async with aclosing(news):
                async for item in news:
                    await self._hear(item)
                    self._cursor = item.to_sequence if isinstance(item, Gap) else item.sequence
        except HoldfastError as error:
            self._fail(error)
        except Exception:
            self._fail(Internal(Code.INTERNAL, "The news of the session cannot be told any more."))
            raise

    def _fail(self, error: HoldfastError) -> None:
        for prompt in self._prompts:
            prompt.fail(error)

    async def _hear(self, item: Event | Gap) -> None:
        if isinstance(item, Gap):
            await self._missed(item)
            return
        payload = item.payload
        match payload:
            case MessageAppended(message_id=message_id, role=role):
                self._note(message_id)
                if role is Role.USER:
                    self._attribute(message_id, item.turn or 0)
                await self.notifier.appended(payload)
            case ApprovalRequested(approval_id=approval_id):
                # Only while somebody here waits for an answer: others have surfaces of their own.
                if self._prompts:
                    await self._asking.ask(approval_id, self.notifier.translator)
            case ApprovalAnswered(approval_id=approval_id):
                self._asking.withdraw(approval_id)
                await self.notifier.tell(payload)
            case StepStarted() | StepEnded():
                await self.notifier.step(payload)
            case TurnStarted():
                await self._begun(item.turn or 0)
            case TurnEnded():
                await self.notifier.look()
                self._remember(item.turn or 0, payload)
                await self._settle(self._up_to(item.turn or 0), payload)
            case SessionClosed():
                # What was sent behind this has opened the session again.
                await self._settle([each for each in self._prompts if each.is_heard], None)
            case _:
                await self.notifier.tell(payload)

    async def _begun(self, turn: int) -> None:
        if turn in self._given_up and self._is_wanted(turn):
            self._answer_cancelled(turn)
        elif turn in self._given_up:
            self._start(self._interrupt(turn))
        # The first message has given the session its title.
        if self.notifier.session.title is None:
            await self.notifier.look()

    async def _missed(self, gap: Gap) -> None:
        """Settle what has ended in news that will not come, if none come behind them."""
        await self.notifier.look()
        session = self.notifier.session
        if gap.to_sequence >= session.last_event:
            ended = TurnEnded(stop_reason=session.last_stop or StopReason.STOP)
            await self._settle(self._up_to(session.settled), ended)

    def _answer_cancelled(self, turn: int) -> None:
        """Answer who waits no more for a turn; the turn itself is left as it is."""
        for prompt in self._prompts:
            if prompt.turn == turn and prompt.is_cancelled:
                prompt.settle(None)

    def _is_wanted(self, turn: int) -> bool:
        """Tell whether somebody waits for a turn that begins, here or elsewhere."""
        # One that was heard and has no turn yet has this one: all that waits is one turn.
        waiting = [each for each in self._prompts if each.is_heard and not each.is_cancelled]
        return turn in self._shared or any(each.turn in {None, turn} for each in waiting)

    def _remember(self, turn: int, ended: TurnEnded) -> None:
        """Keep how a turn has ended while there are prompts of which no turn is known."""
        self._given_up.discard(turn)
        self._shared.discard(turn)
        if all(each.turn is not None for each in self._prompts):
            self._ended.clear()
        else:
            self._ended[turn] = ended

    def _attribute(self, message_id: str, turn: int) -> None:
        """Learn who wants a turn to be played."""
        if message_id in self._recalled:
            self._recalled.discard(message_id)
            self._given_up.add(turn)
        elif message_id not in self.notifier.own:
            self._shared.add(turn)

    def _note(self, message_id: str) -> None:
        for prompt in self._prompts:
            prompt.is_heard |= prompt.message_id == message_id

    def _up_to(self, turn: int) -> list[PendingPrompt]:
        # At least: turns settle in their order, so a later one says that an earlier one has.
        sent = [each for each in self._prompts if each.turn is not None]
        return [each for each in sent if (each.turn or 0) <= turn]

    async def _settle(self, done: Sequence[PendingPrompt], ended: TurnEnded | None) -> None:
        for prompt in done:
            prompt.settle(ended)
        for prompt in done:
            # What comes next is told behind the answer.
            await prompt.answered.wait()

    def _start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        task = self._spawn(_ignore_errors(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # One that was stopped before it began has not been awaited by anybody.
        task.add_done_callback(lambda _: work.close())
        return task


async def _ignore_errors(work: Coroutine[Any, Any, object]) -> None:
    """Do work that nobody waits for: what goes wrong in it must not end the conversation."""
    try:
        await work
    except HoldfastError as error:
        log.warning("something was left undone for a client: %s", error.message)
    except Exception:
        log.exception("a fault of ours, met while serving a client")
