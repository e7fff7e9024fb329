"""Arguments of tools: what may be sent, judged like a submission and refused in its words."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast.observations.issues import Issue, rejection
from holdfast.observations.model import ANYTHING, FieldShape, Kind
from holdfast.observations.validation import member_faults


class Whole(Struct, frozen=True, kw_only=True):
    """A whole number; how large it may be is said here and judged by whoever counts with it."""

    least: int = 0
    most: int | None = None
    usual: int | None = None


class Flag(Struct, frozen=True):
    """Yes or no."""


class Argument(Struct, frozen=True):
    """One argument of a tool; null in an optional one means that it was not sent."""

    name: str
    kind: Kind | Whole | Flag
    description: str
    is_required: bool = False


def judged(taken: Sequence[Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that were sent, or refuse them with every rule they violate."""
    known = {each.name for each in taken}
    issues = [issue for each in taken for issue in _faults(each, given)]
    issues += [_unknown(name, known) for name in given if name not in known]
    if issues:
        raise rejection(issues)
    return {
        each.name: _plain(each, given[each.name])
        for each in taken
        if given.get(each.name) is not None
    }


def _faults(argument: Argument, given: Mapping[str, Any]) -> list[Issue]:
    name, value = argument.name, given.get(argument.name)
    if value is None:
        # Where anything may stand, null is something that was sent.
        is_sent = name in given and argument.kind == ANYTHING
        is_missing = argument.is_required and not is_sent
        return [_issue(name, None, "required", "is required")] if is_missing else []
    match argument.kind:
        case Whole():
            # True is a number to Python and none to anybody else.
            is_number = not isinstance(value, bool) and isinstance(value, int | float)
            is_whole = is_number and value == value // 1
            return (
                [] if is_whole else [_issue(name, value, "type: number", "must be a whole number")]
            )
        case Flag():
            is_flag = isinstance(value, bool)
            return [] if is_flag else [_issue(name, value, "one of: true, false", "is yes or no")]
        case kind:
            return member_faults(FieldShape(name, kind, argument.description), value)


def _plain(argument: Argument, value: Any) -> Any:
    return int(value) if isinstance(argument.kind, Whole) else value


def _unknown(name: str, known: set[str]) -> Issue:
    told = ", ".join(sorted(known))
    return _issue(name, None, f"one of: {told}", "is no argument of this tool")


def _issue(name: str, value: Any, expected: str, rule: str) -> Issue:
    return Issue(path=(name,), value=value, expected=expected, message=f"{name} {rule}")
