"""The tool calls of one turn of somebody else's agent: sighted, announced, ended.

A call that is announced before it begins is held back a moment, because most programs send its
arguments right behind, and a row is never edited.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from holdfast.acp.translate.contents import Content, Edit
from holdfast.acp.translate.readings import name
from holdfast.acp.translate.speech import Ground, Speech
from holdfast.acp.translate.stops import CUT_OFF
from holdfast.acp.translate.tool_calls import REFUSED, FoldedCall
from holdfast.domain.drafts import CallDetails, Draft, MessageDraft
from holdfast.domain.events import ToolEnded
from holdfast.domain.ids import CallId
from holdfast.domain.messages import Location, ResultStatus, Role, ToolError, ToolResult
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import ResultCode
from holdfast.ports import CallOutcome

PATIENCE: Final = 0.5
_CALL_ID: Final = re.compile(r"[!-~]{1,256}")

_NO_RESULT: Final = ToolError(code="no_result", message="agent reported no result")
_UNKNOWN: Final = ToolError(
    code=ResultCode.UNKNOWN, message="outcome unknown: the agent's turn ended while the call ran"
)


class Asked(Struct, frozen=True, kw_only=True):
    """A call as it is known when somebody has to decide about it, and what is to be written.

    One that `is_cut` cannot be shown whole.
    """

    id: CallId
    name: str
    title: str | None = None
    kind: str | None = None
    arguments: dict[str, Any]
    locations: tuple[Location, ...] = ()
    edits: tuple[Edit, ...] = ()
    is_cut: bool = False
    batches: list[tuple[Draft, ...]]

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the files that it is about, by all that it says."""
        told = (*(each.path for each in self.locations), *(each.path for each in self.edits))
        return tuple(dict.fromkeys(told))


