"""The door of the observation log: a payload is judged by the shape of its type, or refused whole.

What is merely odd about it is told by `observation_warnings`; nothing here knows a clock.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Final, assert_never

from holdfast.domain import shapes
from holdfast.domain.observation_issues import Issue, Path, spelled_path
from holdfast.domain.observation_plainness import plain_faults
from holdfast.domain.shapes import Kind, Member, Shape
from holdfast.domain.timestamps import parsed

TextKind = shapes.Text | shapes.Pattern | shapes.Choice | shapes.Instant
_TYPES: Final = {
    "string": "a string",
    "number": "a number",
    "array": "an array",
    "object": "an object",
}


def faults(shape: Shape, payload: Any) -> list[Issue]:
    """Return every violated rule, in the order of the shape's members and of list items."""
    if not isinstance(payload, dict):
        return [_mistyped(payload, (), "object")]
    unplain = plain_faults(payload)
    # One issue to a place: what is no JSON is not measured as well.
    known = {issue.path for issue in unplain}
    found = [issue for issue in _payload(shape, payload) if issue.path not in known]
    return sorted([*unplain, *found], key=lambda issue: _place(shape, issue.path))


def member_faults(member: Member, value: Any) -> list[Issue]:
    """Return every rule that one member's value violates."""
    alone = Shape(members=(member,))
    return faults(alone, {member.name: value})


def _payload(shape: Shape, payload: dict[str, Any]) -> Iterator[Issue]:
    yield from _members(shape, payload, ())
    for earlier, later in shape.ordered:
        yield from _disorder(payload, earlier, later)
    for listed, own in shape.apart:
        yield from _self_reference(payload, listed, own)
    for name, value in payload.items():
        if str(name).startswith("_"):
            rule = "is reserved: no key begins with an underscore"
            yield _issue(value, (name,), "not_reserved", rule)


def _members(shape: Shape, value: dict[str, Any], path: Path) -> Iterator[Issue]:
    for member in shape.members:
        place = (*path, member.name)
        given = value.get(member.name)
        if given is not None:
            yield from _kind(member.kind, given, place)
        elif member.is_required:
            yield _required(place)


def _kind(kind: Kind, value: Any, path: Path) -> Iterator[Issue]:
    match kind:
        case shapes.Text() | shapes.Pattern() | shapes.Choice() | shapes.Instant():
            if isinstance(value, str):
                yield from _text(kind, value, path)
            else:
                yield _mistyped(value, path, "string")
        case shapes.Number():
            yield from _number(value, path)
        case shapes.Listing():
            yield from _listing(kind, value, path)
        case shapes.Mapping():
            if not isinstance(value, dict):
                yield _mistyped(value, path, "object")
        case shapes.Shape():
            if isinstance(value, dict):
                yield from _members(kind, value, path)
            else:
                yield _mistyped(value, path, "object")
        case shapes.Anything():
            pass
        case _ as never:
            assert_never(never)


def _text(kind: TextKind, value: str, path: Path) -> Iterator[Issue]:
    fault = _wording(kind, value) if isinstance(kind, shapes.Text) else _form(kind, value)
    if fault is not None:
        yield _issue(value, path, *fault)


def _form(
    kind: shapes.Pattern | shapes.Choice | shapes.Instant, text: str
) -> tuple[str, str] | None:
    match kind:
        case shapes.Pattern(expression):
            fits = re.fullmatch(expression, text) is not None
            return None if fits else (f"pattern: {expression}", f"must match {expression}")
        case shapes.Choice(words):
            told = ", ".join(words)
            return None if text in words else (f"one of: {told}", f"must be one of {told}")
        case shapes.Instant():
            return None if parsed(text) else ("format: iso_8601", "must be an ISO 8601 timestamp")
        case _ as never:
            assert_never(never)


