"""Conversations of pydantic-ai in Holdfast, and runs whose requests and tools happen once.

`HoldfastConversationStore` is a conversation store: a conversation is a session, and an entry is a
record of it. A fork has its own copies of the entries before it, so that either can be deleted.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version as version_of
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec.structs import replace
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.durable_exec import JSON_CODEC
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDenied

from holdfast.domain.approvals import Approval, ApprovalState, Question, digest_call
from holdfast.domain.drafts import MessageDraft, Outcome
from holdfast.domain.errors import NotFound
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.ids import ApprovalId, CallId, SessionId, SessionKey
from holdfast.domain.messages import Notice, NoticeCode, Role, Text
from holdfast.domain.recordings import Disposition
from holdfast.domain.sessions import StopReason, has_waiting_turn
from holdfast.domain.text import visible, visible_json
from holdfast.domain.tools import ToolClass
from holdfast.integrations.branches import show_branch
from holdfast.integrations.bridge import Bridge
from holdfast.integrations.pydantic_ai_messages import cost_of, entry_of
from holdfast.integrations.pydantic_ai_runs import (
    RUN,
    STEPS,
    HoldfastDurability,
    JournaledTurn,
    current,
)
from holdfast.integrations.records import (
    ForeignEntry,
    ForeignWriter,
    Framework,
    require_version,
)
from holdfast.ports.store import Tx
from holdfast.services.approvals import expire_questions
from holdfast.services.journal import session_not_found

FRAMEWORK: Final = Framework(name="pydantic-ai", version=version_of("pydantic-ai-slim"))
require_version(FRAMEWORK, "2.66", "3", extra="pydantic-ai")

__all__ = ["HoldfastConversationStore", "HoldfastDurability"]

# All entries, the newest record of the conversation, and the entries that lead to its head.
ENTRIES: Final = "entries"
RECORD: Final = "record"
HISTORY: Final = "history"
_RESTORED: Final = MessageDraft(
    role=Role.SYSTEM,
    parts=(
        Notice(
            code=NoticeCode.RESTORED,
            text="The conversation goes on from an earlier branch; its messages follow once more.",
        ),
    ),
)
_messages: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_split: Final = msgspec.json.Decoder(tuple[str | None, msgspec.Raw]).decode


class HoldfastConversationStore(ConversationStore):
    """A conversation store in a Holdfast, open in this process."""

    def __init__(self, hf: Any, *, agent: str = "pydantic-ai") -> None:
        """`agent` is the name under which the conversations are listed."""
        self.bridge = Bridge(hf, "HoldfastConversationStore")
        self._agent = agent
        # Which session has an entry that was read or written here.
        self._holders: dict[str, SessionId] = {}

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or `None`."""
        session_id, raw = await self.bridge.run(lambda: self._raw_record(conversation_id))
        if raw is None:
            return None
        record = _load_record(raw)
        if record.head_id is not None:
            self._holders[record.head_id] = session_id
        return record

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records of all conversations or of a scope, the newest first."""
        found = [_load_record(raw) for raw in await self.bridge.run(self._read_all)]
        chosen = [record for record in found if scope is None or record.scope == scope]
        return sorted(chosen, key=lambda record: record.updated_at, reverse=True)[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries; all of it or none is on disk."""
        raws = _dumped(new_entries)
        raw = msgspec.json.encode(JSON_CODEC.dump(ConversationRecord, record))
        new = {entry.id: entry.message for entry in new_entries}
        await self.bridge.run(lambda: self._write(record, raw, raws, new, expected_revision))
        turn = current.get(None)
        if turn is not None and turn.conversation_id == record.conversation_id:
            turn.unsaved = None

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with its entries; forks have their own."""
        await self.bridge.run(lambda: self._delete(conversation_id, expected_revision))

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry; raises `LookupError` if there is none."""
        found = await self.bridge.run(lambda: self._entries(entry_id))
        return _entry(entry_id, found[entry_id])

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """Return the entries up to one, in order, or the last ones."""
        if head_id is None or limit == 0:
            return []
        raws = await self.bridge.run(lambda: self._entries(head_id))
        line = _line(raws, head_id)
        return _loaded({id_: raws[id_] for id_ in line[-limit if limit else 0 :]})

    async def read_approvals(self, conversation_id: str) -> DeferredToolResults | None:
        """Return what was decided about the calls that wait for approval; `None` until all are."""
        record = await self.read_record(conversation_id)
        asked = record.deferred_tool_requests if record is not None else None
        if asked is None or not asked.approvals:
            return None
        found = await self.bridge.run(lambda: self._approvals(conversation_id, asked.approvals))
        decided = [each for each in found.values() if each.state is not ApprovalState.WAITING]
        if len(decided) < len(asked.approvals):
            return None
        return asked.build_results(
            approvals={
                id_: each.state is ApprovalState.ALLOWED or ToolDenied(_reason(each))
                for id_, each in found.items()
            }
        )

    async def _approvals(
        self, conversation_id: str, calls: Sequence[ToolCallPart]
    ) -> dict[str, Approval]:
        """Return the approval of each call, as it is now."""
        session_id = await self._sessions.find(FRAMEWORK.name, conversation_id)

        async def read(tx: Tx, key: SessionKey) -> dict[str, Approval]:
            state = await tx.sessions.state_by_key(key)
            if state is None:
                raise session_not_found()
            found: dict[str, Approval] = {}
            for call in calls:
                asked = _question(call, "")
                approval = await tx.approvals.about(state, asked.digest, asked.call_id)
                if approval is not None:
                    found[call.tool_call_id] = approval
            return found

        hf = self.bridge.hf
        stored = await self._sessions.read(session_id, read)
        return {
            id_: await hf.approvals.get(hf.owner, session_id, each.id)
            for id_, each in stored.items()
        }

    @asynccontextmanager
    async def turn(self, conversation_id: str, prompt: str) -> AsyncIterator[JournaledTurn]:
        """Make runs of agents with `HoldfastDurability` durable; leaving it ends the turn.

        The prompt is on disk before anything runs. Leaving saves the last result of the
        conversation, unless the program has. A turn that was cut off is continued if it is
        entered with the same prompt: what it has recorded does not run again.
        """
        turn = await self.bridge.run(lambda: self._begin(conversation_id, prompt))
        token = current.set(turn)
        outcome = Outcome(stop_reason=StopReason.ABORTED)
        try:
            yield turn
            if turn.unsaved is not None:
                await self.save(turn.unsaved)
            outcome = Outcome(stop_reason=StopReason.STOP)
        except Exception as error:
            text = f"The run failed with {type(error).__name__}."
            failure = Failure(code=FailureCode.LOOP_FAILED, message=text)
            outcome = Outcome(stop_reason=StopReason.ERROR, failure=failure)
            raise
        finally:
            current.reset(token)
            await self.bridge.run(lambda: self._end(turn.session_id, outcome))

    async def _begin(self, conversation_id: str, prompt: str) -> JournaledTurn:
        session_id = await self._sessions.open(FRAMEWORK, conversation_id, agent=self._agent)
        calls = self.bridge.parts.calls
        await calls.settle(session_id)
        draft = MessageDraft(role=Role.USER, parts=(Text(text=prompt),))

        async def begin(writer: ForeignWriter) -> tuple[str, dict[str, tuple[str, bytes]]]:
            steps = list(await writer.view(STEPS))
            if steps and steps[0].raw == prompt.encode():
                return steps[0].key, {each.key: (each.kind, each.raw) for each in steps[1:]}
            await writer.forget(STEPS, steps)
            await writer.forget(HISTORY, (await writer.view(HISTORY)).ahead())
            run_id = str(uuid4())
            asked = ForeignEntry(kind=RUN, raw=prompt.encode(), key=run_id)
            await writer.add(STEPS, [asked])
            ahead = ForeignEntry(
                kind="request",
                raw=prompt.encode(),
                key=run_id,
                drafts=(draft,),
                disposition=Disposition.AHEAD,
            )
            await writer.add(HISTORY, [ahead])
            return run_id, {}

        run_id, kept = await self._sessions.write(session_id, begin)
        await calls.enter(session_id)
        return JournaledTurn(self.bridge, session_id, run_id, kept, conversation_id=conversation_id)

    async def _end(self, session_id: SessionId, outcome: Outcome) -> None:
        async def forget(writer: ForeignWriter) -> None:
            await writer.forget(STEPS, list(await writer.view(STEPS)))

        await self.bridge.parts.calls.leave(session_id)
        if outcome.stop_reason is StopReason.STOP:
            await self._sessions.write(session_id, forget)
        await self._sessions.end_turn(session_id, outcome)

    @property
    def _sessions(self) -> Any:
        return self.bridge.parts.sessions

    async def _raw_record(self, conversation_id: str) -> tuple[Any, bytes | None]:
        session_id = await self._sessions.find(FRAMEWORK.name, conversation_id)
        return session_id, None if session_id is None else await self._newest(session_id)

    async def _newest(self, session_id: SessionId) -> bytes | None:
        try:
            found = (await self._sessions.live(session_id, RECORD)).newest()
        except NotFound:
            return None
        return None if found is None else found.raw

    async def _read_all(self) -> list[bytes]:
        named = await self._sessions.beginning(FRAMEWORK.name, "")
        found = [await self._newest(each.id) for each in named]
        return [raw for raw in found if raw is not None]

    async def _entries(self, entry_id: str) -> dict[str, bytes]:
        """Return the entries of the conversation that has one."""
        known = self._holders.get(entry_id)
        for session_id in [known] if known else []:
            found = await self._of_session(session_id)
            if entry_id in found:
                return found
        for each in await self._sessions.beginning(FRAMEWORK.name, ""):
            found = await self._of_session(each.id)
            if entry_id in found:
                self._holders[entry_id] = each.id
                return found
        raise LookupError(f"There is no entry {entry_id} in the store.")

    async def _of_session(self, session_id: SessionId) -> dict[str, bytes]:
        try:
            view = await self._sessions.live(session_id, ENTRIES)
        except NotFound:
            return {}
        return {record.key: record.raw for record in view}

    async def _inherited(
        self, record: ConversationRecord, raws: dict[str, bytes]
    ) -> dict[str, bytes]:
        """Return the entries of other conversations that the history of a new one begins with."""
        first = next(iter(raws), record.head_id)
        before = _split(raws[first])[0] if first in raws else record.head_id
        if before is None:
            return {}
        try:
            theirs = await self._entries(before)
        except LookupError:
            raise ConversationConflict(record.conversation_id) from None
        return {id_: theirs[id_] for id_ in _line(theirs, before)}

    async def _write(
        self,
        record: ConversationRecord,
        raw: bytes,
        raws: dict[str, bytes],
        new: dict[str, ModelMessage],
        expected: str | None,
    ) -> None:
        id_ = record.conversation_id
        found = await self._sessions.find(FRAMEWORK.name, id_)
        if found is None and expected is not None:
            raise ConversationConflict(id_)
        is_new = found is None or await self._newest(found) is None
        inherited = await self._inherited(record, raws) if is_new else {}
        session_id = found or await self._sessions.open(
            FRAMEWORK,
            id_,
            agent=self._agent,
            metadata={"scope": record.scope} if record.scope else None,
        )

        async def write(writer: ForeignWriter) -> None:
            stored = (await writer.view(RECORD)).newest()
            if (None if stored is None else stored.key) != expected:
                raise ConversationConflict(id_)
            known = {each.key: each.raw for each in await writer.view(ENTRIES)}
            added = {key: each for key, each in (inherited | raws).items() if key not in known}
            entries = known | added
            if record.head_id is not None and record.head_id not in entries:
                raise ConversationConflict(id_)
            await writer.add(
                ENTRIES,
                [ForeignEntry(kind="message", raw=each, key=key) for key, each in added.items()],
            )
            if stored is not None:
                await writer.forget(RECORD, [stored])
            await writer.add(RECORD, [ForeignEntry(kind="record", raw=raw, key=record.revision)])
            await _show(writer, entries, record.head_id, new)
            await _ask(writer, record.deferred_tool_requests)

        await self._sessions.write(session_id, write)
        if record.head_id is not None:
            self._holders[record.head_id] = session_id

    async def _delete(self, conversation_id: str, expected: str) -> None:
        session_id = await self._sessions.find(FRAMEWORK.name, conversation_id)

        async def forget(writer: ForeignWriter) -> None:
            stored = (await writer.view(RECORD)).newest()
            if stored is None or stored.key != expected:
                raise ConversationConflict(conversation_id)
            await writer.forget(RECORD, [stored])

        if session_id is None:
            raise ConversationConflict(conversation_id)
        await self._sessions.write(session_id, forget)
        await self._sessions.delete(session_id)


