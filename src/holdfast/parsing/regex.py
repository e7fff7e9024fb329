"""Untrusted regular expressions: matched in linear time within bounded memory (no ReDoS)."""

from typing import Any, Final

LONGEST: Final = 4_000
# What a pattern may be compiled into, and what matching with it may take.
MEMORY_LARGEST: Final = 1 << 20


class PatternError(ValueError):
    """The text is not a regular expression of ours, or too large a one; it says which."""


class Pattern:
    """A regular expression; bytes are taken as UTF-8, and those that are none match nothing."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def is_in(self, content: str | bytes) -> bool:
        """Tell whether a part of the content matches."""
        return self._compiled.search(_encode(content)) is not None

    def is_all_of(self, content: str | bytes) -> bool:
        """Tell whether the content matches from its beginning to its end."""
        return self._compiled.fullmatch(_encode(content)) is not None


def compile_pattern(pattern: str) -> Pattern:
    """Return the pattern, or raise `PatternError` with a sentence for its author."""
    import re2  # type: ignore[import-untyped]

    if len(pattern) > LONGEST:
        raise PatternError(f"a regular expression may have {LONGEST} characters at most")
    options = re2.Options()
    options.max_mem = MEMORY_LARGEST
    # It would write to stderr by itself.
    options.log_errors = False
    options.never_capture = True
    # The package remembers what it compiled, and with it what matching has taken.
    re2.purge()
    try:
        return Pattern(re2.compile(pattern, options))
    except (re2.error, UnicodeEncodeError):
        raise PatternError(
            "this is not a regular expression that takes linear time; check its brackets and "
            "repetitions, and leave out look-around and references back"
        ) from None


def _encode(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", "replace")
