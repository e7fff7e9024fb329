"""Reads YAML the way all our files are written: YAML 1.2, core schema, nothing clever.

No tags, anchors, aliases, merge keys, repeated or non-text keys; one document, at most 2 MiB, 64
levels and 150,000 keys and values. Faults name a place and never a value. What the content means
is not judged.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

LARGEST: Final = 2 << 20
DEEPEST: Final = 64
# Each takes the parser some thirty microseconds, so a file of nothing else would take a minute.
VALUES_MOST: Final = 150_000

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_OCTAL: Final = re.compile(r"0o[0-7]+")
_HEXADECIMAL: Final = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY: Final = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_NOT_A_NUMBER: Final = frozenset({".nan", ".NaN", ".NAN"})
# Python reads decimal digits in quadratic time, and refuses more than 4,300 of them.
_DIGITS_MOST: Final = 1_000


class YamlError(ValueError):
    """The text is not YAML of our profile; `line` and `column` count from 1, 0 is unknown."""

    def __init__(self, problem: str, line: int = 0, column: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line
        self.column = column


def read_yaml(text: str) -> Any:
    """Return the one document of the text; raises `YamlError`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    # Lone surrogates pass here, because the parser is the one to refuse them.
    if len(text.encode(errors="surrogatepass")) > LARGEST:
        raise YamlError("the file is larger than 2 MiB")
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = _scanner()
    try:
        return _document(_bounded(yaml.parse(text)))
    except YamlError:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        # The parser's own sentence quotes the text, which may hold what nobody should see.
        raise YamlError("this is not valid YAML", *place) from None
    except YAMLError:
        raise YamlError("the text contains a character that YAML does not allow") from None
    except (AssertionError, OverflowError, ValueError):
        # A version or an escape of a number that the library did not think of.
        raise YamlError("this is not valid YAML") from None


@cache
def _scanner() -> Any:
    """Return the library's scanner, which stops where it meets what no file of ours has."""
    from ruamel.yaml.scanner import Scanner

    def refusing(what: str) -> Callable[[Any], None]:
        def fetch(self: Any) -> None:
            raise _misplaced(what, self.reader.get_mark())

        return fetch

    # Here and not later: the library reads a long tag in quadratic time.
    refused = {"fetch_tag": "tags", "fetch_anchor": "anchors", "fetch_alias": "aliases"}
    return type("Scanner", (Scanner,), {name: refusing(what) for name, what in refused.items()})


def _bounded(events: Iterator[Any]) -> Iterator[Any]:
    for number, event in enumerate(events):
        if number > VALUES_MOST:
            raise _fault(f"more than {VALUES_MOST:,} keys and values", event)
        yield event


def _document(events: Iterator[Any]) -> Any:
    """Build the value out of the parser's events, because its own schema is wider than ours."""
    value = None
    for number, event in enumerate(events):
        kind = type(event).__name__
        if kind == "DocumentStartEvent":
            _refuse_if(event.version not in (None, (1, 2)), "versions other than 1.2", event)
            _refuse_if(event.tags, "tags", event)
            # The stream's start, this event, and nothing before them: any later one is a second.
            _refuse_if(number != 1, "a second document", event)
            value = _value(next(events), events, depth=1)
    return value


def _value(event: Any, events: Iterator[Any], *, depth: int) -> Any:
    # By name, because importing the classes would load the package for everyone.
    kind = type(event).__name__
    if kind == "ScalarEvent":
        # Only a plain scalar can be anything but text; what was quoted was meant.
        return _scalar(event) if event.implicit[0] else event.value
    if depth > DEEPEST:
        raise _fault(f"more than {DEEPEST} levels", event)
    if kind == "MappingStartEvent":
        return _mapping(events, depth=depth)
    items = []
    while type(item := next(events)).__name__ != "SequenceEndEvent":
        items.append(_value(item, events, depth=depth + 1))
    return items


def _mapping(events: Iterator[Any], *, depth: int) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    while type(event := next(events)).__name__ != "MappingEndEvent":
        key = _value(event, events, depth=depth + 1)
        _refuse_if(not isinstance(key, str), "keys that are not text", event)
        _refuse_if(key == "<<" and event.implicit[0], "merge keys", event)
        _refuse_if(key in pairs, "a key twice in one mapping", event)
        pairs[key] = _value(next(events), events, depth=depth + 1)
    return pairs


def _scalar(event: Any) -> Any:
    """Return what a plain scalar means in the core schema of YAML 1.2."""
    text = event.value
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    for pattern, base in ((_INTEGER, 10), (_OCTAL, 8), (_HEXADECIMAL, 16)):
        if pattern.fullmatch(text):
            _refuse_if(len(text) > _DIGITS_MOST, "such a long number", event)
            return int(text, base)
    if _FLOAT.fullmatch(text):
        return float(text)
    if infinite := _INFINITY.fullmatch(text):
        return float(f"{infinite[1]}inf")
    return float("nan") if text in _NOT_A_NUMBER else text


def _refuse_if(holds: object, what: str, event: Any) -> None:
    if holds:
        raise _misplaced(what, event.start_mark)


def _misplaced(what: str, mark: Any) -> YamlError:
    problem = f"{what} cannot be used in our YAML files"
    return YamlError(problem, mark.line + 1, mark.column + 1)


def _fault(problem: str, event: Any) -> YamlError:
    mark = event.start_mark
    return YamlError(problem, mark.line + 1, mark.column + 1)