async def _show(
    writer: ForeignWriter,
    entries: dict[str, bytes],
    head_id: str | None,
    new: dict[str, ModelMessage],
) -> None:
    """Make the session show the history of its head; what is new in it is charged."""
    line = [] if head_id is None else _line(entries, head_id)
    shown = {record.key for record in await writer.view(HISTORY)}
    added_first = next((id_ for id_ in line if id_ not in shown and id_ not in new), None)
    was_left = added_first is not None and bool(await writer.records(HISTORY, added_first))
    ahead = (await writer.view(HISTORY)).ahead()
    await writer.forget(HISTORY, ahead)
    prompts = {record.raw.decode(): record.message_id for record in ahead}

    @cache
    def message(place: int) -> ModelMessage:
        id_ = line[place]
        return new[id_] if id_ in new else _entry(id_, entries[id_]).message

    def instructed(place: int) -> str | None:
        earlier = map(message, reversed(range(place)))
        return next((each.instructions for each in earlier if each.kind == "request"), None)

    def make(place: int) -> ForeignEntry:
        made = message(place)
        is_instructed = made.kind == "request" and made.instructions
        entry = entry_of(made, instructed(place) if is_instructed else None)
        (first, *_) = entry.drafts or (None,)
        said = first.parts[0] if first is not None and first.role is Role.USER else None
        known = prompts.pop(said.text, None) if isinstance(said, Text) else None
        if was_left and line[place] == added_first:
            return replace(entry, drafts=(_RESTORED, *entry.drafts))
        # The turn has written this prompt before its first request.
        return entry if known is None else replace(entry, drafts=entry.drafts[1:], message_id=known)

    added = await show_branch(writer, HISTORY, [(id_, b"") for id_ in line], make)
    for place in added:
        cost = cost_of(message(place), line[place]) if line[place] in new else None
        if cost is not None:
            await writer.charge(cost)


