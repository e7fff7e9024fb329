"""Validation of payloads: strict JSON, the fields of each type, and rules across fields."""

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct

from holdfast.domain.text import is_encodable
from holdfast.domain.time import Moment, parse_iso8601
from holdfast.observations.issues import (
    DEPTH_MOST,
    DIGITS_MOST,
    Issue,
    Path,
    format_path,
    is_long,
    rejection,
)
from holdfast.observations.model import EXACT, FILLED, PAYLOADS, STRING_LONGEST, EntityType


class DuplicateKeys(dict[str, Any]):
    """An object whose JSON text contained duplicate keys; each key has its last value."""

    doubled: tuple[str, ...] = ()


def decode_payload_strictly(raw: bytes) -> Any:
    """Decode JSON and remember duplicate keys; raises `Invalid` if the bytes are not JSON.

    A byte order mark is ignored, because editors on some systems write one.
    """
    try:
        return _decode(raw.decode("utf-8-sig"))
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
# Placeholder for a key that is not a string; only possible for in-process callers.
_NO_NAME: Final = object()


def plain_issues(payload: Any) -> list[Issue]:
    """Return an issue for every value that is not plain JSON within the limits."""
    return list(_plain_issues(payload, (), 1))


def _plain_issues(value: Any, path: Path, depth: int) -> Iterator[Issue]:
    if isinstance(value, dict | list) and depth > DEPTH_MOST:
        message = f"The payload may be nested {DEPTH_MOST} levels deep"
        yield Issue(path=path, value=value, expected=f"max_depth: {DEPTH_MOST}", message=message)
    elif isinstance(value, dict):
        for name in value.doubled if isinstance(value, DuplicateKeys) else ():
            # An importer may have renamed the key since.
            given = value.get(name)
            yield build_issue(given, (*path, name), "unique_keys", "is given more than once")
        for name, each in value.items():
            place = (*path, str(name))
            fault = _scalar_fault(name if isinstance(name, str) else _NO_NAME)
            if fault is not None:
                yield build_issue(name if isinstance(name, str) else _NO_NAME, place, *fault)
            yield from _plain_issues(each, place, depth + 1)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _plain_issues(each, (*path, number), depth + 1)
    elif (fault := _scalar_fault(value)) is not None:
        yield build_issue(value, path, *fault)


def _scalar_fault(value: Any) -> tuple[str, str] | None:
    """Return the expectation that a scalar value violates and its message; None if it is valid."""
    if isinstance(value, str):
        if len(value) > STRING_LONGEST:
            return f"max_length: {STRING_LONGEST}", f"has more than {STRING_LONGEST} characters"
        is_well_formed = value.isascii() or is_encodable(value)
        fault = "pattern: well-formed Unicode", "contains half of a surrogate pair"
        return None if is_well_formed else fault
    if value is None or isinstance(value, bool):
        return None
    if not isinstance(value, int | float):
        return "type: string|number|array|object", "is not JSON"
    if is_long(value) or not (isinstance(value, int) or math.isfinite(value)):
        return "finite", f"must be a finite number of at most {DIGITS_MOST} digits"
    return None


# The members of an object: the type of each, and whether it is required.
Members = Mapping[str, tuple[Any, bool]]
_NOT_A_TIME: Final = "Expected an ISO 8601 timestamp"
_TYPES: Final = {
    "str": ("string", "a string"),
    "int": ("number", "a number"),
    "array": ("array", "an array"),
    "object": ("object", "an object"),
}
_TYPE: Final = re.compile(r"Expected `(\w+)[^`]*`, got")
_LENGTH: Final = re.compile(r"Expected `(\w+)` of length (>=|<=) (\d+)")
_PATTERN: Final = re.compile(r"Expected `str` matching regex (.*)", re.DOTALL)


def _decode_moment(_: type, value: Any) -> Moment:
    if type(value) is not str:
        raise TypeError("Expected `str`, got another type")
    found = parse_iso8601(value)
    if found is None:
        raise ValueError(_NOT_A_TIME)
    return found


def convert(value: Any, kind: Any) -> Any:
    """Return a value as its type, timestamps parsed; raises `msgspec.ValidationError`."""
    return msgspec.convert(value, kind, dec_hook=_decode_moment)


