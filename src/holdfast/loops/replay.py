"""Recorded entries of a loop's turn, and how a loop that runs again is matched with them.

An entry is a call or a step. Its position is the path of its branch and its number there; a loop
that runs again must ask for the same entries at the same positions.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from holdfast.domain.calls import Call
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Message,
    Part,
    ResultStatus,
    Role,
    Step,
    ToolCall,
    ToolError,
    ToolResult,
)
from holdfast.functions.context import OutcomeUnknown, ToolFailed

EntryKind = Literal["call", "step"]
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]{0,63}")


class CallDenied(Exception):  # noqa: N818 — an outcome of the call
    """The call was not allowed; the message says by what."""


class Position(Struct, frozen=True):
    """A position in a turn: the names of nested branches, and a number in the innermost one."""

    path: tuple[str, ...]
    number: int

    def __str__(self) -> str:
        return "/".join((*self.path, str(self.number)))


class Entry(Struct, frozen=True, kw_only=True):
    """A recorded call or step; a call without a result is open."""

    kind: EntryKind
    name: str
    digest: str
    result: ToolResult | Step | None = None
    call: Call | None = None


class RecordedEntries:
    """The entries of a turn that were recorded before the loop was run again."""

    def __init__(self, turn: int, rows: Iterable[Message], calls: Iterable[Call]) -> None:
        """Entries are kept by the id that a call at their position has."""
        self._entries: dict[str, Entry] = {}
        self._reached: set[str] = set()
        # Rows of the assistant are matched by their order alone.
        self.said: list[Message] = []
        known = {call.id: call for call in calls}
        answers: dict[CallId, ToolResult] = {}
        asked: list[ToolCall] = []
        for row in rows:
            if row.role is Role.ASSISTANT:
                self.said.append(row)
            for part in row.parts:
                match part:
                    case ToolCall():
                        asked.append(part)
                    case ToolResult():
                        answers[part.call_id] = part
                    case Step():
                        *path, number = part.position.split("/")
                        position = Position(tuple(path), int(number))
                        self._entries[call_id_of(turn, position)] = Entry(
                            kind="step", name=part.name, digest=part.digest, result=part
                        )
                    case _:
                        pass
        for part in asked:
            self._entries[part.id] = Entry(
                kind="call",
                name=part.name,
                digest=digest_arguments(part.arguments),
                result=answers.get(part.id),
                call=known.get(part.id),
            )

    def find(
        self, key: str, position: Position, kind: EntryKind, name: str, digest: str
    ) -> Entry | None:
        """Return what is recorded at a position, or refuse a loop that asks for something else."""
        found = self._entries.get(key)
        if found is None:
            return None
        self._reached.add(key)
        if (found.kind, found.name, found.digest) != (kind, name, digest):
            raise Conflict(
                Code.REPLAY_MISMATCH,
                f"At {position} of the turn the {found.kind} {found.name} is recorded, and the "
                f"loop now asks for the {kind} {name}{_difference(found, name)}. What decides the "
                "next call must come from arguments, turn.messages, calls and steps.",
                {
                    "position": str(position),
                    "recorded": {"name": found.name, "digest": found.digest},
                    "asked": {"name": name, "digest": digest},
                },
            )
        return found

    @property
    def has_open_calls(self) -> bool:
        """Return whether a recorded call without a result was not asked for again."""
        return any(
            entry.kind == "call" and entry.result is None and key not in self._reached
            for key, entry in self._entries.items()
        )

    def leftovers(self) -> list[str]:
        """Return the names of the entries that the loop did not ask for again."""
        return [entry.name for key, entry in self._entries.items() if key not in self._reached]


def _difference(found: Entry, name: str) -> str:
    return " with other arguments" if found.name == name else ""


_CANONICAL: Final = msgspec.json.Encoder(order="sorted")


def digest_arguments(arguments: Any) -> str:
    """Return the digest of arguments, independent of the order of their keys."""
    return hashlib.sha256(_CANONICAL.encode(arguments)).hexdigest()


def call_id_of(turn: int, position: Position, run: int = 0) -> CallId:
    """Return the id of the call at a position; every run that is replayed computes the same one.

    `run` tells runs apart that begin anew.
    """
    branch = (
        hashlib.sha256("/".join(position.path).encode()).hexdigest()[:12] if position.path else ""
    )
    start = f"turn{turn}r{run}" if run else f"turn{turn}"
    return CallId("_".join(filter(None, (start, branch, str(position.number)))))


def is_plain(value: Any) -> bool:
    """Return whether JSON can say a value."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return False
    return True


def require_name(name: str, *, what: str) -> None:
    """Refuse a name that an entry cannot have."""
    if _NAME.fullmatch(name) is None:
        raise Invalid(
            Code.INVALID_INPUT,
            f"{name!r} cannot be the name of a {what}: write at most 64 letters, digits and _ . : "
            "/ -, the first one a letter.",
            {"field": "name"},
        )


def require_plain(arguments: dict[str, Any]) -> None:
    """Refuse arguments that JSON cannot say, because they are recorded."""
    if not is_plain(arguments):
        raise Invalid(
            Code.INVALID_INPUT,
            "The arguments of a call must be plain JSON.",
            {"field": "arguments"},
        )


def key_of(part: Part) -> str | None:
    """Return the id of the entry that a part belongs to."""
    match part:
        case ToolCall(id=found) | ToolResult(call_id=found) | Step(position=found):
            return found
        case _:
            return None


def value_of(status: ResultStatus, result: Any, error: ToolError | None, returns: Any) -> Any:
    """Return a recorded outcome as it was the first time: a value or an exception."""
    text = error.message if error is not None else f"The call ended with {status}."
    match status:
        case ResultStatus.OK:
            return result if returns is None else msgspec.convert(result, returns)
        case ResultStatus.UNKNOWN:
            raise OutcomeUnknown(text)
        case ResultStatus.DENIED:
            raise CallDenied(text)
        case _:
            raise ToolFailed(text)
