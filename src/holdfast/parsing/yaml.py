"""YAML for all Holdfast files: version 1.2, core schema, no anchors or tags; read and written."""

import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from io import StringIO
from itertools import zip_longest
from typing import Any, Final, NamedTuple

LARGEST: Final = 2 << 20
# The form that `write_yaml` writes is read 20 times faster.
WRITTEN_LARGEST: Final = 16 << 20
DEEPEST: Final = 64
# Limited, because each takes the parser about 30 µs, and a large file would take a minute.
VALUES_MOST: Final = 150_000
# Limited, because each takes 60 bytes of memory beside its text.
WRITTEN_LINES_MOST: Final = 1_000_000
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_OCTAL: Final = re.compile(r"0o[0-7]+")
_HEXADECIMAL: Final = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY: Final = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_NOT_A_NUMBER: Final = frozenset({".nan", ".NaN", ".NAN"})
# Limited, because Python parses decimal digits in quadratic time and refuses over 4,300.
_DIGITS_MOST: Final = 1_000


class YamlError(ValueError):
    """The text is not YAML of this profile; `line` and `column` count from 1, 0 is unknown."""

    def __init__(self, problem: str, line: int = 0, column: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line
        self.column = column


def read_yaml(text: str) -> Any:
    """Return the only document of the text; raises `YamlError`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    # Lone surrogates pass here, because the parser refuses them.
    if len(text.encode(errors="surrogatepass")) > LARGEST:
        raise YamlError("the file is larger than 2 MiB")
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = _scanner()
    try:
        return _document(_limit_events(yaml.parse(text)))
    except YamlError:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        # The parser's message is dropped, because it quotes the text, which may contain a secret.
        raise YamlError("this is not valid YAML", *place) from None
    except YAMLError:
        raise YamlError("the text contains a character that YAML does not allow") from None
    except (AssertionError, OverflowError, ValueError):
        # Invalid versions or numeric escapes that the library does not handle itself.
        raise YamlError("this is not valid YAML") from None


@cache
def _scanner() -> Any:
    """Return a scanner that refuses tags, anchors and aliases."""
    from ruamel.yaml.scanner import Scanner

    def refusing(what: str) -> Callable[[Any], None]:
        def fetch(self: Any) -> None:
            raise _not_allowed(what, self.reader.get_mark())

        return fetch

    # Refused in the scanner, because the library reads a long tag in quadratic time.
    refused = {"fetch_tag": "tags", "fetch_anchor": "anchors", "fetch_alias": "aliases"}
    return type("Scanner", (Scanner,), {name: refusing(what) for name, what in refused.items()})


def _limit_events(events: Iterator[Any]) -> Iterator[Any]:
    for number, event in enumerate(events):
        if number > VALUES_MOST:
            raise _fault(f"more than {VALUES_MOST:,} keys and values", event)
        yield event


def _document(events: Iterator[Any]) -> Any:
    """Build the value from parser events, because the library's own schema accepts more."""
    value = None
    for number, event in enumerate(events):
        kind = type(event).__name__
        if kind == "DocumentStartEvent":
            _refuse_if(event.version not in (None, (1, 2)), "versions other than 1.2", event)
            _refuse_if(event.tags, "tags", event)
            # Only the stream start precedes the first document, so a later start is a second
            # document.
            _refuse_if(number != 1, "a second document", event)
            value = _value(next(events), events, depth=1)
    return value


def _value(event: Any, events: Iterator[Any], *, depth: int) -> Any:
    # By class name, because importing the classes would load the package at every start.
    kind = type(event).__name__
    if kind == "ScalarEvent":
        # Only a plain scalar can have another type; a quoted one is always text.
        return _parse_scalar(event.value, event.start_mark) if event.implicit[0] else event.value
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
        _refuse_if(key in pairs, "a repeated key in a mapping", event)
        pairs[key] = _value(next(events), events, depth=depth + 1)
    return pairs


def _parse_scalar(text: str, mark: Any) -> Any:
    """Return the value of a plain scalar in the core schema of YAML 1.2."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    for pattern, base in ((_INTEGER, 10), (_OCTAL, 8), (_HEXADECIMAL, 16)):
        if pattern.fullmatch(text):
            if len(text) > _DIGITS_MOST:
                raise _not_allowed("a number of this length", mark)
            return int(text, base)
    if _FLOAT.fullmatch(text):
        return float(text)
    if infinite := _INFINITY.fullmatch(text):
        return float(f"{infinite[1]}inf")
    return float("nan") if text in _NOT_A_NUMBER else text


def _refuse_if(holds: object, what: str, event: Any) -> None:
    if holds:
        raise _not_allowed(what, event.start_mark)


def _not_allowed(what: str, mark: Any) -> YamlError:
    problem = f"{what} cannot be used in Holdfast's YAML files"
    return YamlError(problem, mark.line + 1, mark.column + 1)


def _fault(problem: str, event: Any) -> YamlError:
    mark = event.start_mark
    return YamlError(problem, mark.line + 1, mark.column + 1)


class _Mark(NamedTuple):
    line: int
    column: int


class _WrittenReader:
    """Reads the form that `write_yaml` writes; the result for any other text is undefined."""

    def __init__(self, text: str) -> None:
        # Every line ends with a line break, also the last one.
        self._lines = text.split("\n")[: -1 if text.endswith("\n") else 0]
        self._at = 0

    def read(self) -> Any:
        """Return the value of the text; raises `YamlError`, `ValueError` or `IndexError`."""
        value = self._node(0, depth=1)
        if self._at < len(self._lines):
            raise self.other_form()
        return value

    def require_same(self, value: Any) -> None:
        """Raise `YamlError` for the first line that is not written so for this value."""
        for number, (here, there) in enumerate(zip_longest(self._lines, _lines(value, ""))):
            if here != there:
                self._at = number
                raise self.other_form()

    def other_form(self) -> YamlError:
        """Return the error that this line has another form."""
        problem = (
            f"a file above {LARGEST >> 20} MiB must keep the form in which Holdfast writes it, "
            "with sorted keys and without comments"
        )
        return YamlError(problem, self._at + 1, 1)

    def _node(self, column: int, *, depth: int) -> Any:
        """Return the value that starts on this line at this column."""
        text = self._lines[self._at][column:]
        if text.startswith(("- ", "? ")) or _KEY.match(text):
            if depth > DEEPEST:
                raise YamlError(f"more than {DEEPEST} levels", self._at + 1, column + 1)
            if text.startswith("- "):
                return list(self._items(column, depth=depth))
            return dict(self._entries(column, depth=depth))
        return self._scalar(text, column + 2)

    def _items(self, column: int, *, depth: int) -> Iterator[Any]:
        yield self._node(column + 2, depth=depth + 1)
        begin = " " * column + "- "
        while self._at < len(self._lines) and self._lines[self._at].startswith(begin):
            yield self._node(column + 2, depth=depth + 1)

    def _entries(self, column: int, *, depth: int) -> Iterator[tuple[str, Any]]:
        margin = " " * column
        is_first = True
        while is_first or self._continues(margin):
            is_first = False
            text = self._lines[self._at][column:]
            if text.startswith("? "):
                self._at += 1
                yield _unquote(text[2:]), self._node(column + 2, depth=depth + 1)
                continue
            found = _KEY.match(text)
            if found is None:
                return
            key, rest = _unquote(found[1]), text[found.end() :]
            if rest:
                yield key, self._scalar(rest[1:], column + 2)
            else:
                self._at += 1
                yield key, self._node(column + 2, depth=depth + 1)

    def _continues(self, margin: str) -> bool:
        if self._at >= len(self._lines):
            return False
        line = self._lines[self._at]
        return line.startswith(margin) and not line.startswith((" ", "- "), len(margin))

    def _scalar(self, text: str, margin: int) -> Any:
        """Return the scalar of this line; a block scalar has more lines behind this margin."""
        self._at += 1
        if text in _BLOCKS:
            return self._block(margin) + _BLOCKS[text]
        if text in ("{}", "[]"):
            return {} if text == "{}" else []
        if text.startswith('"'):
            return _unquote(text)
        return _parse_scalar(text, _Mark(self._at - 1, 0))

    def _block(self, margin: int) -> str:
        first, blanks = self._at, " " * margin
        while self._at < len(self._lines) and (
            not self._lines[self._at] or self._lines[self._at].startswith(blanks)
        ):
            self._at += 1
        return "\n".join(line[margin:] for line in self._lines[first : self._at])


_BLOCKS: Final = {"|": "\n", "|-": "", "|+": "\n"}
_KEY: Final = re.compile(r'("(?:[^"\\]|\\.)*"|(?!")(?:[^:]|:(?=\S))*):(?= |\Z)')
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|(.))")
_MEANINGS: Final = {"n": "\n", "r": "\r", "t": "\t"}


def _unquote(text: str) -> str:
    if not text.startswith('"'):
        return text

    def meaning(found: re.Match[str]) -> str:
        digits = found[1] or found[2]
        return chr(int(digits, 16)) if digits else _MEANINGS.get(found[3], found[3])

    return _ESCAPE.sub(meaning, text[1:-1])


def read_written_yaml(text: str) -> Any:
    """Return the document of a text that `write_yaml` wrote; raises `YamlError` for any other.

    The same value is written again and compared, so that no other text is ever misread.
    """
    if len(text.encode(errors="surrogatepass")) > WRITTEN_LARGEST:
        raise YamlError(f"the file is larger than {WRITTEN_LARGEST >> 20} MiB")
    if text.count("\n") > WRITTEN_LINES_MOST:
        raise YamlError(f"the file has more than {WRITTEN_LINES_MOST:,} lines")
    reader = _WrittenReader(text)
    try:
        value = reader.read()
        reader.require_same(value)
    except YamlError:
        raise
    except (IndexError, ValueError, OverflowError):
        raise reader.other_form() from None
    return value


# By the YAML standard, a longer key needs the explicit `?` form.
_KEY_LONGEST: Final = 1_000
_WORDS: Final = frozenset(
    {"yes", "no", "on", "off", "y", "n", "true", "false", "null", "~", "=", "<<"}
)
# Matches numbers, dates and times of YAML 1.1 and 1.2, which must be quoted.
_NUMBER_LIKE: Final = re.compile(r"(?i:[-+.0-9][-+.,:_0-9a-fxotz ]*|[-+]?\.(?:inf|nan))")
_PLAIN: Final = re.compile(r"[^\s\-?:,\[\]{}#&*!|>'\"%@`](?:[^\n:#]|:(?=[^\s])|(?<=[^\s])#)*")
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def write_yaml(value: Any) -> str:
    """Return the YAML document of a JSON value; ends with one line break."""
    text = StringIO()
    # Not joined, because that would hold all lines of a large file beside its text.
    text.writelines(f"{line}\n" for line in _lines(value, ""))
    return text.getvalue()


def _lines(value: Any, margin: str) -> Iterator[str]:
    """Yield the lines of a value; all but the first one, which may follow a mark, are indented."""
    if isinstance(value, dict) and value:
        lead = ""
        for key in sorted(value):
            lines = _entry(key, value[key], margin)
            yield f"{lead}{next(lines)}"
            yield from lines
            lead = margin
    elif isinstance(value, list | tuple) and value:
        lead = ""
        for item in value:
            yield from _after(f"{lead}- ", item, margin)
            lead = margin
    elif isinstance(value, str) and _is_block(value):
        yield from _block(value, margin)
    else:
        yield _format_scalar(value)


def _entry(key: str, value: Any, margin: str) -> Iterator[str]:
    name = _text(key)
    if len(name) > _KEY_LONGEST:
        yield f"? {name}"
        yield from _after(f"{margin}: ", value, margin)
    elif isinstance(value, dict | list | tuple) and value:
        yield f"{name}:"
        yield from _after(f"{margin}  ", value, margin)
    else:
        lines = _lines(value, margin)
        yield f"{name}: {next(lines)}"
        yield from lines


def _after(mark: str, value: Any, margin: str) -> Iterator[str]:
    lines = _lines(value, f"{margin}  ")
    yield f"{mark}{next(lines)}"
    yield from lines


def _is_block(text: str) -> bool:
    lines = text.split("\n")
    return (
        len(lines) > 1
        and not text.startswith(("\n", " "))
        and all(line.isprintable() and not line.endswith(" ") for line in lines)
    )


def _block(text: str, margin: str) -> Iterator[str]:
    ending = "+" if text.endswith("\n\n") else "" if text.endswith("\n") else "-"
    yield f"|{ending}"
    for line in text.removesuffix("\n").split("\n"):
        # Empty lines are not indented, because a block scalar preserves spaces.
        yield f"{margin}  {line}" if line else line


def _format_scalar(value: Any) -> str:
    match value:
        case str():
            return _text(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        case int() | float():
            return repr(value)
        case dict() | list() | tuple():
            return "{}" if isinstance(value, dict) else "[]"
        case _:
            raise TypeError(f"{type(value).__name__} cannot be written as YAML.")


def _text(text: str) -> str:
    return text if _is_plain(text) else f'"{"".join(map(_escape, text))}"'


def _is_plain(text: str) -> bool:
    return (
        text.isprintable()
        and not text.endswith((" ", ":"))
        and text.lower() not in _WORDS
        and _NUMBER_LIKE.fullmatch(text) is None
        and _PLAIN.fullmatch(text) is not None
    )


def _escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if "\ud800" <= character <= "\udfff":
        raise ValueError("A lone surrogate cannot be written as YAML.")
    if character.isprintable():
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
