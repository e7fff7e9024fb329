"""The tool calls of a turn, folded from agent updates; each announced call gets one result."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from holdfast.acp.client.content import (
    FileEdit,
    MediaBlock,
    ToolCallContent,
    call_result,
    limit_value,
    read_call_content,
    read_edits,
)
from holdfast.acp.client.lenient_json import (
    read_count,
    read_list,
    read_name,
    read_object,
    read_word,
)
from holdfast.acp.client.output_steps import AgentOutput, TurnFacts
from holdfast.acp.client.stop_reasons import ABNORMAL_STOPS
from holdfast.acp.client.unreported_changes import texts_in
from holdfast.domain.drafts import CallDetails, Draft, MessageDraft
from holdfast.domain.events import ToolEnded, ToolStarted
from holdfast.domain.ids import CallId, ModelId
from holdfast.domain.messages import Location, ResultStatus, Role, ToolCall, ToolError, ToolResult
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import Effect, ResultCode
from holdfast.ports.tools import CallOutcome

_PURE: Final = frozenset({"read", "search", "think", "fetch"})
_TITLE_LONGEST: Final = 1_000
_PATH_LONGEST: Final = 4_096
_LOCATIONS_MOST: Final = 100
_LOCATIONS_READ: Final = 1_000
_ARGUMENTS_LARGEST: Final = 1 << 20
_ERROR_LONGEST: Final = 4_000
_TITLED: Final = re.compile(r"([A-Za-z_][\w.-]{0,63})((?:: | · ).*)?", re.DOTALL)
# `write_file__call_1e2fb0` and `write_file-1794769842874`, as Gemini CLI makes them.
_NAMED_ID: Final = re.compile(r"([a-z][a-z0-9_]{0,63}?)(?:__call_|-[0-9]{10})")
_FAILED: Final = ToolError(
    code=ResultCode.FAILED, message="The agent reported that the call failed."
)
USER_REFUSED: Final = ToolError(code=ResultCode.REJECTED, message="The user did not allow this.")
_FINAL: Final[Mapping[object, ResultStatus]] = {
    "completed": ResultStatus.OK,
    "failed": ResultStatus.ERROR,
}


class TrackedCall:
    """The state of one call; it has a row once it is announced."""

    def __init__(self, call_id: CallId) -> None:
        self.id = call_id
        self.name = "other"
        self.title: str | None = None
        self.kind: str | None = None
        self.locations: tuple[Location, ...] = ()
        self.is_announced = False
        self.is_ended = False
        self.is_denied = False
        # Set when part of the call exceeds its limit and cannot be shown whole.
        self._is_input_cut = self._is_title_cut = self._has_more_locations = False
        # Bytes of the call's latest output, counted against the limit of the turn.
        self.held = 0
        self._reported_name: str | None = None
        self._status: str | None = None
        self._raw_input: Any = None
        self._raw_output: Any = None
        self._content: Any = None
        # The arguments as last written to the store.
        self._written: dict[str, Any] = {}

    def fold(self, update: Mapping[str, Any]) -> bool:
        """Merge an update; return whether the status has changed."""
        before = self._status
        if title := read_word(update.get("title"), longest=_TITLE_LONGEST):
            self.title, self._is_title_cut = title, len(update["title"]) > _TITLE_LONGEST
        self.kind = read_word(update.get("kind"), longest=64) or self.kind
        if isinstance(update.get("locations"), list):
            self.locations = _locations(update["locations"])
            self._has_more_locations = len(update["locations"]) > _LOCATIONS_READ
        # Limited once per input and not with each update, because it may be large.
        if update.get("rawInput") is not None:
            given = update["rawInput"]
            self._raw_input = limit_value(given, _ARGUMENTS_LARGEST)
            self._is_input_cut = self._raw_input is not given and self._raw_input != given
        if update.get("rawOutput") is not None:
            self._raw_output = limit_value(update["rawOutput"])
        if isinstance(update.get("content"), list):
            self._content = update["content"]
        self._status = read_word(update.get("status")) or self._status
        # Fixed after the announcement, because the result must carry the same name as the call.
        if not self.is_announced:
            self._reported_name = _reported_name(update) or self._reported_name
            self.name = self._reported_name or self._name_from_title() or self.kind or "other"
        return self._status != before

    def _name_from_title(self) -> str | None:
        """Return the tool that the title begins with, as in `bash` and `read: a.txt`."""
        found = _TITLED.fullmatch(self.title or "")
        if found is None:
            return None
        # A single word may also be the command that runs.
        is_input = found[2] is None and any(found[1] in each for each in texts_in(self._raw_input))
        return None if is_input else found[1]

    @property
    def is_waiting(self) -> bool:
        """Return whether the call is only named: not started, or without input and content."""
        is_bare = self._status is None and not self._raw_input and not self._content
        return self._status == "pending" or is_bare

    @property
    def is_cut(self) -> bool:
        """Return whether parts of the call were cut, so that an approver would not see it whole."""
        # The title matters only without input, because then it is all that describes the call.
        is_unreported = self._is_title_cut and self._raw_input is None
        return self._is_input_cut or self._has_more_locations or is_unreported

    @property
    def edits(self) -> tuple[FileEdit, ...]:
        """Return the file changes that the call shows."""
        return read_edits(self._content)

    @property
    def final(self) -> ResultStatus | None:
        """Return the final status that the agent reported, if any."""
        return _FINAL.get(self._status)

    @property
    def effect(self) -> Effect:
        """Return whether a repetition is safe, according to the kind of the call."""
        return Effect.PURE if self.kind in _PURE else Effect.UNSAFE

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the call, always as an object."""
        # An input above the size limit was truncated to a text and is not an object any more.
        if isinstance(self._raw_input, dict):
            return self._raw_input
        beside = {"title": self.title, "rawInput": self._raw_input}
        return {name: value for name, value in beside.items() if value is not None}

    def announce(self, model_id: ModelId) -> tuple[MessageDraft, ToolStarted]:
        """Mark the call as announced; return its row and its start event."""
        self.is_announced = True
        self._written = self.arguments()
        part = ToolCall(
            id=self.id,
            name=self.name,
            arguments=self._written,
            title=self.title,
            kind=self.kind,
            locations=self.locations[:_LOCATIONS_MOST],
        )
        row = MessageDraft(
            role=Role.TOOL_CALL, parts=(part,), model_id=model_id, effect=self.effect
        )
        return row, ToolStarted(call_id=self.id, name=self.name, arguments=self._written)

    def late_arguments(self) -> tuple[CallDetails, ...]:
        """Return the arguments that became known after the call was announced."""
        # Without an input the arguments hold only a title, which is not worth an update.
        arguments = self._written if self._raw_input is None else self.arguments()
        if arguments == self._written:
            return ()
        self._written = arguments
        return (CallDetails(call_id=self.id, arguments=arguments),)

    def outcome(self, status: ResultStatus) -> tuple[CallOutcome, tuple[MediaBlock, ...]]:
        """Return the outcome that the agent reported, and its media; releases the output."""
        produce = read_call_content(self._content)
        error = self._error(produce) if status is ResultStatus.ERROR else None
        if self.is_denied and error is not None:
            status = ResultStatus.DENIED
        result = call_result(self._raw_output, produce)
        self._raw_output = self._content = None
        return CallOutcome(status=status, result=result, error=error), produce.pictures

    def end(self, done: CallOutcome) -> tuple[Draft, ...]:
        """End the call; return its result as an event and as a row."""
        self.is_ended = True
        result = ToolResult(
            call_id=self.id,
            name=self.name,
            status=done.status,
            result=done.result,
            error=done.error,
        )
        ended = ToolEnded(
            call_id=self.id,
            name=self.name,
            status=done.status,
            result=done.result,
            failure=done.error,
        )
        return ended, MessageDraft(role=Role.TOOL_RESULT, parts=(result,))

    def _error(self, produce: ToolCallContent) -> ToolError:
        """Return why the call failed, in the agent's words if there are any."""
        raw = self._raw_output
        fields = read_object(raw)
        without = USER_REFUSED if self.is_denied else _FAILED
        candidates = (
            produce.text,
            raw,
            fields.get("error"),
            fields.get("message"),
            without.message,
        )
        message = next(
            filter(None, (read_word(each, longest=_ERROR_LONGEST) for each in candidates))
        )
        return ToolError(code=without.code, message=message)