@lru_cache(maxsize=64)
def members_of(kind: type[Struct]) -> Members:
    """Return the members of a payload type in display order."""
    return {
        each.name: (each.type, each.default is NODEFAULT) for each in msgspec.structs.fields(kind)
    }


def find_issues(members: Members, payload: Any, others: Iterable[Issue] = ()) -> list[Issue]:
    """Return every violation, in the order of members and of list items."""
    if not isinstance(payload, dict):
        message = "The payload must be an object"
        return [Issue(path=(), value=payload, expected="type: object", message=message)]
    unplain = plain_issues(payload)
    # One issue per path: a value that is not JSON is not checked against the schema as well.
    known = {issue.path for issue in unplain}
    found = [*_object_issues(members, payload, (), known), *others]
    for name, value in payload.items():
        if str(name).startswith("_"):
            rule = "is reserved: no key begins with an underscore"
            found.append(build_issue(value, (name,), "not_reserved", rule))
    found = [*unplain, *(issue for issue in found if issue.path not in known)]
    return sorted(found, key=lambda issue: _place(members, issue.path))


def value_issues(name: str, kind: Any, value: Any, *, is_required: bool = False) -> list[Issue]:
    """Return every violation of one member's value."""
    return find_issues({name: (kind, is_required)}, {name: value})


def _object_issues(
    members: Members, value: dict[str, Any], path: Path, known: Container[Path]
) -> Iterator[Issue]:
    for name, (kind, is_required) in members.items():
        given = value.get(name)
        if given is not None:
            yield from _value_issues(kind, given, (*path, name), known)
        elif is_required:
            yield build_issue(None, (*path, name), "required", "is required")


def _value_issues(kind: Any, value: Any, path: Path, known: Container[Path]) -> Iterator[Issue]:
    """Yield what msgspec finds; it stops at the first violation, so each member is tried.

    `known` holds the paths of values that are not JSON.
    """
    if path in known:
        return
    try:
        convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, is_below = str(error).partition(" - at `")
    except UnicodeEncodeError:
        # Half of a surrogate pair below, which has its own issue.
        message, is_below = "", "$"
    else:
        return
    bare = _bare(kind)
    if _is_struct(bare) and isinstance(value, dict):
        yield from _object_issues(members_of(bare), value, path, known)
    elif not is_below:
        yield _translate(message, bare, value, path)
    elif get_origin(bare) is list:
        (item,) = get_args(bare)
        for number, each in enumerate(value):
            yield from _value_issues(item, each, (*path, number), known)


def _translate(message: str, kind: Any, value: Any, path: Path) -> Issue:
    """Return the issue for an error message of msgspec."""
    if found := _LENGTH.match(message):
        return _translate_length(found, value, path)
    if found := _TYPE.match(message):
        name, words = _TYPES[found[1]]
        expected, rule = f"type: {name}", f"must be {words}"
    elif found := _PATTERN.match(message):
        expected, rule = _translate_pattern(ast.literal_eval(found[1]), value)
    elif message.startswith("Invalid enum value"):
        choices = ", ".join(get_args(kind) or kind)
        expected, rule = f"one of: {choices}", f"must be one of {choices}"
    elif message == _NOT_A_TIME:
        expected, rule = (
            "format: iso_8601",
            "must be an ISO 8601 date or time, such as 2025-12-31T11:00:00Z",
        )
    else:
        expected, rule = "positive", "must be greater than zero"
    return build_issue(value, path, expected, rule)


def _translate_length(found: re.Match[str], value: Any, path: Path) -> Issue:
    what, bound, count = found.groups()
    limit, least = ("min", "least") if bound == ">=" else ("max", "most")
    expected = f"{limit}_length: {count}"
    plural = "" if count == "1" else "s"
    if what == "str":
        rule = f"must have at {least} {count} character{plural}"
        return build_issue(value, path, expected, rule)
    title = format_path(path).capitalize().replace("_", " ")
    text = f"{title} array must have at {least} {count} item{plural}"
    return Issue(path=path, value=value, expected=expected, message=text)