async def _ask(writer: ForeignWriter, asked: DeferredToolRequests | None) -> None:
    """Ask for the approvals that calls wait for; those that none waits for any more expire."""
    session = writer.writer
    questions = [
        _question(each, session.new_id()) for each in (asked.approvals if asked is not None else [])
    ]
    wanted = {each.digest for each in questions}
    expire_questions(
        session, by=FRAMEWORK.name, which=lambda each: each.question.digest not in wanted
    )
    number = session.state.settled + 1 if has_waiting_turn(session.state) else 0
    for each in questions:
        if await writer.tx.approvals.about(session.state, each.digest, each.call_id) is None:
            session.add([each], number)


def _question(call: ToolCallPart, approval_id: str) -> Question:
    arguments = JSON_CODEC.dump(dict[str, Any], call.args_as_dict())
    shown = visible_json(arguments)
    return Question(
        id=ApprovalId(approval_id),
        call_id=CallId(call.tool_call_id),
        tool=call.tool_name,
        tool_class=ToolClass.FUNCTION,
        arguments=arguments,
        question=f"Call the tool {visible(call.tool_name)} with the arguments\n{shown}",
        digest=digest_call(call.tool_name, arguments, "", [call.tool_call_id]),
    )


def _reason(approval: Approval) -> str:
    if approval.state is ApprovalState.EXPIRED:
        return "The call was not approved in time."
    return approval.note or "The call was denied."


