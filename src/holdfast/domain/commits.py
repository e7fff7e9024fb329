"""Commits: a write to a session is a value, computed from its state and drafts.

Pure: nothing here reads, waits or stores. Each row is encoded once; the bytes that are redacted are
the bytes that are hashed, stored and sent to readers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain import calls
from holdfast.domain.approvals import Approval, ApprovalState, Question, apply_answer
from holdfast.domain.calls import Call, CallState
from holdfast.domain.costs import CostEntry
from holdfast.domain.drafts import (
    ApprovalDecided,
    CallDetails,
    CallsRequested,
    CostDraft,
    Draft,
    MessageDraft,
    Summary,
    TitleChange,
    ToolsFound,
    answer_event,
    question_event,
)
from holdfast.domain.errors import Code, Internal
from holdfast.domain.events import (
    NAME_BY_TYPE,
    CallSettled,
    Event,
    MessageAppended,
    NewEvent,
    Payload,
    SessionCompacted,
    StepDelta,
    StepEnded,
    ToolEnded,
    ToolRequested,
    ToolStarted,
    TurnStarted,
    decode_event,
    encode_envelopes,
    encode_payload,
    encode_stored,
    name_of,
)
from holdfast.domain.ids import CallId, MessageId
from holdfast.domain.messages import (
    Compaction,
    Message,
    Notice,
    NoticeCode,
    Role,
    ToolCall,
    ToolResult,
    decode_parts,
    encode_parts,
    hash_row,
)
from holdfast.domain.secrets import Scrubber, mask_json
from holdfast.domain.sessions import SessionState
from holdfast.domain.time import instant
from holdfast.domain.tools import Effect

T = TypeVar("T")


class NewMessage(Struct, frozen=True, gc=False):
    """A message to append: its encoded parts, its hash and time, and the number of its event."""

    message: Message
    content: bytes
    hash: bytes
    at: int
    event: int


class OpenTurn(Struct, frozen=True, kw_only=True):
    """What is stored about the turn in progress, as far as a write may depend on it.

    `retried` are calls settled by a retry, by the idempotency key that they share with it.
    """

    calls: Mapping[CallId, Call] = {}
    retried: Mapping[str, Call] = {}
    waiting: tuple[Approval, ...] = ()
    costs: tuple[CostEntry, ...] = ()
    # How many steps have begun.
    steps: int = 0


class SessionCommit(Struct, frozen=True, kw_only=True):
    """Everything that one write changes in a session.

    It applies only if the stored session still is as in `before`: epoch, holder, counters, time
    and the hash of the last message.
    """

    before: SessionState
    state: SessionState
    messages: tuple[NewMessage, ...] = ()
    events: tuple[NewEvent, ...] = ()
    calls: tuple[Call, ...] = ()
    costs: tuple[CostEntry, ...] = ()
    approvals: tuple[Approval, ...] = ()
    # Names of tools discovered on the session's servers.
    tools: tuple[str, ...] = ()


def join_commits(commits: Sequence[SessionCommit]) -> SessionCommit:
    """Return commits of a session that build on each other as one."""
    joined, *later = commits
    for each in later:
        calls, approvals = joined.calls, joined.approvals
        if each.calls:
            calls = tuple({call.id: call for call in (*calls, *each.calls)}.values())
        if each.approvals:
            approvals = tuple({row.id: row for row in (*approvals, *each.approvals)}.values())
        joined = SessionCommit(
            before=joined.before,
            state=each.state,
            messages=joined.messages + each.messages,
            events=joined.events + each.events,
            calls=calls,
            costs=joined.costs + each.costs,
            approvals=approvals,
            tools=joined.tools + each.tools,
        )
    return joined


class VersionConflictError(Exception):
    """The stored session is no longer as the commit expects; read it and build the commit again."""


def is_same_version(one: SessionState, other: SessionState) -> bool:
    """Return whether nothing was written between two states; a lease may have been extended."""
    return (
        one.events == other.events
        and one.messages == other.messages
        and one.epoch == other.epoch
        and one.holder == other.holder
        and one.updated_at == other.updated_at
        and one.chain == other.chain
    )


# Events without free text, which need no redaction.
_PLAIN: Final = (TurnStarted, StepEnded)
_NOT_RUN: Final = frozenset({CallState.INTENDED, CallState.REQUESTED})
_APPENDED: Final = name_of(MessageAppended)


class CommitBuilder:
    """Stamps drafts into a commit; `state` includes everything added so far."""

    def __init__(
        self,
        state: SessionState,
        *,
        now: int,
        new_id: Callable[[int], str],
        scrubber: Scrubber,
        turn: OpenTurn | None = None,
    ) -> None:
        """`now` is in microseconds, and `new_id` makes an id of it.

        `turn` is what is stored about the turn in progress.
        """
        self._before = self.state = state
        self.turn = turn
        self._new_id = new_id
        self._scrubber = scrubber
        self._now = now
        # Each row is at least one microsecond later than the last, despite clock jumps.
        self._last = state.updated_at
        self._messages: list[NewMessage] = []
        self._events: list[NewEvent] = []
        self._calls: dict[CallId, Call] = {}
        self._costs: list[CostEntry] = []
        self._approvals: dict[str, Approval] = {}
        self._tools: tuple[str, ...] = ()

    def redact(self, value: T) -> T:
        """Return the value without known secrets, as it may be stored."""
        return self._scrubber.redact_value(value)

    def update(self, **changes: Any) -> None:
        """Change fields of the session state."""
        self.state = replace(self.state, **changes)

    def new_id(self) -> str:
        """Return an id that sorts after those of what happened before."""
        return self._new_id(self.tick())

    def tick(self) -> int:
        """Return the time of the next row in microseconds, later than any row of the session."""
        self._last = max(self._now, self._last + 1)
        return self._last

    def known_call(self, call_id: CallId) -> Call | None:
        """Return a call as it is after everything added so far, if it is known here."""
        known = self._calls.get(call_id)
        return known or (self.turn.calls.get(call_id) if self.turn is not None else None)

    def turn_calls(self) -> list[Call]:
        """Return the calls of the turn, as they are after everything added so far."""
        return list((dict(self._stored_turn().calls) | self._calls).values())

    def waiting(self) -> list[Approval]:
        """Return the unanswered questions, as they are after everything added so far."""
        stored = self._stored_turn().waiting
        if not stored and not self._approvals:
            return []
        known = {each.id: each for each in stored} | self._approvals
        return [each for each in known.values() if each.state is ApprovalState.WAITING]

    def costs(self) -> list[CostEntry]:
        """Return the ledger of the turn, including everything added so far."""
        return [*self._stored_turn().costs, *self._costs]

    def add(self, drafts: Iterable[Draft], turn: int) -> None:
        """Add the drafts of a turn in order."""
        for draft in drafts:
            match draft:
                case MessageDraft():
                    self.add_message(draft, turn)
                case CostDraft():
                    self._add_cost(draft, turn)
                case Question():
                    self._add_question(draft, turn)
                case ApprovalDecided():
                    self._add_decision(draft)
                case TitleChange():
                    self.update(title=self.redact(draft.over(self.state.title)))
                case Summary():
                    self._add_summary(draft)
                case ToolsFound():
                    self._tools = (*self._tools, *draft.names)
                    # Advances `updated_at`, so that clients comparing times see a change.
                    self.tick()
                # Written beside the commit, with what is known of the clients.
                case CallsRequested():
                    self.tick()
                case CallDetails():
                    details = calls.add_details(self.redact(draft.arguments))
                    self.advance_call(draft.call_id, details)
                case _:
                    self.add_event(draft, turn)

    def add_message(self, draft: MessageDraft, turn: int, at: int | None = None) -> Message:
        """Add a message row; it also takes an event number, because it is its own event.

        `at` is the time of a message that was written elsewhere.
        """
        if at is None:
            at = self.tick()
        encoded = encode_parts(draft.parts)
        content = self._scrubber.redact_json(encoded)
        # The scrubber returns the same object if nothing matched, which saves decoding it again.
        if content is not encoded:
            draft = replace(draft, parts=decode_parts(content))
        state, sequence = self.state, self.state.messages + 1
        message_id = draft.id or MessageId(self._new_id(self._now))
        columns = (message_id, sequence, turn, draft.role, draft.model_id, at)
        # Hashes the stored bytes and not the value, so that the store can be verified on its own.
        chain = hash_row(state.chain, columns, content)
        message = Message(
            id=message_id,
            session_id=state.session_id,
            sequence=sequence,
            turn=turn,
            role=draft.role,
            parts=draft.parts,
            model_id=draft.model_id,
            at=at,
            chain=chain,
        )
        self._messages.append(NewMessage(message, content, chain, at, state.events + 1))
        self.state = replace(state, messages=sequence, chain=chain, events=state.events + 1)
        self._update_call(draft, message)
        return message

    def add_event(self, payload: Payload, turn: int | None = None, *, touch: bool = True) -> int:
        """Add an event and the change of call state that it implies; return its time.

        Without `touch` it does not advance the session's `updated_at`.
        """
        name = NAME_BY_TYPE.get(type(payload))
        if name is None:
            raise Internal(
                Code.INTERNAL, f"{type(payload).__name__} is neither an event nor a row."
            )
        at = max(self._now, self._last + touch)
        if touch:
            self._last = at
        if isinstance(payload, ToolStarted):
            self.advance_call(payload.call_id, lambda call: calls.start_call(call, at=instant(at)))
        elif isinstance(payload, ToolRequested):
            until = payload.deadline_at
            self.advance_call(
                payload.call_id, lambda call: calls.request_call(call, deadline_at=until)
            )
        elif isinstance(payload, ToolEnded):
            call = self.known_call(payload.call_id)
            if call is not None and call.state in _NOT_RUN:
                payload = replace(payload, has_run=False)
        elif isinstance(payload, CallSettled):
            self.advance_call(payload.call_id, lambda call: calls.settle_call(call, payload.how))
        content = encode_stored(payload)
        if not isinstance(payload, _PLAIN):
            content = self._scrubber.redact_json(content)
            # Deltas are not masked by pattern, because they must add up to the stored row.
            if not isinstance(payload, StepDelta):
                content = mask_json(content)
        sequence = self.state.events + 1
        self._events.append(NewEvent(sequence, turn or None, at, name, content))
        self.state = replace(self.state, events=sequence)
        return at

    def add_call(self, call: Call) -> Call:
        """Add or replace a call."""
        self._calls[call.id] = call
        return call

    def add_approval(self, approval: Approval) -> None:
        """Add or replace an approval request."""
        self._approvals[approval.id] = approval

    def commit(self) -> SessionCommit:
        """Return everything that was added."""
        return SessionCommit(
            before=self._before,
            state=replace(self.state, updated_at=self._last),
            messages=tuple(self._messages),
            events=tuple(self._events),
            calls=tuple(self._calls.values()),
            costs=tuple(self._costs),
            approvals=tuple(self._approvals.values()),
            tools=self._tools,
        )

    def _stored_turn(self) -> OpenTurn:
        if self.turn is None:
            raise Internal(Code.INTERNAL, "The turn in progress was not read before it changed.")
        return self.turn

    def _update_call(self, draft: MessageDraft, message: Message) -> None:
        """Update the call that a row makes or answers."""
        match draft.parts:
            case (ToolCall() as intent,):
                key = draft.idempotency_key
                self.add_call(
                    Call(
                        id=intent.id,
                        session_id=self.state.session_id,
                        turn=message.turn,
                        sequence=message.sequence,
                        name=intent.name,
                        arguments=intent.arguments,
                        # Unsafe unless declared, because the opposite default could run a side
                        # effect twice.
                        effect=draft.effect or Effect.UNSAFE,
                        idempotency_key=key
                        or calls.call_key(self.state.owner, self.state.session_id, intent.id),
                    )
                )
            case (ToolResult() as result,):
                call = self.advance_call(
                    result.call_id,
                    lambda call: calls.finish_call(
                        call, result.status, at=message.created_at, sequence=message.sequence
                    ),
                )
                if calls.is_unrun_retry(call, result.status):
                    self._reopen(call)

    def _reopen(self, retry: Call) -> None:
        """Set the original call back to unknown, because its retry was not run."""
        original = self._stored_turn().retried.get(retry.idempotency_key)
        if original is None:
            return
        self.add_call(calls.reopen_call(original))
        sentence = f"The outcome of {original.name} ({original.id}) is still unknown: "
        notice = Notice(code=NoticeCode.INFORMATION, text=f"{sentence}{retry.id} was not run.")
        self.add_message(MessageDraft(role=Role.SYSTEM, parts=(notice,)), 0)

    def advance_call(self, call_id: CallId, step: Callable[[Call], Call]) -> Call:
        """Change the state of a call whose row was added."""
        call = self.known_call(call_id)
        if call is None:
            raise Internal(Code.INTERNAL, f"No intent was recorded for call {call_id}.")
        return self.add_call(step(call))

    def _add_question(self, question: Question, turn: int) -> None:
        """Add a question; it waits for its answer from here on."""
        question = self.redact(question)
        at = self.add_event(question_event(question), turn)
        self.add_approval(self._approval(question, at))

    def _add_decision(self, draft: ApprovalDecided) -> None:
        """Add an approval that a rule has already answered; emits no question event."""
        at = self.tick()
        asked = self._approval(self.redact(draft.question), at)
        decided = apply_answer(asked, draft.answer, at=instant(at))
        self.add_approval(decided)
        self.add_event(answer_event(decided))

    def _approval(self, question: Question, at: int) -> Approval:
        return Approval(session_id=self.state.session_id, question=question, asked_at=instant(at))

    def _add_summary(self, summary: Summary) -> None:
        """Add a compaction summary; it belongs to no turn, and no row is removed."""
        part = Compaction(summary=summary.text, dropped_through=summary.dropped_through)
        row = self.add_message(MessageDraft(role=Role.SYSTEM, parts=(part,)), 0)
        self.add_event(
            SessionCompacted(
                message_id=row.id,
                kept=summary.kept,
                dropped_through=summary.dropped_through,
                reason=summary.reason,
                summary=summary.text,
                usage=summary.usage,
            )
        )

    def _add_cost(self, draft: CostDraft, turn: int) -> None:
        """Add a request to the ledger."""
        # A request recorded both before and after a crash is counted once.
        for entry in self.costs():
            if entry.request_id == draft.request_id:
                return
        self.add_cost(draft.entry(self.state.session_id, turn, instant(self.tick())))

    def add_cost(self, entry: CostEntry) -> None:
        """Add an entry to the ledger and to the sums of the session."""
        self._costs.append(entry)
        state = self.state
        self.state = replace(
            state,
            tokens_in=state.tokens_in + entry.usage.input,
            tokens_out=state.tokens_out + entry.usage.output,
            microcents=state.microcents + entry.microcents,
            requests=state.requests + 1,
        )


def events_of(commit: SessionCommit) -> Sequence[NewEvent]:
    """Return all events of a commit in order, those of its messages among them."""
    if not commit.messages:
        return commit.events
    rows = list(commit.events)
    for row in commit.messages:
        message = row.message
        appended = MessageAppended(
            message_id=message.id, role=message.role, sequence=message.sequence
        )
        content = encode_payload(appended)
        rows.append(NewEvent(row.event, message.turn or None, row.at, _APPENDED, content))
    return sorted(rows, key=attrgetter("sequence"))


def last_event(commit: SessionCommit) -> Event:
    """Return the last event of a commit as readers get it."""
    return decode_event(encode_envelopes(commit.state.session_id, events_of(commit)[-1:])[0])