def _translate_pattern(pattern: str, text: str) -> tuple[str, str]:
    if pattern == FILLED:
        return "min_length: 1", "must have at least 1 character"
    if pattern != EXACT:
        expression = pattern.removeprefix(r"\A").removesuffix(r"\Z")
        return f"pattern: {expression}", f"must match {expression}"
    if text != text.strip():
        return "no_surrounding_whitespace", "must not begin or end with white space"
    return "no_control_characters", "must not contain control characters"


def _bare(kind: Any) -> Any:
    """Return a type without its constraints and without null."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in {Union, UnionType}:
        return _bare(get_args(kind)[0])
    return kind


def has_members(kind: Any) -> bool:
    """Return whether values of a type are objects, lists of objects, or of any type."""
    bare = _bare(kind)
    if get_origin(bare) is list:
        return has_members(get_args(bare)[0])
    return bare is Any or get_origin(bare) is dict or _is_struct(bare)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _place(members: Members, path: Path) -> list[tuple[int, int, str]]:
    """Return the sort key of an issue: members in display order, items by number."""
    places: list[tuple[int, int, str]] = []
    known: Members = members
    kind: Any = None
    for part in path:
        if isinstance(part, int):
            places.append((0, part, ""))
            kind = _bare(get_args(kind)[0]) if get_origin(kind) is list else None
        else:
            names = list(known)
            places.append((1, names.index(part) if part in known else len(names), part))
            kind = _bare(known[part][0]) if part in known else None
        known = members_of(kind) if _is_struct(kind) else {}
    return places


def build_issue(value: Any, path: Path, expected: str, rule: str) -> Issue:
    """Return an issue whose message names the path."""
    message = f"{format_path(path)} {rule}"
    return Issue(path=path, value=value, expected=expected, message=message)


# Cross-field rules. `fields` is None if the payload is invalid anyway.
def _rule_issues(entity_type: EntityType, payload: Any, fields: Any) -> Iterator[Issue]:
    if not isinstance(payload, dict):
        return
    if entity_type is EntityType.AGENT_SESSION:
        yield from _disorder(payload, fields, "started_at", "ended_at")
    elif entity_type is EntityType.FEATURE_UNIT:
        yield from _disorder(payload, fields, "created_at", "updated_at")
        for number, item in enumerate(_list_of(payload, "dependencies")):
            if isinstance(item, str) and item == payload.get("id"):
                path = ("dependencies", number)
                yield build_issue(item, path, "pattern: not its own id", "must not be itself")
    elif entity_type is EntityType.RELEASE:
        seen = set()
        for number, item in enumerate(_list_of(payload, "feature_units")):
            if isinstance(item, str) and item in seen:
                path = ("feature_units", number)
                yield build_issue(item, path, "unique_keys", "is already in the list")
            seen |= {item} if isinstance(item, str) else set()


def _disorder(payload: dict[str, Any], fields: Any, earlier: str, later: str) -> Iterator[Issue]:
    if fields is not None:
        begin, end = getattr(fields, earlier), getattr(fields, later)
    else:
        begin, end = _moment(payload.get(earlier)), _moment(payload.get(later))
    if begin is not None and end is not None and end.ms < begin.ms:
        yield build_issue(
            payload[later], (later,), f"gte: {earlier}", f"must not be before {earlier}"
        )


def _moment(value: Any) -> Moment | None:
    return parse_iso8601(value) if isinstance(value, str) else None


def _list_of(payload: dict[str, Any], name: str) -> list[Any]:
    value = payload.get(name)
    return value if isinstance(value, list) else []


def decode_fields(entity_type: EntityType, payload: Any) -> tuple[Any, list[Issue]]:
    """Return a payload as its type, or None and every violation."""
    kind, fields = PAYLOADS[entity_type], None
    # An object with duplicate keys is a subclass, and invalid.
    if type(payload) is dict and not plain_issues(payload):
        try:
            fields = convert(payload, kind)
        except msgspec.ValidationError:
            fields = None
    issues = list(_rule_issues(entity_type, payload, fields))
    if fields is None or issues or "_" in [name[:1] for name in payload]:
        return None, find_issues(members_of(kind), payload, issues)
    return fields, []