def _wording(kind: shapes.Text, text: str) -> tuple[str, str] | None:
    if len(text) < kind.shortest or (kind.is_filled and not text.strip()):
        least = f"{kind.shortest} character{'s' * (kind.shortest > 1)}"
        return f"min_length: {kind.shortest}", f"must have at least {least}"
    if len(text) > kind.longest:
        return f"max_length: {kind.longest}", f"must have at most {kind.longest} characters"
    if kind.is_exact and text != text.strip():
        return "no_surrounding_whitespace", "must not begin or end with white space"
    if kind.is_exact and any(unicodedata.category(letter) == "Cc" for letter in text):
        return "no_control_characters", "must not contain control characters"
    return None


def _number(value: Any, path: Path) -> Iterator[Issue]:
    # True is a number to Python and none to anybody else.
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield _mistyped(value, path, "number")
    elif not value > 0:
        yield _issue(value, path, "positive", "must be greater than zero")


def _listing(kind: shapes.Listing, value: Any, path: Path) -> Iterator[Issue]:
    if not isinstance(value, list):
        yield _mistyped(value, path, "array")
        return
    title = spelled_path(path).capitalize().replace("_", " ")
    if len(value) < kind.shortest:
        message = f"{title} array must have at least {_items(kind.shortest)}"
        expected = f"min_length: {kind.shortest}"
        yield Issue(path=path, value=value, expected=expected, message=message)
    if kind.longest is not None and len(value) > kind.longest:
        message = f"{title} array must have at most {_items(kind.longest)}"
        expected = f"max_length: {kind.longest}"
        yield Issue(path=path, value=value, expected=expected, message=message)
        return
    for number, item in enumerate(value):
        yield from _kind(kind.item, item, (*path, number))
    if kind.is_distinct:
        yield from _repeats(value, path)


def _repeats(value: list[Any], path: Path) -> Iterator[Issue]:
    seen: set[str] = set()
    for number, item in enumerate(value):
        if isinstance(item, str) and item in seen:
            yield _issue(item, (*path, number), "unique_keys", "stands in the list already")
        seen |= {item} if isinstance(item, str) else set()


def _disorder(payload: dict[str, Any], earlier: str, later: str) -> Iterator[Issue]:
    begin, end = (_ms(payload.get(name)) for name in (earlier, later))
    if begin is not None and end is not None and end < begin:
        rule = f"must not be before {earlier}"
        yield _issue(payload[later], (later,), f"gte: {earlier}", rule)


def _self_reference(payload: dict[str, Any], listed: str, own: str) -> Iterator[Issue]:
    items, name = payload.get(listed), payload.get(own)
    for number, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, str) and item == name:
            yield _issue(item, (listed, number), "pattern: not its own id", "must not be itself")


def _ms(value: Any) -> int | None:
    found = parsed(value) if isinstance(value, str) else None
    return found.ms if found else None


def _place(shape: Shape, path: Path) -> list[tuple[int, int, str]]:
    """Return where an issue is told: members as the shape orders them, items by number."""
    places: list[tuple[int, int, str]] = []
    kind: Kind | None = shape
    for part in path:
        if isinstance(part, int):
            places.append((0, part, ""))
            kind = kind.item if isinstance(kind, shapes.Listing) else None
        elif isinstance(kind, Shape):
            places.append((1, kind.rank(part), part))
            member = kind.member(part)
            kind = member.kind if member else None
        else:
            places.append((1, 0, part))
            kind = None
    return places


def _required(path: Path) -> Issue:
    return _issue(None, path, "required", "is required")


def _mistyped(value: Any, path: Path, name: str) -> Issue:
    if not path:
        message = f"The payload must be {_TYPES[name]}"
        return Issue(path=path, value=value, expected=f"type: {name}", message=message)
    return _issue(value, path, f"type: {name}", f"must be {_TYPES[name]}")


def _issue(value: Any, path: Path, expected: str, rule: str) -> Issue:
    message = f"{spelled_path(path)} {rule}"
    return Issue(path=path, value=value, expected=expected, message=message)


def _items(count: int) -> str:
    return f"{count} item{'s' * (count != 1)}"