def _reported_name(update: Mapping[str, Any]) -> str | None:
    """Return the name of the tool, from the fields in which agents are known to report it."""
    meta = read_object(update.get("_meta"))
    inner = [read_object(each) for each in meta.values()]
    places = (update, meta, *inner, *(read_object(each.get("toolCall")) for each in inner))
    names = (each.get(key) for key in ("name", "toolName", "tool_name") for each in places)
    named_id = _NAMED_ID.match(read_word(update.get("toolCallId")) or "")
    return next(filter(None, map(read_word, names)), named_id and named_id[1])


def _locations(value: object) -> tuple[Location, ...]:
    found = []
    for each in map(read_object, read_list(value)[:_LOCATIONS_READ]):
        path = read_word(each.get("path"), longest=_PATH_LONGEST)
        if path is not None:
            found.append(Location(path=path, line=read_count(each.get("line"))))
    return tuple(found)


HOLD_SECONDS: Final = 0.5
_CALL_ID: Final = re.compile(r"[!-~]{1,256}")
_NO_RESULT: Final = ToolError(code="no_result", message="agent reported no result")
_UNKNOWN: Final = ToolError(
    code=ResultCode.UNKNOWN, message="outcome unknown: the agent's turn ended while the call ran"
)


class CallRequest(Struct, frozen=True, kw_only=True):
    """A call that needs a decision, with the drafts to write before the question is asked.

    `is_cut` means that parts are missing, so it cannot be shown whole.
    """

    id: CallId
    name: str
    title: str | None = None
    kind: str | None = None
    arguments: dict[str, Any]
    locations: tuple[Location, ...] = ()
    edits: tuple[FileEdit, ...] = ()
    is_cut: bool = False
    drafts: tuple[Draft, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the files that the call names in its locations and diffs."""
        paths = (*(each.path for each in self.locations), *(each.path for each in self.edits))
        return tuple(dict.fromkeys(paths))


class CallTracker:
    """The calls of a turn by the agent's id; each announced call gets exactly one result."""

    def __init__(self, facts: TurnFacts, new_id: Callable[[], str]) -> None:
        self.held_until: float | None = None
        # Bytes of output that open calls hold in memory.
        self.held = 0
        self._model_id = facts.model_id
        self._new_id = new_id
        self._taken = set(facts.taken)
        self._calls: dict[str, TrackedCall] = {}
        self._held: TrackedCall | None = None
        self._contents: list[MediaBlock] = []

    def take(
        self, update: Mapping[str, Any], output: AgentOutput, drafts: list[Draft], now: float
    ) -> str | None:
        """Process an update of a call; return the reason if it was ignored."""
        agents_id = read_name(update.get("toolCallId"))
        is_first_word = update.get("sessionUpdate") == "tool_call"
        if agents_id is None and not is_first_word:
            return "unreadable"
        known = self._calls.get(agents_id) if agents_id is not None else None
        if known is not None and known.is_ended:
            return "ended"
        # An update without a start belongs to an earlier turn, and results are never changed.
        if known is None and not is_first_word and agents_id in self._taken:
            return "late"
        call = known or self._add_call(agents_id, output, drafts)
        if call is not self._held:
            drafts += self.release()
        has_moved = call.fold(update)
        if known is None and call.is_waiting:
            self.held_until = now + HOLD_SECONDS
            return None
        # A held call is announced only when an update has more than its title.
        if call is self._held and call.is_waiting and not update.get("rawInput"):
            return None
        drafts += self.release()
        if has_moved:
            drafts += call.late_arguments()
        if call.final is not None:
            done, pictures = call.outcome(call.final)
            self._contents += pictures
            # The output is in the drafts now and may be large, so it is not held twice.
            self.held -= call.held
            drafts += call.end(done)
        return None

    def weigh(self, update: Mapping[str, Any], size: int) -> None:
        """Count the bytes of an update whose output an open call holds in memory."""
        call = self._calls.get(read_name(update.get("toolCallId")) or "")
        if call is None or call.is_ended or not update.keys() & {"rawOutput", "content"}:
            return
        self.held += size - call.held
        call.held = size

    def request(
        self, update: Mapping[str, Any], output: AgentOutput, drafts: list[Draft]
    ) -> TrackedCall:
        """Process a call that needs a decision; it is always announced."""
        agents_id = read_name(update.get("toolCallId"))
        call = self._calls.get(agents_id) if agents_id is not None else None
        if call is None or call.is_ended:
            call = self._add_call(agents_id, output, drafts)
        call.fold(update)
        drafts += (*self.release(), *call.late_arguments())
        return call

    def release(self) -> tuple[Draft, ...]:
        """Announce the held call, if there is one."""
        call, self._held, self.held_until = self._held, None, None
        return call.announce(self._model_id) if call is not None else ()

    def is_open(self, call_id: CallId) -> bool:
        """Return whether a call has not ended yet."""
        return any(not call.is_ended for call in self._with_id(call_id))

    def deny(self, call_id: CallId) -> None:
        """Mark a call as denied."""
        for call in self._with_id(call_id):
            call.is_denied = True

    def end(self, call_id: CallId, done: CallOutcome, drafts: list[Draft]) -> None:
        """End a call with an outcome known to us; a call that has ended is not changed."""
        for call in self._with_id(call_id):
            if not call.is_ended:
                drafts += call.end(done)

    def close(self, stop: StopReason, drafts: list[Draft]) -> None:
        """Give a result to every call that has none when the turn ends."""
        for call in self._calls.values():
            if call.is_ended:
                continue
            drafts += call.late_arguments()
            if call.is_denied:
                done = CallOutcome(status=ResultStatus.DENIED, error=USER_REFUSED)
            elif stop in ABNORMAL_STOPS:
                done = CallOutcome(status=ResultStatus.UNKNOWN, error=_UNKNOWN)
            else:
                done = CallOutcome(status=ResultStatus.OK, error=_NO_RESULT)
            drafts += call.end(done)

    def contents(self) -> list[MediaBlock]:
        """Return the media of the results since the last call of this method."""
        taken, self._contents = self._contents, []
        return taken

    def _with_id(self, call_id: CallId) -> Iterator[TrackedCall]:
        return (call for call in self._calls.values() if call.id == call_id)

    def _add_call(
        self, agents_id: str | None, output: AgentOutput, drafts: list[Draft]
    ) -> TrackedCall:
        """Create a call under the agent's id, or under a new id if that is invalid or in use."""
        drafts += (*self.release(), *output.end_with_a_call())
        is_free = agents_id is not None and agents_id not in self._taken
        is_good = is_free and _CALL_ID.fullmatch(agents_id or "") is not None
        call_id = CallId(agents_id if is_good and agents_id else f"call_{self._new_id()}")
        self._taken.add(call_id)
        call = self._calls[agents_id or call_id] = TrackedCall(call_id)
        self._held = call
        return call
