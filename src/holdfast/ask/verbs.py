"""`ask`, `stream` and `record`: the short way to an answer, written once for every `Holdfast`.

They are built on the other verbs, so that a store in this process and a server behave alike.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

import msgspec
from msgspec.structs import replace

from holdfast.ask.answers import (
    Answer,
    Cost,
    ReasoningDelta,
    StreamItem,
    TextDelta,
    TurnFailed,
    Waiting,
)
from holdfast.ask.options import AskOptions, require_options
from holdfast.domain.agents import AgentOverrides
from holdfast.domain.approvals import ApprovalMode, ApprovalState, Decision
from holdfast.domain.calls import Call, CallState
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.domain.events import (
    ApprovalRequested,
    Channel,
    Event,
    Failure,
    FailureCode,
    Gap,
    SessionClosed,
    StepDelta,
    StepStarted,
    ToolEnded,
    ToolProgressed,
    ToolStarted,
    TurnEnded,
    TurnPaused,
)
from holdfast.domain.ids import SessionId, require_uuid
from holdfast.domain.messages import (
    CLOSING_NOTICES,
    Message,
    Notice,
    NoticeCode,
    Output,
    Part,
    Role,
    ToolCall,
)
from holdfast.domain.recordings import OnOpenCalls, Recorded
from holdfast.domain.sessions import OPEN, Session, SessionRequest, Status, StopReason
from holdfast.domain.text import require_str, wrong_type
from holdfast.domain.waits import Wait

if TYPE_CHECKING:
    from holdfast.api import Holdfast

V = TypeVar("V")

# The turn ended as its model meant it; every other stop reason raises `TurnFailed`.
_RETURNED: Final = frozenset({StopReason.STOP, StopReason.LENGTH, StopReason.REFUSAL})
# Rows before a queued message that may belong to its turn.
_LOOK_BACK: Final = 256
_BUILT_IN: Final = "holdfast"
# Sent for a question that was cut off, once the outcome of its calls is known.
_GO_ON: Final = "Go on: the outcome of the call that was cut off is settled now."
_NAMESPACE: Final = uuid5(NAMESPACE_URL, "holdfast:ask")


class AskVerbs(Protocol):
    """The verbs that are made of other verbs."""

    @overload
    async def ask(
        self: "Holdfast",
        prompt: str | tuple[Part, ...],
        *,
        output: None = None,
        **options: Unpack[AskOptions],
    ) -> Answer[None]: ...
    @overload
    async def ask(
        self: "Holdfast",
        prompt: str | tuple[Part, ...],
        *,
        output: type[V],
        **options: Unpack[AskOptions],
    ) -> Answer[V]: ...
    async def ask(
        self: "Holdfast",
        prompt: str | tuple[Part, ...],
        *,
        output: Any = None,
        **options: Unpack[AskOptions],
    ) -> Answer[Any]:
        """Send a message, wait for its turn and return the answer.

        Opens a session unless `session` names one. Raises `TurnFailed` if the turn has no answer.
        """
        asked = _Question(self, prompt, output, options)
        try:
            async with aclosing(asked.items()) as items:
                async for item in items:
                    if isinstance(item, Answer):
                        return item
        except asyncio.CancelledError:
            await asked.leave()
            raise
        raise _session_closed()

    @overload
    def stream(
        self: "Holdfast",
        prompt: str | tuple[Part, ...],
        *,
        output: None = None,
        **options: Unpack[AskOptions],
    ) -> AsyncGenerator[StreamItem[None], None]: ...
    @overload
    def stream(
        self: "Holdfast",
        prompt: str | tuple[Part, ...],
        *,
        output: type[V],
        **options: Unpack[AskOptions],
    ) -> AsyncGenerator[StreamItem[V], None]: ...
    def stream(
        self: "Holdfast",
        prompt: str | tuple[Part, ...],
        *,
        output: Any = None,
        **options: Unpack[AskOptions],
    ) -> AsyncGenerator[StreamItem[Any], None]:
        """Ask, and yield the answer as it comes; the last item is the `Answer`.

        Leaving the iteration early stops nothing.
        """
        return _Question(self, prompt, output, options).items()

    async def record(
        self: "Holdfast",
        session_id: SessionId,
        messages: Sequence[MessageDraft],
        *,
        on_open_calls: OnOpenCalls = "unknown",
    ) -> Recorded:
        """Store turns that happened elsewhere, in one commit; nothing runs.

        A user's message begins a turn. With ids, repeating the call stores nothing twice.
        """
        require_str(session_id, field="session_id")
        return await self.messages.record_turns(
            self.owner, session_id, tuple(messages), on_open_calls=on_open_calls
        )


class _Question:
    """One question: sends it, follows its turn and builds the answer."""

    def __init__(
        self,
        hf: "Holdfast",
        prompt: str | tuple[Part, ...],
        output: Any,
        options: AskOptions,
    ) -> None:
        self._hf = hf
        self._prompt = prompt
        self._options = require_options(options)
        self._output = None if output is None else _OutputType(output)
        self._deadline: float | None = None
        self._turn: int | None = None
        self._session_id = SessionId("")
        self._first_row = 0
        self._cursor = 0
        # The last event before the question was sent, or sent again.
        self._known = 0
        self._has_ended = False
        self._is_late = False
        # What the turn before this one waits for.
        self._blocked: Wait | None = None
        self._model: str | None = None

    async def items(self) -> AsyncGenerator[StreamItem[Any], None]:
        """Send the question and yield what happens, up to the answer."""
        if (timeout := self._options.get("timeout")) is not None:
            self._deadline = asyncio.get_running_loop().time() + timeout
        await self._send()
        if self._blocked is not None and self._options.get("on_wait") == "return":
            blocked = _waiting(self._blocked)
            yield blocked
            yield await self._answer(None, blocked)
            return
        async with aclosing(self._payloads()) as payloads:
            async for payload in payloads:
                match payload:
                    case StepStarted(model=model):
                        self._model = model or None
                    case StepDelta(channel=Channel.TEXT):
                        yield TextDelta(text=payload.text, step=payload.step)
                    case StepDelta():
                        yield ReasoningDelta(text=payload.text, step=payload.step)
                    case ToolStarted() | ToolProgressed() | ToolEnded():
                        yield payload
                    case ApprovalRequested() | TurnPaused():
                        waiting = await self._ask_for(payload)
                        if waiting is not None:
                            yield waiting
                            if self._options.get("on_wait") == "return":
                                yield await self._answer(None, waiting)
                                return
                    case TurnEnded():
                        yield await self._answer(payload, None)
                        return

    async def leave(self) -> None:
        """Stop the turn, because its caller was cancelled; `detach` lets it go on."""
        if self._turn is not None and not self._options.get("detach"):
            # Shielded, because a second cancellation must not leave a turn that costs.
            stop = self._hf.sessions.interrupt(self._hf.owner, self._session_id, turn=self._turn)
            await asyncio.shield(asyncio.ensure_future(stop))

    async def _send(self) -> None:
        hf, options = self._hf, self._options
        message_id = options.get("id")
        if message_id is not None:
            message_id = require_uuid(message_id, what="message id")
        session_id: str | None = options.get("session")
        key = options.get("key")
        if session_id is None:
            with _naming(key):
                session = await self._open(message_id)
        else:
            require_str(session_id, field="session")
            session = await hf.sessions.get(hf.owner, SessionId(session_id))
            self._require_schema(session)
            await self._attach(session.id)
        if key is not None:
            message_id = str(uuid5(UUID(session.id), f"message:{key}"))
        message_id, content = message_id or str(uuid4()), self._prompt
        with _naming(key):
            await self._put(session, content, message_id)
        while key is not None and self._has_ended and await self._is_settled():
            # The key is of the answer, which the cut-off turn could not give.
            message_id, content = str(uuid5(UUID(message_id), "settled")), _GO_ON
            await self._put(session, content, message_id)
        if not self._has_ended and session.status not in OPEN:
            raise _session_closed()

    async def _put(
        self, session: Session, content: str | tuple[Part, ...], message_id: str
    ) -> None:
        """Send a message, or find it, and note where its turn begins."""
        message = await self._hf.send(session.id, content, id=message_id)
        is_repeated = message.sequence <= session.message_count
        self._session_id, self._turn = session.id, message.turn
        self._has_ended = is_repeated and message.turn <= session.settled
        self._known = session.last_event
        if message.turn > session.settled + 1:
            self._blocked = session.waiting
        self._cursor = 0 if is_repeated else session.last_event
        is_alone = session.status is not Status.RUNNING and not is_repeated
        self._first_row = message.sequence - (0 if is_alone else _LOOK_BACK)

    async def _is_settled(self) -> bool:
        """Return whether a crash has cut off the turn, and all its unknown calls are settled."""
        rows = await self._rows()
        codes = {part.code for row in rows for part in row.parts if isinstance(part, Notice)}
        states = {call.state for call in await self._calls(rows)}
        is_cut = NoticeCode.INTERRUPTED in codes
        return is_cut and CallState.SETTLED in states and CallState.UNKNOWN not in states

    async def _calls(self, rows: Sequence[Message]) -> tuple[Call, ...]:
        ids = [part.id for row in rows for part in row.parts if isinstance(part, ToolCall)]
        hf, session_id = self._hf, self._session_id
        return tuple([await hf.calls.get(hf.owner, session_id, each) for each in ids])

    async def _open(self, message_id: str | None) -> Session:
        hf, options = self._hf, self._options
        agent, key = options.get("agent") or _BUILT_IN, options.get("key")
        named = f"{hf.owner}|{agent}|{key}" if key is not None else message_id
        overrides = AgentOverrides(
            system_prompt_append=options.get("system"),
            output_schema=None if self._output is None else self._output.schema,
        )
        tools, approval = options.get("tools"), options.get("approval")
        functions = self._functions()
        names = tuple(each for each in tools or () if isinstance(each, str))
        request = SessionRequest(
            title=options.get("title"),
            tags=tuple(options.get("tags") or ()),
            model=options.get("model"),
            context=options.get("context"),
            tools=names if names or tools in ([], ()) else None,
            approval=None if approval is None else ApprovalMode(approval),
            turn_cap=options.get("turn_cap"),
            budget=options.get("budget"),
            overrides=None if overrides == AgentOverrides() else overrides,
        )
        id_ = None if named is None else str(uuid5(_NAMESPACE, named))
        return await hf.open(agent, request, id=id_, tools=functions)

    def _functions(self) -> list[Callable[..., Any]]:
        return [each for each in self._options.get("tools") or () if not isinstance(each, str)]

    async def _attach(self, session_id: SessionId) -> None:
        """Add the functions to a session that exists."""
        if functions := self._functions():
            await self._hf.attach(session_id, functions)

    def _require_schema(self, session: Session) -> None:
        """Refuse `output` in a session that was opened without it: a schema is the session's."""
        if self._output is not None and (
            session.agent.extra.get("output_schema") != self._output.schema
        ):
            raise Invalid(
                Code.OPTION_NOT_OFFERED,
                "output belongs to a session that was opened with it; leave out session, or "
                "open the session with the same output.",
                {"options": ["output"]},
            )

    async def _payloads(self) -> AsyncGenerator[Any, None]:
        """Yield what happens in the turn; after the timeout, its interrupted end."""
        while True:
            try:
                async with aclosing(self._hf.follow(self._session_id, after=self._cursor)) as items:
                    while True:
                        async with asyncio.timeout_at(self._deadline):
                            item = await anext(items)
                        if (payload := self._own(item)) is not None:
                            yield payload
                        if self._has_ended and self._cursor >= self._known:
                            # Its end is no longer among the events.
                            yield await self._forgotten_end()
            except TimeoutError:
                self._deadline = None
                await self._stop_late()

    async def _forgotten_end(self) -> TurnEnded:
        """Return how a turn ended whose events were deleted, as far as its rows tell."""
        parts = [part for row in await self._rows() for part in row.parts]
        codes = [
            part.code for part in parts if isinstance(part, Notice) and part.code in CLOSING_NOTICES
        ]
        reason = StopReason(codes[-1].value) if codes else StopReason.STOP
        return TurnEnded(stop_reason=reason, priced=False)

    def _own(self, item: Event | Gap) -> Any:
        """Return the payload of an event of this turn."""
        if isinstance(item, Gap):
            self._cursor = item.to_sequence
            return None
        self._cursor = item.sequence
        if isinstance(item.payload, SessionClosed) and item.sequence > self._known:
            raise _session_closed()
        return item.payload if item.turn == self._turn else None

    async def _stop_late(self) -> None:
        """Stop a turn that took too long; raises if it has not begun or may go on."""
        if self._options.get("detach"):
            raise TimeoutError("The turn takes longer than the timeout; it goes on.")
        hf, turn, self._is_late = self._hf, self._turn, True
        stopped = await hf.sessions.interrupt(hf.owner, self._session_id, turn=turn)
        if stopped.turn is None and stopped.session.settled < (turn or 0):
            raise TimeoutError("The turn did not begin within the timeout; it stays queued.")

    async def _ask_for(self, asked: ApprovalRequested | TurnPaused) -> Waiting | None:
        """Have a question answered; return what is waited for if it still is open."""
        hf = self._hf
        if isinstance(asked, TurnPaused):
            return await self._paused(asked)
        approval = await hf.approvals.get(hf.owner, self._session_id, asked.approval_id)
        if approval.state is not ApprovalState.WAITING:
            return None
        approve = self._options.get("approve")
        if approve is None:
            return Waiting(
                # Only a question about the budget belongs to no call.
                reason="budget" if asked.call_id is None else "approval",
                text=asked.question,
                approval_id=asked.approval_id,
                call_ids=() if asked.call_id is None else (asked.call_id,),
            )
        # In a thread, because a function that asks a person would stop the event loop.
        said = await asyncio.to_thread(approve, approval)
        decided = await said if inspect.isawaitable(said) else said
        if not isinstance(decided, (Decision, bool)):
            raise wrong_type(decided, field="approve", rule="approve must return True or False")
        if not isinstance(decided, Decision):
            state = ApprovalState.ALLOWED if decided else ApprovalState.DENIED
            decided = Decision(state=state, by=hf.owner)
        try:
            await hf.approvals.answer(
                hf.owner,
                self._session_id,
                approval.id,
                decided,
                digest=approval.question.digest,
            )
        except Conflict as error:
            # Someone else was first; the turn goes on with that answer.
            if error.code is not Code.APPROVAL_CLOSED:
                raise
        return None

    async def _paused(self, paused: TurnPaused) -> Waiting | None:
        """Return what a paused turn waits for, unless it has come or was asked for already."""
        hf = self._hf
        if paused.approval_id is not None:
            return None
        if (await hf.sessions.get(hf.owner, self._session_id)).waiting is None:
            return None
        return _waiting(paused)

    async def _answer(self, ended: TurnEnded | None, waiting: Waiting | None) -> Answer[Any]:
        """Return the turn as an answer, or raise if it has none."""
        rows = await self._rows()
        answer = Answer[Any](
            text=_text(rows),
            value=None,
            messages=rows,
            calls=await self._calls(rows),
            session_id=self._session_id,
            turn=self._turn or 0,
            stop_reason=None if ended is None else ended.stop_reason,
            model=self._model,
            waiting=waiting,
        )
        if ended is None:
            return answer
        answer = replace(
            answer,
            usage=ended.usage,
            cost=Cost(microcents=ended.microcents, priced=ended.priced, estimated=ended.estimated),
        )
        return self._checked(answer, ended)

    def _checked(self, answer: Answer[Any], ended: TurnEnded) -> Answer[Any]:
        has_failed = ended.stop_reason not in _RETURNED
        is_late = self._is_late and ended.stop_reason is StopReason.ABORTED
        if has_failed and (self._output is not None or self._options.get("check", True)):
            failure = ended.failure
            text = failure.message if failure else f"The turn ended: {ended.stop_reason}."
            if is_late:
                text = "The turn took longer than the timeout, and was interrupted."
            raise TurnFailed(text, answer=answer, failure=failure)
        if self._output is None:
            return answer
        last = answer.messages[-1].parts if answer.messages else ()
        values = [part.value for part in last if isinstance(part, Output)]
        fault = "The turn ended without a value."
        if values:
            try:
                return replace(answer, value=self._output.convert(values[0]))
            # A validator of the program's own may raise anything.
            except Exception as error:  # noqa: BLE001
                fault = f"The value does not fit the output type: {error}"
        failure = Failure(code=FailureCode.OUTPUT_INVALID, message=fault)
        raise TurnFailed(fault, answer=answer, failure=failure)

    async def _rows(self) -> tuple[Message, ...]:
        hf, after = self._hf, max(0, self._first_row - 1)
        found: list[Message] = []
        while True:
            page = await hf.messages.list(hf.owner, self._session_id, after=after)
            found += [row for row in page.items if row.turn == self._turn]
            if page.next_cursor is None:
                return tuple(found)
            after = int(page.next_cursor)


