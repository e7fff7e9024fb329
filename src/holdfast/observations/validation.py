"""Validation of observations: strict JSON parsing, and checks against the type's schema.

An invalid payload is rejected as a whole.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from holdfast.domain.text import is_encodable
from holdfast.domain.time import parse_iso8601
from holdfast.observations import model as observation_model
from holdfast.observations.issues import (
    DEPTH_MOST,
    DIGITS_MOST,
    Issue,
    Path,
    format_path,
    is_long,
    rejection,
)
from holdfast.observations.model import STRING_LONGEST, FieldShape, Kind, Shape


class DuplicateKeys(dict[str, Any]):
    """An object whose JSON text contained duplicate keys; each key has its last value."""

    doubled: tuple[str, ...] = ()


def decode_payload_strictly(raw: bytes) -> Any:
    """Decode JSON and remember duplicate keys; raises `Invalid` if the bytes are not JSON."""
    try:
        return _decode(raw.decode())
    except RecursionError:
        issue = Issue(path=(), expected="max_depth: 32", message="The payload is nested too deeply")
    except ValueError:
        issue = Issue(path=(), expected="type: object", message="The payload is not JSON in UTF-8")
    raise rejection((issue,))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    found = DuplicateKeys(plain)
    counted = Counter(name for name, _ in pairs)
    found.doubled = tuple(name for name in plain if counted[name] > 1)
    return found


def _integer(digits: str) -> int | float:
    # Parsing long integers takes quadratic time, and Python rejects them with its own error.
    return int(digits) if len(digits) <= DIGITS_MOST else math.inf


_decode: Final = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer).decode


def plain_faults(payload: Any) -> list[Issue]:
    """Return an issue for every value that is not plain JSON within the limits."""
    # Fast path, because nearly all payloads are valid and need no paths.
    return [] if _is_plain(payload) else list(_faults(payload, (), 1))


def _is_plain(payload: Any) -> bool:
    """Return whether all values are plain JSON; iterative, because recursion is slower."""
    level, depth = [payload], 0
    while level:
        depth += 1
        below: list[Any] = []
        for each in level:
            kind = type(each)
            if kind is str:
                is_plain = len(each) <= STRING_LONGEST and (each.isascii() or is_encodable(each))
            elif kind is dict:
                is_plain = depth <= DEPTH_MOST and _STR.issuperset(map(type, each))
                below += each
                below += each.values()
            elif kind is list:
                is_plain = depth <= DEPTH_MOST
                below += each
            else:
                is_plain = _fault(each) is None
            if not is_plain:
                return False
        level = below
    return True


def _faults(value: Any, path: Path, depth: int) -> Iterator[Issue]:
    if isinstance(value, dict | list) and depth > DEPTH_MOST:
        message = f"The payload may be nested {DEPTH_MOST} levels deep"
        yield Issue(path=path, value=value, expected=f"max_depth: {DEPTH_MOST}", message=message)
    elif isinstance(value, dict):
        yield from _doubles(value, path)
        for name, each in value.items():
            yield from _issue_of(name if isinstance(name, str) else _NO_NAME, (*path, str(name)))
            yield from _faults(each, (*path, str(name)), depth + 1)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _faults(each, (*path, number), depth + 1)
    else:
        yield from _issue_of(value, path)


def _doubles(value: dict[str, Any], path: Path) -> Iterator[Issue]:
    for name in value.doubled if isinstance(value, DuplicateKeys) else ():
        place = (*path, name)
        message = f"{format_path(place)} is given more than once"
        yield Issue(path=place, value=value[name], expected="unique_keys", message=message)


def _issue_of(value: Any, path: Path) -> Iterator[Issue]:
    fault = _fault(value)
    if fault is not None:
        expected, rule = fault
        yield Issue(
            path=path, value=value, expected=expected, message=f"{format_path(path)} {rule}"
        )


def _fault(value: Any) -> tuple[str, str] | None:
    """Return the expectation that a scalar value violates and its message; None if it is valid."""
    if isinstance(value, str):
        return _text_fault(value)
    if value is None or isinstance(value, bool):
        return None
    if not isinstance(value, int | float):
        return "type: string|number|array|object", "is no JSON"
    if is_long(value) or not (isinstance(value, int) or math.isfinite(value)):
        return "finite", f"must be a finite number of at most {DIGITS_MOST} digits"
    return None


def _text_fault(text: str) -> tuple[str, str] | None:
    if len(text) > STRING_LONGEST:
        return f"max_length: {STRING_LONGEST}", f"has more than {STRING_LONGEST} characters"
    if not text.isascii() and not is_encodable(text):
        return "pattern: well-formed Unicode", "contains half of a surrogate pair"
    return None


_STR: Final = frozenset({str})
# Placeholder for a key that is not a string; only possible for in-process callers.
_NO_NAME: Final = object()
_TYPES: Final = {
    "string": "a string",
    "number": "a number",
    "array": "an array",
    "object": "an object",
}
# Characters of Unicode category Cc, which is a closed set.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# The expectation that a text violates, and its message.
Fault = tuple[str, str]


def faults(shape: Shape, payload: Any) -> list[Issue]:
    """Return every violation, in the order of the shape's members and of list items."""
    if not isinstance(payload, dict):
        return [_mistyped(payload, (), "object")]
    unplain = plain_faults(payload)
    found = _payload(shape, payload)
    if not (unplain or found):
        return []
    # One issue per path: a value that is not JSON is not checked against the schema as well.
    known = {issue.path for issue in unplain}
    found = [*unplain, *(issue for issue in found if issue.path not in known)]
    return sorted(found, key=lambda issue: _place(shape, issue.path))


