"""Line patterns and globs; matching is linear in the text for any pattern (no ReDoS)."""

import re
from collections.abc import Callable
from typing import Final

from holdfast.domain.tools import ResultCode
from holdfast.parsing.regex import Pattern, PatternError, compile_pattern
from holdfast.tools.tool import ToolFailure

# Anchors and flags that behave differently on a single line and on a block of lines.
_WHOLE_TEXT: Final = re.compile(r"\\[AzZ]|\(\?[a-zA-Z]*-")


class LinePattern:
    """Matches lines; a whole block is tested first, to skip blocks without a match."""

    def __init__(self, pattern: str) -> None:
        self._pattern = _compile(f"(?m){pattern}")
        self._asks_blocks = _WHOLE_TEXT.search(pattern) is None

    def may_match(self, block: bytes) -> bool:
        """Return whether a line of the block may match; has no false negatives."""
        return not self._asks_blocks or self.matches(block)

    def matches(self, line: bytes) -> bool:
        """Return whether the pattern occurs in a line."""
        return self._pattern.is_in(line)


def glob_matcher(glob: str | None) -> Callable[[str], bool]:
    """Return a path predicate; a glob without a slash only applies to the last name.

    `*` and `?` do not match a slash, `**` does; `[…]` is a character class.
    """
    if glob is None:
        return lambda _: True
    pattern = _compile(f"(?s){_translate_glob(glob)}")
    if "/" in glob:
        return pattern.is_all_of
    return lambda path: pattern.is_all_of(path.rpartition("/")[2])


def _translate_glob(glob: str) -> str:
    parts, at = [], 0
    glob = glob.removeprefix("./")
    while at < len(glob):
        if found := _GLOB_PART.match(glob, at):
            parts.append(_GLOB[found.lastgroup or ""](found[0]))
            at = found.end()
        else:
            parts.append(_quote(glob[at]))
            at += 1
    return "".join(parts)


def _quote(text: str) -> str:
    return "".join(each if each.isalnum() else f"\\x{{{ord(each):x}}}" for each in text)


def _one_of(text: str) -> str:
    inner = text[1:-1]
    is_other = len(inner) > 1 and inner[0] in "!^"
    quoted = "".join(each if each == "-" else _quote(each) for each in inner[is_other:])
    return f"[^/{quoted}]" if is_other else f"[{quoted}]"


_GLOB_PART: Final = re.compile(
    r"(?P<folders>\*\*/)|(?P<all>\*\*)|(?P<some>\*)|(?P<one>\?)|(?P<set>\[[!^]?\]?[^\]/]+\])"
)
_GLOB: Final[dict[str, Callable[[str], str]]] = {
    "folders": lambda _: "(?:.*/)?",
    "all": lambda _: ".*",
    "some": lambda _: "[^/]*",
    "one": lambda _: "[^/]",
    "set": _one_of,
}


def _compile(pattern: str) -> Pattern:
    try:
        return compile_pattern(pattern)
    except PatternError as error:
        raise ToolFailure(ResultCode.INVALID_ARGUMENTS, f"The pattern: {error}.") from None