def _waiting(found: Wait | TurnPaused) -> Waiting:
    return Waiting(
        reason=found.reason.value,
        text=found.text,
        approval_id=found.approval_id,
        call_ids=found.call_ids,
    )


class _OutputType:
    """The type of an answer's value: its JSON schema, and how a value becomes one of it."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        # A model of pydantic has both; it is never imported here.
        self._validate = getattr(kind, "model_validate", None)
        try:
            make = getattr(kind, "model_json_schema", None)
            self.schema: dict[str, Any] = make() if make else msgspec.json.schema(kind)
        except (TypeError, RuntimeError) as error:
            raise Invalid(
                Code.TOOL_INVALID,
                f"output cannot be described as JSON: {error}",
                {"field": "output"},
            ) from None

    def convert(self, value: Any) -> Any:
        """Return a value of the type."""
        if self._validate is not None:
            return self._validate(value)
        return msgspec.convert(value, self._kind)


def _text(rows: Sequence[Message]) -> str:
    """Return the text of the last step; notices after it are no part of it."""
    said = [row for row in rows if row.role is not Role.SYSTEM]
    return said[-1].text if said and said[-1].role is Role.ASSISTANT else ""


@contextmanager
def _naming(key: str | None) -> Iterator[None]:
    """Name the key where an id that was made of it is refused."""
    try:
        yield
    except Conflict as error:
        if key is None or error.code not in {Code.ID_REUSED, Code.MESSAGE_ID_REUSED}:
            raise
        raise Conflict(
            error.code,
            f"The key {key!r} belongs to another question or other options; ask the same as "
            "before, or choose another key.",
            {"field": "key"},
        ) from None


def _session_closed() -> Conflict:
    return Conflict(
        Code.SESSION_CLOSED,
        "The session was closed before the turn ended; resume it, then ask again.",
        {"remedy": "resume"},
    )
