"""Translates updates of an external agent into drafts: a table, without any I/O.

A translator lives for the prompt of one turn. For any sequence of updates the drafts form a
valid turn: every started step ends, every started call has one result, and nothing follows the
end.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from holdfast.acp.client.agent_state import STATE_UPDATES, AgentState, state_after_update
from holdfast.acp.client.content import MediaBlock, read_block
from holdfast.acp.client.lenient_json import (
    read_count,
    read_list,
    read_name,
    read_object,
    read_word,
)
from holdfast.acp.client.output_steps import (
    AgentOutput,
    TurnFacts,
    TurnUsage,
    last_plan,
    read_plan_steps,
)
from holdfast.acp.client.stop_reasons import refusal_outcome, turn_outcome
from holdfast.acp.client.tool_calls import CallRequest, CallTracker
from holdfast.acp.client.usage import (
    UsageSource,
    is_odd_cost,
    read_chunk_usage,
    read_cost,
    read_quota,
    read_usage,
)
from holdfast.acp.rpc.framing import JsonRpcError
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import Draft, MessageDraft, Outcome, notice_draft
from holdfast.domain.events import Channel, Failure, PlanChanged
from holdfast.domain.ids import CallId, ModelId
from holdfast.domain.messages import NoticeCode, Plan, Role, ToolCall
from holdfast.domain.sessions import StopReason
from holdfast.ports.runtime import TurnEnd, TurnInput
from holdfast.ports.tools import CallOutcome

Drafts = tuple[Draft, ...]

FLUSH_SECONDS: Final = 0.05
ENOUGH: Final = 256
UPDATES_MOST: Final = 100_000
# Limit for the stored bytes of a turn plus the output that open calls hold in memory.
BYTES_MOST: Final = 64 << 20
_NOTICE_LONGEST: Final = 100_000
_ODD_COST: Final = "The agent reported an invalid cost; it was not counted."


def turn_facts(turn: TurnInput, *, session: str, model_id: ModelId, model: str = "") -> TurnFacts:
    """Return the facts that a translator needs about a turn."""
    taken = {
        part.id
        for row in turn.history
        if row.role is Role.TOOL_CALL
        for part in row.parts
        if isinstance(part, ToolCall)
    }
    return TurnFacts(
        session=session,
        turn=turn.turn,
        step=turn.step,
        model_id=model_id,
        model=model,
        plan=last_plan(turn.history),
        taken=frozenset(taken),
    )


class Translator:
    """One turn of an external agent, from its prompt to its end.

    Each method returns a batch, empty if there is nothing to write. Batches must be written in
    order, each as a whole; adjacent ones may share a transaction. Store what `contents` returns
    before the batch that refers to it. `agent_state` is the latest state of the agent, also after
    the turn; `has_output` is set once there was something to write; `counts` holds ignored updates
    by reason.
    """

    def __init__(
        self, facts: TurnFacts, *, agent_state: AgentState, new_id: Callable[[], str]
    ) -> None:
        self.agent_state = agent_state
        self.counts: Counter[str] = Counter()
        self.has_output = False
        self.is_flooded = False
        self._end: TurnEnd | None = None
        self._output = AgentOutput(facts, new_id)
        self._calls = CallTracker(facts, new_id)
        self._usage = TurnUsage(facts)
        self._plan = facts.plan
        self._contents: list[MediaBlock] = []
        self._updates = 0
        self._bytes = 0
        self._has_odd_cost = False
        self._not_before = 0.0

    def update(self, params: object, *, now: float, size: int = 0) -> Drafts:
        """Process the parameters of one `session/update` whose line had `size` bytes.

        `now` is in seconds of any monotonic clock.
        """
        update = params.get("update") if isinstance(params, dict) else None
        kind = update.get("sessionUpdate") if isinstance(update, dict) else None
        if not isinstance(kind, str) or not isinstance(update, dict):
            self.counts["unreadable"] += 1
            return ()
        self._updates += 1
        if self._updates > UPDATES_MOST:
            self.is_flooded = True
            return ()
        if kind in STATE_UPDATES:
            self._apply_state(update)
            return ()
        if self._end is not None:
            self.counts["late"] += 1
            return ()
        channel, handle = _CHANNELS.get(kind), _HANDLERS.get(kind)
        if channel is not None:
            drafts = self._chunk(update, channel)
        elif handle is not None:
            drafts = handle(self, update, now)
        else:
            self.counts["unknown"] += 1
            return ()
        # The text of a chunk is buffered before it is written.
        is_stored = bool(drafts) or channel is not None
        # Output of an open call is held until the call ends, and each update replaces the last one.
        if not is_stored:
            self._calls.weigh(update, size)
        self.weigh(size if is_stored else 0)
        return self._batch(drafts, now)

    def weigh(self, size: int) -> None:
        """Count stored bytes; sets `is_flooded` above the limit of a turn."""
        self._bytes += size
        if self._bytes + self._calls.held > BYTES_MOST:
            self.is_flooded = True

    @property
    def deadline(self) -> float | None:
        """Return the latest time to call `flush`; `None` when nothing is buffered."""
        step = self._output.step
        times = [self._not_before] if step is not None and step.held else []
        if self._calls.held_until is not None:
            times.append(self._calls.held_until)
        return min(times, default=None)

    def flush(self, *, now: float) -> Drafts:
        """Return the drafts whose delay has passed."""
        drafts: list[Draft] = []
        until = self._calls.held_until
        if until is not None and until <= now:
            drafts += self._calls.release()
        return self._batch(drafts, now)

    def contents(self) -> list[MediaBlock]:
        """Return the media of the batches since the last call of this method."""
        taken, self._contents = self._contents, []
        return taken

    def request(self, tool_call: object, *, now: float) -> CallRequest:
        """Process the call of a permission request, which may be its first appearance.

        Its drafts must be on disk before the question is asked.
        """
        drafts: list[Draft] = []
        call = self._calls.request(read_object(tool_call), self._output, drafts)
        return CallRequest(
            id=call.id,
            name=call.name,
            title=call.title,
            kind=call.kind,
            arguments=call.arguments(),
            locations=call.locations,
            edits=call.edits,
            is_cut=call.is_cut,
            drafts=self._batch(drafts, now),
        )

    def deny(self, call_id: CallId) -> None:
        """Mark a call as denied, so that its failure is not blamed on the agent."""
        self._calls.deny(call_id)

    def is_open(self, call_id: CallId) -> bool:
        """Return whether a call of this turn has not ended yet."""
        return self._calls.is_open(call_id)

    def act(self, name: str, kind: str, arguments: dict[str, Any], *, now: float) -> CallRequest:
        """Begin a call that we run for the agent; its drafts must be on disk before it runs."""
        said = {"name": name, "kind": kind, "rawInput": arguments, "status": "in_progress"}
        return self.request(said, now=now)

    def finish_act(self, call_id: CallId, done: CallOutcome, *, now: float) -> Drafts:
        """End a call that was begun with `act`."""
        drafts: list[Draft] = []
        self._calls.end(call_id, done, drafts)
        return self._batch(drafts, now)

    def end(self, result: object, *, is_cancelled: bool = False) -> TurnEnd:
        """Return the end of the turn after the reply to the prompt."""
        reply = read_object(result)
        self._usage.note(UsageSource.REPLY, read_usage(reply.get("usage")))
        self._usage.note(UsageSource.QUOTA, read_quota(reply))
        outcome, notice = turn_outcome(reply, is_cancelled=is_cancelled)
        return self._build_end(outcome, notice)

    def end_with_error(self, error: JsonRpcError, *, is_cancelled: bool = False) -> TurnEnd:
        """Return the end of the turn after an error reply to the prompt."""
        return self._build_end(refusal_outcome(error, is_cancelled=is_cancelled))

    def fail(self, failure: Failure) -> TurnEnd:
        """Return the end of a turn that cannot continue, with its failure."""
        return self._build_end(Outcome(stop_reason=StopReason.ERROR, failure=failure))

    def _build_end(self, outcome: Outcome, notice: MessageDraft | None = None) -> TurnEnd:
        """Return the end of the turn; of several ends the first one counts."""
        if self._end is not None:
            return self._end
        drafts: list[Draft] = [*self._calls.release(), *self._output.end()]
        self._calls.close(outcome.stop_reason, drafts)
        drafts.append(self._usage.entry(self.agent_state))
        self.agent_state = replace(self.agent_state, charged=self.agent_state.cost)
        if notice is not None:
            drafts.append(notice)
        if self._has_odd_cost:
            drafts.append(notice_draft(NoticeCode.INFORMATION, _ODD_COST))
        self._contents += self._calls.contents()
        self._end = TurnEnd(outcome=outcome, drafts=tuple(drafts))
        return self._end

    def _batch(self, drafts: list[Draft], now: float) -> Drafts:
        """Return the drafts as a batch, with the buffered text that is due."""
        step = self._output.step
        if step is not None and step.held:
            is_due = step.held >= ENOUGH or now >= self._not_before
            if drafts or is_due:
                drafts += step.deltas()
        if not drafts:
            return ()
        self.has_output = True
        self._contents += self._calls.contents()
        self._not_before = now + FLUSH_SECONDS
        return tuple(drafts)

    def _apply_state(self, update: Mapping[str, Any]) -> None:
        """Process a state update; during a turn it may also report usage and cost."""
        self.agent_state = state_after_update(self.agent_state, update)
        if self._end is not None or update["sessionUpdate"] != "usage_update":
            return
        self._has_odd_cost |= is_odd_cost(update)
        used = read_count(update.get("used"))
        self._usage.note(UsageSource.UPDATE, None if used is None else Usage(input=used))
        self._usage.is_priced |= read_cost(update) is not None

    def _chunk(self, update: Mapping[str, Any], channel: Channel) -> list[Draft]:
        if "_meta" in update:
            self._usage.note(UsageSource.CHUNK, read_chunk_usage(update))
        seen = read_block(update.get("content"))
        if not seen:
            return []
        released = self._calls.release() if self._calls.held_until is not None else ()
        agents_id = update.get("messageId")
        if agents_id is not None:
            agents_id = read_name(agents_id)
        if isinstance(seen, MediaBlock):
            self._contents.append(seen)
            return [*released, *self._output.show(seen.media, agents_id)]
        return [*released, *self._output.say(channel, seen, agents_id)]

    def _echo(self, update: Mapping[str, Any], now: float) -> list[Draft]:
        # An echo of the prompt is already stored.
        self.counts["echo"] += 1
        return []

    def _call(self, update: Mapping[str, Any], now: float) -> list[Draft]:
        drafts: list[Draft] = []
        why = self._calls.take(update, self._output, drafts, now)
        if why is not None:
            self.counts[why] += 1
        return drafts

    def _read_plan(self, update: Mapping[str, Any], now: float) -> list[Draft]:
        steps = read_plan_steps(update)
        if steps is None:
            self.counts["unreadable"] += 1
        if steps is None or steps == self._plan:
            return []
        self._plan = steps
        row = MessageDraft(role=Role.SYSTEM, parts=(Plan(steps=steps),))
        return [*self._calls.release(), *self._output.end(), PlanChanged(steps=steps), row]

    def _notice(self, update: Mapping[str, Any], now: float) -> list[Draft]:
        said = _first_text(update, ("message", "text", "title", "content"))
        return self._add_notice(NoticeCode.INFORMATION, said)

    def _compaction(self, update: Mapping[str, Any], now: float) -> list[Draft]:
        """Record that the agent has compacted its context; our history is not changed."""
        if update.get("status") != "completed":
            return []
        said = _first_text(update, ("summary", "message"))
        text = f"The agent has compacted its context: {said or 'no message'}"
        return self._add_notice(NoticeCode.AGENT_COMPACTED, text)

    def _add_notice(self, code: NoticeCode, text: str | None) -> list[Draft]:
        if not text:
            self.counts["unreadable"] += 1
            return []
        return [*self._calls.release(), *self._output.deltas(), notice_draft(code, text)]


# Every update that may become a draft; state updates are in `agent_state.py`.
_CHANNELS: Final[Mapping[str, Channel]] = {
    "agent_message_chunk": Channel.TEXT,
    "agent_thought_chunk": Channel.REASONING,
}
_HANDLERS: Final[Mapping[str, Callable[[Translator, Mapping[str, Any], float], list[Draft]]]] = {
    "user_message_chunk": Translator._echo,
    "tool_call": Translator._call,
    "tool_call_update": Translator._call,
    "plan": Translator._read_plan,
    "notice": Translator._notice,
    "compaction_update": Translator._compaction,
}


def _first_text(update: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """Return the first non-empty text among fields that hold a text, a block or blocks."""
    for each in names:
        value = update.get(each)
        blocks = read_list(value) or [value]
        texts = [seen for seen in map(read_block, blocks) if isinstance(seen, str)]
        said = value if isinstance(value, str) else "\n".join(texts)
        if found := read_word(said, longest=_NOTICE_LONGEST):
            return found
    return None