def _line(raws: dict[str, bytes], head_id: str) -> list[str]:
    """Return the ids of the entries from the first one to one of them."""
    found: list[str] = []
    at: str | None = head_id
    while at is not None:
        found.append(at)
        at = _split(raws[at])[0]
    return found[::-1]


def _load_record(raw: bytes) -> ConversationRecord:
    record: ConversationRecord = JSON_CODEC.load(ConversationRecord, msgspec.json.decode(raw))
    return record


def _dumped(entries: Sequence[ConversationEntry]) -> dict[str, bytes]:
    # Together, because each call of the adapter takes longer than a message.
    messages = _messages(ModelMessagesTypeAdapter.dump_json([entry.message for entry in entries]))
    return {
        entry.id: b"[%b,%b]" % (msgspec.json.encode(entry.parent_id), bytes(message))
        for entry, message in zip(entries, messages, strict=True)
    }


def _entry(id_: str, raw: bytes) -> ConversationEntry:
    return _loaded({id_: raw})[0]


def _loaded(raws: dict[str, bytes]) -> list[ConversationEntry]:
    parts = [_split(raw) for raw in raws.values()]
    whole = b"[" + b",".join(bytes(message) for _, message in parts) + b"]"
    messages = ModelMessagesTypeAdapter.validate_json(whole)
    return [
        ConversationEntry(id=id_, parent_id=parent_id, message=message)
        for id_, (parent_id, _), message in zip(raws, parts, messages, strict=True)
    ]