class CallBook:
    """Every call of a turn by the agent's name for it; each that is announced gets one result."""

    def __init__(self, ground: Ground, new_id: Callable[[], str]) -> None:
        self.held_until: float | None = None
        # How many bytes have come of what open calls have brought.
        self.held = 0
        self._model_id = ground.model_id
        self._new_id = new_id
        self._taken = set(ground.taken)
        self._calls: dict[str, FoldedCall] = {}
        self._held: FoldedCall | None = None
        self._contents: list[Content] = []

    def take(
        self, said: Mapping[str, Any], speech: Speech, drafts: list[Draft], now: float
    ) -> str | None:
        """Take in what an update says of a call; return why it says nothing, if so."""
        agents_id = name(said.get("toolCallId"))
        is_first_word = said.get("sessionUpdate") == "tool_call"
        if agents_id is None and not is_first_word:
            return "unreadable"
        known = self._calls.get(agents_id) if agents_id is not None else None
        if known is not None and known.is_ended:
            return "ended"
        # Alone it can only belong to a turn that is over, and results are never edited.
        if known is None and not is_first_word and agents_id in self._taken:
            return "late"
        call = known or self._sighted(agents_id, speech, drafts)
        if call is not self._held:
            drafts += self.release()
        has_moved = call.fold(said)
        if known is None and call.is_waiting:
            self.held_until = now + PATIENCE
            return None
        # Not before it says more of itself than how it is called.
        if call is self._held and call.is_waiting and not said.get("rawInput"):
            return None
        drafts += self.release()
        if has_moved:
            drafts += _details(call)
        if call.final is not None:
            self._answer(call, call.final, drafts)
        return None

    def weigh(self, said: Mapping[str, Any], size: int) -> None:
        """Count what an update of so many bytes has brought that a call holds on to."""
        call = self._calls.get(name(said.get("toolCallId")) or "")
        if call is None or call.is_ended or not said.keys() & {"rawOutput", "content"}:
            return
        self.held += size - call.held
        call.held = size

    def asked(self, said: Mapping[str, Any], speech: Speech, drafts: list[Draft]) -> FoldedCall:
        """Take in a call that somebody has to decide about; it is written down in any case."""
        agents_id = name(said.get("toolCallId"))
        call = self._calls.get(agents_id) if agents_id is not None else None
        if call is None or call.is_ended:
            call = self._sighted(agents_id, speech, drafts)
        call.fold(said)
        drafts += (*self.release(), *_details(call))
        return call

    def release(self) -> tuple[Draft, ...]:
        """Announce the call that is held back, if there is one."""
        call, self._held, self.held_until = self._held, None, None
        return call.announced(self._model_id) if call is not None else ()

    def is_open(self, call_id: CallId) -> bool:
        """Tell whether a call has not ended yet."""
        return any(call.id == call_id and not call.is_ended for call in self._calls.values())

    def deny(self, call_id: CallId) -> None:
        """Note that a call was not allowed."""
        for call in self._calls.values():
            if call.id == call_id:
                call.is_denied = True

    def end(self, call_id: CallId, done: CallOutcome, drafts: list[Draft]) -> None:
        """End a call with what we know came of it; one that has ended stays as it is."""
        for call in self._calls.values():
            if call.id == call_id and not call.is_ended:
                call.is_ended = True
                drafts += _result(call, done)

    def close(self, stop: StopReason, drafts: list[Draft]) -> None:
        """Give a result to every call that has none when the turn ends."""
        for call in self._calls.values():
            if call.is_ended:
                continue
            call.is_ended = True
            drafts += _details(call)
            if call.is_denied:
                done = CallOutcome(status=ResultStatus.DENIED, error=REFUSED)
            elif stop in CUT_OFF:
                done = CallOutcome(status=ResultStatus.UNKNOWN, error=_UNKNOWN)
            else:
                done = CallOutcome(status=ResultStatus.OK, error=_NO_RESULT)
            drafts += _result(call, done)

    def contents(self) -> list[Content]:
        """Return the bytes that the results so far name, each time those that are new."""
        taken, self._contents = self._contents, []
        return taken

    def _sighted(self, agents_id: str | None, speech: Speech, drafts: list[Draft]) -> FoldedCall:
        """Begin a call, under the agent's name for it unless the session has one of that name."""
        drafts += (*self.release(), *speech.end_with_a_call())
        is_free = agents_id is not None and agents_id not in self._taken
        is_good = is_free and _CALL_ID.fullmatch(agents_id or "") is not None
        call_id = CallId(agents_id if is_good and agents_id else f"call_{self._new_id()}")
        self._taken.add(call_id)
        call = self._calls[agents_id or call_id] = FoldedCall(call_id)
        self._held = call
        return call

    def _answer(self, call: FoldedCall, status: ResultStatus, drafts: list[Draft]) -> None:
        call.is_ended = True
        produce = call.produce()
        self._contents += (picture.content for picture in produce.pictures)
        error = call.error(produce) if status is ResultStatus.ERROR else None
        if call.is_denied and error is not None:
            status = ResultStatus.DENIED
        done = CallOutcome(status=status, result=call.result(produce), error=error)
        # What the call has brought is on disk now, and may be large.
        self.held -= call.held
        call.forget()
        drafts += _result(call, done)


def _details(call: FoldedCall) -> tuple[Draft, ...]:
    """Return the arguments of a call that came to be known after it was written down."""
    arguments = call.news()
    return () if arguments is None else (CallDetails(call_id=call.id, arguments=arguments),)


def _result(call: FoldedCall, done: CallOutcome) -> tuple[Draft, ...]:
    """Return the call's one result, as news and as a row."""
    result = ToolResult(
        call_id=call.id, name=call.name, status=done.status, result=done.result, error=done.error
    )
    ended = ToolEnded(
        call_id=call.id,
        name=call.name,
        status=done.status,
        result=done.result,
        failure=done.error,
    )
    return ended, MessageDraft(role=Role.TOOL_RESULT, parts=(result,))