def member_faults(member: FieldShape, value: Any) -> list[Issue]:
    """Return every violation of one member's value."""
    alone = Shape(members=(member,))
    return faults(alone, {member.name: value})


def _payload(shape: Shape, payload: dict[str, Any]) -> list[Issue]:
    found: list[Issue] = []
    _members(shape, payload, (), found)
    for earlier, later in shape.ordered:
        found += _disorder(payload, earlier, later)
    for listed, own in shape.apart:
        found += _self_reference(payload, listed, own)
    for name, value in payload.items():
        if str(name).startswith("_"):
            rule = "is reserved: no key begins with an underscore"
            found.append(_issue(value, (name,), "not_reserved", rule))
    return found


def _members(shape: Shape, value: Any, path: Path, found: list[Issue]) -> None:
    if not isinstance(value, dict):
        found.append(_mistyped(value, path, "object"))
        return
    for member in shape.members:
        given = value.get(member.name)
        if given is not None:
            _JUDGES[type(member.kind)](member.kind, given, (*path, member.name), found)
        elif member.is_required:
            found.append(_issue(None, (*path, member.name), "required", "is required"))


def _text(kind: Any, value: Any, path: Path, found: list[Issue]) -> None:
    if not isinstance(value, str):
        found.append(_mistyped(value, path, "string"))
        return
    fault = _WORDINGS[type(kind)](kind, value)
    if fault is not None:
        found.append(_issue(value, path, *fault))


def _pattern(kind: observation_model.PatternShape, text: str) -> Fault | None:
    if re.fullmatch(kind.expression, text) is not None:
        return None
    return f"pattern: {kind.expression}", f"must match {kind.expression}"


def _choice(kind: observation_model.ChoiceShape, text: str) -> Fault | None:
    choices = ", ".join(kind.words)
    return None if text in kind.words else (f"one of: {choices}", f"must be one of {choices}")


def _instant(_: observation_model.InstantShape, text: str) -> Fault | None:
    return None if parse_iso8601(text) else ("format: iso_8601", "must be an ISO 8601 timestamp")


def _wording(kind: observation_model.TextShape, text: str) -> Fault | None:
    if len(text) < kind.shortest or (kind.is_filled and not text.strip()):
        least = f"{kind.shortest} character{'s' * (kind.shortest > 1)}"
        return f"min_length: {kind.shortest}", f"must have at least {least}"
    if len(text) > kind.longest:
        return f"max_length: {kind.longest}", f"must have at most {kind.longest} characters"
    if kind.is_exact and text != text.strip():
        return "no_surrounding_whitespace", "must not begin or end with white space"
    if kind.is_exact and _CONTROL.search(text):
        return "no_control_characters", "must not contain control characters"
    return None


def _number(_: observation_model.NumberShape, value: Any, path: Path, found: list[Issue]) -> None:
    # `bool` is a subclass of `int` in Python but not a JSON number.
    if isinstance(value, bool) or not isinstance(value, int | float):
        found.append(_mistyped(value, path, "number"))
    elif not value > 0:
        found.append(_issue(value, path, "positive", "must be greater than zero"))


