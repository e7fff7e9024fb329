"""A tool call of somebody else's agent, folded from all that the agent says about it.

Only what is sent changes; lists are replaced whole. Which drafts become of it is decided in
`translate.py`.
"""

from collections.abc import Mapping
from typing import Any, Final

from holdfast.acp.translate.bounds import bounded
from holdfast.acp.translate.contents import Edit, Produce, edits_of, produce_of, result_of
from holdfast.acp.translate.readings import count, fields, items, word
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.events import ToolStarted
from holdfast.domain.ids import CallId, ModelId
from holdfast.domain.messages import Location, ResultStatus, Role, ToolCall, ToolError
from holdfast.domain.tools import Effect, ResultCode

_PURE: Final = frozenset({"read", "search", "think", "fetch"})
_TITLE_LONGEST: Final = 1_000
_PATH_LONGEST: Final = 4_096
_LOCATIONS_MOST: Final = 100
_LOCATIONS_READ: Final = 1_000
_ARGUMENTS_LARGEST: Final = 1 << 20
_ERROR_LONGEST: Final = 4_000
_FAILED: Final = ToolError(
    code=ResultCode.FAILED, message="The agent reported that the call failed."
)
REFUSED: Final = ToolError(code=ResultCode.REJECTED, message="The user did not allow this.")
_FINAL: Final[Mapping[object, ResultStatus]] = {
    "completed": ResultStatus.OK,
    "failed": ResultStatus.ERROR,
}


class FoldedCall:
    """All that is known of one call; it is written down once it is `announced`."""

    def __init__(self, call_id: CallId) -> None:
        self.id = call_id
        self.name = "other"
        self.title: str | None = None
        self.kind: str | None = None
        self.locations: tuple[Location, ...] = ()
        self.is_announced = False
        self.is_ended = False
        self.is_denied = False
        # Whether something that was said of it is too much to be shown.
        self._is_input_cut = self._is_title_cut = self._has_more_places = False
        # How many bytes have come of what it has brought.
        self.held = 0
        self._status: str | None = None
        self._raw_input: Any = None
        self._raw_output: Any = None
        self._content: Any = None
        # What the store knows as its arguments, once it knows any.
        self._written: dict[str, Any] = {}

    def fold(self, said: Mapping[str, Any]) -> bool:
        """Take in what was said; tell whether the call has come further by it."""
        before = self._status
        if title := word(said.get("title"), longest=_TITLE_LONGEST):
            self.title, self._is_title_cut = title, len(said["title"]) > _TITLE_LONGEST
        self.kind = word(said.get("kind"), longest=64) or self.kind
        if isinstance(said.get("locations"), list):
            self.locations = _locations(said["locations"])
            self._has_more_places = len(said["locations"]) > _LOCATIONS_READ
        # Bounded once and not with each news of the call, because it may be large.
        if said.get("rawInput") is not None:
            given = said["rawInput"]
            self._raw_input = bounded(given, _ARGUMENTS_LARGEST)
            self._is_input_cut = self._raw_input is not given and self._raw_input != given
        if said.get("rawOutput") is not None:
            self._raw_output = bounded(said["rawOutput"])
        if isinstance(said.get("content"), list):
            self._content = said["content"]
        self._status = word(said.get("status")) or self._status
        # Fixed once it is written down: the result has to bear the name of the call.
        if not self.is_announced:
            self.name = word(said.get("name")) or self.kind or "other"
        return self._status != before

    @property
    def is_waiting(self) -> bool:
        """Tell whether the call was only announced: not begun, or nobody knows with what."""
        is_bare = self._status is None and not self._raw_input and not self._content
        return self._status == "pending" or is_bare

    @property
    def is_cut(self) -> bool:
        """Tell whether not all of it is known: whoever decides about it would not see it whole."""
        # A title stands for the call only where nothing else does.
        is_untold = self._is_title_cut and self._raw_input is None
        return self._is_input_cut or self._has_more_places or is_untold

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Return the changes of files that it shows."""
        return edits_of(self._content)

    @property
    def final(self) -> ResultStatus | None:
        """Return how the agent says the call has ended, if it says so."""
        return _FINAL.get(self._status)

    @property
    def effect(self) -> Effect:
        """Return what running it twice would do, as far as its kind tells."""
        return Effect.PURE if self.kind in _PURE else Effect.UNSAFE

    def arguments(self) -> dict[str, Any]:
        """Return what the call is made with, always as an object."""
        # One that was too large to be kept whole was cut, and is no object any more.
        if isinstance(self._raw_input, dict):
            return self._raw_input
        beside = {"title": self.title, "rawInput": self._raw_input}
        return {name: value for name, value in beside.items() if value is not None}

    def announced(self, model_id: ModelId) -> tuple[MessageDraft, ToolStarted]:
        """Return the call's row and its start."""
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

    def news(self) -> dict[str, Any] | None:
        """Return the arguments if they are others than those that were written; else nothing."""
        # Without an input there is nothing but a title, which is for people to read.
        arguments = self._written if self._raw_input is None else self.arguments()
        if arguments == self._written:
            return None
        self._written = arguments
        return arguments

    def produce(self) -> Produce:
        """Return what the call gave back, apart from its raw output."""
        return produce_of(self._content)

    def result(self, produce: Produce) -> Any:
        """Return the call's result as a row can hold it."""
        return result_of(self._raw_output, produce)

    def forget(self) -> None:
        """Let go of what the call has brought."""
        self._raw_output = self._content = None
        self.held = 0

    def error(self, produce: Produce) -> ToolError:
        """Return why the call failed, in the agent's words if it has any."""
        raw = self._raw_output
        told = fields(raw)
        without = REFUSED if self.is_denied else _FAILED
        candidates = (produce.text, raw, told.get("error"), told.get("message"), without.message)
        message = next(filter(None, (word(each, longest=_ERROR_LONGEST) for each in candidates)))
        return ToolError(code=without.code, message=message)


def _locations(value: object) -> tuple[Location, ...]:
    found = []
    for each in map(fields, items(value)[:_LOCATIONS_READ]):
        path = word(each.get("path"), longest=_PATH_LONGEST)
        if path is not None:
            found.append(Location(path=path, line=count(each.get("line"))))
    return tuple(found)