def _mapping(_: observation_model.ObjectShape, value: Any, path: Path, found: list[Issue]) -> None:
    if not isinstance(value, dict):
        found.append(_mistyped(value, path, "object"))


def _anything(
    _kind: observation_model.AnyShape, _value: Any, _path: Path, _found: list[Issue]
) -> None:
    """Accept any value."""


def _listing(kind: observation_model.ListShape, value: Any, path: Path, found: list[Issue]) -> None:
    if not isinstance(value, list):
        found.append(_mistyped(value, path, "array"))
        return
    if len(value) < kind.shortest:
        rule = f"at least {_items(kind.shortest)}"
        found.append(_miscounted(value, path, f"min_length: {kind.shortest}", rule))
    if kind.longest is not None and len(value) > kind.longest:
        rule = f"at most {_items(kind.longest)}"
        found.append(_miscounted(value, path, f"max_length: {kind.longest}", rule))
        return
    judge = _JUDGES[type(kind.item)]
    for number, item in enumerate(value):
        judge(kind.item, item, (*path, number), found)
    if kind.is_distinct:
        found += _repeats(value, path)


def _repeats(value: list[Any], path: Path) -> Iterator[Issue]:
    seen: set[str] = set()
    for number, item in enumerate(value):
        if isinstance(item, str) and item in seen:
            yield _issue(item, (*path, number), "unique_keys", "stands in the list already")
        seen |= {item} if isinstance(item, str) else set()


def _disorder(payload: dict[str, Any], earlier: str, later: str) -> Iterator[Issue]:
    begin, end = _ms(payload.get(earlier)), _ms(payload.get(later))
    if begin is not None and end is not None and end < begin:
        rule = f"must not be before {earlier}"
        yield _issue(payload[later], (later,), f"gte: {earlier}", rule)


def _self_reference(payload: dict[str, Any], listed: str, own: str) -> Iterator[Issue]:
    items, name = payload.get(listed), payload.get(own)
    for number, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, str) and item == name:
            yield _issue(item, (listed, number), "pattern: not its own id", "must not be itself")


def _ms(value: Any) -> int | None:
    found = parse_iso8601(value) if isinstance(value, str) else None
    return found.ms if found else None


def _place(shape: Shape, path: Path) -> list[tuple[int, int, str]]:
    """Return the sort key of an issue: members in shape order, items by number."""
    places: list[tuple[int, int, str]] = []
    kind: Kind | None = shape
    for part in path:
        if isinstance(part, int):
            places.append((0, part, ""))
            kind = kind.item if isinstance(kind, observation_model.ListShape) else None
        elif isinstance(kind, Shape):
            places.append((1, kind.rank(part), part))
            member = kind.member(part)
            kind = member.kind if member else None
        else:
            places.append((1, 0, part))
            kind = None
    return places


def _mistyped(value: Any, path: Path, name: str) -> Issue:
    if not path:
        message = f"The payload must be {_TYPES[name]}"
        return Issue(path=path, value=value, expected=f"type: {name}", message=message)
    return _issue(value, path, f"type: {name}", f"must be {_TYPES[name]}")


def _issue(value: Any, path: Path, expected: str, rule: str) -> Issue:
    message = f"{format_path(path)} {rule}"
    return Issue(path=path, value=value, expected=expected, message=message)


def _miscounted(value: list[Any], path: Path, expected: str, rule: str) -> Issue:
    title = format_path(path).capitalize().replace("_", " ")
    message = f"{title} array must have {rule}"
    return Issue(path=path, value=value, expected=expected, message=message)


def _items(count: int) -> str:
    return f"{count} item{'s' * (count != 1)}"


# A lookup by kind is faster than an `isinstance` chain, and most values are validated here.
_JUDGES: Final[Mapping[type[Kind], Callable[[Any, Any, Path, list[Issue]], None]]] = {
    observation_model.TextShape: _text,
    observation_model.PatternShape: _text,
    observation_model.ChoiceShape: _text,
    observation_model.InstantShape: _text,
    observation_model.NumberShape: _number,
    observation_model.ListShape: _listing,
    observation_model.ObjectShape: _mapping,
    observation_model.Shape: _members,
    observation_model.AnyShape: _anything,
}
_WORDINGS: Final[Mapping[type[Kind], Callable[[Any, str], Fault | None]]] = {
    observation_model.TextShape: _wording,
    observation_model.PatternShape: _pattern,
    observation_model.ChoiceShape: _choice,
    observation_model.InstantShape: _instant,
}
